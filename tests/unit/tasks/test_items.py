"""Items in batches and packed in groups: few in memory at a time, and few pickles."""

import pickle
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
