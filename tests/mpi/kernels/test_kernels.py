"""Node-shared arrays in compiled functions: as arguments, under atomic additions, filled and summed by the node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest
from mpi4py import MPI
from mpi4py.util.sync import Counter, Mutex
from numba import types

import mpishare as ms
from mpishare import kernels

pytestmark = pytest.mark.mpi

READ_ONLY = types.Array(types.float64, 1, "C", readonly=True)


@numba.njit(types.float64(READ_ONLY))
def total(values: Any) -> Any:
    """A signature that takes read-only and writable arrays."""
    found = 0.0
    for value in values:
        found += value
    return found


@numba.njit
def scale(source: Any, target: Any) -> None:
    """Types as they come."""
    for number in range(source.size):
        target[number] = 2 * source[number]


@numba.njit(nogil=True)
def count(rounds: int, counts: Any) -> None:
    """Each item `rounds` times."""
    for number in range(rounds * counts.size):
        kernels.atomic_add(counts, number % counts.size, 1)


@numba.njit
def add_one(counts: Any, place: int) -> None:
    """One addition, whose index may be wrong."""
    kernels.atomic_add(counts, place, 1)


def test_views_go_in_as_they_are(comm: MPI.Intracomm) -> None:
    table = ms.share(np.arange(10.0) if comm.rank == 0 else None)
    grid = ms.zeros(10)
    if ms.topology().is_leader:
        scale(table, grid)
    ms.fence()
    assert (total(table), total(grid)) == (45.0, 90.0)
    ms.fence()


def test_a_signature_for_writable_arrays_refuses_a_shared_one(comm: MPI.Intracomm) -> None:
    table = ms.share(np.arange(10.0) if comm.rank == 0 else None)

    @numba.njit("float64(float64[::1])")
    def writable_only(values: Any) -> Any:
        return values[0]

    with pytest.raises(TypeError, match="No matching definition for argument type"):
        writable_only(table)
    assert writable_only(ms.zeros(10)) == 0.0


def test_a_compiled_store_into_a_shared_array_is_refused(comm: MPI.Intracomm) -> None:
    assert numba.typeof(ms.share(np.arange(10.0) if comm.rank == 0 else None)) == READ_ONLY
    with pytest.raises(numba.TypingError, match="readonly"):  # numba keeps its frame, and so the arrays of a call
        scale.compile((READ_ONLY, READ_ONLY))


def test_no_addition_is_lost() -> None:
    here = ms.topology()
    counts = ms.zeros(3, "i8")
    for _ in range(20):
        count(100_000, counts)
        ms.fence()  # so that all begin the next round together
    assert counts.tolist() == [2_000_000 * here.node_size] * 3


@pytest.mark.parametrize("dtype", ["i4", "i8", "u4", "u8", "f4", "f8"])
def test_no_addition_of_any_dtype_is_lost(dtype: str) -> None:
    here = ms.topology()
    counts = ms.zeros(2, dtype)
    indices = np.arange(20_000) % 2
    for _ in range(10):
        kernels.add_at(counts, indices, 3)
        ms.fence()
    assert counts.tolist() == [300_000 * here.node_size] * 2


def test_each_rank_takes_its_own_numbers() -> None:
    here = ms.topology()
    counter = ms.zeros(1, "i8")
    mine = [kernels.atomic_add(counter, 0, 1) for _ in range(1000)]
    assert mine == sorted(mine)
    taken = here.node_comm.allgather(mine)
    assert sorted(number for numbers in taken for number in numbers) == list(range(1000 * here.node_size))


@pytest.mark.parametrize("dtype", ["f8", ">i4", "S3", "M8[s]", [("a", "i1"), ("b", "f8")]])
@pytest.mark.parametrize("order", ["C", "F"])
def test_fill(dtype: Any, order: str) -> None:
    array = ms.zeros((5, 7), dtype, order=order)
    value = np.ones((), "i8").astype(dtype)
    kernels.fill(array, value)
    assert (array == value).all()
    ms.fence()
    kernels.fill(array[2:4] if order == "C" else array[:, 2:4], np.zeros((), dtype))
    assert np.count_nonzero(array == value) == (21 if order == "C" else 25)
    ms.fence()


def test_a_checksum_is_the_same_on_any_number_of_ranks(comm: MPI.Intracomm) -> None:
    source = np.random.default_rng(5).integers(0, 256, 100_003, np.uint8)
    shared = ms.share(source if comm.rank == 0 else None)
    ours = ms.zeros(source.shape, np.uint8)
    if ms.topology().is_leader:
        ours[:] = source
    alone = kernels.checksum(ms.share(source, comm=MPI.COMM_SELF), comm=MPI.COMM_SELF)
    assert kernels.checksum(shared) == kernels.checksum(ours) == alone
    if ms.topology().is_leader:
        ours[50_000] ^= 1
    assert kernels.checksum(ours) != alone
    assert kernels.checksum(shared[:8]) != kernels.checksum(shared[8:16])


def test_a_checksum_tells_lengths() -> None:
    empty, one = ms.zeros(0, "u1"), ms.zeros(1, "u1")
    two = ms.zeros(2, "u1")
    assert kernels.checksum(empty) == 0
    assert kernels.checksum(one) != kernels.checksum(two)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: kernels.fill(np.zeros(3), 1), "cannot be traced"),
        (lambda: kernels.fill(ms.zeros((4, 4))[:, 1:3], 1), "not contiguous"),
        (lambda: kernels.fill(ms.zeros(3), "x"), "is not an item"),
        (lambda: kernels.checksum(np.zeros(3)), "cannot be traced"),
        (lambda: kernels.checksum(ms.zeros((4, 4))[:, 1:3]), "not contiguous"),
    ],
)
def test_refused_on_all_ranks(
    raised: Callable[[Callable[[], object]], list[tuple[str, str]]], call: Callable[[], object], told: str
) -> None:
    for kind, words in raised(call):
        assert (kind, told in words) == ("SpecError", True)


def test_refused_on_one_rank(comm: MPI.Intracomm, raised: Any) -> None:
    here = ms.topology()
    array = ms.zeros(4)
    for call in (lambda one: kernels.fill(one, 1), kernels.checksum):
        found = raised(lambda call=call: call(np.zeros(4) if here.is_leader else array))
        for rank, (kind, _) in enumerate(found):
            assert kind == ("SpecError" if here.ranks_of(here.node_of(rank))[0] == rank else "PeerError")
    other = ms.zeros(4)
    differing: list[Callable[[], object]] = [
        lambda: kernels.fill(array, here.node_rank),
        lambda: kernels.checksum(other if here.is_leader else array),
    ]
    for one in differing:
        for rank, (kind, _) in enumerate(raised(one)):
            assert kind == ("MismatchError" if len(here.ranks_of(here.node_of(rank))) > 1 else "nothing")


def test_a_wrong_index_in_compiled_code_keeps_no_array() -> None:
    with pytest.raises(IndexError, match="outside"):
        add_one(ms.zeros(3), 5)


def test_mpi4pys_locks_and_counters_go_with_fence(comm: MPI.Intracomm) -> None:
    here = ms.topology()
    log = ms.zeros((20 * comm.size, 2), "i8")
    filled = ms.zeros(1, "i8")
    mutex = Mutex(comm=here.node_comm)
    for number in range(20):
        with mutex:  # two arrays change together, which no atomic addition can do
            log[filled[0]] = here.node_rank, number
            filled[0] += 1
    ms.fence()
    expected = [(rank, number) for rank in range(here.node_size) for number in range(20)]
    assert sorted(map(tuple, log[: filled[0]].tolist())) == expected
    mutex.free()
    counter = Counter(comm=comm)
    taken = comm.allgather([next(counter) for _ in range(20)])
    assert sorted(number for numbers in taken for number in numbers) == list(range(20 * comm.size))
    counter.free()
