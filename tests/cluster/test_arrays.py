"""tests/mpi on real hosts, evenly and unevenly filled; and the bytes of each call cross each link once."""

import json
import sys

import pytest

from tests.run import mpi_tests

ONE_SESSION = ["--leave-session-attached"]
"""Linux shares the cores among sessions, so that in one of its own a host whose ranks wait would get as much as one
whose ranks work: a test takes half as long where all hosts are in one."""
PLACED = [f"test_{name}.py" for name in ("sharing", "creation", "rows", "allreduce", "distribute", "assignment")]
PLACED += ["comm", "transfer"]
BY_SLOT, BY_NODE = ["--map-by", "slot"], ["--map-by", "slot", "--rank-by", "node"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("hosts", "ranks", "placed", "options"),
    [
        (2, "2", BY_SLOT, mpi_tests(only=["messages", "tasks", "compat"])),
        (3, "1,3,1", BY_NODE, mpi_tests(only=PLACED)),
    ],
    ids=["2 hosts even by slot", "3 hosts uneven by node"],
)
def test_on_hosts(make, hosts, ranks, placed, options):
    """Uneven hosts have the tests that depend on placement, and even ones those of messages, tasks and other libraries.

    Of the latter, no other launch has 4 ranks, which some tests need.
    """
    cluster = make(hosts, ranks=ranks)
    ended = cluster.mpiexec([*ONE_SESSION, *placed, sys.executable, *options], limit_s=800)
    assert " passed" in ended.stdout
    assert " skipped" not in ended.stdout
    for host in cluster.spec.hosts:
        assert cluster.shared_files(host) == []


UNEVEN = """
import numpy as np, mpishare as ms
from mpi4py import MPI
comm = MPI.COMM_WORLD
shared = ms.share(np.full(50 << 20, 7, "u1") if comm.rank == 0 else None)
assert (shared == 7).all()
print(ms.topology().host, ms.report().segments[0].backend)
try: ms.zeros(60 << 20, "u1", backend="window")
except ms.CapacityError as error: print(error)
again = ms.share(np.full(10 << 20, 8, "u1") if comm.rank == 0 else None)
assert (again == 8).all() and (shared == 7).all()
"""


def test_hosts_with_shared_memory_of_different_size(make):
    ended = make(3, shm="1g,64m,256m").mpiexec([sys.executable, "-c", UNEVEN])
    lines = ended.stdout.splitlines()
    assert [lines.count(line) for line in ("h1 window", "h2 memmap in memory", "h3 window")] == [2, 2, 2]
    assert ended.stdout.count("62,914,560 bytes do not fit in /dev/shm of host h2") == 6


PROGRAM = [sys.executable, "-m", "tests.cluster.programs.links"]
MIB = 64


def parts(hosts, call, *args):
    """What each host's link carried during a call of 64 MiB."""
    links = json.loads(hosts.mpiexec([*ONE_SESSION, *PROGRAM, call, str(MIB), *args]).stdout)
    return {host: tuple(count / (MIB << 20) for count in counts) for host, counts in links.items()}


def assert_once(links, path):
    """The bytes left the first host of the path once, crossed the others once each way, and ended at the last."""
    for place, host in enumerate(path):
        received, sent, _ = links[host]
        assert received == pytest.approx(0 if place == 0 else 1, abs=0.05)
        assert sent == pytest.approx(0 if place == len(path) - 1 else 1, abs=0.05)


@pytest.mark.parametrize(("root", "path"), [(1, ["h2", "h3", "h1"]), (4, ["h3", "h1", "h2"])])
def test_once_from_every_root(make, root, path):
    assert_once(parts(make(3, ranks="1,3,1"), "share", str(root)), path)


def test_a_file_is_read_once_and_crosses_each_link_once(make):
    links = parts(make(3, ranks="1,3,1"), "load", "job")
    assert_once(links, ["h1", "h2", "h3"])
    read = {host: count - received for host, (received, _, count) in links.items()}  # sockets are read as well
    assert read == pytest.approx({"h1": 1, "h2": 0, "h3": 0}, abs=0.05)


def test_files_of_each_node_cross_no_link(make):
    links = parts(make(2), "load", "node")
    assert links == {host: pytest.approx((0, 0, 1), abs=0.05) for host in ("h1", "h2")}


def test_taken_rows_cross_the_link_once_for_each_rank(make):
    links = parts(make(2), "take")
    assert links == {host: pytest.approx((1, 1, 1), abs=0.05) for host in ("h1", "h2")}  # half of the rows, for 2 ranks


@pytest.mark.parametrize(("call", "times", "counts"), [("allreduce", 2, [1, 1, 1]), ("allgather", 1, [1, 3, 1])])
def test_the_least_that_must_cross(make, call, times, counts):
    links = parts(make(3, ranks="1,3,1"), call)
    for host, (received, sent, _) in enumerate(links.values()):
        # All but the host's own rows come in, all but the next host's go out.
        assert received == pytest.approx(times * (1 - counts[host] / sum(counts)), abs=0.07)
        assert sent == pytest.approx(times * (1 - counts[(host + 1) % 3] / sum(counts)), abs=0.07)
