"""Objects pickled apart from their arrays, and unpickled as they were."""

import array
import pickle
from typing import Any

import numpy as np
import pytest

from mpishare.errors import SpecError
from mpishare.objects.pickling import pickle_object, unpickle_object


def test_what_is_not_an_array_but_has_its_bytes():
    titled = np.ones(100_000, {"names": ["a"], "formats": ["f8"], "titles": [b"x"]})  # no description carries it
    numbers = array.array("d", [1.0] * 10_000)
    pickled = pickle_object([numbers, titled, np.ma.masked, titled])
    assert (len(pickled.skeleton) < 1000, len(pickled.arrays)) == (True, 2)
    result = unpickle_object(pickled)
    assert (result[0], type(result[0])) == (numbers, array.array)
    assert (result[1].dtype, result[1]["a"][-1]) == (titled.dtype, 1)
    assert result[2] is np.ma.masked
    assert result[3] is result[1]


def test_arrays_are_not_copied():
    arrays = [np.zeros(9), np.zeros((9, 9))[::2]]
    result = unpickle_object(pickle_object([*arrays, arrays[0]]))
    assert [any(item is array for array in arrays) for item in result] == [True] * 3
    exported = unpickle_object(pickle_object([pickle.PickleBuffer(b"abc"), pickle.PickleBuffer(b"")]))
    assert [bytes(item) for item in exported] == [b"abc", b""]


class Field(np.ndarray[Any, Any]):
    """An array with attributes."""

    unit: str
    mesh: dict[str, Any]


def test_arrays_with_attributes_that_refer_back():
    field = np.ones(3).view(Field)
    field.unit, field.mesh = "K", {}
    field.mesh["fields"] = [field]
    (result,) = unpickle_object(pickle_object([field]))
    assert (type(result), result.unit, result.tolist()) == (Field, "K", [1, 1, 1])
    assert result.mesh["fields"][0] is result


def test_masked_arrays_and_records():
    hard = np.ma.array([1, 2], mask=[True, False], fill_value=7).harden_mask()
    records = np.rec.array([(1, 2.0), (3, 4.0)], dtype=[("a", "i4"), ("b", "f8")])
    result, bare, other = unpickle_object(pickle_object([hard, np.ma.array([1, 2]), records]))
    assert (type(other), other.b.tolist()) == (np.recarray, [2.0, 4.0])
    assert (result.tolist(), result.fill_value, result.hardmask) == ([None, 2], 7, True)
    assert (bare.mask is np.ma.nomask, bare.hardmask) == (True, False)


Own = type("Own", (np.ndarray,), {"__reduce__": lambda self: "own"})


def test_what_cannot_be_pickled():
    with pytest.raises(SpecError, match="list cannot be pickled: cannot pickle 'generator' object"):
        pickle_object([1, (number for number in range(3))])
    with pytest.raises(SpecError, match="Own cannot be shared: it pick"):
        pickle_object(np.ones(3).view(Own))
