"""Items in batches and packed in groups: few in memory at a time, and few pickles."""

import pickle
from itertools import count, islice
from types import SimpleNamespace

import numpy as np
import pytest

from mpishare.tasks.items import batches, pack, stack


def comm_of(size):
    """A communicator of so many ranks."""
    return SimpleNamespace(size=size)


def test_plain_items_share_a_pickle_and_items_share_an_array():
    assert len(pickle.dumps(pack(list(range(1000))))) < 5000
    array = np.zeros(1000)
    assert len(pickle.dumps(pack([(number, array) for number in range(50)]))) < 30_000


def test_batches_of_an_iterator_grow():
    found = [(is_last, len(batch)) for is_last, batch in batches(iter(range(100)), None, comm_of(2))]
    assert found == [(False, 8), (False, 64), (False, 28), (True, 0)]


def test_an_iterator_that_changes_its_array_is_read_to_a_number_of_bytes():
    read, row = count(), np.zeros(1 << 19)  # 4 MiB, the same array again and again

    def rows():
        for number in islice(read, 12):
            row[:] = number
            yield row

    source = batches(rows(), None, comm_of(100))
    for first in (0, 4):
        _, items = next(source)
        assert [row.max() for row in items[0 : len(items)]] == list(range(first, first + 4))
    assert next(read) == 8


def test_an_error_of_the_iterator_ends_the_batches():
    def broken():
        yield from range(9)
        raise OSError("gone")

    source = batches(broken(), None, comm_of(2))
    assert len(next(source)[1]) == 8
    with pytest.raises(OSError, match="gone"):
        next(source)


COLUMN = np.zeros(2, [("a", "S0")])["a"]  # which np.array makes one of 'S1'
TENSOR = SimpleNamespace(dtype="float32", shape=(2,))  # of another library


@pytest.mark.parametrize("value", [COLUMN, TENSOR, np.ma.zeros(2)])
def test_values_that_stay_a_list(value):
    assert stack(values := [value] * 2) is values
