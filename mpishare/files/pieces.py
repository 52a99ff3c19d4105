"""How an array in a file is cut into pieces that several ranks read at the same time. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
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


class ChunkedAxis(NamedTuple):
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
    if not axes and itemsize:
        yield Piece((), 0)
    if not axes:
        return
    axis, *inner = axes
    row_bytes = itemsize * math.prod(len(other.indices) for other in inner)
    if not row_bytes:
        return
    unit = max(1, axis.chunk // axis.indices.step)  # the number of items between two cuts, at least
    units = largest_bytes // (unit * row_bytes)
    whole_rows = [Piece(tuple(slice(0, len(other.indices)) for other in inner), 0)]
    for run in axis.runs(max(units, 1)):
        rows = whole_rows if units else pieces_of(inner, itemsize, largest_bytes // (run.stop - run.start))
        for items, start in rows:
            yield Piece((run, *items), run.start * row_bytes + start)


def piece_bytes(nbytes: int, readers: int) -> int:
    """The size of the pieces in which `readers` ranks read `nbytes`."""
    return min(max(nbytes // (readers * _PIECES_PER_READER), _SMALLEST_PIECE_BYTES), _LARGEST_PIECE_BYTES)
