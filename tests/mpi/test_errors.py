"""Bad input: refused on all ranks, with the same words, and the next call works."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pytest
from mpi4py import MPI

import mpishare as ms

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(20)]

Raised = Callable[[Callable[[], object]], list[tuple[str, str]]]


@pytest.fixture(autouse=True)
def _next_call_works(comm: MPI.Intracomm) -> Iterator[None]:
    """A refusal leaves the communicator usable. How long it takes is for benchmarks/ground.py to tell."""
    yield
    assert ms.share(np.arange(3) if comm.rank == 0 else None).tolist() == [0, 1, 2]


def assert_refused(told: list[tuple[str, str]], rank: int, error: str, words: str) -> None:
    """`rank` raised `error` with `words`, and every other rank PeerError with the same words."""
    assert told[rank][0] == error
    assert words in told[rank][1]
    for other in (told[number] for number in range(len(told)) if number != rank):
        assert other == ("PeerError", other[1])
        assert f"rank {rank} on host" in other[1]
        assert f"{error}: {told[rank][1]}" in other[1]


BYTES_TITLE = np.dtype({"names": ["a"], "formats": ["f8"], "titles": [b"x"]})
MANY_COLUMNS = np.dtype([(f"{'x' * 300}{number}", "i1") for number in range(60_000)])

BAD_ARRAYS: dict[str, tuple[Any, str]] = {
    "object dtype": (np.array([None, 1]), "dtype object cannot be shared: it holds Python objects"),
    "object column": (np.zeros(2, [("id", "i4"), ("name", "O")]), "column 'name' holds Python objects"),
    "nested object": (np.zeros(2, [("a", [("b", "O")])]), "column 'a' holds Python objects"),
    "title of bytes": (np.zeros(2, BYTES_TITLE), "a title of a column is not a text"),
    "too many columns": (np.zeros(1, MANY_COLUMNS), "bytes to describe"),
    "no array": (None, "passed None"),
}


@pytest.mark.parametrize("name", BAD_ARRAYS)
def test_arrays_that_cannot_be_shared(comm: MPI.Intracomm, raised: Raised, name: str) -> None:
    array, words = BAD_ARRAYS[name]
    root = comm.size - 1
    told = raised(lambda: ms.share(array if comm.rank == root else None, root=root))
    assert_refused(told, root, "SpecError", words)


@pytest.mark.parametrize(
    ("root", "words"), [(-1, "root -1 is not a rank"), (99, "root 99"), ("0", "root '0'"), (0.0, "root 0.0")]
)
def test_wrong_root(raised: Raised, root: Any, words: str) -> None:
    told = raised(lambda: ms.share(np.arange(3), root=root))
    assert {error for error, _ in told} == {"ArgumentError"}
    assert len({text for _, text in told}) == 1
    assert words in told[0][1]
    told = raised(lambda: ms.bcast(ms.zeros(3), root=root))
    assert {error for error, _ in told} == {"ArgumentError"}


def test_wrong_root_on_one_rank(comm: MPI.Intracomm, raised: Raised) -> None:
    told = raised(lambda: ms.share(np.arange(3), root=99 if comm.rank == comm.size - 1 else 0))
    assert_refused(told, comm.size - 1, "ArgumentError", "root 99")


BAD_SHAPES: dict[str, tuple[Any, Any, str]] = {
    "negative": (-1, float, "negative"),
    "negative later": ((3, -2), float, "negative"),
    "overflow": ((2**40, 2**40), float, "exceed the address space"),
    "overflow of bytes": (2**62, "f8", "exceed the address space"),
    "no shape": ("abc", float, "shape 'abc' is not understood"),
    "float": (2.5, float, "shape 2.5 is not understood"),
    "none": (None, float, "shape None is not understood"),
    "too many": ((1,) * 99, float, "99 dimensions"),
    "object": (3, object, "dtype object cannot be shared"),
    "no dtype": (3, "no such", "not understood by NumPy"),
    "broken dtype": (3, "f8,,", "not understood by NumPy"),
    "one length too long": ((0, 10**30), float, "exceed the address space"),
}


@pytest.mark.parametrize("name", BAD_SHAPES)
def test_bad_shapes_and_dtypes(raised: Raised, name: str) -> None:
    shape, dtype, words = BAD_SHAPES[name]
    for call in (
        lambda: ms.empty(shape, dtype),
        lambda: ms.zeros(shape, dtype),
        lambda: ms.full(shape, 0, dtype),
    ):
        told = raised(call)
        assert {error for error, _ in told} == {"SpecError"}
        assert len({text for _, text in told}) == 1
        assert words in told[0][1]


@pytest.mark.parametrize(
    ("value", "dtype", "words"),
    [
        ([1, 2], None, "not one item"),
        ("abc", "f8", "no item of dtype"),
        (None, None, "holds Python objects"),
        (1e400, "i4", "no item of dtype"),
    ],
)
def test_bad_fill_values(raised: Raised, value: Any, dtype: Any, words: str) -> None:
    told = raised(lambda: ms.full(3, value, dtype))
    assert {error for error, _ in told} == {"SpecError"}
    assert words in told[0][1]


# For each kind of difference, the call of the last rank and that of the others, given two arrays of four items.
Call = Callable[[Any, Any], object]
DIFFERENCES: dict[str, tuple[Call, Call]] = {
    "shape": (lambda one, two: ms.empty(4), lambda one, two: ms.empty(3)),
    "dtype": (lambda one, two: ms.zeros(3, "i4"), lambda one, two: ms.zeros(3, "f4")),
    "byte order": (lambda one, two: ms.zeros(3, ">f4"), lambda one, two: ms.zeros(3, "<f4")),
    "order": (lambda one, two: ms.empty((2, 3), order="F"), lambda one, two: ms.empty((2, 3))),
    "value": (lambda one, two: ms.full(3, 1.0), lambda one, two: ms.full(3, 2.0)),
    "backend": (lambda one, two: ms.full(3, 1.0, backend="private"), lambda one, two: ms.full(3, 1.0)),
    "function": (lambda one, two: ms.empty(3), lambda one, two: ms.zeros(3)),
    "root of share": (lambda one, two: ms.share(np.arange(3), root=1), lambda one, two: ms.share(np.arange(3))),
    "backend of share": (lambda one, two: ms.share(one, backend="private"), lambda one, two: ms.share(one)),
    "root of bcast": (lambda one, two: ms.bcast(one, root=1), lambda one, two: ms.bcast(one)),
    "array of bcast": (lambda one, two: ms.bcast(one), lambda one, two: ms.bcast(two)),
    "part of bcast": (lambda one, two: ms.bcast(one[1:3]), lambda one, two: ms.bcast(one[:2])),
    "share or bcast": (lambda one, two: ms.share(np.arange(3)), lambda one, two: ms.bcast(one)),
    "info or zeros": (lambda one, two: ms.info(), lambda one, two: ms.zeros(3)),
}


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", DIFFERENCES)
def test_calls_that_differ_between_ranks(comm: MPI.Intracomm, raised: Raised, name: str) -> None:
    one, two = ms.zeros(4), ms.zeros(4)
    call = DIFFERENCES[name][comm.rank != comm.size - 1]
    told = raised(lambda: call(one, two))
    assert {error for error, _ in told} == {"MismatchError"}
    assert len({text for _, text in told}) == 1
    assert f"rank {comm.size - 1}: " in told[0][1]


@pytest.mark.ranks(2)
def test_a_fence_meets_other_calls_on_one_node(comm: MPI.Intracomm, raised: Raised) -> None:
    mates = ms.topology().node_comm
    last = mates.rank == mates.size - 1
    error = "MismatchError" if mates.size > 1 else "nothing"
    told = raised(lambda: ms.fence(comm=mates) if last else ms.zeros(3, comm=mates))
    assert told[comm.rank][0] == error
    told = raised(lambda: ms.fence(comm=mates, scope="all" if last else "node"))
    assert told[comm.rank][0] == error


@pytest.mark.ranks(2)
@pytest.mark.parametrize(("name", "value"), [("NODES", "cyclic:7"), ("BACKEND", "private"), ("BACKEND", "\udcff")])
def test_environments_that_differ_between_ranks(
    comm: MPI.Intracomm, raised: Raised, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    if comm.rank == comm.size - 1:
        monkeypatch.setenv(f"MPISHARE_{name}", value)
    own = comm.Dup()
    number = own.py2f()
    for _ in range(5):
        told = raised(lambda: ms.topology(own))
        assert {error for error, _ in told} == {"MismatchError"}
    own.Free()
    again = comm.Dup()
    assert again.py2f() == number  # a topology that failed keeps no communicator
    again.Free()


def test_an_error_on_one_rank_is_every_ranks_error(comm: MPI.Intracomm, raised: Raised) -> None:
    for bad in range(comm.size):
        told = raised(lambda bad=bad: ms.empty(-1 if comm.rank == bad else 3))  # type: ignore[misc]
        assert_refused(told, bad, "SpecError", "negative")


def test_bcast_refuses_what_it_cannot_refresh(comm: MPI.Intracomm, raised: Raised) -> None:
    grid = ms.zeros((4, 4))
    for array, words in (
        (np.zeros(3), "cannot be traced to node-shared memory"),
        ([1, 2], "cannot be traced to node-shared memory"),
        (ms.share(np.arange(3)), "read-only"),
        (grid[:, 1], "not contiguous"),
    ):
        told = raised(lambda array=array: ms.bcast(array))  # type: ignore[misc]
        assert {error for error, _ in told} == {"SpecError"}
        assert words in told[0][1]


def test_more_than_the_host_has(raised: Raised) -> None:
    told = raised(lambda: ms.empty(1 << 45, "u1"))
    assert {error for error, _ in told} <= {"CapacityError", "PeerError"}
    assert "CapacityError" in {error for error, _ in told}
    assert all("35,184,372,088,832 bytes do not fit" in text for _, text in told)


def test_scope_and_number_of_items(raised: Raised) -> None:
    for call in (
        lambda: ms.fence(scope="job"),
        lambda: ms.partition(3, scope="job"),
        lambda: ms.partition(-1),
        lambda: ms.partition(2.5),  # type: ignore[arg-type]
    ):
        told = raised(call)
        assert {error for error, _ in told} == {"ArgumentError"}


def test_unknown_backend_and_order(raised: Raised) -> None:
    for call in (
        lambda: ms.share(np.arange(3), backend="carrier pigeon"),
        lambda: ms.zeros(3, backend="carrier pigeon"),
        lambda: ms.zeros(3, order="K"),
    ):
        told = raised(call)
        assert {error for error, _ in told} == {"ArgumentError"}


def test_communicators_that_ranks_cannot_share_over(comm: MPI.Intracomm) -> None:
    for wrong in (MPI.COMM_NULL, "world", 3):
        with pytest.raises(ms.ArgumentError, match="intracommunicator"):
            ms.share(np.arange(3), comm=wrong)  # type: ignore[arg-type]


@pytest.mark.ranks(2)
def test_an_intercommunicator(comm: MPI.Intracomm) -> None:
    side = cast("MPI.Intracomm", comm.Split(comm.rank == 0, comm.rank))
    inter = side.Create_intercomm(0, comm, 1 if comm.rank == 0 else 0)
    with pytest.raises(ms.ArgumentError, match="intracommunicator"):
        ms.topology(inter)
    inter.Free()
    side.Free()
