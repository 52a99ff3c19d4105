"""Every array test of tests/mpi, on real hosts, evenly and unevenly filled, ranks placed by slot and by node."""

from __future__ import annotations

import sys

import pytest

from tests.cluster.conftest import Make

SESSION = [sys.executable, "-m", "tests.mpi.session", "tests/mpi", "--ignore=tests/mpi/test_large.py"]
BY_SLOT, BY_NODE = ["--map-by", "slot"], ["--map-by", "slot", "--rank-by", "node"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("hosts", "ranks", "placed"),
    [(2, "2", BY_SLOT), (3, "1,3,1", BY_NODE), (4, "1", BY_SLOT)],
    ids=["2 hosts even by slot", "3 hosts uneven by node", "4 hosts of one rank"],
)
def test_on_hosts(make: Make, hosts: int, ranks: str, placed: list[str]) -> None:
    one = make(hosts, ranks=ranks, shm="256m", name=f"arrays-{hosts}")
    ended = one.mpiexec([*placed, *SESSION], limit_s=280)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert " passed" in ended.stdout
    assert " skipped" not in ended.stdout
    for host in one.spec.hosts:
        assert one.shared_files(host) == []


def test_hosts_with_shared_memory_of_different_size(make: Make) -> None:
    one = make(3, shm="1g,64m,256m", name="shm")
    code = (
        "import numpy as np, mpishare as ms; from mpi4py import MPI\n"
        "rank = MPI.COMM_WORLD.rank\n"
        "shared = ms.share(np.full(50 << 20, 7, 'u1') if rank == 0 else None)\n"
        "assert (shared == 7).all()\n"
        "try: ms.zeros(100 << 20, 'u1')\n"
        "except (ms.CapacityError, ms.PeerError) as error: print(error)\n"
        "again = ms.share(np.full(10 << 20, 8, 'u1') if rank == 0 else None)\n"
        "assert (again == 8).all() and (shared == 7).all()\n"
    )
    ended = one.mpiexec([sys.executable, "-c", code])
    assert ended.returncode == 0, ended.stderr
    told = [line for line in ended.stdout.splitlines() if line]
    assert len(told) == 6
    assert all("104,857,600 bytes do not fit in /dev/shm of host h2" in line for line in told)
