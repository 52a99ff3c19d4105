"""Bad arguments: refused on all ranks, with one message, and the next call works."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import numpy as np
import pytest
from mpi4py import MPI

import mpishare as ms
from tests.mpi.conftest import Raised

pytestmark = pytest.mark.two_launches

Call = Callable[[], object]


@pytest.fixture(autouse=True)
def _next_call_works(comm: MPI.Intracomm) -> Iterator[None]:
    """A refusal leaves the communicator usable."""
    yield
    assert ms.share(np.arange(3) if comm.rank == 0 else None).tolist() == [0, 1, 2]


def assert_refused(errors: list[tuple[str, str]], rank: int, error: str, message: str) -> None:
    """`rank` raised `error` with `message`, and every other rank PeerError with the same message."""
    assert errors[rank][0] == error
    assert message in errors[rank][1]
    for other in errors[:rank] + errors[rank + 1 :]:
        assert other == ("PeerError", other[1])
        assert f"rank {rank} on host" in other[1]
        assert f"{error}: {errors[rank][1]}" in other[1]


def assert_refused_alike(errors: list[tuple[str, str]], error: str, message: str) -> None:
    """Every rank raised `error` with the same `message`."""
    assert set(errors) == {(error, errors[0][1])}
    assert message in errors[0][1]


MANY_COLUMNS = np.dtype([(f"{'x' * 300}{number}", "i1") for number in range(60_000)])

BAD_ARRAYS: dict[str, tuple[Any, str]] = {
    "object dtype": (np.array([None, 1]), "dtype object cannot be shared: it holds Python objects"),
    "object column": (np.zeros(2, [("id", "i4"), ("name", "O")]), "column 'name' holds Python objects"),
    "too many columns": (np.zeros(1, MANY_COLUMNS), "bytes to describe"),
    "nothing": (None, "passed None"),
}


@pytest.mark.parametrize("name", BAD_ARRAYS)
def test_arrays_that_cannot_be_shared(comm: MPI.Intracomm, raised: Raised, name: str) -> None:
    """An exception inside a collective: bad input, no room, a missing file.

    Outcome: its own error there, PeerError elsewhere.
    """
    array, message = BAD_ARRAYS[name]
    root = comm.size - 1
    errors = raised(lambda: ms.share(array if comm.rank == root else None, root=root))
    assert_refused(errors, root, "SpecError", message)


def test_an_error_on_one_rank_is_every_ranks_error(comm: MPI.Intracomm, raised: Raised) -> None:
    for bad in range(comm.size):
        errors = raised(partial(ms.empty, -1 if comm.rank == bad else 3))
        assert_refused(errors, bad, "SpecError", "negative")
        errors = raised(partial(ms.share, np.arange(3), root=99 if comm.rank == bad else 0))
        assert_refused(errors, bad, "ArgumentError", "root 99")


MAKE = (ms.empty, ms.zeros, lambda shape, dtype: ms.full(shape, 0, dtype))
BAD_SHAPES: list[tuple[Any, Any, str]] = [
    (-1, float, "negative"),
    ((2**40, 2**40), float, "exceed the address space"),
    (None, float, "shape None is not understood"),
    (3, object, "dtype object cannot be shared"),
    (3, "no such", "not understood by NumPy"),
]
BAD_ARGUMENTS: dict[str, tuple[Call, str, str]] = {
    **{
        f"{shape} {dtype} {number}": (partial(cast("Any", make), shape, dtype=dtype), "SpecError", message)
        for shape, dtype, message in BAD_SHAPES
        for number, make in enumerate(MAKE)
    },
    "fill: two": (lambda: ms.full(3, [1, 2]), "SpecError", "not one item"),
    "fill: None": (lambda: ms.full(3, cast("Any", None)), "SpecError", "holds Python objects"),
    "fill: infinity": (lambda: ms.full(3, 1e400, "i4"), "SpecError", "not an item of dtype"),
    "root -1": (lambda: ms.share(np.arange(3), root=-1), "ArgumentError", "root -1"),
    "root 99": (lambda: ms.share(np.arange(3), root=99), "ArgumentError", "root 99"),
    "root str": (lambda: ms.share(np.arange(3), root=cast("int", "0")), "ArgumentError", "root '0'"),
    "root float": (lambda: ms.share(np.arange(3), root=cast("int", 0.0)), "ArgumentError", "root 0.0"),
    "root of bcast": (lambda: ms.bcast(ms.zeros(3), root=99), "ArgumentError", "root 99"),
    "root of gather": (lambda: ms.gather(np.ones(2), root=99), "ArgumentError", "root 99"),
    "fence": (lambda: ms.fence(scope="job"), "ArgumentError", "'job'"),
    "partition": (lambda: ms.partition(3, scope="job"), "ArgumentError", "'job'"),
    "partition -1": (lambda: ms.partition(-1), "ArgumentError", "-1"),
    "partition 2.5": (lambda: ms.partition(cast("int", 2.5)), "ArgumentError", "2.5"),
    "backend of share": (lambda: ms.share(np.arange(3), backend="pigeon"), "ArgumentError", "pigeon"),
    "backend of zeros": (lambda: ms.zeros(3, backend="pigeon"), "ArgumentError", "pigeon"),
    "backends in a list": (lambda: ms.zeros(3, backend=cast("str", ["window"])), "ArgumentError", "['window']"),
    "order": (lambda: ms.zeros(3, order=cast("Any", "K")), "ArgumentError", "'K'"),
    "bcast of a private array": (lambda: ms.bcast(np.zeros(3)), "SpecError", "cannot be traced to node-shared memory"),
    "bcast of a list": (lambda: ms.bcast(cast("Any", [1, 2])), "SpecError", "cannot be traced to node-shared memory"),
    "bcast of a read-only array": (lambda: ms.bcast(ms.share(np.arange(3))), "SpecError", "read-only"),
    "bcast of a column": (lambda: ms.bcast(ms.zeros((4, 4))[:, 1]), "SpecError", "not contiguous"),
}


@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_bad_arguments(raised: Raised, name: str) -> None:
    call, error, message = BAD_ARGUMENTS[name]
    assert_refused_alike(raised(call), error, message)


BAD_REDUCTIONS: list[tuple[Any, Any, str, str]] = [
    (np.ones(2), MPI.BAND, "SpecError", "MPI.BAND does not fit dtype float64: it takes bool, integers"),
    (np.ones(2), MPI.LOR, "SpecError", "MPI.LOR does not fit dtype float64"),
    (np.ones(2, "?"), MPI.SUM, "SpecError", "MPI.SUM does not fit dtype bool"),
    (np.ones(2, "c8"), MPI.MAX, "SpecError", "MPI.MAX does not fit dtype complex64"),
    (np.ones(2, [("a", "f8")]), MPI.SUM, "SpecError", "Reduce its columns one by one"),
    (np.ones(2, "U3"), MPI.SUM, "SpecError", "MPI.SUM does not fit dtype <U3"),
    (np.ones(2, "M8[s]"), MPI.MAX, "SpecError", "MPI.MAX does not fit dtype datetime64[s]"),
    (np.array([None]), MPI.SUM, "SpecError", "dtype object cannot be shared"),
    (1.0, MPI.SUM, "SpecError", "float cannot be shared"),
    (np.ones(2), MPI.MAXLOC, "ArgumentError", "op does not reduce arrays of numbers"),
    (np.ones(2), MPI.OP_NULL, "ArgumentError", "op does not reduce arrays of numbers"),
    (np.ones(2), np.add, "ArgumentError", "Give an operation of mpi4py, such as MPI.SUM"),
]
LAST = MPI.COMM_WORLD.size - 1


@pytest.mark.parametrize(("array", "op", "error", "message"), BAD_REDUCTIONS)
def test_reductions_of_one_rank(
    comm: MPI.Intracomm, raised: Raised, array: Any, op: Any, error: str, message: str
) -> None:
    args = (array, op) if comm.rank == LAST else (np.ones(2),)
    assert_refused(raised(lambda: ms.allreduce(*args)), LAST, error, message)


BAD_ROWS: dict[str, Any] = {
    "has no rows": np.array(3.0),
    "list cannot be shared": [1.0, 2.0],
    "dtype object cannot be shared": np.array([None, 1]),
    "NoneType cannot be shared": None,
}


@pytest.mark.parametrize("call", [ms.allgather, ms.gather, partial(ms.scatter, root=LAST)])
@pytest.mark.parametrize("message", BAD_ROWS)
def test_rows_of_one_rank(comm: MPI.Intracomm, raised: Raised, call: Any, message: str) -> None:
    rows = BAD_ROWS[message] if comm.rank == LAST else np.ones(2)
    assert_refused(raised(lambda: call(rows)), LAST, "SpecError", message)


# For each kind of difference, the call of the last rank and that of the others, given two arrays of four items.
CallOfTwo = Callable[[Any, Any], object]
DIFFERENCES: dict[str, tuple[CallOfTwo, CallOfTwo]] = {
    "shape": (lambda a, b: ms.empty(4), lambda a, b: ms.empty(3)),
    "dtype": (lambda a, b: ms.zeros(3, "i4"), lambda a, b: ms.zeros(3, "f4")),
    "byte order": (lambda a, b: ms.zeros(3, ">f4"), lambda a, b: ms.zeros(3, "<f4")),
    "order": (lambda a, b: ms.empty((2, 3), order="F"), lambda a, b: ms.empty((2, 3))),
    "value": (lambda a, b: ms.full(3, 1.0), lambda a, b: ms.full(3, 2.0)),
    "backend": (lambda a, b: ms.full(3, 1.0, backend="private"), lambda a, b: ms.full(3, 1.0)),
    "function": (lambda a, b: ms.empty(3), lambda a, b: ms.zeros(3)),
    "root of share": (lambda a, b: ms.share(np.arange(3), root=1), lambda a, b: ms.share(np.arange(3))),
    "backend of share": (lambda a, b: ms.share(a, backend="private"), lambda a, b: ms.share(a)),
    "root of bcast": (lambda a, b: ms.bcast(a, root=1), lambda a, b: ms.bcast(a)),
    "array of bcast": (lambda a, b: ms.bcast(a), lambda a, b: ms.bcast(b)),
    "part of bcast": (lambda a, b: ms.bcast(a[1:3]), lambda a, b: ms.bcast(a[:2])),
    "share or bcast": (lambda a, b: ms.share(np.arange(3)), lambda a, b: ms.bcast(a)),
    "shape of allreduce": (lambda a, b: ms.allreduce(a[1:]), lambda a, b: ms.allreduce(a)),
    "dtype of allreduce": (lambda a, b: ms.allreduce(np.ones(4, "f4")), lambda a, b: ms.allreduce(a)),
    "operation": (lambda a, b: ms.allreduce(a, MPI.MAX), lambda a, b: ms.allreduce(a)),
    "shape of rows": (lambda a, b: ms.allgather(np.ones((2, 4))), lambda a, b: ms.allgather(np.ones((2, 3)))),
    "dtype of rows": (lambda a, b: ms.allgather(np.ones(2, ">f8")), lambda a, b: ms.allgather(np.ones(2))),
    "shape of no rows": (lambda a, b: ms.allgather(np.ones((0, 2))), lambda a, b: ms.allgather(np.ones((2, 3)))),
    "shape of gather": (lambda a, b: ms.gather(np.ones((2, 4))), lambda a, b: ms.gather(np.ones((2, 3)))),
    "root of gather": (lambda a, b: ms.gather(a, root=1), lambda a, b: ms.gather(a)),
    "root of scatter": (lambda a, b: ms.scatter(a, root=1), lambda a, b: ms.scatter(a)),
    "allreduce or allgather": (lambda a, b: ms.allreduce(a), lambda a, b: ms.allgather(a)),
    "scatter or gather": (lambda a, b: ms.scatter(a), lambda a, b: ms.gather(a)),
    "info or zeros": (lambda a, b: ms.info(), lambda a, b: ms.zeros(3)),
}


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", DIFFERENCES)
def test_calls_that_differ_between_ranks(comm: MPI.Intracomm, raised: Raised, name: str) -> None:
    """The same collective with different arguments.

    Outcome: MismatchError on all ranks, with both calls.
    """
    arrays = ms.zeros(4), ms.zeros(4)
    call = DIFFERENCES[name][comm.rank != comm.size - 1]
    assert_refused_alike(raised(lambda: call(*arrays)), "MismatchError", f"rank {comm.size - 1}: ")


@pytest.mark.ranks(2)
def test_a_fence_meets_other_calls_on_one_node(comm: MPI.Intracomm, raised: Raised) -> None:
    node_comm = ms.topology().node_comm
    is_last = node_comm.rank == node_comm.size - 1
    error = "MismatchError" if node_comm.size > 1 else "nothing"
    for call in (
        lambda: ms.fence(comm=node_comm) if is_last else ms.zeros(3, comm=node_comm),
        lambda: ms.fence(comm=node_comm, scope="all" if is_last else "node"),
    ):
        assert raised(call)[comm.rank][0] == error


@pytest.mark.ranks(2)
@pytest.mark.parametrize(("name", "value"), [("NODES", "cyclic:7"), ("BACKEND", "private"), ("BACKEND", "\udcff")])
def test_environments_that_differ_between_ranks(
    comm: MPI.Intracomm, raised: Raised, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    if comm.rank == comm.size - 1:
        monkeypatch.setenv(f"MPISHARE_{name}", value)
    duplicate = comm.Dup()
    index = duplicate.py2f()
    for _ in range(5):
        assert_refused_alike(raised(lambda: ms.topology(duplicate)), "MismatchError", "MPISHARE_")
    duplicate.Free()
    again = comm.Dup()
    assert again.py2f() == index  # a topology that failed keeps no communicator
    again.Free()


def test_more_than_the_host_has(raised: Raised) -> None:
    errors = raised(lambda: ms.empty(1 << 45, "u1"))
    assert "CapacityError" in {error for error, _ in errors} <= {"CapacityError", "PeerCapacityError"}
    assert all("35,184,372,088,832 bytes do not fit" in message for _, message in errors)


@pytest.mark.parametrize("wrong", [MPI.COMM_NULL, "world", 3])
def test_communicators_that_ranks_cannot_share_over(wrong: Any) -> None:
    with pytest.raises(ms.ArgumentError, match="intracommunicator"):
        ms.share(np.arange(3), comm=wrong)


@pytest.mark.ranks(2)
def test_an_intercommunicator(comm: MPI.Intracomm) -> None:
    side = cast("MPI.Intracomm", comm.Split(comm.rank == 0, comm.rank))
    inter = side.Create_intercomm(0, comm, 1 if comm.rank == 0 else 0)
    with pytest.raises(ms.ArgumentError, match="intracommunicator"):
        ms.topology(inter)
    inter.Free()
    side.Free()
