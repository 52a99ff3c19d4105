"""The tests of tests/mpi on real hosts, evenly and unevenly filled, ranks placed by slot and by node."""

import ast
import sys

import pytest

from tests.run import ABOVE, mpi_tests

BY_SLOT, BY_NODE = ["--map-by", "slot"], ["--map-by", "slot", "--rank-by", "node"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("hosts", "ranks", "placed", "without"),
    [(2, "2", BY_SLOT, ["memory", "kernels", "objects"]), (3, "1,3,1", BY_NODE, ["memory", *ABOVE])],
    ids=["2 hosts even by slot", "3 hosts uneven by node"],
)
def test_on_hosts(make, hosts, ranks, placed, without):
    """In one placement all that send messages, and in the other those that depend on it."""
    cluster = make(hosts, ranks=ranks)
    ended = cluster.mpiexec([*placed, sys.executable, *mpi_tests(without=without)], limit_s=280)
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
    environ = ["-x", "MPISHARE_BACKEND=window,memmap"]
    ended = make(3, shm="1g,64m,256m").mpiexec([*environ, sys.executable, "-c", UNEVEN])
    lines = ended.stdout.splitlines()
    assert [lines.count(line) for line in ("h1 window", "h2 memmap in memory", "h3 window")] == [2, 2, 2]
    assert ended.stdout.count("62,914,560 bytes do not fit in /dev/shm of host h2") == 6


COMPRESSED = """
import numpy as np, mpishare as ms
from mpi4py import MPI
from mpishare.comm.lookup import context_of
rank, last, speeds = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size - 1, context_of().link_speeds
for item in (np.zeros(3 << 20), np.random.default_rng(1).integers(0, 256, 5 << 20, "u1")):
    if rank == 0: ms.send(item, last, compress="auto")
    elif rank == last: assert (ms.recv(0) == item).all()
if rank == 0: print(*speeds.items())
"""


def test_compressed_messages_over_a_slow_link(make):
    ended = make(2, rate="400mbit").mpiexec([sys.executable, "-c", COMPRESSED])
    [(node, speed)] = map(ast.literal_eval, ended.stdout.splitlines())
    assert node == 1
    assert 1e7 < speed < 9e7  # bytes a second as measured
