"""allreduce: the same bits on all ranks, in the order that is promised, one copy per node."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from numpy.typing import NDArray

import mpishare as ms
from mpishare.arrays import slices
from mpishare.comm.context import context_of
from mpishare.errors import CapacityError
from mpishare.memory import selection
from mpishare.memory.private import Private
from mpishare.messages.frames import ANSWER_TAG
from mpishare.transfer import ring_plan
from mpishare.transfer.node_reduce import Reduction
from tests.mpi.test_errors import assert_refused
from tests.mpi.test_segments import use

pytestmark = pytest.mark.mpi

Raised = Callable[[Callable[[], object]], list[tuple[str, str]]]
Array = NDArray[Any]

FUNCTIONS: dict[str, tuple[Any, str]] = {
    "SUM": (np.add, "iufc"),
    "PROD": (np.multiply, "iufc"),
    "MIN": (np.minimum, "iuf"),
    "MAX": (np.maximum, "iuf"),
    "LAND": (np.logical_and, "biu"),
    "LOR": (np.logical_or, "biu"),
    "LXOR": (np.logical_xor, "biu"),
    "BAND": (np.bitwise_and, "biu"),
    "BOR": (np.bitwise_or, "biu"),
    "BXOR": (np.bitwise_xor, "biu"),
}
NUMBERS = ["?", "i1", "u1", "i2", "u4", "i8", "u8", "f2", "f4", "f8", "g", "c8", "c16", "G", ">i4", ">f8", ">c16"]


def numbers(dtype: str, rank: int, count: int) -> Array:
    """Numbers that differ between ranks and whose sums are rounded, some of them 0."""
    values = np.random.default_rng(rank).normal(size=count) * 3
    if np.dtype(dtype).kind in "bu":
        values = np.abs(values)
    return values.astype(dtype)


def expected(inputs: Sequence[Array], function: Any) -> Array:
    """What the documentation promises: NumPy's results in its order."""

    def fold(arrays: Sequence[Array]) -> Array:
        return reduce(lambda one, two: function(one, two).astype(one.dtype), arrays)

    placement = ms.topology().placement
    with np.errstate(all="ignore"):
        nodes = [fold([inputs[rank].ravel() for rank in ranks]) for ranks in placement.nodes]
        count, nbytes = len(nodes), inputs[0].nbytes
        if count * nbytes <= 16 << 10:
            return fold(nodes).reshape(inputs[0].shape)
        found = np.empty_like(nodes[0])
        for part in range(count):
            cut = slices.byte_slice(nbytes, count, part, grain=ring_plan.LINE_BYTES)
            items = slice(cut.start // found.itemsize, cut.stop // found.itemsize)
            found[items] = fold([nodes[(part + step) % count][items] for step in range(count)])
    return found.reshape(inputs[0].shape)


def assert_reduced(found: Array, wanted: Array, comm: MPI.Intracomm) -> None:
    """The right values, bit for bit but for the padding of long doubles, on all ranks; and read-only."""
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    assert type(found) is np.ndarray
    assert not found.flags.writeable
    np.testing.assert_array_equal(found, wanted)
    if found.dtype.char not in "gG":  # whose padding is arbitrary
        assert len(set(comm.allgather(found.tobytes()))) == 1


@pytest.mark.parametrize("count", [7, 3000])
def test_every_operation_and_dtype_in_the_promised_order(comm: MPI.Intracomm, count: int) -> None:
    for dtype in NUMBERS:
        inputs = [numbers(dtype, rank, count) for rank in range(comm.size)]
        for name, (function, kinds) in FUNCTIONS.items():
            if np.dtype(dtype).kind in kinds and (count < 100 or name in ("SUM", "LXOR")):
                found = ms.allreduce(inputs[comm.rank], getattr(MPI, name))
                assert_reduced(found, expected(inputs, function), comm)


@pytest.mark.parametrize("settings", [{}, {"chunk_bytes": 1000}, {"chunk_bytes": 1 << 18}], ids=["", "1000", "256K"])
def test_sizes_and_ways(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, settings: dict[str, int]) -> None:
    use(monkeypatch, **settings)
    for count in (1, 127, 1500, 70_000, *(() if settings.get("chunk_bytes") == 1000 else (300_001, 1 << 19))):
        found = ms.allreduce(np.arange(count) * (comm.rank + 1), MPI.SUM)
        factor = comm.size * (comm.size + 1) // 2
        assert (found == np.arange(count) * factor).all()


def test_where_each_rank_has_its_own_copy(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch)
    monkeypatch.setattr(selection, "KINDS", tuple(kind for kind in selection.KINDS if isinstance(kind, Private)))
    for count in (1000, 300_000):
        inputs = [numbers("f8", rank, count) for rank in range(comm.size)]
        assert_reduced(ms.allreduce(inputs[comm.rank]), expected(inputs, np.add), comm)


def test_no_memory_on_one_rank(comm: MPI.Intracomm, raised: Raised, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Reduction) -> None:
        raise CapacityError("here", "nothing", 1, 0, "")

    use(monkeypatch)
    monkeypatch.setattr(selection, "KINDS", tuple(kind for kind in selection.KINDS if isinstance(kind, Private)))
    if comm.rank == comm.size - 1:
        monkeypatch.setattr(Reduction, "take_room", refuse)
    told = raised(lambda: ms.allreduce(np.ones(3000)))
    has_pairs = max(map(len, ms.topology().placement.nodes)) > 1  # else no rank needs any
    assert {error for error, _ in told} <= ({"CapacityError", "PeerCapacityError"} if has_pairs else {"nothing"})
    monkeypatch.undo()
    assert ms.allreduce(np.ones(1)).tolist() == [comm.size]


def test_strides_and_orders(comm: MPI.Intracomm) -> None:
    table = np.arange(60_000.0).reshape(200, 300) * (comm.rank + 1)
    factor = comm.size * (comm.size + 1) // 2
    plain = np.arange(60_000.0).reshape(200, 300) * factor
    for way in (
        lambda array: array,
        np.asfortranarray,
        lambda array: array[::-2, 1::3],
        lambda array: array.T,
        lambda array: np.broadcast_to(array[:, :1], array.shape),
        lambda array: array[:0],
        lambda array: array[0, 3:4].reshape(()),
    ):
        local = way(table)
        found = ms.allreduce(local)
        assert_reduced(found, way(plain), comm)
        assert found.flags.fnc == local.flags.fnc
    found = ms.allreduce(np.asfortranarray(table) if comm.rank else table)
    assert found.flags.c_contiguous
    assert_reduced(found, plain, comm)


def test_overflow_and_nan_are_values(comm: MPI.Intracomm) -> None:
    assert ms.allreduce(np.full(2, 200, "u1"))[0] == 200 * comm.size % 256
    assert ms.allreduce(np.full(2, 1e308)).tolist() == [1e308 if comm.size == 1 else np.inf] * 2
    local = np.array([np.nan if comm.rank == 0 else 1.0, 2.0])
    assert np.isnan(ms.allreduce(local, MPI.MIN)).tolist() == [True, False]
    assert ms.allreduce(np.array([comm.rank, 2], "i2"), MPI.LAND).tolist() == [0, 1 if comm.size > 1 else 2]


def test_the_input_may_change_afterwards(comm: MPI.Intracomm) -> None:
    for count in (3, 200_000):
        local = np.ones(count)
        found = ms.allreduce(local)
        local[:] = -1
        comm.Barrier()
        assert (found == comm.size).all()


def test_one_copy_per_node(comm: MPI.Intracomm) -> None:
    kept = ms.allreduce(np.ones(300_000))
    gc.collect()
    made = [one for one in ms.report().segments if one.made_by == "allreduce"]
    assert [(one.nbytes, one.copies) for one in made] == [(kept.nbytes, 1)]


@pytest.mark.ranks(2)
def test_beside_a_send_that_waits_for_an_answer(comm: MPI.Intracomm) -> None:
    parts, others = context_of().data_comm, [rank for rank in range(comm.size) if rank != comm.rank]
    waiting = [parts.Irecv([bytearray(1), MPI.BYTE], rank, ANSWER_TAG) for rank in others]
    for count in (3, 100_000):
        assert (ms.allreduce(np.ones(count)) == comm.size).all()
        assert ms.allgather(np.full(count, comm.rank))[::count].tolist() == list(range(comm.size))
    assert not MPI.Request.Testany(waiting)[1]
    comm.Barrier()
    for rank in others:
        parts.Send([b"", MPI.BYTE], rank, ANSWER_TAG)
    MPI.Request.Waitall(waiting)


def _join(lower: Any, upper: Any, _datatype: MPI.Datatype) -> None:
    """Runs of ranks, first * 256 + last, become one run if the second follows the first; else what is no run."""
    one, two = np.frombuffer(lower, "i4"), np.frombuffer(upper, "i4")
    follows = (one % 256 + 1 == two // 256) & (one != 0xFFFF) & (two != 0xFFFF)
    two[:] = np.where(follows, one // 256 * 256 + two % 256, 0xFFFF)


def _larger(lower: Any, upper: Any, _datatype: MPI.Datatype) -> None:
    one, two = np.frombuffer(lower, "f8"), np.frombuffer(upper, "f8")
    two[:] = np.where(np.abs(one) > np.abs(two), one, two)


@pytest.fixture
def join() -> Iterator[MPI.Op]:
    """Does not commute."""
    op = MPI.Op.Create(_join, commute=False)
    yield op
    op.Free()


@pytest.fixture
def larger() -> Iterator[MPI.Op]:
    """Commutes."""
    op = MPI.Op.Create(_larger, commute=True)
    yield op
    op.Free()


@pytest.mark.parametrize("own", [False, True], ids=["", "own copies"])
def test_users_operations(
    comm: MPI.Intracomm, join: MPI.Op, larger: MPI.Op, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    use(monkeypatch)
    if own:
        monkeypatch.setattr(selection, "KINDS", tuple(kind for kind in selection.KINDS if isinstance(kind, Private)))
    for count in (5, 3000, 150_000):
        found = ms.allreduce(np.full(count, comm.rank * 257, "i4"), join)
        assert (found == comm.size - 1).all()
        inputs = [numbers("f8", rank, count) for rank in range(comm.size)]
        wanted = reduce(lambda one, two: np.where(np.abs(one) > np.abs(two), one, two), inputs)
        assert (ms.allreduce(inputs[comm.rank], larger) == wanted).all()


REFUSED: dict[str, tuple[Array, Any, str, str]] = {
    "bits of floats": (
        np.ones(2),
        MPI.BAND,
        "SpecError",
        "MPI.BAND does not fit dtype float64: it takes bool, integers",
    ),
    "logic of floats": (np.ones(2), MPI.LOR, "SpecError", "MPI.LOR does not fit dtype float64"),
    "sum of bools": (np.ones(2, "?"), MPI.SUM, "SpecError", "MPI.SUM does not fit dtype bool"),
    "order of complex numbers": (np.ones(2, "c8"), MPI.MAX, "SpecError", "MPI.MAX does not fit dtype complex64"),
    "columns": (np.ones(2, [("a", "f8")]), MPI.SUM, "SpecError", "Reduce its columns one by one"),
    "texts": (np.ones(2, "U3"), MPI.SUM, "SpecError", "MPI.SUM does not fit dtype <U3"),
    "times": (np.ones(2, "M8[s]"), MPI.MAX, "SpecError", "MPI.MAX does not fit dtype datetime64[s]"),
    "objects": (np.array([None]), MPI.SUM, "SpecError", "dtype object cannot be shared"),
    "places": (np.ones(2), MPI.MAXLOC, "ArgumentError", "op is none that reduces arrays of numbers"),
    "no operation": (np.ones(2), MPI.OP_NULL, "ArgumentError", "op is none that reduces arrays of numbers"),
    "a function": (np.ones(2), np.add, "ArgumentError", "Give an operation of mpi4py, such as MPI.SUM"),
    "a number": (1.0, MPI.SUM, "SpecError", "float cannot be shared"),  # type: ignore[dict-item]
}


def test_refused_on_one_rank(comm: MPI.Intracomm, raised: Raised) -> None:
    last = comm.size - 1
    bad = comm.rank == last
    for local, op, error, words in REFUSED.values():
        array, operation = (local, op) if bad else (np.ones(2), MPI.SUM)
        told = raised(lambda array=array, operation=operation: ms.allreduce(array, operation))  # type: ignore[misc]
        assert_refused(told, last, error, words)
        assert ms.allreduce(np.ones(1)).tolist() == [comm.size]


def test_users_operations_on_what_mpi_has_no_type_for(raised: Raised, larger: MPI.Op) -> None:
    for dtype in (">f8", "S3"):
        told = raised(lambda dtype=dtype: ms.allreduce(np.ones(2, dtype), larger))  # type: ignore[misc]
        assert {error for error, _ in told} == {"SpecError"}
        assert "an operation of the user's that commutes does not fit dtype" in told[0][1]


@pytest.mark.ranks(2)
def test_what_does_not_fit_together(comm: MPI.Intracomm, raised: Raised, larger: MPI.Op) -> None:
    last = comm.size - 1
    is_last = comm.rank == last
    for call, words in (
        (lambda: ms.allreduce(np.ones(3 - is_last)), "allreduce(<f8[2], MPI.SUM"),
        (lambda: ms.allreduce(np.ones(2, "f4" if is_last else "f8")), "allreduce(<f4[2]"),
        (lambda: ms.allreduce(np.ones(2), MPI.MAX if is_last else MPI.SUM), "MPI.MAX"),
        (lambda: ms.allreduce(np.ones(2), larger if is_last else MPI.SUM), "an operation of the user's"),
        (lambda: ms.allreduce(np.ones(2)) if is_last else ms.allgather(np.ones(2)), "allreduce"),
    ):
        told = raised(call)
        assert {error for error, _ in told} == {"MismatchError"}
        assert f"rank {last}: " in told[0][1]
        assert words in told[0][1].partition(f"rank {last}: ")[2]
    assert ms.allreduce(np.ones(1)).tolist() == [comm.size]
