"""Batches: all items at once if their number is known, else as many as fit in time and memory."""

import numpy as np
import pytest

from mpishare.errors import ArgumentError
from mpishare.tasks.item_source import ItemSource


def batches_of(source, seconds=1.0):
    """All batches, each of which takes `seconds` to run."""
    batches, is_last = [], False
    while not is_last:
        is_last, items = source.next()
        batches.append(list(items[0 : len(items)]))
        source.read_ahead()
        source.note_time(len(items), seconds)
    return batches


@pytest.mark.parametrize("items", [[3, "a"], range(5), (), "abc", {"a": 1}])
def test_items_of_known_number_are_one_batch(items):
    source = ItemSource(items, 3)
    assert source.total == len(items)
    assert batches_of(source) == [list(items)]


@pytest.mark.parametrize(("seconds", "sizes"), [(10.0, [8] * 12), (1.0, [8] * 12), (1e-9, [8, 8, 64, 20])])
def test_batches_of_an_iterator_grow_with_speed(seconds, sizes):
    source = ItemSource(iter(range(100)), 2)
    assert source.total is None
    batches = batches_of(source, seconds)
    assert [len(batch) for batch in batches][: len(sizes)] == sizes
    assert [item for batch in batches for item in batch] == list(range(100))


def test_an_iterator_is_read_to_a_number_of_bytes():
    read = 0

    def rows():
        nonlocal read
        row = np.zeros(1 << 19)  # 4 MiB, the same array again and again
        for number in range(12):
            row[:] = number
            read += 1
            yield row

    source = ItemSource(rows(), 100)
    _, items = source.next()
    assert (len(items), read) == (4, 4)
    source.read_ahead()
    assert read == 8
    _, items = source.next()
    assert [row.max() for row in items[0:4] if isinstance(row, np.ndarray)] == [4, 5, 6, 7]


def test_an_error_of_the_iterator_comes_after_its_items():
    def broken():
        yield from range(8)
        raise OSError("gone")

    source = ItemSource(broken(), 2)
    assert source.next()[0] is False
    source.read_ahead()
    with pytest.raises(OSError, match="gone"):
        source.next()


@pytest.mark.parametrize(("items", "text"), [(None, "items is None"), (3, "a int, which"), (np.array(3), "iterated")])
def test_what_cannot_be_iterated(items, text):
    with pytest.raises(ArgumentError, match=text):
        ItemSource(items, 2)
