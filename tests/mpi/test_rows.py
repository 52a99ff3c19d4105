"""Rows of all ranks, to all, to the root and from it: bit for bit, one copy per node."""

import numpy as np
import pytest

import mpishare as ms
from mpishare.transfer import rows
from tests.arrays import REPRESENTATIVES, bits, filled
from tests.mpi.test_errors import assert_refused_alike


def assert_rows(comm, result, local, *, is_writable):
    """Compares gathered rows, on the ranks that have them, with rows that came by pickle."""
    rows_by_pickle = comm.allgather((local.shape[0], bits(local)))
    if result is None:
        return
    assert bits(result) == b"".join(part for _, part in rows_by_pickle)
    assert result.shape == (sum(count for count, _ in rows_by_pickle), *local.shape[1:])
    assert (result.dtype, type(result)) == (local.dtype, np.ndarray)
    assert result.dtype.isalignedstruct == local.dtype.isalignedstruct
    assert result.flags.c_contiguous
    assert result.flags.writeable == is_writable


def assert_allgathered(comm, local):
    assert_rows(comm, ms.allgather(local, comm=comm), local, is_writable=False)


@pytest.mark.parametrize("backend", ["", "private"])
def test_every_size_in_every_way(configured, backend):
    duplicate = configured(backend=backend)
    for array in REPRESENTATIVES.values():
        if array.ndim:
            assert_allgathered(duplicate, array[(duplicate.rank + 1) % 2 :])
    for count in (0, 1, 17, 5000, 200_001):
        assert_allgathered(duplicate, (np.arange((count + duplicate.rank) * 5) * (duplicate.rank + 1)).reshape(-1, 5))
        for owner in {0, duplicate.size - 1}:
            assert_allgathered(duplicate, filled(np.dtype("u1"), (count * 3 if duplicate.rank == owner else 0, 2)))


def test_more_bytes_than_one_call_of_mpi_takes(comm, monkeypatch):
    for limit in (1000, 40_000):
        monkeypatch.setattr(rows, "LARGEST_MESSAGE_BYTES", limit)
        for count in (0, 3, 5000, 200_001):
            assert_allgathered(comm, np.arange(count + comm.rank) * (comm.rank + 1))


@pytest.mark.parametrize("call", [ms.allgather, ms.allreduce])
def test_one_copy_per_node(call):
    result = call(np.arange(300_000.0))
    largest = ms.report().segments[0]
    assert (largest.nbytes, largest.made_by, largest.copies) == (result.nbytes, call.__name__, 1)


@pytest.mark.once
@pytest.mark.ranks(2)
def test_more_rows_than_an_array_can_have(comm, raised):
    empty, many = np.empty((2**62, 0), "u1"), np.broadcast_to(np.uint8(1), (2**62,))
    for call in (lambda: ms.allgather(empty), lambda: ms.gather(empty), lambda: ms.allgather(many)):
        assert_refused_alike(raised(call), "SpecError", "exceed the address space")
    assert ms.allgather(np.ones(1)).size == comm.size
    empty = empty if comm.rank == 0 else empty[:1]
    assert ms.allgather(empty).shape == (2**62 + comm.size - 1, 0)
    gathered = ms.gather(empty)
    assert gathered is None or gathered.shape == (2**62 + comm.size - 1, 0)


@pytest.mark.parametrize("name", [name for name, array in REPRESENTATIVES.items() if array.ndim])
def test_representatives_keep_their_bits(comm, name):
    array, local = REPRESENTATIVES[name], REPRESENTATIVES[name][(comm.rank + 1) % 2 :]
    for root in range(comm.size):
        gathered = ms.gather(local, root=root)
        assert (gathered is None) == (comm.rank != root)
        assert_rows(comm, gathered, local, is_writable=True)
        result = ms.scatter(array if comm.rank == root else None, root=root)
        assert (result.shape, result.dtype) == (array[ms.partition(array.shape[0])].shape, array.dtype)
        assert result.flags.c_contiguous
        assert result.flags.writeable
        assert not np.shares_memory(result, array)
        parts = comm.gather(bits(result), root)  # the padding of an array that NumPy copied differs between ranks
        assert parts is None or b"".join(parts) == bits(array)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("call", [ms.allgather, ms.gather, lambda local: ms.distribute(local=local)])
def test_strings_of_different_widths(comm, raised, call):
    for dtype in (f"U{comm.rank + 1}", f"S{comm.rank + 1}", [("name", f"S{comm.rank + 1}")]):
        errors = raised(lambda: call(np.zeros(1, dtype)))  # noqa: B023
        assert all(error == "MismatchError" and "use .astype" in text for error, text in errors), errors
