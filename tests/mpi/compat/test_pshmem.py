"""MPIShared and MPILock: pshmem's own tests, with its imports changed.

They are whole on 1 and 2 ranks. On more, which may have a core for two and wait for each other in some ten thousand
collectives, loops are shorter.
"""

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


def test_data_that_numpy_refuses_is_an_error_on_all_ranks(comm):
    with MPIShared((2, 2), np.float64, comm) as shared:
        data = [[1.0, 2.0], [3.0]] if comm.rank == 0 else None
        with pytest.raises((ValueError, ms.PeerError), match="inhomogeneous"):
            shared.set(data)
        with pytest.raises((ValueError, ms.PeerError), match="inhomogeneous"):
            shared[:] = data


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
