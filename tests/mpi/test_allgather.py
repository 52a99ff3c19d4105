"""allgather: every rank's rows, bit for bit, one copy per node."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from numpy.typing import NDArray

import mpishare as ms
from mpishare.memory import selection
from mpishare.memory.private import Private
from mpishare.transfer import rows as rows_module
from tests.arrays import DTYPES, bits, filled, layouts
from tests.mpi.test_errors import assert_refused
from tests.mpi.test_segments import use

pytestmark = pytest.mark.mpi

Raised = Callable[[Callable[[], object]], list[tuple[str, str]]]


def rows(dtype: np.dtype[Any], rank: int, count: int) -> NDArray[Any]:
    """`count` rows that differ from those of other ranks."""
    return filled(dtype, (count + rank, 3))[rank:][::-1]


def assert_gathered(comm: MPI.Intracomm, local: NDArray[Any], **words: Any) -> None:
    """Gathers, and compares with what comes by pickle."""
    found = ms.allgather(local, **words)
    everybody = comm.allgather((local.shape[0], bits(local)))
    assert bits(found) == b"".join(one for _, one in everybody)
    assert found.shape == (sum(count for count, _ in everybody), *local.shape[1:])
    assert found.dtype == local.dtype
    assert found.dtype.isalignedstruct == local.dtype.isalignedstruct
    assert type(found) is np.ndarray
    assert found.flags.c_contiguous
    assert not found.flags.writeable


def test_every_dtype_keeps_its_bits(comm: MPI.Intracomm) -> None:
    for dtype in DTYPES.values():
        assert_gathered(comm, rows(dtype, comm.rank, (comm.rank * 2 + 1) % 4))


def test_every_layout(comm: MPI.Intracomm) -> None:
    for dtype in (np.dtype("f8"), DTYPES["gaps"], DTYPES["struct"]):
        for local in layouts(dtype).values():
            if local.ndim:
                assert_gathered(comm, local)


def test_all_rows_on_one_rank(comm: MPI.Intracomm) -> None:
    for chosen, count in product({0, comm.size - 1}, (1, 3000, 1_000_000)):
        assert_gathered(comm, filled(np.dtype("u1"), (count if comm.rank == chosen else 0, 2)))


def test_no_rows_at_all(comm: MPI.Intracomm) -> None:
    assert_gathered(comm, np.empty((0, 4)))
    assert_gathered(comm, np.empty((3, 0), "i2"))


@pytest.mark.parametrize("settings", [{}, {"chunk_bytes": 1000}, {"chunk_bytes": 1 << 18}], ids=["", "1000", "256K"])
def test_sizes_and_ways(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, settings: dict[str, int]) -> None:
    use(monkeypatch, **settings)
    counts = (1, 17, 5000) if settings.get("chunk_bytes") == 1000 else (1, 17, 5000, 200_001)
    for count in counts:
        local = (np.arange((count + comm.rank) * 5) * (comm.rank + 1)).reshape(-1, 5)
        found = ms.allgather(local)
        starts = np.cumsum([0, *(count + rank for rank in range(comm.size))])
        for rank in range(comm.size):
            part = found[starts[rank] : starts[rank + 1]]
            assert (part.ravel() == np.arange(part.size) * (rank + 1)).all()


def test_where_each_rank_has_its_own_copy(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch)
    monkeypatch.setattr(selection, "KINDS", tuple(kind for kind in selection.KINDS if isinstance(kind, Private)))
    for count in (2, 100_000):
        assert_gathered(comm, filled(np.dtype("i4"), (count + comm.rank, 2)) + np.int32(comm.rank))


def test_one_copy_per_node(comm: MPI.Intracomm) -> None:
    kept = ms.allgather(np.arange(300_000.0))
    largest = ms.report().segments[0]
    assert (largest.nbytes, largest.made_by, largest.copies) == (kept.nbytes, "allgather", 1)


@pytest.mark.ranks(2)
def test_more_rows_than_an_array_can_have(raised: Raised) -> None:
    none, many = np.empty((2**62, 0), "u1"), np.broadcast_to(np.uint8(1), (2**62,))
    for call in (lambda: ms.allgather(none), lambda: ms.gather(none), lambda: ms.allgather(many)):
        told = raised(call)
        assert {error for error, _ in told} == {"SpecError"}
        assert "exceed the address space" in told[0][1]
    assert ms.allgather(np.ones(1)).size == ms.topology().size


def test_counts_that_have_no_room_in_the_note(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "_NOTED_RANKS", 0)  # as if there were many ranks
    assert_gathered(comm, np.arange(3 * comm.rank) + comm.rank)
    found = ms.gather(np.full(comm.rank, comm.rank))
    assert found is None or found.tolist() == [rank for rank in range(comm.size) for _ in range(rank)]


BAD: dict[str, tuple[Any, str, str]] = {
    "no dimension": (np.array(3.0), "SpecError", "has no rows"),
    "a list": ([1.0, 2.0], "SpecError", "list cannot be shared"),
    "objects": (np.array([None, 1]), "SpecError", "dtype object cannot be shared"),
}


def test_bad_rows_on_one_rank(comm: MPI.Intracomm, raised: Raised) -> None:
    last = comm.size - 1
    for bad, error, words in BAD.values():
        local = bad if comm.rank == last else np.ones(2)
        told = raised(lambda local=local: ms.allgather(local))  # type: ignore[misc]
        assert_refused(told, last, error, words)
        assert ms.allgather(np.ones(1)).tolist() == [1.0] * comm.size


@pytest.mark.ranks(2)
def test_rows_that_do_not_fit(comm: MPI.Intracomm, raised: Raised) -> None:
    last = comm.size - 1
    for other, words in (
        (np.ones((2, 4)), "shape [4], <f8"),
        (np.ones((2, 3), "f4"), "shape [3], <f4"),
        (np.ones((2, 3), ">f8"), "shape [3], >f8"),
        (np.ones((0, 2)), "shape [2], <f8"),
    ):
        local = other if comm.rank == last else np.ones((2, 3))
        told = raised(lambda local=local: ms.allgather(local))  # type: ignore[misc]
        assert {error for error, _ in told} == {"MismatchError"}
        assert f"rank {last}: allgather(rows of {words}" in told[0][1]
        assert ms.allgather(np.ones(1)).tolist() == [1.0] * comm.size
