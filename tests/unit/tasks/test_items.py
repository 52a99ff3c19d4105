"""Items in batches and packed in groups; results as the rows of one array, where they are alike."""

import pickle
import threading
from itertools import chain, count, islice
from types import SimpleNamespace

import numpy as np
import pytest

from mpishare.errors import ArgumentError, SpecError
from mpishare.tasks.errors import ItemFailed
from mpishare.tasks.items import Batches, RankResults, pack, stack

ARRAYS = [np.arange(5), {"a": np.ones((2, 3), order="F")}]
ITEMS = [*range(70), "a" * 9999, (1, 2), (3, [4]), *ARRAYS, None, b"x", *((number, "a") for number in range(40))]


def comm_of(size):
    """A communicator of so many ranks."""
    return SimpleNamespace(size=size)


def sent(items):
    """The items as another rank has them."""
    is_last, batch = Batches(items, comm_of(1)).next()
    received = pickle.loads(pickle.dumps(batch))
    assert (is_last, len(received)) == (True, len(items))
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


def test_plain_items_share_a_pickle_and_items_share_an_array():
    assert len(pickle.dumps(pack(list(range(1000))))) < 5000
    array = np.zeros(1000)
    assert len(pickle.dumps(pack([(number, array) for number in range(50)]))) < 30_000


@pytest.mark.parametrize("make", [list, iter])
def test_an_item_that_cannot_be_pickled_is_named(make):
    items = make([*range(40), "a", threading.Lock(), 1])
    with pytest.raises(SpecError, match=r"^item 41: "):
        batches_of(Batches(items, comm_of(20)))


def batches_of(source):
    """All batches."""
    batches, is_last = [], False
    while not is_last:
        is_last, items = source.next()
        batches.append(list(items[0 : len(items)]))
        source.read_ahead()
    return batches if source.total is not None else batches[:-1]


@pytest.mark.parametrize("items", [[3, "a"], range(5), "abc", {"a": 1}])
def test_items_of_known_number_are_one_batch(items):
    source = Batches(items, comm_of(3))
    assert source.total == len(items)
    assert batches_of(source) == [list(items)]


def test_batches_of_an_iterator_grow():
    batches = batches_of(Batches(iter(range(100)), comm_of(2)))
    assert [len(batch) for batch in batches] == [8, 64, 28]
    assert list(chain.from_iterable(batches)) == list(range(100))


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


@pytest.mark.parametrize("items", [None, 3, np.array(3)])
def test_what_cannot_be_iterated(items):
    with pytest.raises(ArgumentError, match="cannot be iterated"):
        Batches(items, comm_of(2))


ALIKE = [np.arange(3.0), np.float32(1.5), np.True_, np.zeros((0, 3)), np.array(["ab", "c"]), np.arange(3, dtype=">f8")]
ALIKE.append(np.arange(6).reshape(2, 3, order="F"))


@pytest.mark.parametrize("value", ALIKE)
def test_alike(value):
    rows = stack([value] * 3)
    assert isinstance(rows, np.ndarray)
    assert (rows.dtype, rows.shape) == (value.dtype, (3, *value.shape))
    for row in rows:
        assert (type(row), row.tobytes()) == (type(value), value.tobytes())


COLUMN = np.zeros(2, [("a", "S0")])["a"]
KEPT = [np.array(1.5), np.zeros(2, "O"), np.zeros(2, [("a", "i4")]), COLUMN, np.ma.zeros(2), np.datetime64(1, "s"), 1.5]
KEPT.append(SimpleNamespace(dtype="float32", shape=(2,)))  # as a tensor of another library
UNLIKE = [[], [1, np.int64(1)], [np.zeros(2), np.zeros(3)], [np.zeros(2), np.zeros(2, "f4")]]


@pytest.mark.parametrize("values", [*UNLIKE, *([value] * 2 for value in KEPT)])
def test_unlike(values):
    assert stack(values) is values


def test_the_item_whose_result_cannot_be_pickled_is_named():
    results = RankResults()
    results.add(range(4, 5), [1])
    results.add(range(7, 9), ["a", (number for number in range(3))])
    with pytest.raises(ItemFailed) as raised:
        results.pickled()
    assert raised.value.args == (8,)
