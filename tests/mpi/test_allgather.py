"""allgather: every rank's rows, bit for bit, one copy per node."""

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


def assert_gathered(comm, local):
    assert_rows(comm, ms.allgather(local, comm=comm), local, is_writable=False)


@pytest.mark.parametrize("backend", ["", "private"])
@pytest.mark.parametrize("chunk", ["", "1000", "256K"])
def test_every_size_in_every_way(configured, chunk, backend):
    duplicate = configured(chunk=chunk, backend=backend)
    for array in REPRESENTATIVES.values():
        if array.ndim:
            assert_gathered(duplicate, array[(duplicate.rank + 1) % 2 :])
    for count in (0, 1, 17, 5000, *(() if chunk == "1000" else (200_001,))):
        assert_gathered(duplicate, (np.arange((count + duplicate.rank) * 5) * (duplicate.rank + 1)).reshape(-1, 5))
        for owner in {0, duplicate.size - 1}:
            assert_gathered(duplicate, filled(np.dtype("u1"), (count * 3 if duplicate.rank == owner else 0, 2)))


@pytest.mark.parametrize("call", [ms.allgather, ms.allreduce])
def test_one_copy_per_node(call):
    result = call(np.arange(300_000.0))
    largest = ms.report().segments[0]
    assert (largest.nbytes, largest.made_by, largest.copies) == (result.nbytes, call.__name__, 1)


def test_counts_that_do_not_fit_in_a_note(comm, monkeypatch):
    monkeypatch.setattr(rows, "_MAX_NOTED_RANKS", 0)  # as with more ranks than a test has
    assert_gathered(comm, np.arange(3 * comm.rank) + comm.rank)
    gathered = ms.gather(np.full(comm.rank, comm.rank))
    assert (gathered is None) == (comm.rank > 0)
    assert gathered is None or gathered.tolist() == [rank for rank in range(comm.size) for _ in range(rank)]


@pytest.mark.two_launches
@pytest.mark.ranks(2)
def test_more_rows_than_an_array_can_have(comm, raised):
    empty, many = np.empty((2**62, 0), "u1"), np.broadcast_to(np.uint8(1), (2**62,))
    for call in (lambda: ms.allgather(empty), lambda: ms.gather(empty), lambda: ms.allgather(many)):
        assert_refused_alike(raised(call), "SpecError", "exceed the address space")
    assert ms.allgather(np.ones(1)).size == comm.size
