"""The tests of tests/mpi on real hosts, evenly and unevenly filled, ranks placed by slot and by node."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cluster.conftest import Make
from tests.run import ABOVE, mpi_tests

BY_SLOT, BY_NODE = ["--map-by", "slot"], ["--map-by", "slot", "--rank-by", "node"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("hosts", "ranks", "placed", "without"),
    [(2, "2", BY_SLOT, []), (3, "1,3,1", BY_NODE, [*ABOVE, "memory"]), (4, "1", BY_SLOT, [*ABOVE, "memory"])],
    ids=["2 hosts even by slot", "3 hosts uneven by node", "4 hosts of one rank"],
)
def test_on_hosts(make: Make, hosts: int, ranks: str, placed: list[str], without: list[str]) -> None:
    """All of them in one placement, and in the others those that depend on it."""
    one = make(hosts, ranks=ranks, shm="256m", name=f"arrays-{hosts}")
    ended = one.mpiexec([*placed, sys.executable, *mpi_tests(without=without)], limit_s=280)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert " passed" in ended.stdout
    assert " skipped" not in ended.stdout
    for host in one.spec.hosts:
        assert one.shared_files(host) == []


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


def test_hosts_with_shared_memory_of_different_size(make: Make) -> None:
    one = make(3, shm="1g,64m,256m", name="shm")
    ended = one.mpiexec(["-x", "MPISHARE_BACKEND=window,memmap", sys.executable, "-c", UNEVEN])
    assert ended.returncode == 0, ended.stderr
    told = ended.stdout.splitlines()
    assert [told.count(line) for line in ("h1 window", "h2 memmap in memory", "h3 window")] == [2, 2, 2]
    assert ended.stdout.count("62,914,560 bytes do not fit in /dev/shm of host h2") == 6


COMPRESSED = """
import numpy as np, mpishare as ms
from mpi4py import MPI
comm = MPI.COMM_WORLD
here, context = ms.topology(), context_of()
last = comm.size - 1
zeros, noise = np.zeros(3 << 20), np.random.default_rng(1).integers(0, 256, 5 << 20, "u1")
sent = [zeros, noise, {"a": zeros, "b": noise, "c": np.arange(3)}, zeros[::2], zeros.astype("i4")[:2000]]
for one in sent:
    if comm.rank == 0:
        ms.send(one, last, compress="auto")
    elif comm.rank == last:
        found = ms.recv(0)
        pairs = zip(one.values(), found.values()) if isinstance(one, dict) else [(one, found)]
        assert all((a == b).all() and a.dtype == b.dtype for a, b in pairs)
if comm.rank == 0:
    print(*context.link_speeds, all(1e7 < speed < 9e7 for speed in context.link_speeds.values()))
"""


def test_compressed_messages_over_a_slow_link(make: Make) -> None:
    one = make(2, ranks="2", rate="400mbit", name="compressed")
    ended = one.mpiexec([sys.executable, "-c", COMPRESSED], limit_s=60)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["1", "True"]  # the link to the other node was found to carry 10 to 90 MB/s


def test_files_and_checkpoints_over_hosts(make: Make, tmp_path: Path) -> None:
    one = make(3, ranks="1,3,1", name="heat")
    words = ["jobs/heat.py", "--size", "41,30", "--steps", "60", "--every", "20", "--check", "--json"]
    words += ["--checkpoint", str(tmp_path / "run"), "--output", str(tmp_path / "heat.h5")]
    ended = one.mpiexec([sys.executable, *words])
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert (told["nodes"], told["step"], told["right"]) == (3, 60, True)
