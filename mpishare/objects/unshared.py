"""The parts of an object that each rank must copy: Python objects in arrays, and whatever is pickled besides arrays."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_SMALL_BYTES = 4096
"""An array that is not a column, and takes less, is not reported: the names that a fitted model keeps, for example."""

LARGE_BYTES = 1 << 20
"""What is pickled besides arrays is reported from here on, and so are arrays that a class copies."""

_MAX_NAMED = 5

_OBJECTS = np.dtype(object)

_CURE_PICKLE = "NumPy arrays of its parts"
_CURE_COPY = "NumPy arrays in its place, or fewer ranks per node"
_CURE_ARRAY = ".astype('S') or .astype('f8')"
_CURE_FRAME = ".astype('category'), or, with PyArrow, .astype('string[pyarrow]')"


class UnsharedPart(NamedTuple):
    """A column of Python objects, or whatever else is copied.

    Attributes:
        description: Its name, what it is a column of, and why it is copied.
        nbytes: What it costs on each rank, in bytes.
        cure: How to have one copy per node.
    """

    description: str
    nbytes: int
    cure: str


class Copied(NamedTuple):
    """How to pickle an object that is copied all the same where it is unpickled.

    Attributes:
        part: What is copied.
        reduced: How to pickle it, as `__reduce_ex__` says; NotImplemented for its own way.
    """

    part: UnsharedPart
    reduced: Any = NotImplemented


def describe(parts: Sequence[UnsharedPart]) -> str:
    """Names the most expensive parts."""
    largest = sorted(parts, key=lambda part: part.nbytes, reverse=True)
    sentences = [f"{name}, {nbytes:,} bytes on each rank. Use {cure}." for name, nbytes, cure in largest[:_MAX_NAMED]]
    if others := largest[_MAX_NAMED:]:
        sentences.append(f"And {len(others)} more, {sum(part.nbytes for part in others):,} bytes on each rank.")
    return " ".join(sentences)


def part_of_pickle(obj: object, nbytes: int) -> UnsharedPart:
    """The part for `nbytes` of the pickle of an object."""
    return UnsharedPart(f"what {_name_of(obj)} pickles besides arrays", nbytes, _CURE_PICKLE)


def part_of_copies(obj: object, nbytes: int) -> UnsharedPart:
    """The part for `nbytes` of arrays that were shared, and copied when an object was unpickled."""
    return UnsharedPart(f"arrays that {_name_of(obj)} copies when it is unpickled", nbytes, _CURE_COPY)


def _name_of(obj: object) -> str:
    return f"{type(obj).__module__}.{type(obj).__qualname__}".removeprefix("builtins.")


class UnsharedParts:
    """Notes the parts of an object as they are pickled.

    Attributes:
        parts: The columns of Python objects, and other objects that are copied.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forgets all parts: the object is pickled once more, in another way."""
        self.parts: list[UnsharedPart] = []
        self._columns: list[NDArray[Any]] = []  # that have been noted by name

    def add(self, part: UnsharedPart) -> None:
        """Adds a part, unless it is empty."""
        if part.nbytes:
            self.parts.append(part)

    def note(self, obj: object) -> None:
        """Notes what is copied of `obj`. A container of columns comes before the columns."""
        pandas = sys.modules.get("pandas")
        if isinstance(obj, np.ndarray):
            self._note_array(obj)
        elif pandas is not None and isinstance(obj, pandas.DataFrame | pandas.Series):
            self._note_frame(obj)

    def _note_frame(self, frame: Any) -> None:
        table = frame.to_frame() if frame.ndim == 1 else frame
        for labels in _levels(table.columns):
            self._columns += _objects_in(labels)  # few, and not reported
        columns = [("the index", level) for level in _levels(table.index)]
        for number, (name, dtype) in enumerate(table.dtypes.items()):
            if _may_hold_objects(dtype):
                columns.append((f"column {name!r}", table.iloc[:, number]))
        for name, column in columns:
            for items in _objects_in(column):
                self._columns.append(items)
                description = f"{name} of a {type(frame).__name__} holds Python objects"
                self.parts.append(UnsharedPart(description, _cost(items), _CURE_FRAME))

    def _note_array(self, items: NDArray[Any]) -> None:
        if any(np.may_share_memory(items, column) for column in self._columns):
            return
        names = [name for name in items.dtype.names or () if items.dtype[name].hasobject]
        if names:
            flat = items.reshape(-1)
            name = f"column {names[0]!r} of an array of shape {items.shape}, all of which is copied with it,"
            cost = items.nbytes + sum(_cost(flat[name]) - flat[name].nbytes for name in names)
        else:
            name, cost = f"an array of shape {items.shape} and dtype {items.dtype}", _cost(items)
        if names or cost >= _SMALL_BYTES:
            self.parts.append(UnsharedPart(f"{name} holds Python objects", cost, _CURE_ARRAY))


def _levels(index: Any) -> list[Any]:
    """An index, or the indices that make a MultiIndex."""
    return list(index.levels) if index.nlevels > 1 else [index]


def _may_hold_objects(dtype: Any) -> bool:
    return bool(dtype == _OBJECTS or getattr(dtype, "storage", "") == "python")


def _objects_in(column: Any) -> list[NDArray[Any]]:
    """The Python objects of a column of pandas, if it has any."""
    items = np.asarray(column.array) if _may_hold_objects(column.dtype) else np.empty(0)
    return [items] if items.dtype.hasobject else []


def _cost(items: NDArray[Any]) -> int:
    """The bytes of an array and of the objects in it, each counted once."""
    if items.dtype != _OBJECTS:
        return items.nbytes
    flat = items.ravel()
    _, firsts = np.unique(np.fromiter(map(id, flat), np.int64, flat.size), return_index=True)
    return items.nbytes + sum(map(sys.getsizeof, flat[firsts]))
