"""How an array in a file is cut into pieces that several ranks read at the same time. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

Hyperslab = tuple[slice, ...]
"""For each axis of an array a slice with a start, a stop and no step."""

_LARGEST_PIECE_BYTES = 4 << 20
"""Read from the page cache in about a millisecond, so that the next node soon gets its first bytes; large enough that
the Python code for each piece costs little."""

_SMALLEST_PIECE_BYTES = 256 << 10
"""Opening the file on one more rank takes longer than reading less than this."""

_PIECES_PER_READER = 4
"""So many pieces, if they are not too small, balance readers of different speed."""


class Piece(NamedTuple):
    """The items of an array that one rank reads at a time.

    Attributes:
        items: Which items, by the array's axes in the order of memory.
        start: The offset of the first of them in the array, in bytes.
    """

    items: Hyperslab
    start: int


@dataclass(frozen=True)
class ChunkedAxis:
    """An axis of an array that is cut at the edges of stored chunks, as a chunk that is cut would be read twice.

    Attributes:
        indices: For each item of the axis, its index in the stored array, in rising order.
        chunk: The number of stored items in a chunk.
    """

    indices: range
    chunk: int = 1

    def runs(self, units: int) -> Iterator[slice]:
        """The axis in slices of about `units` units, in order. A slice ends where a multiple of their width begins."""
        width = units * max(self.chunk, self.indices.step)  # a chunk shorter than the step has one item at most
        first = 0
        while first < len(self.indices):
            end = bisect_left(self.indices, (self.indices[first] // width + 1) * width)
            yield slice(first, end)
            first = end


def pieces_of(axes: Sequence[ChunkedAxis], itemsize: int, largest_bytes: int) -> Iterator[Piece]:
    """Cuts an array into pieces, in the order in which their first items lie in memory.

    So all bytes before the first one of a piece belong to earlier pieces.

    Args:
        axes: The axes of the array in the order of memory, the slowest first.
        itemsize: Bytes of an item.
        largest_bytes: The largest size of a piece, unless one chunk is larger.
    """
    counts = [len(axis.indices) for axis in axes]
    if not itemsize * math.prod(counts):
        return
    for items in _hyperslabs(axes, itemsize, largest_bytes):
        first = 0
        for run, count in zip(items, counts, strict=True):
            first = first * count + run.start
        yield Piece(items, first * itemsize)


def _hyperslabs(axes: Sequence[ChunkedAxis], itemsize: int, largest_bytes: int) -> Iterator[Hyperslab]:
    if not axes:
        yield ()
        return
    axis, *inner = axes
    unit = max(1, axis.chunk // axis.indices.step)  # the number of items between two cuts, at least
    unit_bytes = unit * itemsize * math.prod(len(other.indices) for other in inner)
    if unit_bytes <= largest_bytes:
        whole = [slice(0, len(other.indices)) for other in inner]
        for run in axis.runs(largest_bytes // unit_bytes):
            yield (run, *whole)
        return
    for run in axis.runs(1):
        for items in _hyperslabs(inner, itemsize * (run.stop - run.start), largest_bytes):
            yield (run, *items)


def piece_bytes(nbytes: int, readers: int) -> int:
    """The size of the pieces in which `readers` ranks read `nbytes`."""
    return min(max(nbytes // (readers * _PIECES_PER_READER), _SMALLEST_PIECE_BYTES), _LARGEST_PIECE_BYTES)
