"""Items packed and made again, in any portions."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from mpishare.errors import SpecError
from mpishare.tasks.items import _HEADER, Packer, _Unpacked, batch_of

ITEMS: list[Any] = [
    *range(70),
    "a" * 9999,
    (1, 2),
    (3, [4]),
    np.arange(5),
    {"a": np.ones((2, 3), order="F")},
    None,
    b"x",
]


def unpacked(items: list[Any]) -> _Unpacked:
    """What another rank makes of them."""
    batch = batch_of(items)
    assert batch.array is not None
    assert batch.count == len(items)
    return _Unpacked(batch.array.copy(), _HEADER.unpack(batch.header)[1])


@pytest.mark.parametrize("step", [1, 3, 32, 100])
def test_any_portion(step: int) -> None:
    made = unpacked(ITEMS)
    found = [one for at in range(0, len(ITEMS), step) for one in made.of(range(at, min(at + step, len(ITEMS))))]
    for one, wanted in zip(found, ITEMS, strict=True):
        np.testing.assert_equal(one, wanted)
    assert list(made.of(range(5, 5))) == []


def test_no_items() -> None:
    assert list(unpacked([]).of(range(0))) == []


def test_arrays_are_views_that_begin_on_a_cache_line() -> None:
    made = unpacked([np.arange(3), np.arange(7)])
    first, second = made.of(range(2))
    assert first.base is not None
    address = [array.__array_interface__["data"][0] for array in (first, second)]
    assert (address[1] - address[0]) % 64 == 0


def test_plain_items_share_a_pickle() -> None:
    batch = batch_of(list(range(1000)))
    assert batch.array is not None
    assert batch.array.nbytes < 1000 * 5


def test_what_is_known_by_its_ends_takes_no_memory() -> None:
    assert batch_of(range(10**12)).array is None


def test_an_item_that_cannot_be_pickled_is_named() -> None:
    with pytest.raises(SpecError, match=r"^item 3: "):
        batch_of([0, 1, 2, threading.Lock()])


def test_the_size_of_a_batch_is_known_as_it_grows() -> None:
    packer = Packer(copies=True)
    packer.add(np.zeros(1000))
    assert 8000 < packer.nbytes < 9000
