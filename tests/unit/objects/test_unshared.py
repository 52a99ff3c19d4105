"""The parts of an object that each rank must copy: each reported once, by name, with its cost."""

import sys
from array import array

import numpy as np
import pandas as pd
import pytest

from mpishare.objects.pickling import pickle_object, unpickle_object
from mpishare.objects.unshared import UnsharedParts, describe


def unshared(obj):
    pickle_object(obj, parts := UnsharedParts())
    return parts.parts


FRAME = pd.DataFrame({"a": [1.0, 2.0], 7: pd.Series([None, "x"], dtype=object), "c": pd.Series([1, "y"], dtype=object)})
OF_FRAME = ["column 7 of a DataFrame", "column 'c' of a DataFrame"]
STRINGS = pd.Index(["a", "b", "c"], dtype=object)
LEVELS = pd.DataFrame(np.ones((6, 2)), index=pd.MultiIndex.from_product([[1, 2], STRINGS]))
CATEGORIES = pd.DataFrame({"b": pd.Categorical(["x"]), "c": pd.array(["y"], dtype="string[pyarrow]")})


@pytest.mark.parametrize(
    ("obj", "names"),
    [
        ([np.zeros(3), np.array(["x", None]), CATEGORIES, [None, "text"]], []),
        (FRAME, OF_FRAME),
        (FRAME[7], ["column 7 of a Series"]),
        ([FRAME, lambda: 0], OF_FRAME),  # pickled twice
        (pd.DataFrame({"a": [1.0] * 3}, index=STRINGS), ["the index of a DataFrame"]),
        (LEVELS, ["the index of a DataFrame"]),
        (LEVELS.T, []),
        (LEVELS[0], ["the index of a Series"]),
        ([array("d", bytes(800))], ["an array.array"]),
        (np.array([None] * 510), ["an array of shape (510,) and dtype object"]),  # and one None: 4096 bytes
        (np.array([None] * 509), []),
        (np.zeros(3, [("id", "i4"), ("name", "O")]), ["column 'name' of an array of shape (3,), all of which"]),
    ],
)
def test_columns_are_reported_once_and_by_name(obj, names):
    parts = unshared(obj)
    assert [part.description[: len(name)] for part, name in zip(parts, names, strict=True)] == names


def test_the_cost_counts_each_object_once():
    text = "a long text" * 100
    text_bytes = -(-sys.getsizeof(text) // 16) * 16
    columns = np.array([(1, text)] * 10, [("id", "i4"), ("name", "O")])
    for items, nbytes in ((np.array([text] * 1000, object), 8 * 1000), (columns, 12 * 10), (columns[:5], 12 * 5)):
        (part,) = unshared({"names": items})
        assert part.nbytes == nbytes + text_bytes


def test_only_the_most_expensive_are_named():
    parts = unshared(pd.DataFrame({number: pd.Series(["x" * 99 * number], dtype=object) for number in range(9)}))
    text = describe(parts)
    assert len(parts) == 9
    assert [text.count(f"column {number} ") for number in range(9)] == [0] * 4 + [1] * 5
    cost = sum(part.nbytes for part in parts[:4])
    assert f"And 4 more, {cost:,} bytes" in text
    assert "more" not in describe(parts[:5])


def test_a_cost_that_cannot_be_found_does_not_keep_an_object_from_being_shared():
    class Broken(UnsharedParts):
        def note(self, obj):
            raise ValueError

    assert unpickle_object(pickle_object(np.array([None] * 3), Broken())).tolist() == [None] * 3
