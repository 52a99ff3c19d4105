"""private: a copy-on-write view of this rank's own."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from numpy.typing import NDArray

import mpishare as ms
from mpishare.comm.context import context_of
from tests.arrays import bits, filled
from tests.processes import anonymous_bytes, may_reopen_maps

pytestmark = pytest.mark.mpi


def private(array: NDArray[Any]) -> tuple[NDArray[Any], bool]:
    """The private array, and whether the kernel gave it copy-on-write."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        mine = ms.private(array)
    assert all("bytes were copied" in str(one.message) for one in warned)
    return mine, not warned


@pytest.mark.parametrize("part", [np.s_[...], np.s_[3:50:7, ::-2], np.s_[4], np.s_[5, 6, ...]])
def test_same_bits_and_own_writes(comm: MPI.Intracomm, part: Any) -> None:
    source = filled(np.dtype(">u4"), (60, 1000))
    shared = ms.share(source if comm.rank == 0 else None)
    mine, _ = private(shared[part])
    assert bits(mine) == bits(source[part])
    assert mine.shape == source[part].shape
    mine[...] = comm.rank
    comm.Barrier()
    assert (mine == comm.rank).all()
    assert bits(shared) == bits(source)


def test_views_of_it_outlive_it(comm: MPI.Intracomm) -> None:
    row = private(ms.share(np.arange(5000)))[0][4000:]
    row += 1
    assert row.tolist() == list(range(4001, 5001))


def test_memory_is_used_for_changed_pages_only(comm: MPI.Intracomm) -> None:
    nbytes = 64 << 20
    shared = ms.share(np.ones(nbytes, "u1") if comm.rank == 0 else None)
    before = anonymous_bytes()
    mine, copy_on_write = private(shared)
    assert copy_on_write == (may_reopen_maps() and context_of().config.second_map)
    mine[: 1 << 20] = 2
    comm.Barrier()
    assert anonymous_bytes() - before < (2 << 20) + (0 if copy_on_write else nbytes)
    assert (mine[: 1 << 20] == 2).all()
    assert (mine[1 << 20 :: 4096] == 1).all()
    assert (shared[::4096] == 1).all()


def test_an_ordinary_array_is_refused() -> None:
    with pytest.raises(ms.SpecError, match="cannot be traced to node-shared memory"):
        ms.private(np.arange(3))


def test_a_private_array_is_refused() -> None:
    mine, copy_on_write = private(ms.zeros(3))
    mine[0] = 99
    with pytest.raises(ms.SpecError, match="private to this rank already" if copy_on_write else "cannot be traced"):
        ms.private(mine)


def test_no_items() -> None:
    assert private(ms.zeros((0, 3))[:, 1:])[0].shape == (0, 2)
