"""Memory for received arrays: used again, within a limit, and never while a view of it lives."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from mpishare.arrays.raw import address_of
from mpishare.memory import buffer_pool

MIB = 1 << 20
LIMIT = 64 * MIB


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    buffer_pool.clear()
    yield
    buffer_pool.clear()


def test_it_is_used_again() -> None:
    first = buffer_pool.acquire(8 * MIB, LIMIT)
    where = address_of(first)
    del first
    again = buffer_pool.acquire(7 * MIB, LIMIT)
    assert (address_of(again), again.nbytes, again.flags.writeable) == (where, 7 * MIB, True)


def test_not_while_a_view_lives() -> None:
    first = buffer_pool.acquire(8 * MIB, LIMIT)
    first[:] = 7
    view = first.view("f8").reshape(1024, -1)[3:5, ::2]
    where = address_of(first)
    del first
    other = buffer_pool.acquire(8 * MIB, LIMIT)
    other[:] = 1
    assert address_of(other) != where
    assert (
        (view.view("u1") == 7).all() if view.flags.c_contiguous else (np.ascontiguousarray(view).view("u1") == 7).all()
    )
    del view, other
    assert len(buffer_pool._kept) == 2


@pytest.mark.parametrize(("nbytes", "limit"), [(MIB - 1, LIMIT), (8 * MIB, 0), (65 * MIB, LIMIT)])
def test_what_is_not_kept(nbytes: int, limit: int) -> None:
    array = buffer_pool.acquire(nbytes, limit)
    assert array.nbytes == nbytes
    del array
    assert not buffer_pool._kept


def test_the_oldest_goes_first() -> None:
    arrays = [buffer_pool.acquire(size * MIB, LIMIT) for size in (30, 20, 40)]
    while arrays:
        arrays.pop(0)
    assert [block.nbytes // MIB for block in buffer_pool._kept.values()] == [20, 40]


def test_too_large_a_piece_is_left() -> None:
    del (first := [buffer_pool.acquire(8 * MIB, LIMIT)])[:]
    assert not first
    small = buffer_pool.acquire(MIB, LIMIT)
    assert len(buffer_pool._kept) == 1
    assert small.nbytes == MIB
