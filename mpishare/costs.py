"""What of an object each rank must hold for itself: Python objects in arrays, by the column that they are in."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Copied", "Copies"]

_BLOCK_BYTES = 16
"""Python gives small objects memory in such steps (CPython, Objects/obmalloc.c)."""

_SMALL_BYTES = 4096
"""An array that is no column, and takes less, is not worth a word: the names that a fitted model keeps, for example."""

_CURE_ARRAY = ".astype('S8') or .astype('f8')"
_CURE_FRAME = ".astype('category'), or .astype('string[pyarrow]')"


@dataclass(frozen=True)
class Copied:
    """A column of Python objects.

    Attributes:
        where: Its name and what it is a column of.
        nbytes: What it costs on each rank, in bytes.
        cure: How to have it in one copy a node.
    """

    where: str
    nbytes: int
    cure: str

    def __str__(self) -> str:
        return f"{self.where} holds Python objects, {self.nbytes:,} bytes on each rank. Use {self.cure}."


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
        elif pandas is not None and isinstance(obj, pandas.DataFrame | pandas.Series):
            self._see_frame(obj)

    def _see_frame(self, frame: Any) -> None:
        if hasattr(frame, "columns"):
            labels = _objects_in(frame.columns)
            if labels is not None:
                self._named.append(labels)  # few, and not worth a word
        kind = type(frame).__name__
        for name, column in _columns_of(frame):
            items = _objects_in(column)
            if items is not None:
                self._named.append(items)
                self.found.append(Copied(f"{name} of a {kind}", _cost(items), _CURE_FRAME))

    def _see_array(self, array: NDArray[Any]) -> None:
        if any(np.may_share_memory(array, one) for one in self._named):
            return
        columns = [name for name in array.dtype.names or () if array.dtype[name].hasobject]
        if columns:
            each = array.reshape(-1)
            where = f"column {columns[0]!r} of an array of shape {array.shape}, all of which is copied with it,"
            cost = array.nbytes + sum(_cost(each[name]) - each[name].nbytes for name in columns)
        else:
            where, cost = f"an array of shape {array.shape} and dtype {array.dtype}", _cost(array)
            if cost < _SMALL_BYTES:
                return
        self.found.append(Copied(where, cost, _CURE_ARRAY))


def _columns_of(frame: Any) -> Iterator[tuple[str, Any]]:
    yield "the index", frame.index
    if frame.ndim == 1:
        yield f"column {frame.name!r}", frame
    else:
        for number, name in enumerate(frame.columns):
            yield f"column {name!r}", frame.iloc[:, number]


def _objects_in(column: Any) -> NDArray[Any] | None:
    """The Python objects of a column of pandas where it has such."""
    if column.dtype != object and getattr(column.dtype, "storage", "") != "python":
        return None
    items = np.asarray(column.array)
    return items if items.dtype.hasobject else None


def _cost(items: NDArray[Any]) -> int:
    """The bytes of an array and of the objects in it, each counted once."""
    if items.dtype != object:
        return items.nbytes
    flat = items.ravel()
    _, firsts = np.unique(np.fromiter(map(id, flat), np.int64, flat.size), return_index=True)
    return items.nbytes + sum(-(-sys.getsizeof(item) // _BLOCK_BYTES) * _BLOCK_BYTES for item in flat[firsts])
