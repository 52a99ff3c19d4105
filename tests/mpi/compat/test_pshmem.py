"""MPIShared and MPILock: pshmem's own tests, with its imports changed.

They are whole on 1 and 2 ranks. On more, which may have a core for two and wait for each other in some ten thousand
collectives, loops are shorter.
"""

from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import mpishare as ms
from mpishare.compat.pshmem import MPILock, MPIShared
from tests.originals import load

IMPORTS = {
    "from .shmem import": "from mpishare.compat.pshmem import",
    "from .locking import": "from mpishare.compat.pshmem import",
    "from .batch import MPIBatch\n": "",
    "from .utils import exception_guard\n": "",
}
SHORTER = {
    "[np.int32, np.int64, np.float32, np.float64]": "[np.float64]",
    "updatedims = (1, 1,": "updatedims = (1, 5,",
    "n_seg < 10000": "n_seg < 200",
}
original = load("pshmem", "test.py", IMPORTS if MPI.COMM_WORLD.size <= 2 else IMPORTS | SHORTER)
ShmemTest, LockTest = original.ShmemTest, original.LockTest


class SerialTest(ShmemTest):  # type: ignore[misc, valid-type]
    """The same without MPI."""

    def setUp(self):
        super().setUp()
        self.comm, self.procs = None, 1


def test_what_is_wrong_on_one_rank_is_raised_on_all(comm):
    root = comm.size - 1
    with MPIShared((4, 6), np.float64, comm) as shared:
        for data, offset in [(np.ones((2, 2)), (3, 0)), (np.ones(2), None), (np.ones((1, 1), "f4"), None)]:
            with pytest.raises(RuntimeError, match="its place has shape"):
                shared.set(data if comm.rank == root else None, offset, fromrank=root)
        with pytest.raises(RuntimeError, match=f"{comm.size} ranks assign a value" if comm.size > 1 else "its place"):
            shared[0] = 1.0
        shared[1, 2:4] = np.ones(2) if comm.rank == root else None
        assert shared[:].sum() == 2
        assert not shared.data.flags.writeable


class Ended:
    """Data that end the program when they are read."""

    def __array__(self, *_, **__):
        raise SystemExit(3)


@pytest.mark.parametrize(("data", "error"), [([[1.0, 2.0], [3.0]], ValueError), (Ended(), SystemExit)])
def test_data_that_cannot_be_read_are_the_same_error_on_all_ranks(comm, data, error):
    with MPIShared((2, 2), np.float64, comm) as shared:
        with pytest.raises(error):
            shared.set(data if comm.rank == 0 else None)
        with pytest.raises(error):
            shared[:] = data if comm.rank == 0 else None
        assert not shared[:].any()


@pytest.mark.ranks(2)
def test_ranks_that_name_different_ones(comm, raised):
    with MPIShared((8,), np.float64, comm) as shared:
        for fromrank, error in ((comm.rank, "MismatchError"), ((comm.rank + 1) % comm.size, "MismatchError")):
            assert {kind for kind, _ in raised(lambda: shared.set(np.ones(1), fromrank=fromrank))} == {error}  # noqa: B023
        assert {kind for kind, _ in raised(lambda: shared.set(np.ones(1), fromrank=99))} == {"ArgumentError"}


@pytest.mark.parametrize("with_mpi", [True, False])
def test_what_toast_does(comm, with_mpi):
    """It assigns by one rank, whose key alone counts; fills `data` and `_flat` together; and reads private names."""
    root, used = comm.size - 1, comm if with_mpi else None
    is_root, times = not with_mpi or comm.rank == root, np.arange(6.0)
    shared: Any
    with MPIShared((6, 4), np.float64, used) as shared:
        if not with_mpi or shared.nodecomm.rank == 0:
            shared.data[2:4] = 7.0
            shared._flat[:8] = 5.0
        ms.fence()
        assert (shared._nodecomm, shared._n * shared._dsize) == (shared.nodecomm, 192)
        assert shared[:].tolist() == [[5.0] * 4] * 2 + [[7.0] * 4] * 2 + [[0.0] * 4] * 2
        for key, value in (
            (np.s_[:, 1], times),
            (np.s_[1:3, :], np.ones((2, 4))),
            (np.s_[-1, :], np.full((1, 4), 3.0)),
        ):
            expected = shared[:].copy()
            expected[key] = value
            ms.fence(scope="all")
            shared[key if is_root else None] = value if is_root else None
            assert shared[:].tolist() == expected.tolist()
            assert np.array(shared[-1], copy=None).base is not None
        ms.fence(scope="all")
        if not with_mpi or shared.nodecomm.rank == 0:
            shared._flat[:] = 0
        ms.fence()
        assert not np.asarray(shared).any()
    with MPIShared((0, 4), np.float64, used) as nothing, pytest.raises(RuntimeError, match="no items"):
        assert np.asarray(nothing).shape == (0, 4)
        nothing[:] = None


def test_memory_is_that_of_views(comm):
    before = len(ms.report().segments)
    shared = MPIShared([5], "i4", comm)
    view = shared[:]
    shared.close()
    assert shared[:] is None
    assert len(ms.report().segments) == before + 1
    assert view.tolist() == [0] * 5


def test_only_one_rank_has_the_lock(comm):
    with MPIShared((1,), int, comm) as counter, MPILock(comm) as lock:
        for _ in range(20):
            lock.lock()
            lock.lock()
            counter._array[0] += 1
            lock.unlock()
            lock.unlock()
        ms.fence()
        assert counter[0] == 20 * ms.topology(comm).node_size
