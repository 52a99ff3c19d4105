"""Memory for received arrays: used again, within a limit, and never while a view of it lives."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from mpishare import loans
from mpishare.spec import address_of

MIB = 1 << 20
LIMIT = 64 * MIB


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    loans.give_back()
    yield
    loans.give_back()


def test_it_is_used_again() -> None:
    first = loans.borrow(8 * MIB, LIMIT)
    where = address_of(first)
    del first
    again = loans.borrow(7 * MIB, LIMIT)
    assert (address_of(again), again.nbytes, again.flags.writeable) == (where, 7 * MIB, True)


def test_not_while_a_view_lives() -> None:
    first = loans.borrow(8 * MIB, LIMIT)
    first[:] = 7
    view = first.view("f8").reshape(1024, -1)[3:5, ::2]
    where = address_of(first)
    del first
    other = loans.borrow(8 * MIB, LIMIT)
    other[:] = 1
    assert address_of(other) != where
    assert (
        (view.view("u1") == 7).all() if view.flags.c_contiguous else (np.ascontiguousarray(view).view("u1") == 7).all()
    )
    del view, other
    assert len(loans._kept) == 2


@pytest.mark.parametrize(("nbytes", "limit"), [(MIB - 1, LIMIT), (8 * MIB, 0), (65 * MIB, LIMIT)])
def test_what_is_not_kept(nbytes: int, limit: int) -> None:
    array = loans.borrow(nbytes, limit)
    assert array.nbytes == nbytes
    del array
    assert not loans._kept


def test_the_oldest_goes_first() -> None:
    arrays = [loans.borrow(size * MIB, LIMIT) for size in (30, 20, 40)]
    while arrays:
        arrays.pop(0)
    assert [block.nbytes // MIB for block in loans._kept.values()] == [20, 40]


def test_too_large_a_piece_is_left() -> None:
    del (first := [loans.borrow(8 * MIB, LIMIT)])[:]
    assert not first
    small = loans.borrow(MIB, LIMIT)
    assert len(loans._kept) == 1
    assert small.nbytes == MIB
