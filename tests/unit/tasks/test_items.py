"""Items in batches and packed in groups: few in memory at a time, and few pickles."""

import pickle
from itertools import count, islice
from types import SimpleNamespace

import numpy as np
import pytest

from mpishare.tasks.items import Batches, pack, stack


def comm_of(size):
    """A communicator of so many ranks."""
    return SimpleNamespace(size=size)


def test_plain_items_share_a_pickle_and_items_share_an_array():
    assert len(pickle.dumps(pack(list(range(1000))))) < 5000
    array = np.zeros(1000)
    assert len(pickle.dumps(pack([(number, array) for number in range(50)]))) < 30_000


def test_batches_of_an_iterator_grow():
    source, lengths = Batches(iter(range(100)), comm_of(2)), []
    while not (batch := source.next())[0]:
        lengths.append(len(batch[1]))
    assert lengths == [8, 64, 28]


def test_an_iterator_that_changes_its_array_is_read_to_a_number_of_bytes():
    read, row = count(), np.zeros(1 << 19)  # 4 MiB, the same array again and again

    def rows():
        for number in islice(read, 12):
            row[:] = number
            yield row

    source = Batches(rows(), comm_of(100))
    for first in (0, 4):
        _, items = source.next()
        assert [row.max() for row in items[0 : len(items)]] == list(range(first, first + 4))
    assert next(read) == 8


def test_an_error_of_the_iterator_comes_after_its_items():
    def broken():
        yield from range(9)
        raise OSError("gone")

    source = Batches(broken(), comm_of(2))
    assert len(source.next()[1]) == 8
    source.read_ahead()
    assert len(source.next()[1]) == 1
    with pytest.raises(OSError, match="gone"):
        source.next()


COLUMN = np.zeros(2, [("a", "S0")])["a"]  # which np.array makes one of 'S1'
TENSOR = SimpleNamespace(dtype="float32", shape=(2,))  # of another library


@pytest.mark.parametrize("value", [COLUMN, TENSOR, np.ma.zeros(2)])
def test_values_that_stay_a_list(value):
    assert stack(values := [value] * 2) is values
