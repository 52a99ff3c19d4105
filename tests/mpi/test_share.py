"""share: the same bits on every rank, one copy per node, read-only, alive as long as it is seen."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from numpy.typing import NDArray

import mpishare as ms
from tests.arrays import DTYPES, bits, filled, layouts

pytestmark = pytest.mark.mpi


def assert_shared(comm: MPI.Intracomm, source: NDArray[Any], root: int) -> None:
    """Shares `source` from `root` and compares every rank's view with the root's bits."""
    shared = ms.share(source if comm.rank == root else None, root=root)
    expected = comm.bcast((bits(source), source.shape, source.flags.fnc) if comm.rank == root else None, root)
    assert (bits(shared), shared.shape, shared.flags.fnc) == expected
    assert shared.dtype == source.dtype
    assert (shared.dtype.type is np.record) == (source.dtype.type is np.record)
    assert shared.dtype.isalignedstruct == source.dtype.isalignedstruct
    assert type(shared) is np.ndarray
    assert not shared.flags.writeable


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_and_layout_keeps_its_bits(comm: MPI.Intracomm, name: str) -> None:
    for number, source in enumerate(layouts(DTYPES[name]).values()):
        assert_shared(comm, source, number % comm.size)


def test_every_root(comm: MPI.Intracomm) -> None:
    for root in range(comm.size):
        assert_shared(comm, filled(np.dtype("f8"), (3, 1000)), root)


@pytest.mark.parametrize("nbytes", [1, 4095, 4096, 4097, (128 << 10) - 1, 128 << 10, (128 << 10) + 1, 3_000_001])
def test_sizes_around_a_page_and_a_chunk(comm: MPI.Intracomm, nbytes: int) -> None:
    assert_shared(comm, filled(np.dtype("u1"), (nbytes,)), comm.size - 1)


def test_other_ranks_argument_is_ignored(comm: MPI.Intracomm) -> None:
    mine: Any = np.arange(5) if comm.rank == 0 else object()
    shared = ms.share(mine)
    assert shared.tolist() == [0, 1, 2, 3, 4]


def test_memory_map_is_a_plain_array(comm: MPI.Intracomm, tmp_path: Any) -> None:
    np.save(tmp_path / "table.npy", np.arange(12.0).reshape(3, 4))
    source = np.load(tmp_path / "table.npy", mmap_mode="r")
    assert_shared(comm, source, 0)


def test_one_copy_per_node(comm: MPI.Intracomm) -> None:
    here = ms.topology()
    ours = ms.empty(1, "i8")
    if here.is_leader:
        ours[0] = here.node
    ms.fence()
    assert comm.allgather(int(ours[0])) == [here.node_of(rank) for rank in range(comm.size)]


def test_the_source_may_change_afterwards(comm: MPI.Intracomm) -> None:
    source = np.arange(1000.0)
    shared = ms.share(source if comm.rank == 0 else None)
    source[:] = -1
    comm.Barrier()
    assert shared.tolist() == list(range(1000))


def test_writing_is_refused_and_cannot_be_switched_on() -> None:
    shared = ms.share(np.arange(3.0))
    with pytest.raises(ValueError, match="read-only"):
        shared[0] = 1
    for view in (shared, shared[1:], shared.view("i8")):
        with pytest.raises(ValueError, match="WRITEABLE"):
            view.flags.writeable = True


def test_a_view_outlives_all_else(comm: MPI.Intracomm) -> None:
    shared = ms.share(np.arange(100_000.0) if comm.rank == 0 else None)
    row = shared.reshape(100, 1000)[7, ::3]
    del shared
    gc.collect()
    others = [ms.zeros(100_000) for _ in range(3)]
    assert row.tolist() == list(np.arange(7000.0, 8000.0, 3))
    del others


def test_a_view_kept_on_one_rank_only(comm: MPI.Intracomm) -> None:
    kept = [ms.share(np.full(1000, number) if comm.rank == 0 else None) for number in range(10)]
    if comm.rank != comm.size - 1:
        kept.clear()
    gc.collect()
    comm.Barrier()
    assert all(array.tolist() == [number] * 1000 for number, array in enumerate(kept))


def test_views_outlive_their_communicator(comm: MPI.Intracomm) -> None:
    own = comm.Dup()
    shared = ms.share(np.arange(10) if own.rank == 0 else None, comm=own)
    own.Free()
    assert shared.tolist() == list(range(10))


def test_subcommunicators_share_apart(comm: MPI.Intracomm) -> None:
    half = comm.Split(comm.rank % 2, -comm.rank)
    shared = ms.share(np.full(3, comm.rank) if half.rank == 0 else None, comm=half)
    assert set(shared.tolist()) == {half.bcast(comm.rank)}
    half.Free()


def test_messages_of_the_caller_are_left_alone(comm: MPI.Intracomm) -> None:
    """Receives from any source with any tag, open on the caller's communicator while we share, stay the caller's."""
    inbox = np.zeros(1, "i8")
    request = comm.Irecv(inbox, MPI.ANY_SOURCE, MPI.ANY_TAG)
    shared = ms.share(np.arange(1000) if comm.rank == 0 else None)
    ms.bcast(ms.zeros(10))
    comm.Send(np.array([comm.rank], "i8"), (comm.rank + 1) % comm.size, 77)
    request.Wait()
    assert inbox[0] == (comm.rank - 1) % comm.size
    assert shared[-1] == 999
