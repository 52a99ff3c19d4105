"""Node-shared arrays in compiled functions, and atomic additions of several ranks."""

import numba
import numpy as np
import pytest
from numba import types

import mpishare as ms
from mpishare import kernels

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


def test_views_go_in_as_they_are(comm):
    table = ms.share(np.arange(10.0) if comm.rank == 0 else None)
    assert (total(table), total(ms.full(10, 9.0))) == (45.0, 90.0)
    assert numba.typeof(table) == READ_ONLY  # so that compiled code cannot write to it


@pytest.mark.parametrize("dtype", ["i4", "f8"])
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
