"""How an array in a file is cut into pieces that several ranks read at the same time. Plain functions of plain data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mpishare.files.region import Axis

Box = tuple[slice, ...]
"""For each axis of an array a run of its items."""

_LARGEST_PIECE_BYTES = 4 << 20
"""Read in about a millisecond from the page cache, so that the next node waits no longer for the first bytes, and large
enough that what Python does for each does not show."""

_SMALLEST_PIECE_BYTES = 256 << 10
"""Below it, to open the file on one more rank takes longer than to read."""

_PIECES_PER_READER = 4
"""So many, if they are not too small, even out what ranks of different speed do."""


@dataclass(frozen=True)
class Cut:
    """An axis that may be cut between its items, but not within a chunk, which would be read twice.

    Attributes:
        axis: Which items of what is stored.
        chunk: How many items a chunk is long.
    """

    axis: Axis
    chunk: int = 1

    @property
    def unit(self) -> int:
        """How many items lie between two cuts at least."""
        return max(1, self.chunk // abs(self.axis.step))

    def runs(self, units: int) -> Iterator[slice]:
        """The items in runs of about so many units."""
        rising = self.axis.rising()
        width = units * max(self.chunk, rising.step)  # where steps are longer than chunks, no two items share one
        found = list(self._runs_of(rising, width))
        if rising is self.axis:
            yield from found
        else:
            yield from (slice(rising.count - run.stop, rising.count - run.start) for run in reversed(found))

    @staticmethod
    def _runs_of(rising: Axis, width: int) -> Iterator[slice]:
        """Those between multiples of `width` in what is stored."""
        last = rising.start + rising.step * (rising.count - 1)
        begin = 0
        for edge in range((rising.start // width + 1) * width, last + width + 1, width):
            end = min(-(-(edge - rising.start) // rising.step), rising.count)
            if end > begin:
                yield slice(begin, end)
            begin = end


def boxes(cuts: Sequence[Cut], itemsize: int, most_bytes: int) -> Iterator[Box]:
    """Cuts an array into boxes of at most so many bytes, or of one chunk where that is more.

    They come in the order in which their first items lie in memory, so that all bytes before the first one of a box
    belong to boxes before it.

    Args:
        cuts: One for each axis, in C order.
        itemsize: Bytes of an item.
        most_bytes: The size to come near to.
    """
    if not cuts:
        yield ()
        return
    first, rest = cuts[0], cuts[1:]
    unit_bytes = first.unit * itemsize * math.prod(cut.axis.count for cut in rest)
    if unit_bytes <= most_bytes:
        whole = [slice(0, cut.axis.count) for cut in rest]
        for run in first.runs(most_bytes // max(unit_bytes, 1) or 1):
            yield (run, *whole)
        return
    for run in first.runs(1):
        for box in boxes(rest, itemsize * (run.stop - run.start), most_bytes):
            yield (run, *box)


def offset_of(box: Box, cuts: Sequence[Cut], itemsize: int) -> int:
    """How many bytes of the array lie before the first item of `box`."""
    at = 0
    for run, cut in zip(box, cuts, strict=True):
        at = at * cut.axis.count + run.start
    return at * itemsize


def piece_bytes(nbytes: int, readers: int) -> int:
    """How large the pieces of `nbytes` should be that so many ranks read."""
    wanted = nbytes // (readers * _PIECES_PER_READER)
    return min(max(wanted, _SMALLEST_PIECE_BYTES), _LARGEST_PIECE_BYTES)


class Piece(NamedTuple):
    """What one rank reads at a time.

    Attributes:
        part: The number of the array.
        box: Which of its items.
        ready: Where the bytes begin that are not all there when this piece is and all before it.
        nbytes: Its size.
    """

    part: int
    box: Box
    ready: int
    nbytes: int


class Cuttable(NamedTuple):
    """An array that is cut.

    Attributes:
        at: Where in the block its bytes begin.
        cuts: Its axes, in the order of memory.
        itemsize: Bytes of an item.
    """

    at: int
    cuts: tuple[Cut, ...]
    itemsize: int


def pieces(arrays: Sequence[Cuttable], nbytes: int, most_bytes: int) -> list[Piece]:
    """The pieces of arrays that lie one behind the other in a block of `nbytes`."""
    found: list[tuple[int, int, Box]] = []
    for part, array in enumerate(arrays):
        if array.itemsize and all(cut.axis.count for cut in array.cuts):
            for box in boxes(array.cuts, array.itemsize, most_bytes):
                found.append((array.at + offset_of(box, array.cuts, array.itemsize), part, box))
    next_starts = [*(start for start, _, _ in found[1:]), nbytes]
    return [
        Piece(part, box, ready, math.prod(run.stop - run.start for run in box) * arrays[part].itemsize)
        for (_, part, box), ready in zip(found, next_starts, strict=False)
    ]
