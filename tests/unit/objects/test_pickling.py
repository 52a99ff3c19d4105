"""Objects pickled apart from their arrays, and unpickled as they were."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mpishare.errors import SpecError
from mpishare.objects.pickling import pickle_object, unpickle_object
from mpishare.objects.unshared import UnsharedParts


def test_what_is_not_an_array_but_has_its_bytes() -> None:
    titled = np.ones(100_000, {"names": ["a"], "formats": ["f8"], "titles": [b"x"]})  # no description carries it
    numbers = array.array("d", [1.0] * 10_000)
    obj = {"numbers": numbers, "titled": titled, "masked": np.ma.masked, "same": [titled, titled]}
    pickled = pickle_object(obj)
    assert len(pickled.skeleton) < 1000
    assert len(pickled.arrays) == 2
    result = unpickle_object(pickled)
    assert (result["numbers"], type(result["numbers"])) == (numbers, array.array)
    assert (result["titled"].dtype, result["titled"]["a"][-1]) == (titled.dtype, 1)
    assert result["masked"] is np.ma.masked
    assert result["same"][0] is result["same"][1]


def test_arrays_are_not_copied() -> None:
    plain, part = np.zeros(9), np.zeros((9, 9))[::2]
    result = unpickle_object(pickle_object([plain, part, plain]))
    assert (result[0] is plain, result[1] is part, result[2] is plain) == (True, True, True)


class Field(np.ndarray[Any, Any]):
    """An array with attributes."""

    unit: str
    mesh: dict[str, Any]


def test_arrays_with_attributes_that_refer_back() -> None:
    field = np.ones(3).view(Field)
    field.unit, field.mesh = "K", {}
    field.mesh["fields"] = [field]
    (result,) = unpickle_object(pickle_object([field]))
    assert (type(result), result.unit, result.tolist()) == (Field, "K", [1, 1, 1])
    assert result.mesh["fields"][0] is result


def test_masked_arrays_and_records() -> None:
    hard = np.ma.array([1, 2], mask=[True, False], fill_value=7).harden_mask()
    records = np.rec.array([(1, 2.0), (3, 4.0)], dtype=[("a", "i4"), ("b", "f8")])
    result, bare, other = unpickle_object(pickle_object([hard, np.ma.array([1, 2]), records]))
    assert (type(other), other.b.tolist()) == (np.recarray, [2.0, 4.0])
    assert (result.tolist(), result.fill_value, result.hardmask) == ([None, 2], 7, True)
    assert bare.mask is np.ma.nomask


Own = type("Own", (np.ndarray,), {"__reduce__": lambda self: "own"})


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        ([1, (number for number in range(3))], "list cannot be pickled: cannot pickle 'generator' object"),
        (np.ones(3).view(Own), "Own cannot be shared: it pick"),
    ],
)
def test_what_cannot_be_pickled(obj: object, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        pickle_object(obj)


def test_what_an_object_costs_does_not_decide_whether_it_is_shared() -> None:
    class Broken(UnsharedParts):
        def note(self, obj: object) -> None:
            raise ValueError

    assert unpickle_object(pickle_object({"a": np.array([None] * 3)}, Broken()))["a"].tolist() == [None] * 3
    frame = pd.DataFrame(np.ones((2, 2)), index=pd.MultiIndex.from_product([[1], ["a", "b"]]))
    pd.testing.assert_frame_equal(unpickle_object(pickle_object(frame, UnsharedParts())), frame)
