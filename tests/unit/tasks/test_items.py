"""Items packed, and unpickled in any chunks."""

import pickle
import threading
from itertools import chain

import numpy as np
import pytest

from mpishare.errors import SpecError
from mpishare.tasks.items import Packer, pack

ARRAYS = [np.arange(5), {"a": np.ones((2, 3), order="F")}]
ITEMS = [*range(70), "a" * 9999, (1, 2), (3, [4]), *ARRAYS, None, b"x"]


def sent(items):
    """The items as another rank has them."""
    received = pickle.loads(pickle.dumps(pack(items)))
    assert len(received) == len(items)
    return received


@pytest.mark.parametrize("step", [1, 3, 32, 100])
def test_any_chunk(step):
    items, count = sent(ITEMS), len(ITEMS)
    chunks = [items[start : min(start + step, count)] for start in range(0, count, step)]
    for item, expected in zip(chain.from_iterable(chunks), ITEMS, strict=True):
        np.testing.assert_equal(item, expected)
        assert type(item) is type(expected)
    assert list(items[5:5]) == []


@pytest.mark.parametrize("items", [range(10**12), range(2**70, 2**70 + 5), np.arange(10.0), np.ones((3, 2)), []])
def test_ranges_and_rows(items):
    np.testing.assert_equal(list(sent(items)[1 : min(len(items), 3)]), list(items[1:3]))


def test_arrays_are_views_that_begin_on_a_cache_line():
    first, second = sent([np.arange(3), np.arange(7)])[0:2]
    assert first.base is not None
    addresses = [array.__array_interface__["data"][0] for array in (first, second)]
    assert addresses[1] - addresses[0] == 64


def test_plain_items_share_a_pickle_and_items_share_an_array():
    assert len(pickle.dumps(pack(list(range(1000))))) < 5000
    array = np.zeros(1000)
    assert len(pickle.dumps(pack([(number, array) for number in range(50)]))) < 30_000


def test_an_item_that_cannot_be_pickled_is_named():
    packer = Packer(copies=True, first=40)
    packer.add("a")
    with pytest.raises(SpecError, match=r"^item 41: "):
        packer.add(threading.Lock())


def test_arrays_are_copied_at_once_if_asked():
    array = np.zeros(1000)
    for copies in (True, False):
        array[:] = 0
        packer = Packer(copies=copies)
        packer.add(array)
        packer.add(array)
        array[:] = 1
        assert [item[0] for item in packer.items()[0:2]] == [1 - copies] * 2


@pytest.mark.parametrize(("item", "nbytes"), [(np.zeros(1000), 8000), (["a" * 1000], 1000), ("a" * 257, 257)])
def test_the_size_of_a_batch_is_known_as_it_grows(item, nbytes):
    packer = Packer(copies=True)
    packer.add(item)
    assert nbytes < packer.nbytes < nbytes + 200
    for _ in range(31):
        packer.add(item)
    assert 32 * nbytes < packer.nbytes < 32 * (nbytes + 400)
