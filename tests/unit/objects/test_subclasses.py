"""Arrays of classes that say themselves how they are pickled: the same class, around views, with no item pickled."""

import numpy as np
import pytest
from numpy.ma import mrecords

from mpishare.objects.pickling import PickledObject, pickle_object, unpickle_object
from mpishare.objects.unshared import UnsharedParts, describe


class Unit(np.ndarray):
    """Adds what it pickles to the state of ndarray, as the NumPy user guide does; a part of an array has no notes."""

    notes = None

    def __array_finalize__(self, parent):
        self.unit = getattr(parent, "unit", None)

    def __reduce__(self):
        function, args, state = tuple(super().__reduce__())
        return function, args, (*state, self.unit, self.notes)

    def __setstate__(self, state):
        super().__setstate__(state[:-2])
        self.unit, self.notes = state[-2:]


class Rebuilt(np.ndarray):
    """Has a function of its own that makes it of its items, which it copies."""

    def __new__(cls, items, unit):
        array = np.array(items).view(cls)
        array.unit = unit
        return array

    def __array_finalize__(self, parent):
        self.unit = getattr(parent, "unit", None)

    def __reduce_ex__(self, _):
        return type(self), (self.tolist(), self.unit)


class Bytes(Unit):
    """Pickles its bytes by itself, and does not let anybody see them by its methods."""

    def __reduce__(self):
        return _from_bytes, (self.tobytes(), self.dtype, self.shape, self.unit)

    def __getitem__(self, key):
        raise AssertionError("a method of the class sees the items")

    view = copy = tolist = __getitem__  # type: ignore[assignment]


def _from_bytes(content, dtype, shape, unit):
    array = np.frombuffer(content, dtype).reshape(shape).view(Bytes)
    array.unit = unit
    return array


ITEMS = {
    "C": np.arange(600.0).reshape(20, 30),
    "Fortran": np.asfortranarray(np.arange(600.0).reshape(20, 30)),
    "strided": np.arange(1200.0).reshape(20, 60)[::2, ::-3],
    "0-d": np.array(123456.75),
    "no items": np.empty((0, 3)),
    "big-endian": np.arange(300, dtype=">i4"),
}


@pytest.mark.parametrize("items", ITEMS.values(), ids=ITEMS)
@pytest.mark.parametrize("kind", [Unit, Rebuilt, Bytes])
def test_the_class_and_views_of_the_same_items(kind, items):
    array = items.view(kind)
    array.unit = {"name": "K"}
    pickled = pickle_object([array, array])
    assert [len(pickled.arrays), type(pickled.arrays[0])] == [1, np.ndarray]
    assert len(pickled.skeleton) < 500
    shared = np.array(items, copy=True, order="K")
    shared.flags.writeable = False
    result, same = unpickle_object(PickledObject(pickled.skeleton, [shared]))
    assert same is result
    assert (type(result), result.unit, result.flags.writeable) == (kind, {"name": "K"}, False)
    assert (result.dtype, result.shape, result.strides) == (items.dtype, items.shape, shared.strides)
    assert result.__array_interface__["data"] == shared.__array_interface__["data"]
    assert np.ndarray.tobytes(result) == items.tobytes()


def test_what_a_part_of_an_array_would_lose_and_what_refers_back():
    array = np.arange(1000.0).view(Unit)
    array.unit, array.notes = "K", {"of": array, "rows": np.arange(1000)}
    pickled = pickle_object(array)
    assert [len(pickled.arrays), len(pickled.skeleton) < 500] == [2, True]
    result = unpickle_object(pickled)
    assert (result.unit, result.notes["of"] is result, result.notes["rows"][-1]) == ("K", True, 999)
    assert array.notes["of"] is array


class Weighted(np.ma.MaskedArray):
    """A masked array that pickles more than that."""

    weight = 0.0

    def __reduce__(self):
        function, args, state = tuple(super().__reduce__())
        return function, args, (state, self.weight)

    def __setstate__(self, state):
        super().__setstate__(state[0])
        self.weight = state[1]


def test_masks_are_views_too():
    weighted = np.arange(1000.0).view(Weighted)
    weighted.weight, weighted[3], weighted.fill_value = 2.5, np.ma.masked, 7
    weighted.harden_mask()
    records = mrecords.fromarrays([np.arange(1000), np.ones(1000)], names="a,b")
    records.a[5] = np.ma.masked
    matrix = np.ma.array(np.arange(1000).reshape(1, -1).view(np.matrix), mask=[[True] * 500 + [False] * 500])
    for array in (weighted, records, matrix, np.ma.array(np.arange(1000.0).view(Unit), mask=True)):
        pickled = pickle_object(array)
        arrays = [np.array(item) for item in pickled.arrays]
        result = unpickle_object(PickledObject(pickled.skeleton, arrays))
        assert len(pickled.skeleton) < 800
        assert (type(result), type(result.data)) == (type(array), type(array.data))
        assert (result.fill_value, result.hardmask) == (array.fill_value, array.hardmask)
        assert result.filled().tolist() == array.filled().tolist()
        assert all(any(np.shares_memory(part, item) for item in arrays) for part in (result.data, result._mask))
        assert getattr(result, "weight", None) == getattr(array, "weight", None)


class Writing(np.ndarray):
    """Stores into its items, and does not define how it is pickled."""

    unit: str

    def __array_finalize__(self, parent):
        if self.size:
            self[0] = self[0]
        self.largest = None if parent is None else max(self.view(np.ndarray), default=0)


def test_an_array_that_cannot_be_made_around_a_view_is_copied_with_its_attributes():
    array = np.arange(300.0).view(Writing)
    array.unit = "K"
    pickled = pickle_object({"array": array, "other": np.ones(3)}, parts := UnsharedParts())
    for taken in pickled.arrays:
        taken.flags.writeable = False
    result = unpickle_object(pickled)["array"]
    assert (type(result), result.tolist(), len(pickled.arrays)) == (Writing, array.tolist(), 1)
    assert (result.flags.writeable, getattr(result, "largest", 299)) == (True, 299)
    assert (parts.parts[0].nbytes, "Writing" in describe(parts.parts)) == (2400, True)
