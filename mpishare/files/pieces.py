"""How an array in a file is cut into pieces that several ranks read at the same time. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mpishare.files.region import Axis

Hyperslab = tuple[slice, ...]
"""For each axis of an array a slice with a start, a stop and no step."""

_LARGEST_PIECE_BYTES = 4 << 20
"""Read from the page cache in about a millisecond, so that the next node soon gets its first bytes; large enough that
the Python code for each piece costs little."""

_SMALLEST_PIECE_BYTES = 256 << 10
"""Opening the file on one more rank takes longer than reading less than this."""

_PIECES_PER_READER = 4
"""This many pieces, if they are not too small, balance readers of different speed."""


class Piece(NamedTuple):
    """The items of an array that one rank reads at a time.

    Attributes:
        items: For each axis, in the order of memory, a slice of its indices.
        start: All bytes of the array before this one belong to earlier pieces.
    """

    items: Hyperslab
    start: int


def pieces_of(axes: Sequence[Axis], itemsize: int, largest_bytes: int) -> Iterator[Piece]:
    """Cuts an array into pieces, at the edges of chunks, as a chunk that is cut would be read twice.

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
    row_bytes = itemsize * math.prod(map(_count, inner))  # that are read
    if not row_bytes:
        return
    stride = itemsize * math.prod(other.length for other in inner)
    whole_rows = [Piece(tuple(slice(0, len(other.indices)) for other in inner), 0)]
    for run in runs(axis, max(largest_bytes // row_bytes, 1)):
        count = _count(axis, run)
        rows = whole_rows if count * row_bytes <= largest_bytes else pieces_of(inner, itemsize, largest_bytes // count)
        for items, start in rows:
            yield Piece((run, *items), run.start * stride + start if axis.places is None else 0)


def runs(axis: Axis, count: int) -> Iterator[slice]:
    """The indices of an axis in slices of at most `count`, or of one chunk, in order, none of which cuts a chunk."""
    indices, chunk, first = axis.indices, axis.chunk, 0
    while first < len(indices):
        end = min(first + count, len(indices))
        if end < len(indices) and chunk > 1:
            end = bisect_left(indices, indices[end] // chunk * chunk)
            if end <= first:
                end = bisect_left(indices, (indices[first] // chunk + 1) * chunk)
        yield slice(first, end)
        first = end


def _count(axis: Axis, run: slice = slice(None)) -> int:
    """The number of stored items that are read for a slice of the indices of an axis."""
    if isinstance(axis.indices, range):
        return len(axis.indices[run])
    return sum(len(axis.span(near)) for near in axis.within(slice(*run.indices(len(axis.indices))[:2])))


def piece_bytes(nbytes: int, readers: int) -> int:
    """The size of the pieces in which `readers` ranks read `nbytes`."""
    return min(max(nbytes // (readers * _PIECES_PER_READER), _SMALLEST_PIECE_BYTES), _LARGEST_PIECE_BYTES)
