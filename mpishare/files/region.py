"""Which items of a stored array an index selects, by the rules of NumPy's basic indexing. Pure."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mpishare.errors import ArgumentError


@dataclass(frozen=True)
class Region:
    """A part of a stored array.

    Attributes:
        axes: For each stored axis, the indices that are selected, in order.
        sources: For each axis of the result, the stored axis that it comes from; None for a new axis of length 1.
    """

    axes: tuple[range, ...]
    sources: tuple[int | None, ...]

    @classmethod
    def of(cls, index: Any, shape: Sequence[int]) -> Region:
        """The part that `index` selects of an array of `shape`. An empty tuple selects all.

        Raises:
            ArgumentError: `index` is not a basic index, or is outside of the array.

        Source:
            The NumPy reference, "Indexing on ndarrays", basic indexing.
        """
        axes: list[range] = []
        sources: list[int | None] = []
        for item in _expanded(index, len(shape)):
            if item is None:
                sources.append(None)
                continue
            if isinstance(item, slice):
                sources.append(len(axes))
            axes.append(_selected(item, len(axes), shape[len(axes)]))
        return cls(tuple(axes), tuple(sources))

    def with_axes(self, lengths: Sequence[int]) -> Region:
        """The same region with further stored axes at the end, all of which are selected."""
        first = len(self.axes)
        return Region((*self.axes, *map(range, lengths)), (*self.sources, *range(first, first + len(lengths))))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result."""
        return tuple(1 if axis is None else len(self.axes[axis]) for axis in self.sources)


def _expanded(index: Any, ndim: int) -> list[Any]:
    """One item for each stored axis, and None for each new one."""
    items = index if isinstance(index, tuple) else (index,)
    dots = [number for number, item in enumerate(items) if item is Ellipsis]
    given = sum(item is not None for item in items) - len(dots)
    if len(dots) > 1:
        raise ArgumentError(f"region {index!r} has more than one Ellipsis.")
    if given > ndim:
        raise ArgumentError(f"region {index!r} has {given} indices, but the stored array has {ndim} axes.")
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
        cure = "Use integers, slices, Ellipsis and None, or index the loaded array."
        raise ArgumentError(f"region: {item!r} is not a basic index: {error}. {cure}") from error
    return range(first, first + 1)
