"""Items in batches and packed in chunks; results as the rows of one array, where they are alike."""

import pickle
import threading
from itertools import chain, count, islice
from types import SimpleNamespace

import numpy as np
import pytest

from mpishare.errors import ArgumentError, SpecError
from mpishare.tasks.errors import ItemFailed
from mpishare.tasks.items import Batches, Packer
from mpishare.tasks.results import RankResults, stack

ARRAYS = [np.arange(5), {"a": np.ones((2, 3), order="F")}]
ITEMS = [*range(70), "a" * 9999, (1, 2), (3, [4]), *ARRAYS, None, b"x"]


def sent(items):
    """The items as another rank has them."""
    received = pickle.loads(pickle.dumps(Batches(items, 1).next()))
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
    assert len(pickle.dumps(Packer().pack(list(range(1000))))) < 5000
    array = np.zeros(1000)
    assert len(pickle.dumps(Packer().pack([(number, array) for number in range(50)]))) < 30_000


@pytest.mark.parametrize("copies", [True, False])
def test_an_item_that_cannot_be_pickled_is_named(copies):
    for before in (["a"] * 7, range(40)):
        with pytest.raises(SpecError, match=rf"^item {40 + len(before)}: "):
            Packer(40, copies=copies).pack([*before, threading.Lock()])


def test_arrays_are_copied_at_once_if_asked():
    def rows():
        array = np.zeros(1000)
        for number in range(3):
            array[:] = number
            yield array

    for copies in (True, False):
        rest = Packer(copies=copies).pack(rows())[0:3]
        assert [row[0] for row in rest] == ([0, 1, 2] if copies else [2, 2, 2])


def batches_of(source, seconds=1.0):
    """All batches, each of which takes `seconds` to run."""
    batches = []
    while len(items := source.next()):
        batches.append(list(items[0 : len(items)]))
        source.read_ahead()
        source.note_time(len(items), seconds)
        if source.total is not None:
            break
    return batches


@pytest.mark.parametrize("items", [[3, "a"], range(5), "abc", {"a": 1}])
def test_items_of_known_number_are_one_batch(items):
    source = Batches(items, 3)
    assert source.total == len(items)
    assert batches_of(source) == [list(items)]


@pytest.mark.parametrize(("seconds", "sizes"), [(10.0, [8] * 12), (1.0, [8] * 12), (1e-9, [8, 8, 64, 20])])
def test_batches_of_an_iterator_grow_with_speed(seconds, sizes):
    source = Batches(iter(range(100)), 2)
    assert source.total is None
    batches = batches_of(source, seconds)
    assert [len(batch) for batch in batches][: len(sizes)] == sizes
    assert [item for batch in batches for item in batch] == list(range(100))


def test_an_iterator_is_read_to_a_number_of_bytes():
    read = count()

    def rows():
        row = np.zeros(1 << 19)  # 4 MiB, the same array again and again
        for number in islice(read, 12):
            row[:] = number
            yield row

    source = Batches(rows(), 100)
    for number in (0, 4):
        items = source.next()
        assert [row.max() for row in items[0 : len(items)]] == [number, number + 1, number + 2, number + 3]
    assert next(read) == 8


def test_an_error_of_the_iterator_comes_after_its_items():
    def broken():
        yield from range(8)
        raise OSError("gone")

    source = Batches(broken(), 2)
    assert len(source.next()) == 8
    source.read_ahead()
    with pytest.raises(OSError, match="gone"):
        source.next()


@pytest.mark.parametrize(
    ("items", "text"), [(None, "items is None"), (3, "of type int, which"), (np.array(3), "iterated")]
)
def test_what_cannot_be_iterated(items, text):
    with pytest.raises(ArgumentError, match=text):
        Batches(items, 2)


VECTORS, MATRIX = [np.arange(3.0), np.ones(3)], np.arange(6).reshape(2, 3)
SCALARS = [[np.float32(1.5), np.float32(2.5)], [np.True_, np.False_]]
STACKED = [np.zeros((0, 3)), np.asfortranarray(MATRIX), np.array(["ab", "c"]), np.arange(3, dtype=">f8")]
COLUMN = np.zeros(2, [("a", "S0")])["a"]
KEPT = [np.array(1.5), np.zeros(2, "O"), np.zeros(2, [("a", "i4")]), COLUMN, np.ma.zeros(2), np.datetime64(1, "s"), 1.5]
KEPT.append(SimpleNamespace(dtype="float32", shape=(2,)))  # as a tensor of another library
UNLIKE = [[], [1, np.int64(1)], [np.zeros(2), np.zeros(3)], [np.zeros(2), np.zeros(2, "f4")]]


@pytest.mark.parametrize("values", [VECTORS, *SCALARS, *([array] * 3 for array in STACKED)])
def test_alike(values):
    rows = stack(values)
    assert isinstance(rows, np.ndarray)
    assert (rows.dtype, rows.shape) == (values[0].dtype, (len(values), *values[0].shape))
    for row, value in zip(rows, values, strict=True):
        assert type(row) is type(value)
        assert row.tobytes() == value.tobytes()


@pytest.mark.parametrize("values", [*UNLIKE, *([value] * 2 for value in KEPT)])
def test_unlike(values):
    assert stack(values) is values


def test_content():
    results = RankResults()
    results.add(range(4, 6), [np.int8(1), np.int8(2)])
    results.add(range(9, 10), [np.int8(3)])
    chunks, values = results.content
    assert (memoryview(chunks).cast("q").tolist(), list(values)) == ([4, 6, 9, 10], [1, 2, 3])
    assert RankResults().content == (b"", [])


def test_the_item_whose_result_cannot_be_pickled_is_named():
    results = RankResults()
    results.add(range(4, 5), [1])
    results.add(range(7, 9), ["a", (number for number in range(3))])
    with pytest.raises(ItemFailed) as raised:
        results.pickled()
    assert raised.value.args == (8,)
