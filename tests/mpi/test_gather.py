"""gather and scatter: rows to the root and from it, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from numpy.typing import NDArray

import mpishare as ms
from mpishare.errors import CapacityError
from mpishare.transfer import plan
from tests.arrays import DTYPES, bits, filled, layouts
from tests.mpi.test_errors import assert_refused

pytestmark = pytest.mark.mpi

Raised = Callable[[Callable[[], object]], list[tuple[str, str]]]


def assert_gathered(comm: MPI.Intracomm, local: NDArray[Any], root: int) -> None:
    """Gathers, and compares with what comes by pickle."""
    found = ms.gather(local, root=root)
    everybody = comm.allgather((local.shape[0], bits(local)))
    if comm.rank != root:
        assert found is None
        return
    assert found is not None
    assert bits(found) == b"".join(one for _, one in everybody)
    assert found.shape == (sum(count for count, _ in everybody), *local.shape[1:])
    assert found.dtype == local.dtype
    assert found.flags.c_contiguous
    assert found.flags.writeable


def assert_scattered(comm: MPI.Intracomm, array: NDArray[Any], root: int) -> None:
    """Scatters, and compares with the part that `partition` names."""
    found = ms.scatter(array if comm.rank == root else None, root=root)
    expected = array[ms.partition(array.shape[0])]
    parts = comm.gather(bits(found), root)  # the padding of an array that NumPy copied differs between ranks
    if parts is not None:
        assert b"".join(parts) == bits(array)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert found.flags.c_contiguous
    assert found.flags.writeable
    assert not np.shares_memory(found, array)


def test_every_dtype_keeps_its_bits(comm: MPI.Intracomm) -> None:
    for number, dtype in enumerate(DTYPES.values()):
        root, count = number % comm.size, (comm.rank * 2 + 1) % 4
        assert_gathered(comm, filled(dtype, (count + comm.rank, 3))[comm.rank :], root)
        assert_scattered(comm, filled(dtype, (number % 7, 3)), root)


def test_every_layout(comm: MPI.Intracomm) -> None:
    for dtype in (np.dtype("f8"), DTYPES["gaps"]):
        for number, local in enumerate(layouts(dtype).values()):
            if local.ndim:
                assert_gathered(comm, local, number % comm.size)
                assert_scattered(comm, local, number % comm.size)


def test_messages_of_any_length(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "LARGEST_MESSAGE_BYTES", 100_000)  # as if it were 2**31
    table = np.arange(300_000).reshape(-1, 3)
    for array in (table, np.asfortranarray(table), table[::-1, :2]):
        assert_scattered(comm, array, comm.size - 1)
        assert_gathered(comm, array[comm.rank :], 0)


def test_the_root_keeps_its_array(comm: MPI.Intracomm) -> None:
    array = np.arange(10)
    mine = ms.scatter(array if comm.rank == 0 else None)
    mine[:] = -1
    assert array.tolist() == list(range(10))


def test_bad_input_on_one_rank(comm: MPI.Intracomm, raised: Raised) -> None:
    last = comm.size - 1
    told = raised(lambda: ms.gather(np.ones(()) if comm.rank == last else np.ones(2)))
    assert_refused(told, last, "SpecError", "has no rows")
    told = raised(lambda: ms.scatter(None, root=last))
    assert_refused(told, last, "SpecError", "NoneType cannot be shared")
    told = raised(lambda: ms.scatter(np.ones(()), root=last))
    assert_refused(told, last, "SpecError", "has no rows")
    told = raised(lambda: ms.gather(np.ones(2), root=99))
    assert {error for error, _ in told} == {"ArgumentError"}
    assert ms.scatter(np.arange(comm.size)).tolist() == [comm.rank]


@pytest.mark.ranks(2)
def test_what_does_not_fit_together(comm: MPI.Intracomm, raised: Raised) -> None:
    last = comm.size - 1
    is_last = comm.rank == last
    for call in (
        lambda: ms.gather(np.ones((2, 3), "f4" if is_last else "f8")),
        lambda: ms.gather(np.ones((2, 3 + is_last))),
        lambda: ms.gather(np.ones(2), root=int(is_last)),
        lambda: ms.scatter(np.ones(2), root=int(is_last)),
        lambda: ms.scatter(np.ones(2)) if is_last else ms.gather(np.ones(2)),
    ):
        told = raised(call)
        assert {error for error, _ in told} == {"MismatchError"}
        assert f"rank {last}: " in told[0][1]
    assert ms.scatter(np.arange(comm.size)).tolist() == [comm.rank]


def test_no_memory_on_one_rank(comm: MPI.Intracomm, raised: Raised, monkeypatch: pytest.MonkeyPatch) -> None:
    last = comm.size - 1

    def refuse(nbytes: int, limit: int) -> NDArray[np.uint8]:
        raise MemoryError

    if comm.rank == last:
        monkeypatch.setattr(scattering, "borrow", refuse)
    for call in (lambda: ms.gather(np.ones(3), root=last), lambda: ms.scatter(np.ones(9))):
        told = raised(call)
        assert issubclass(getattr(ms, told[comm.rank][0]), CapacityError)
        assert {error for error, _ in told[:last]} <= {"PeerCapacityError"}
        assert told[last][0] == "CapacityError"
    monkeypatch.undo()
    assert ms.scatter(np.arange(comm.size)).tolist() == [comm.rank]
