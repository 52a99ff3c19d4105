"""The items of an array that an index selects, by the rules of NumPy's indexing. Pure."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from mpishare.errors import ArgumentError

_CURE = "Use integers, slices, Ellipsis, None, and at most one list of integers or mask."

View = Callable[[NDArray[Any]], NDArray[Any]]
"""Makes the result of the selected items: a view, with axes dropped, added, reversed, moved or split."""


class Axis(NamedTuple):
    """What a region selects along one axis of an array.

    Attributes:
        indices: The indices, in rising order; an array for a list or a mask.
        order: For a list that does not rise, or repeats an index: for each of `indices` its place in the list.
    """

    indices: range | NDArray[np.intp]
    order: NDArray[np.intp] | None = None


def parse_region(region: Any, shape: Sequence[int]) -> tuple[list[Axis], View]:
    """What a region selects of an array, and how to view it then.

    Args:
        region: What `checked_region` takes. An empty tuple selects all.
        shape: The shape of the array.

    Returns:
        What is selected along each axis, and what makes the result of it.

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
            continue
        axes.append(_selected(item, len(axes), shape[len(axes)]))
        if isinstance(item, np.ndarray):
            lengths = item.shape if item.dtype.kind != "b" else (len(axes[-1].indices),)
            split = sum(kept is None or isinstance(kept, slice) for kept in index), lengths
        is_reversed = isinstance(item, slice) and (item.step or 1) < 0
        index.append(0 if isinstance(item, int) else slice(None, None, -1 if is_reversed else 1))

    def view(array: NDArray[Any]) -> NDArray[Any]:
        result = array[(*index, ...)] if index else array
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
    if sum(item is Ellipsis for item in items) > 1 or sum(isinstance(item, np.ndarray) for item in items) > 1:
        shown = reprlib.repr(region)
        raise ArgumentError(f"region {shown} has several lists, masks or Ellipses. Index the result by the rest.")
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
        if not array.ndim or array.dtype.kind not in "biu" or (array.dtype.kind == "b" and array.ndim > 1):
            raise TypeError(f"it has dtype {array.dtype} and {array.ndim} axes")
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"region: {reprlib.repr(item)} is not an index: {error}. {_CURE}") from error
    return array


def _expanded(items: tuple[Any, ...], ndim: int) -> list[Any]:
    """One item for each axis, and None for each new one."""
    given = sum(item is not None and item is not Ellipsis for item in items)
    if given > ndim:
        shown = text_of_region(items)
        raise ArgumentError(f"region {shown} has {given} indices; expected at most {ndim}, one for each axis.")
    at = next((number for number, item in enumerate(items) if item is Ellipsis), len(items))
    return [*items[:at], *[slice(None)] * (ndim - given), *items[at + 1 :]]


def _selected(item: Any, axis: int, length: int) -> Axis:
    """What an integer, a slice, a list or a mask selects of `length` items."""
    try:
        if isinstance(item, np.ndarray):
            return _listed(item, length)
        selected = range(length)[item]
    except (IndexError, TypeError, ValueError) as error:
        shown = reprlib.repr(item)
        raise ArgumentError(f"region: {shown} is not within axis {axis}, of length {length}: {error}.") from error
    if isinstance(selected, int):
        return Axis(range(selected, selected + 1))
    return Axis(selected if selected.step > 0 else selected[::-1])


def _listed(item: NDArray[Any], length: int) -> Axis:
    """What an array of indices or a mask selects of `length` items.

    Raises:
        IndexError: An index is outside, or the mask has another length.
    """
    np.broadcast_to(True, (length,))[item]  # which NumPy refuses where it must
    indices = np.flatnonzero(item) if item.dtype.kind == "b" else item.astype(np.intp).reshape(-1)
    indices[indices < 0] += length
    if (np.diff(indices) > 0).all():
        return Axis(indices)
    order = np.argsort(indices, kind="stable")
    return Axis(indices[order], order)


def _is_separated(items: tuple[Any, ...]) -> bool:
    """Whether other items stand between an array and the integers: NumPy puts the axes of the array first then."""
    numbers = [number for number, item in enumerate(items) if isinstance(item, int | np.ndarray)]
    return numbers[-1] - numbers[0] >= len(numbers)
