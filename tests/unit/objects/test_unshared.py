"""The parts of an object that each rank must copy: each reported once, by name, with its cost."""

from __future__ import annotations

import sys
from array import array
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mpishare.objects.pickling import pickle_object
from mpishare.objects.unshared import UnsharedPart, UnsharedParts, describe


def unshared(obj: object) -> list[UnsharedPart]:
    pickle_object(obj, parts := UnsharedParts())
    return parts.parts


FRAME = pd.DataFrame({"a": [1.0, 2.0], 7: pd.Series([None, "x"], dtype=object), "c": pd.Series([1, "y"], dtype=object)})
STRINGS = pd.Index(["a", "b", "c"], dtype=object)
LEVELS = pd.DataFrame(np.ones((6, 2)), index=pd.MultiIndex.from_product([[1, 2], STRINGS]))
SHARED = {
    "numbers": np.zeros(3),
    "few objects": np.array(["x", None]),
    "no objects": pd.DataFrame({"b": pd.Categorical(["x"]), "c": pd.array(["y"], dtype="string[pyarrow]")}),
    "list": [None, "text"],
}


@pytest.mark.parametrize(
    ("obj", "names"),
    [
        (SHARED, []),
        (FRAME, ["column 7 of a DataFrame", "column 'c' of a DataFrame"]),
        (FRAME[7], ["column 7 of a Series"]),
        ([FRAME, lambda: 0], ["column 7 of a DataFrame", "column 'c' of a DataFrame"]),  # pickled twice
        (pd.DataFrame({"a": [1.0] * 3}, index=STRINGS), ["the index of a DataFrame"]),
        (LEVELS, ["the index of a DataFrame"]),
        (LEVELS.T, []),
        (LEVELS[0], ["the index of a Series"]),
        ([array("d", bytes(800))], ["an array.array"]),
        (np.array([None] * 512), ["an array of shape (512,) and dtype object"]),
        (np.array([None] * 500), []),
        (np.zeros(3, [("id", "i4"), ("name", "O")]), ["column 'name' of an array of shape (3,), all of which"]),
    ],
)
def test_columns_are_reported_once_and_by_name(obj: Any, names: list[str]) -> None:
    parts = unshared(obj)
    assert len(parts) == len(names)
    for part, name in zip(parts, names, strict=True):
        assert part.description.startswith(name)


def test_the_cost_counts_each_object_once() -> None:
    text = "a long text" * 100
    (part,) = unshared({"names": np.array([text] * 1000, object)})
    assert part.nbytes == 8 * 1000 + -(-sys.getsizeof(text) // 16) * 16
    (part,) = unshared(np.array([(1, text)] * 10, [("id", "i4"), ("name", "O")]))
    assert part.nbytes == 12 * 10 + -(-sys.getsizeof(text) // 16) * 16


def test_only_the_most_expensive_are_named() -> None:
    parts = unshared(pd.DataFrame({number: pd.Series([None] * (number + 1), dtype=object) for number in range(9)}))
    text = describe(parts)
    assert len(parts) == 9
    assert text.startswith("column ")
    assert text.count("holds Python objects") == 5
    assert "And 4 more, " in text
    assert "more" not in describe(parts[:5])
