"""The items of a stored array that an index selects, by the rules of NumPy's basic indexing. Pure."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from mpishare.errors import ArgumentError


def parse_region(region: Any, shape: Sequence[int]) -> tuple[list[range], tuple[Any, ...]]:
    """What to read for a region of a stored array, and how to view it then.

    Args:
        region: A basic index. An empty tuple selects all.
        shape: The shape of the stored array.

    Returns:
        For each stored axis the indices to read, in rising order; and the index that makes the result of the array that
        was read, which has as many axes. The index makes a view, as it only drops, adds and reverses axes.

    Raises:
        ArgumentError: `region` is not a basic index, or is outside of the array.

    Source:
        The NumPy reference, "Indexing on ndarrays", basic indexing.
    """
    axes: list[range] = []
    view: list[Any] = []
    for item in _expanded(region, len(shape)):
        if item is None:
            view.append(None)
            continue
        selected = _selected(item, len(axes), shape[len(axes)])
        view.append(slice(None, None, 1 if selected.step > 0 else -1) if isinstance(item, slice) else 0)
        axes.append(selected if selected.step > 0 else selected[::-1])
    return axes, (*view, ...)


def _expanded(region: Any, ndim: int) -> list[Any]:
    """One item for each stored axis, and None for each new one."""
    items = region if isinstance(region, tuple) else (region,)
    dots = [number for number, item in enumerate(items) if item is Ellipsis]
    given = sum(item is not None for item in items) - len(dots)
    if len(dots) > 1:
        raise ArgumentError(f"region {region!r} has {len(dots)} Ellipses; expected at most one.")
    if given > ndim:
        raise ArgumentError(f"region {region!r} has {given} indices; expected at most {ndim}, one for each axis.")
    at = dots[0] if dots else len(items)
    return [*items[:at], *[slice(None)] * (ndim - given), *items[at + 1 :]]


def _selected(item: Any, axis: int, length: int) -> range:
    """The indices that a slice or an integer selects of `length`."""
    indices = range(length)
    try:
        if isinstance(item, slice):
            return indices[item]
        if isinstance(item, bool):
            raise TypeError("NumPy takes a bool for a mask")
        first = indices[operator.index(item)]
    except IndexError as error:
        raise ArgumentError(f"region: index {item} is outside of axis {axis}, which has {length} items.") from error
    except (TypeError, ValueError) as error:
        cure = "Use integers, slices, Ellipsis and None."
        raise ArgumentError(f"region: {item!r} is not a basic index: {error}. {cure}") from error
    return range(first, first + 1)
