"""What of an object each rank must hold for itself: Python objects in arrays, by the column that they are in."""

from __future__ import annotations

import array
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK_BYTES = 16
"""Python gives small objects memory in such steps (CPython, Objects/obmalloc.c)."""

_SMALL_BYTES = 4096
"""An array that is no column, and takes less, is not worth a word: the names that a fitted model keeps, for example."""

_MOST_NAMED = 5
_OBJECTS = np.dtype(object)

_CURE_ARRAY = ".astype('S8') or .astype('f8')"
_CURE_FRAME = ".astype('category'), or .astype('string[pyarrow]')"


@dataclass(frozen=True)
class Copied:
    """A column of Python objects, or whatever else is copied.

    Attributes:
        where: Its name, what it is a column of, and what is the matter with it.
        nbytes: What it costs on each rank, in bytes.
        cure: How to have it in one copy a node.
    """

    where: str
    nbytes: int
    cure: str

    def __str__(self) -> str:
        return f"{self.where}, {self.nbytes:,} bytes on each rank. Use {self.cure}."


class Copies:
    """Looks at the parts of an object as they are pickled.

    Attributes:
        found: The columns of Python objects.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forgets what it saw: the object is pickled once more, in another way."""
        self.found: list[Copied] = []
        self._named: list[NDArray[Any]] = []

    def see(self, obj: object) -> None:
        """Notes what there is in `obj`, a container of columns before the columns themselves."""
        pandas = sys.modules.get("pandas")
        if isinstance(obj, np.ndarray):
            self._see_array(obj)
        elif isinstance(obj, array.array):
            self.found.append(Copied("an array.array", len(obj) * obj.itemsize, "numpy.asarray(…) of it"))
        elif pandas is not None and isinstance(obj, pandas.DataFrame | pandas.Series):
            self._see_frame(obj)

    def _see_frame(self, frame: Any) -> None:
        if frame.ndim == 2:
            for labels in _levels(frame.columns):
                self._named += _objects_in(labels)  # few, and not worth a word
        kind = type(frame).__name__
        for name, column in _columns_of(frame):
            for items in _objects_in(column):
                self._named.append(items)
                self.found.append(Copied(f"{name} of a {kind} holds Python objects", _cost(items), _CURE_FRAME))

    def _see_array(self, seen: NDArray[Any]) -> None:
        if any(np.may_share_memory(seen, one) for one in self._named):
            return
        columns = [name for name in seen.dtype.names or () if seen.dtype[name].hasobject]
        if columns:
            each = seen.reshape(-1)
            where = f"column {columns[0]!r} of an array of shape {seen.shape}, all of which is copied with it,"
            cost = seen.nbytes + sum(_cost(each[name]) - each[name].nbytes for name in columns)
        else:
            where, cost = f"an array of shape {seen.shape} and dtype {seen.dtype}", _cost(seen)
            if cost < _SMALL_BYTES:
                return
        self.found.append(Copied(f"{where} holds Python objects", cost, _CURE_ARRAY))


def told(copies: Sequence[Copied]) -> str:
    """Names the costliest."""
    named = sorted(copies, key=lambda one: one.nbytes, reverse=True)
    words = [str(one) for one in named[:_MOST_NAMED]]
    if len(named) > _MOST_NAMED:
        others = named[_MOST_NAMED:]
        words.append(f"And {len(others)} more, {sum(one.nbytes for one in others):,} bytes on each rank.")
    return " ".join(words)


def _columns_of(frame: Any) -> Iterator[tuple[str, Any]]:
    """Those that may hold Python objects, each with its name."""
    for level in _levels(frame.index):
        yield "the index", level
    if frame.ndim == 1:
        yield f"column {frame.name!r}", frame
        return
    for number, dtype in enumerate(frame.dtypes):
        if _may_hold_objects(dtype):
            yield f"column {frame.columns[number]!r}", frame.iloc[:, number]


def _levels(index: Any) -> list[Any]:
    """An index, or those that a MultiIndex is made of."""
    return list(index.levels) if index.nlevels > 1 else [index]


def _may_hold_objects(dtype: Any) -> bool:
    return bool(dtype == _OBJECTS or getattr(dtype, "storage", "") == "python")


def _objects_in(column: Any) -> list[NDArray[Any]]:
    """The Python objects of a column of pandas where it has such."""
    if not _may_hold_objects(column.dtype):
        return []
    items = np.asarray(column.array)
    return [items] if items.dtype.hasobject else []


def _cost(items: NDArray[Any]) -> int:
    """The bytes of an array and of the objects in it, each counted once."""
    if items.dtype != object:
        return items.nbytes
    flat = items.ravel()
    _, firsts = np.unique(np.fromiter(map(id, flat), np.int64, flat.size), return_index=True)
    return items.nbytes + sum(-(-sys.getsizeof(item) // _BLOCK_BYTES) * _BLOCK_BYTES for item in flat[firsts])
