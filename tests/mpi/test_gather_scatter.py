"""gather and scatter: rows to the root and from it, bit for bit."""

import numpy as np
import pytest

import mpishare as ms
from mpishare import gather_scatter
from mpishare.transfer import rows
from tests.arrays import REPRESENTATIVES, bits
from tests.mpi.test_allgather import assert_rows


def assert_gathered(comm, local, root):
    """Gathers, and compares with rows that came by pickle."""
    result = ms.gather(local, root=root)
    assert (result is None) == (comm.rank != root)
    assert_rows(comm, result, local, is_writable=True)


def assert_scattered(comm, array, root):
    """Scatters, and compares with the part of `partition`."""
    result = ms.scatter(array if comm.rank == root else None, root=root)
    assert (result.shape, result.dtype) == (array[ms.partition(array.shape[0])].shape, array.dtype)
    assert result.flags.c_contiguous
    assert result.flags.writeable
    assert not np.shares_memory(result, array)
    parts = comm.gather(bits(result), root)  # the padding of an array that NumPy copied differs between ranks
    assert parts is None or b"".join(parts) == bits(array)


@pytest.mark.parametrize("name", [name for name, array in REPRESENTATIVES.items() if array.ndim])
def test_representatives_keep_their_bits(comm, name):
    for root in range(comm.size):
        assert_gathered(comm, REPRESENTATIVES[name][(comm.rank + 1) % 2 :], root)
        assert_scattered(comm, REPRESENTATIVES[name], root)


def test_any_number_of_messages(comm, monkeypatch):
    monkeypatch.setattr(rows, "LARGEST_MESSAGE_BYTES", 100_000)  # as if it were 2**31
    table = np.arange(300_000).reshape(-1, 3)
    for array in (table, np.asfortranarray(table), table[::-1, :2], table[:1]):
        assert_scattered(comm, array, comm.size - 1)
        assert_gathered(comm, array[comm.rank :], 0)


def test_no_memory_on_one_rank(comm, raised, monkeypatch):
    last = comm.size - 1

    def refuse(nbytes, limit):
        raise MemoryError

    if comm.rank == last:
        monkeypatch.setattr(gather_scatter, "acquire", refuse)
    for call in (lambda: ms.gather(np.ones(3), root=last), lambda: ms.scatter(np.ones(9))):
        errors = [error for error, _ in raised(call)]
        assert errors == ["PeerCapacityError"] * last + ["CapacityError"]
    monkeypatch.undo()
    assert ms.scatter(np.arange(comm.size)).tolist() == [comm.rank]
