"""Objects pickled apart from their arrays, packed, and unpickled as they were; what each rank must copy of them."""

import pickle
import sys
import threading
from functools import partial

import numpy as np
import pandas as pd
import pytest

from mpishare.errors import SpecError
from mpishare.objects import pickling
from mpishare.objects.pickling import pickle_object, unpickle_object
from mpishare.objects.unshared import UnsharedParts


def test_an_array_whose_dtype_no_description_carries():
    titled = np.ones(100_000, {"names": ["a"], "formats": ["f8"], "titles": [b"x"]})  # no description carries it
    pickled = pickle_object([titled, np.ma.masked, titled])
    assert (len(pickled.skeleton) < 1000, len(pickled.arrays)) == (True, 1)
    result = unpickle_object(pickled)
    assert (result[0].dtype, result[0]["a"][-1]) == (titled.dtype, 1)
    assert result[1] is np.ma.masked
    assert result[2] is result[0]


def test_arrays_are_not_copied():
    arrays = [np.zeros(9), np.zeros((9, 9))[::2]]
    result = unpickle_object(pickle_object([*arrays, arrays[0]]))
    assert [any(item is array for array in arrays) for item in result] == [True] * 3
    exported = unpickle_object(pickle_object([pickle.PickleBuffer(b"abc"), pickle.PickleBuffer(b"")]))
    assert [bytes(item) for item in exported] == [b"abc", b""]


class Field(np.ndarray):
    """An array with attributes."""


class Labelled(np.ndarray):
    """An array with an attribute in a slot, and another slot that is empty."""

    __slots__ = ("empty", "unit")


KINDS = [Field, Labelled, type("WithDict", (Labelled,), {}), type("Both", (Labelled, Field), {})]


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_with_attributes_that_refer_back(kind, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], kind.__name__, kind, raising=False)
    array = np.ones(3).view(kind)
    array.unit = [array]
    result = unpickle_object(pickle_object(array))
    assert (type(result), result.tolist(), hasattr(result, "empty")) == (kind, [1, 1, 1], False)
    assert result.unit[0] is result


class Refusing:
    """Raises an error when it is pickled, or when it is unpickled."""

    def __init__(self, error, when="__reduce__"):
        self.error, self.when = error, when

    def __reduce__(self):
        if self.when == "__reduce__":
            raise self.error
        return Refusing, (None,), self.__dict__

    def __setstate__(self, state):
        raise state["error"]


@pytest.mark.parametrize("error", [NotImplementedError(), OSError(5, "x"), KeyError("x"), MemoryError("x")], ids=repr)
def test_whatever_a_class_raises_is_the_cause_of_an_error_of_mpishare(error):
    with pytest.raises(SpecError, match=rf"Refusing cannot be pickled: {type(error).__name__}.*Leave that") as raised:
        pickle_object({"a": Refusing(error)}["a"])
    assert raised.value.__cause__ is error
    with pytest.raises(SpecError, match=rf"unpickled on this rank: {type(error).__name__}.*pass its parts") as raised:
        unpickle_object(pickle_object(Refusing(error, "__setstate__")))
    assert type(raised.value.__cause__) is type(error)
    with pytest.raises(SpecError, match=r"^ours"):
        pickle_object([Refusing(SpecError("ours"))])
    with pytest.raises(SpecError, match=r"^ours"):
        unpickle_object(pickle_object(Refusing(SpecError("ours"), "__setstate__")))


class Locked:
    """An object whose methods cannot be pickled."""

    def __init__(self):
        self.lock = threading.Lock()

    def look(self, x):
        return x


@pytest.mark.parametrize("whole", [(Locked().look,), (1, partial(partial, Locked().look)), partial(Locked().look, 2)])
def test_the_function_that_cannot_be_pickled_is_named(whole, monkeypatch):
    monkeypatch.setattr(pickling, "_cloud_pickler", lambda: None)
    with pytest.raises(SpecError) as raised:
        pickle_object(whole)
    assert str(raised.value).startswith("Locked.look cannot be pickled: cannot pickle '_thread.lock' object. ")
    with pytest.raises(SpecError, match=r"<lambda> cannot be pickled: .*: pip install cloudpickle\."):
        pickle_object((abs, lambda: 0))


def test_a_function_that_the_script_defines_on_the_root_alone(monkeypatch):
    def local():
        pass

    local.__module__, local.__qualname__ = "__main__", "local"
    monkeypatch.setattr(sys.modules["__main__"], "local", local, raising=False)
    pickled = pickle_object([local])
    monkeypatch.undo()
    with pytest.raises(SpecError, match=r"AttributeError: .*'local'.*Define it at the top level of the script or mod"):
        unpickle_object(pickled)


FRAME = pd.DataFrame({"a": [1.0, 2.0], 7: pd.Series([None, "x"], dtype=object), "c": pd.Series([1, "y"], dtype=object)})
OF_FRAME = ["column 7 of a DataFrame", "column 'c' of a DataFrame"]
STRINGS = pd.Index(["a", "b", "c"], dtype=object)
LEVELS = pd.DataFrame(np.ones((6, 2)), index=pd.MultiIndex.from_product([[1, 2], STRINGS]))
CATEGORIES = pd.DataFrame({"b": pd.Categorical(["x"]), "c": pd.array(["y"], dtype="string[pyarrow]")})


UNSHARED = [
    ([np.zeros(3), np.array(["x", None]), CATEGORIES, [None, "text"]], []),
    (FRAME, OF_FRAME),
    (FRAME[7], ["column 7 of a Series"]),
    ([FRAME, lambda: 0], OF_FRAME),  # pickled twice
    (pd.DataFrame({"a": [1.0] * 3}, index=STRINGS), ["the index of a DataFrame"]),
    (LEVELS, ["the index of a DataFrame"]),
    (LEVELS.T, []),
    (LEVELS[0], ["the index of a Series"]),
    ([1.5] * 200_000, ["what list pickles besides arrays"]),
    (np.array([None] * 510), ["an array of shape (510,) and dtype object"]),  # and one None: 4096 bytes
    (np.array([None] * 509), []),
    (np.zeros(3, [("id", "i4"), ("name", "O")]), ["column 'name' of an array of shape (3,), all of which"]),
]


@pytest.mark.parametrize(("obj", "names"), UNSHARED)
def test_columns_are_reported_once_and_by_name(obj, names):
    pickle_object(obj, parts := UnsharedParts())
    assert [part.description[: len(name)] for part, name in zip(parts.parts, names, strict=True)] == names
