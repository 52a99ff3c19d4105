"""What a call reads of an array in a file, cut into tiles that several ranks read at the same time."""

from __future__ import annotations

import math
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.raw import Block
from mpishare.arrays.region import Axis
from mpishare.arrays.spec import Order, Spec
from mpishare.files.input_file import FormatReader
from mpishare.files.stored import Stored, strides_of

_NEAR_BYTES = 256 << 10
"""Listed items that lie in one range of this size are read by one call: about as quick as to call once more."""

_LARGEST_TILE_BYTES = 4 << 20
"""Read from the page cache in about a millisecond, so that the next node soon gets its first bytes; large enough that
the Python code for each tile costs little."""

_SMALLEST_TILE_BYTES = 256 << 10
"""Opening the file on one more rank takes longer than reading less than this."""

_TILES_PER_READER = 4
"""This many tiles, if they are not too small, balance readers of different speed."""


class Tile(NamedTuple):
    """What one rank reads at a time.

    Attributes:
        first: The lowest byte of the array that the tile fills.
        nbytes: The bytes that it reads.
        read: Reads it to its place in the block of the whole array. It may raise a FileError.
    """

    first: int
    nbytes: int
    read: Callable[[Block], None]


class Strip(NamedTuple):
    """What is read along one axis by one call.

    Attributes:
        indices: The stored indices.
        place: Where the items are in the selection.
        taken: Which of the items are wanted, in which order; None for all of them.
    """

    indices: range
    place: slice | NDArray[np.intp]
    taken: NDArray[np.intp] | None


@dataclass(frozen=True)
class Selection:
    """The items of an array in a file that a region selects.

    Attributes:
        stored: The array.
        axes: What is selected along each axis.
        dtype: The dtype to which they are converted; None to leave them as they are.
        order: The order of the items in memory.
    """

    stored: Stored
    axes: tuple[Axis, ...]
    dtype: np.dtype[Any] | None = None
    order: Order = "C"

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The number of items along each axis, without the axes of a subarray dtype."""
        return tuple(len(axis.indices) for axis in self.axes)

    @cached_property
    def spec(self) -> Spec:
        """What a load of them returns."""
        stored = self.stored
        return Spec.checked((*self.shape, *stored.shape[stored.ndim :]), self.dtype or stored.dtype, self.order)

    @property
    def _item(self) -> np.dtype[Any]:
        """An item in memory, with all of a subarray."""
        return np.dtype((self.spec.dtype, self.stored.shape[self.stored.ndim :]))

    def cuts(self, largest_bytes: int) -> Iterator[tuple[Strip, ...]]:
        """Cuts it into parts of at most `largest_bytes`, but never within a chunk, which would be read twice.

        Yields:
            What is read along each axis.
        """
        slowest_first = slice(None, None, 1 if self.stored.spec.order == "C" else -1)
        grid = list(zip(self.axes, self._chunks(), strict=True))[slowest_first]
        for strips in _cut(grid, self.stored.itemsize, largest_bytes) if self.spec.nbytes else ():
            yield strips[slowest_first]

    def tiles(self, reader: FormatReader, largest_bytes: int) -> Iterator[Tile]:
        """Its tiles, of at most `largest_bytes` or one chunk, in the order of the file."""
        stored = self.stored
        strides = strides_of(self.shape, self._item.itemsize, self.order)
        for strips in self.cuts(largest_bytes):
            starts = (strip.place.start if isinstance(strip.place, slice) else strip.place.min() for strip in strips)
            first = sum(int(start) * stride for start, stride in zip(starts, strides, strict=True))
            nbytes = stored.itemsize * math.prod(len(strip.indices) for strip in strips)
            yield Tile(first, nbytes, partial(self._read, reader, strips))

    def _chunks(self) -> list[Sequence[int]]:
        """Along each axis the first indices of the chunks, which are best read together."""
        stored = self.stored
        lengths = stored.chunks or [
            1 if isinstance(axis.indices, range) else max(_NEAR_BYTES // max(stride, 1), 1)
            for axis, stride in zip(self.axes, stored.strides, strict=True)
        ]
        return [
            range(0, length or 1, chunk or 1) if isinstance(chunk, int) else list(accumulate(chunk[:-1], initial=0))
            for chunk, length in zip(lengths, stored.shape, strict=False)
        ]

    def _read(self, reader: Any, strips: Sequence[Strip], block: Block) -> None:
        """Reads a tile to its place in `block`, which is the block of the whole selection."""
        stored, item = self.stored, np.dtype((np.void, self._item.itemsize))
        array = block.view(item).reshape(self.shape, order=self.order)
        read = reader.read if stored.offset is None else reader.file.read
        is_in_order = stored.offset is not None or self.order == stored.spec.order  # else a library may not write there
        ranges, place = [strip.indices for strip in strips], tuple(strip.place for strip in strips)
        if stored.is_text:
            items = reader.strings(stored, ranges).astype(stored.dtype)
        elif self.dtype is None and is_in_order and all(strip.taken is None for strip in strips):
            read(stored, ranges, array[(*place, ...)])  # with the Ellipsis one item is a view, too
            return
        else:
            items = np.empty([*map(len, ranges)], f"V{stored.itemsize}", order=stored.spec.order)
            read(stored, ranges, items)
            if self.dtype is not None:
                items = items.view(np.dtype((stored.dtype, stored.shape[stored.ndim :])))
        if self.dtype is not None or stored.is_text:
            array = array.view(self._item)
        array[place] = wanted(items, strips)  # items as bytes keep what is between columns


def wanted(items: NDArray[Any], strips: Sequence[Strip]) -> NDArray[Any]:
    """The wanted ones of the items that were read for some strips. At most one of these is of a list."""
    for axis, strip in enumerate(strips):
        if strip.taken is not None:
            return items.take(strip.taken, axis)
    return items


def tile_bytes(nbytes: int, readers: int) -> int:
    """The size of the tiles in which `readers` ranks read `nbytes`."""
    return min(max(nbytes // (readers * _TILES_PER_READER), _SMALLEST_TILE_BYTES), _LARGEST_TILE_BYTES)


def _cut(grid: Sequence[tuple[Axis, Sequence[int]]], itemsize: int, largest_bytes: int) -> Iterator[tuple[Strip, ...]]:
    """Cuts an array of axes with chunks, the slowest axis first: for each tile its strip along each axis."""
    if not grid:
        yield ()
        return
    (axis, chunks), *inner = grid
    row_bytes = itemsize * math.prod(sum(len(strip.indices) for strip in _strips(*other)) for other in inner)
    for strip in _strips(axis, chunks, max(largest_bytes // row_bytes, 1)):
        for others in _cut(inner, itemsize, largest_bytes // len(strip.indices)):
            yield (strip, *others)


def _strips(axis: Axis, chunks: Sequence[int], most: int = sys.maxsize) -> Iterator[Strip]:
    """What is selected along an axis, in strips of at most `most` indices, or of one chunk, that cut no chunk.

    `chunks` are the first indices of the chunks; a range where these have one length.

    A strip of a list is within one chunk, and has all indices between the first and the last.
    """
    indices, first = axis.indices, 0
    if isinstance(indices, np.ndarray):
        numbers = indices // chunks.step if isinstance(chunks, range) else np.searchsorted(chunks, indices, "right")
        edges = [*np.flatnonzero(np.diff(numbers, prepend=-1)).tolist(), len(indices)]
        for first, stop in pairwise(edges):
            span = range(int(indices[first]), int(indices[stop - 1]) + 1)
            place = slice(first, stop) if axis.order is None else axis.order[first:stop]
            yield Strip(span, place, indices[first:stop] - span.start)
        return
    while first < len(indices):
        stop = min(first + most, len(indices))
        if stop < len(indices):
            following = bisect_right(chunks, indices[stop])
            if chunks[following - 1] <= indices[first]:  # the chunk of the first index has more than `most`
                following += 1
            stop = bisect_left(indices, chunks[following - 1], first) if following <= len(chunks) else len(indices)
        yield Strip(indices[first:stop], slice(first, stop), None)
        first = stop
