"""Which part of a stored array is asked for, as NumPy's basic indexing says it."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mpishare.errors import ArgumentError


@dataclass(frozen=True)
class Axis:
    """The items along one axis of what is stored: `count` of them, from `start` on by `step`, which may be negative."""

    start: int
    step: int
    count: int

    def part(self, run: slice) -> Axis:
        """Those from number `run.start` of them to before number `run.stop`."""
        return Axis(self.start + run.start * self.step, self.step, run.stop - run.start)

    def rising(self) -> Axis:
        """The same items with the lowest first."""
        return self if self.step > 0 else Axis(self.start + self.step * (self.count - 1), -self.step, self.count)


@dataclass(frozen=True)
class Region:
    """A part of a stored array.

    Attributes:
        axes: For each axis of what is stored, which of its items.
        places: For each axis of the array that comes of it the stored one, None for a new one of length 1.
    """

    axes: tuple[Axis, ...]
    places: tuple[int | None, ...]

    @classmethod
    def of(cls, index: Any, shape: Sequence[int]) -> Region:
        """What `index` asks of an array of `shape`.

        Raises:
            ArgumentError: It is no basic index, or is outside of the array.

        Source:
            The NumPy reference, "Indexing on ndarrays", basic indexing.
        """
        words = index if isinstance(index, tuple) else (index,)
        axes: list[Axis] = []
        places: list[int | None] = []
        for word in _without_ellipsis(words, index, len(shape)):
            if word is None:
                places.append(None)
                continue
            number, length = len(axes), shape[len(axes)]
            if isinstance(word, slice):
                axes.append(_run(word, length))
                places.append(number)
            else:
                axes.append(Axis(_item(word, number, length), 1, 1))
        return cls(tuple(axes), tuple(places))

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Region:
        """All of an array of `shape`."""
        return cls(tuple(Axis(0, 1, length) for length in shape), tuple(range(len(shape))))

    def with_all_of(self, lengths: Sequence[int]) -> Region:
        """The same with further axes behind the others, of which all is asked for."""
        more = Region.whole(lengths)
        first = len(self.axes)
        return Region((*self.axes, *more.axes), (*self.places, *range(first, first + len(lengths))))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array that comes of it."""
        return tuple(1 if place is None else self.axes[place].count for place in self.places)

    @property
    def count(self) -> int:
        """How many items it has."""
        return math.prod(axis.count for axis in self.axes)


def _without_ellipsis(words: tuple[Any, ...], index: Any, ndim: int) -> list[Any]:
    """One word for each stored axis, and None for each new one."""
    dots = [number for number, word in enumerate(words) if word is Ellipsis]
    given = sum(word is not None for word in words) - len(dots)
    if len(dots) > 1:
        raise ArgumentError(f"region {index!r} has more than one Ellipsis.")
    if given > ndim:
        raise ArgumentError(f"region {index!r} has {given} indices, but what is stored has {ndim} axes.")
    at = dots[0] if dots else len(words)
    return [*words[:at], *[slice(None)] * (ndim - given), *words[at + 1 :]]


def _run(word: slice, length: int) -> Axis:
    try:
        start, stop, step = word.indices(length)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"region {word!r} is not understood: {error}.") from error
    return Axis(start, step, len(range(start, stop, step)))


def _item(word: Any, number: int, length: int) -> int:
    try:
        item = operator.index(word)
    except TypeError as error:
        raise ArgumentError(_not_basic(word)) from error
    if isinstance(word, bool):  # which NumPy takes for a mask
        raise ArgumentError(_not_basic(word))
    if not -length <= item < length:
        raise ArgumentError(f"region: index {item} is outside of axis {number}, which has {length} items.")
    return item % length


def _not_basic(word: Any) -> str:
    return f"region: {word!r} is no basic index. Use integers, slices, Ellipsis and None, or index what is loaded."
