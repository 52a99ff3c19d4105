"""bcast, fence and partition on arrays that exist."""

from __future__ import annotations

import time

import numpy as np
import pytest
from mpi4py import MPI

import mpishare as ms

pytestmark = pytest.mark.mpi


def test_bcast_refreshes_in_place_from_every_root(comm: MPI.Intracomm) -> None:
    array = ms.zeros((300, 1000), "i8")  # several chunks
    for root in range(comm.size):
        if comm.rank == root:
            array[:] = np.arange(300_000).reshape(300, 1000) + root
        assert ms.bcast(array, root=root) is array
        assert array[0, 0] == root
        assert array[-1, -1] == 299_999 + root
        assert array.sum() == 300_000 * root + 299_999 * 300_000 // 2
        comm.Barrier()


def test_bcast_sends_what_any_rank_of_the_node_wrote(comm: MPI.Intracomm) -> None:
    here = ms.topology()
    array = ms.zeros(here.size, "i8")
    array[comm.rank] = comm.rank + 1
    ms.bcast(array, root=0)
    first = here.ranks_of(0)
    assert array.tolist() == [rank + 1 if rank in first else 0 for rank in range(here.size)]


def test_bcast_of_a_part(comm: MPI.Intracomm) -> None:
    array = ms.zeros((4, 100), "f4")
    if comm.rank == comm.size - 1:
        array[:] = 7
    comm.Barrier()
    ms.bcast(array[1:3], root=comm.size - 1)
    here = ms.topology()
    outside = 7 if here.node == here.node_of(comm.size - 1) else 0
    assert (array[1:3] == 7).all()
    assert (array[[0, 3]] == outside).all()


def test_bcast_of_fortran_and_odd_dtypes(comm: MPI.Intracomm) -> None:
    for dtype in ("M8[ns]", ">f8", "S3", [("a", "i1"), ("b", ">f8")]):
        array = ms.zeros((30, 20), dtype, order="F")
        expected = np.arange(600 * array.itemsize, dtype="u1")
        if comm.rank == 0:
            array.ravel(order="K").view("u1")[:] = expected
        ms.bcast(array)
        assert array.tobytes(order="A") == expected.tobytes()


@pytest.mark.parametrize("scope", ["node", "all"])
def test_no_rank_leaves_a_fence_before_the_last_has_come(comm: MPI.Intracomm, scope: str) -> None:
    here = ms.topology()
    mates = here.node_comm if scope == "node" else comm
    array = ms.zeros(comm.size, "i8")
    for late in range(mates.size):
        mates.Barrier()
        if mates.rank == late:
            time.sleep(0.02)  # the others are in the fence by now, and must stay there
            array[late] = 1
        came = time.monotonic()
        ms.fence(scope=scope)
        left = time.monotonic()
        assert min(mates.allgather(left)) >= max(mates.allgather(came))
        if scope == "node" or here.node_of(late) == here.node:
            assert array[late] == 1
    comm.Barrier()


def test_partition_takes_numpys_integers(comm: MPI.Intracomm) -> None:
    for count in (np.int8(100), np.uint8(200), np.int32(2**31 - 1)):
        parts = comm.allgather(ms.partition(count))  # type: ignore[arg-type]
        assert sum(part.stop - part.start for part in parts) == int(count)


@pytest.mark.parametrize("count", [0, 1, 2, 7, 1000])
def test_partition_covers_each_item_once(comm: MPI.Intracomm, count: int) -> None:
    here = ms.topology()
    parts = comm.allgather(ms.partition(count))
    assert [item for part in parts for item in range(count)[part]] == list(range(count))
    node_parts = here.node_comm.allgather(ms.partition(count, scope="node"))
    assert [item for part in node_parts for item in range(count)[part]] == list(range(count))


def test_partition_of_an_array_wider_than_a_node(comm: MPI.Intracomm) -> None:
    array = ms.zeros(1001)
    array[ms.partition(1001, scope="node")] += 1
    ms.fence()
    assert (array == 1).all()
