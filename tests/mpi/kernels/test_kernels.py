"""Node-shared arrays in compiled functions, atomic additions of several ranks, fill and checksum by all of a node."""

from functools import partial

import numba
import numpy as np
import pytest
from mpi4py import MPI
from numba import types

import mpishare as ms
from mpishare import kernels
from tests.mpi.test_errors import assert_refused_alike

READ_ONLY = types.Array(types.float64, 1, "C", readonly=True)


@numba.njit(types.float64(READ_ONLY))
def total(values):
    """A signature that takes read-only and writable arrays."""
    return values.sum()


@numba.njit
def count(rounds, counts):
    """Each item `rounds` times."""
    for number in range(rounds * counts.size):
        kernels.atomic_add(counts, number % counts.size, 1)


@numba.njit
def add_one(counts, place):
    """One addition, whose index may be wrong."""
    kernels.atomic_add(counts, place, 1)


def test_views_go_in_as_they_are(comm):
    table = ms.share(np.arange(10.0) if comm.rank == 0 else None)
    assert (total(table), total(ms.full(10, 9.0))) == (45.0, 90.0)
    assert numba.typeof(table) == READ_ONLY  # so that compiled code cannot write to it


@pytest.mark.parametrize("dtype", ["i4", "i8", "u4", "u8", "f4", "f8"])
def test_no_addition_is_lost(dtype):
    counts, indices, rounds = ms.zeros(2, dtype), np.arange(20_000) % 2, 10
    for _ in range(rounds):
        count(50_000, counts)
        kernels.add_at(counts, indices, 3)
        ms.fence()  # so that all begin the next round together
    assert counts.tolist() == [rounds * 80_000 * ms.topology().node_size] * 2


def test_each_rank_takes_its_own_numbers():
    nodes = ms.topology()
    counter = ms.zeros(1, "i8")
    own = [kernels.atomic_add(counter, 0, 1) for _ in range(1000)]
    assert own == sorted(own)
    taken = nodes.node_comm.allgather(own)
    assert sorted(number for numbers in taken for number in numbers) == list(range(1000 * nodes.node_size))


def test_a_wrong_index_in_compiled_code_keeps_no_array():
    with pytest.raises(IndexError, match="outside"):
        add_one(ms.zeros(3), 5)


@pytest.mark.parametrize("dtype", ["f8", ">i4", "S3", "M8[s]", [("a", "i1"), ("b", "f8")]])
@pytest.mark.parametrize("order", ["C", "F"])
def test_fill(dtype, order):
    array = ms.zeros((5, 7), dtype, order=order)
    value = np.ones((), "i8").astype(dtype)
    kernels.fill(array[2:4] if order == "C" else array[:, 2:4], value)
    assert np.count_nonzero(array == value) == (14 if order == "C" else 10)
    ms.fence()


def test_a_checksum_is_the_same_on_any_number_of_ranks(comm):
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

    assert kernels.checksum(ms.zeros(0, "u1")) == 0
    assert kernels.checksum(ms.zeros(1, "u1")) != kernels.checksum(ms.zeros(2, "u1"))


def test_refused_on_all_ranks(raised):
    for call, text in (
        (lambda: kernels.fill(np.zeros(3), 1), "cannot be traced"),
        (lambda: kernels.checksum(ms.zeros((4, 4))[:, 1:3]), "not contiguous"),
        (lambda: kernels.fill(ms.zeros(3), "x"), "is not an item"),
    ):
        assert_refused_alike(raised(call), "SpecError", text)


@pytest.mark.parametrize("call", [partial(kernels.fill, value=1), kernels.checksum])
def test_refused_on_one_rank(raised, call):
    nodes = ms.topology()
    array, other = ms.zeros(4), ms.zeros(4)
    for rank, (kind, _) in enumerate(raised(lambda: call(np.zeros(4) if nodes.is_leader else array))):
        assert kind == ("SpecError" if nodes.ranks_of(nodes.node_of(rank))[0] == rank else "PeerError")
    for differs in (lambda: kernels.fill(array, nodes.node_rank), lambda: call(other if nodes.is_leader else array)):
        for rank, (kind, _) in enumerate(raised(differs)):
            assert kind == ("MismatchError" if len(nodes.ranks_of(nodes.node_of(rank))) > 1 else "nothing")
