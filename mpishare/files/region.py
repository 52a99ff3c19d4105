"""The items of a stored array that an index selects, by the rules of NumPy's indexing. Pure."""

from __future__ import annotations

import operator
import reprlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from mpishare.errors import ArgumentError

_CURE = "Use integers, slices, Ellipsis, None, and at most one list of integers or mask."

View = Callable[[NDArray[Any]], NDArray[Any]]
"""Makes the result of the array that was read: a view, with axes dropped, added, reversed, moved or split."""


@dataclass(frozen=True, eq=False)
class Axis:
    """What a region selects along one axis of a stored array.

    Attributes:
        indices: The stored indices to read, each once, in rising order.
        places: Where the items are in another order than they are read, or repeated: for each of them its place in
            `indices`.
        chunk: The number of stored items that are best read together.
    """

    indices: range | NDArray[np.intp]
    places: NDArray[np.intp] | None = None
    chunk: int = 1

    @property
    def length(self) -> int:
        """The number of items that the region has."""
        return len(self.indices if self.places is None else self.places)

    @cached_property
    def nearby(self) -> list[slice]:
        """The indices of an array of them, in slices in which they follow each other or are in one chunk."""
        indices = np.asarray(self.indices)
        is_cut = (np.diff(indices) > 1) & (np.diff(indices // self.chunk) > 0)
        edges = [0, *(np.flatnonzero(is_cut) + 1).tolist(), len(indices)]
        return [slice(start, stop) for start, stop in pairwise(edges) if start < stop]

    @cached_property
    def _by_place(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """The items in the order of `indices`, and the place of each."""
        assert self.places is not None
        order = np.argsort(self.places, kind="stable")
        return order, self.places[order]

    def span(self, run: slice) -> range:
        """The stored items from the first to the last of a slice of `indices`, with the step of a range."""
        if isinstance(self.indices, range):
            return self.indices[run]
        return range(int(self.indices[run.start]), int(self.indices[run.stop - 1]) + 1)

    def within(self, run: slice) -> Iterator[slice]:
        """A slice of `indices` in slices, each of which is read by one call."""
        if isinstance(self.indices, range):
            yield run
            return
        first = bisect_left(self.nearby, run.start + 1, key=lambda near: near.stop)
        for near in self.nearby[first:]:
            if near.start >= run.stop:
                break
            yield slice(max(near.start, run.start), min(near.stop, run.stop))

    def items_of(self, run: slice) -> tuple[slice | NDArray[np.intp], NDArray[np.intp]]:
        """The items of the region that a slice of an array of `indices` gives, and the index of each in its span."""
        assert not isinstance(self.indices, range)
        first = self.indices[run.start]
        if self.places is None:
            return run, self.indices[run] - first
        order, places = self._by_place
        items = slice(*np.searchsorted(places, (run.start, run.stop)).tolist())
        return order[items], self.indices[places[items]] - first


def parse_region(region: Any, shape: Sequence[int]) -> tuple[list[Axis], View]:
    """What to read for a region of a stored array, and how to view it then.

    Args:
        region: What `checked_region` takes. An empty tuple selects all.
        shape: The shape of the stored array.

    Returns:
        What is read along each stored axis, and what makes the result of it.

    Raises:
        ArgumentError: `region` is not an index, or is outside of the array.

    Source:
        The NumPy reference, "Indexing on ndarrays", basic and advanced indexing.
    """
    items = checked_region(region)
    axes: list[Axis] = []
    index: list[Any] = []
    split: tuple[int, tuple[int, ...]] | None = None  # an axis of the result, and the lengths that take its place
    for item in _expanded(items, len(shape)):
        if item is None:
            index.append(None)
        elif isinstance(item, np.ndarray):
            split = sum(kept is None or isinstance(kept, slice) for kept in index), _shape_of(item)
            axes.append(_listed(item, len(axes), shape[len(axes)]))
            index.append(slice(None))
        else:
            selected = _selected(item, len(axes), shape[len(axes)])
            index.append(slice(None, None, 1 if selected.step > 0 else -1) if isinstance(item, slice) else 0)
            axes.append(Axis(selected if selected.step > 0 else selected[::-1]))

    def view(array: NDArray[Any]) -> NDArray[Any]:
        result = array[(*index, ...)] if axes or index else array
        if split is None:
            return result
        at, lengths = split
        result = result.reshape(*result.shape[:at], *lengths, *result.shape[at + 1 :])
        inner = range(len(lengths))
        return np.moveaxis(result, [at + axis for axis in inner], inner) if _is_separated(items) else result

    return axes, view


def checked_region(region: Any) -> tuple[Any, ...]:
    """A region as a tuple of integers, slices, None, Ellipsis and arrays, whatever array it is for.

    Raises:
        ArgumentError: An item cannot be in an index, or there are several lists, masks or Ellipses.
    """
    items = tuple(map(_checked_item, region if isinstance(region, tuple) else (region,)))
    if sum(item is Ellipsis for item in items) > 1:
        raise ArgumentError(f"region {region!r} has several Ellipses; expected at most one.")
    if sum(isinstance(item, np.ndarray) for item in items) > 1:
        shown = reprlib.repr(region)
        raise ArgumentError(
            f"region {shown} has several lists or masks; expected at most one. Index the result by the rest."
        )
    return items


def text_of_region(items: tuple[Any, ...]) -> str:
    """What differs where two regions differ, in few words."""
    shown = (
        f"{item.dtype}{list(item.shape)} {crc32(item.tobytes()):08x}" if isinstance(item, np.ndarray) else repr(item)
        for item in items
    )
    return f"({', '.join(shown)})"


def _checked_item(item: Any) -> Any:
    if item is None or item is Ellipsis or isinstance(item, slice):
        return item
    try:
        array = np.asarray(item)
        if not array.ndim and not isinstance(item, bool):
            return operator.index(item)
        if not array.size and not isinstance(item, np.ndarray):
            array = array.astype(np.intp)
        if not array.ndim or array.dtype.kind not in "biu":
            raise TypeError(f"it has dtype {array.dtype}")
        if array.dtype.kind == "b" and array.ndim > 1:
            raise TypeError("a mask has one axis")
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"region: {reprlib.repr(item)} is not an index: {error}. {_CURE}") from error
    return array


def _expanded(items: tuple[Any, ...], ndim: int) -> list[Any]:
    """One item for each stored axis, and None for each new one."""
    given = sum(item is not None and item is not Ellipsis for item in items)
    if given > ndim:
        shown = text_of_region(items)
        raise ArgumentError(f"region {shown} has {given} indices; expected at most {ndim}, one for each axis.")
    at = next((number for number, item in enumerate(items) if item is Ellipsis), len(items))
    return [*items[:at], *[slice(None)] * (ndim - given), *items[at + 1 :]]


def _selected(item: Any, axis: int, length: int) -> range:
    """The indices that a slice or an integer selects of `length`."""
    indices = range(length)
    try:
        if isinstance(item, slice):
            return indices[item]
        first = indices[item]
    except IndexError as error:
        raise ArgumentError(f"region: index {item} is outside of axis {axis}, which has {length} items.") from error
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"region: {item!r} is not an index: {error}. {_CURE}") from error
    return range(first, first + 1)


def _listed(item: NDArray[Any], axis: int, length: int) -> Axis:
    """What an array of indices or a mask selects of `length`."""
    if item.dtype.kind == "b":
        if len(item) != length:
            raise ArgumentError(f"region: the mask has {len(item)} items; expected {length}, as axis {axis} has.")
        return Axis(np.flatnonzero(item))
    ends = (item.min(), item.max()) if item.size else ()
    outside = [index for index in ends if not -length <= index < length]
    if outside:
        raise ArgumentError(f"region: index {outside[0]} is outside of axis {axis}, which has {length} items.")
    indices = item.astype(np.intp).reshape(-1)
    indices[indices < 0] += length
    if (np.diff(indices) > 0).all():
        return Axis(indices)
    return Axis(*np.unique(indices, return_inverse=True))


def _shape_of(item: NDArray[Any]) -> tuple[int, ...]:
    """The shape that takes the place of an axis by a list or mask."""
    return (int(np.count_nonzero(item)),) if item.dtype.kind == "b" else item.shape


def _is_separated(items: tuple[Any, ...]) -> bool:
    """Whether other items stand between an array and the integers: NumPy puts the axes of the array first then."""
    numbers = [number for number, item in enumerate(items) if isinstance(item, int | np.ndarray)]
    return numbers[-1] - numbers[0] >= len(numbers)
