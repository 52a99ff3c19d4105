"""The part of a stored array that a call loads, and how its bytes are read or mapped without a library."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.raw import Block
from mpishare.arrays.slices import chunks
from mpishare.arrays.spec import Spec
from mpishare.errors import ArgumentError
from mpishare.files.pieces import Hyperslab, Piece, pieces_of
from mpishare.files.region import Axis
from mpishare.files.source import Source
from mpishare.files.stored import Stored
from mpishare.memory.mapping import Mapping, Origin
from mpishare.memory.pool import Slot
from mpishare.memory.segment import Segment

_STAGED_BYTES = 1 << 20
"""Items of a slice with a step are read by one call, with the bytes between them, if all lie within this."""

_NEAR_BYTES = 256 << 10
"""The same for the items of a list: about as quick to read from the page cache as to call once more."""


class Part(Protocol):
    """An array in a file, or a part of one, that is read piece by piece, by any rank in any order."""

    @property
    def spec(self) -> Spec:
        """What a load of it returns."""

    def pieces(self, largest_bytes: int) -> Iterator[Piece]:
        """Its pieces, none larger than `largest_bytes` if that can be, in the order of their first bytes."""

    def read(self, source: Source, items: Hyperslab, block: Block) -> None:
        """Reads the items of one piece to their place in `block`, which is that of the whole part.

        Raises:
            FileError: They cannot be read, or are damaged.
        """


@dataclass(frozen=True)
class StoredPart(ABC):
    """The items of a stored array that a region selects. It satisfies `Part`.

    Attributes:
        stored: The array.
        spec: What a load of them returns.
        axes: What is read along each axis, in the order of memory, without the axes of a subarray dtype.
    """

    stored: Stored
    spec: Spec
    axes: tuple[Axis, ...]

    @property
    def _item(self) -> np.dtype[Any]:
        """An item as bytes, with all of a subarray."""
        return np.dtype((np.void, self.spec.nbytes // math.prod(axis.length for axis in self.axes)))

    def pieces(self, largest_bytes: int) -> Iterator[Piece]:
        """See `Part`."""
        return pieces_of(self.axes, self._item.itemsize, largest_bytes) if self.spec.nbytes else iter(())

    def read(self, source: Source, items: Hyperslab, block: Block) -> None:
        """See `Part`."""
        source = source.linked(self.stored.target)
        array = block.view(self._item).reshape([axis.length for axis in self.axes])
        for ranges, place, taken in self._reads(items):
            if taken is None:
                self._read(source, ranges, array, place)
            else:
                near = np.empty([*map(len, ranges)], self._item)
                self._read(source, ranges, near, (slice(None),) * near.ndim)
                array[place] = near.take(*taken)

    def _reads(self, items: Hyperslab) -> Iterator[tuple[list[range], Any, tuple[NDArray[np.intp], int] | None]]:
        """What the reads of a piece are.

        Yields:
            The stored indices; the place of their items in the part; if only some are taken, or in another order,
            which ones along which axis.
        """
        at = next((at for at, axis in enumerate(self.axes) if not isinstance(axis.indices, range)), None)
        if at is None:
            yield [axis.span(run) for axis, run in zip(self.axes, items, strict=True)], items, None
            return
        axis = self.axes[at]
        for run in axis.within(items[at]):
            place = (*items[:at], run, *items[at + 1 :])
            ranges = [axis.span(run) for axis, run in zip(self.axes, place, strict=True)]
            if axis.places is None and len(ranges[at]) == run.stop - run.start:
                yield ranges, place, None
            else:
                targets, indices = axis.items_of(run)
                yield ranges, (*items[:at], targets, *items[at + 1 :]), (indices, at)

    @abstractmethod
    def _read(self, source: Source, ranges: Sequence[range], array: NDArray[np.void], place: Hyperslab) -> None:
        """Reads the stored items of these indices to `array[place]`; `array` is in C order."""


class ContiguousPart(StoredPart):
    """A part of an array whose bytes lie in the file as they would in memory."""

    @classmethod
    def of(cls, stored: Stored, axes: Sequence[Axis]) -> ContiguousPart:
        """What a region selects of an array that has an offset."""
        spec = Spec.checked(tuple(axis.length for axis in axes), stored.dtype, stored.spec.order)
        near = with_chunks(axes, stored.spec)
        return cls(stored, spec, near if spec.order == "C" else near[::-1])

    def _lie(self, ranges: Sequence[range]) -> tuple[int, tuple[int, ...]]:
        """Where the first item of the indices lies in the file, and the bytes from one item to the next."""
        strides = _strides(self.stored.spec)
        strides = strides if self.spec.order == "C" else strides[::-1]
        assert self.stored.offset is not None
        starts = [indices.start * stride for indices, stride in zip(ranges, strides, strict=True)]
        steps = [indices.step * stride for indices, stride in zip(ranges, strides, strict=True)]
        return self.stored.offset + sum(starts), tuple(steps)

    def _read(self, source: Source, ranges: Sequence[range], array: NDArray[np.void], place: Hyperslab) -> None:
        target: Any = (*place, ...)  # of one item a view, too
        _gather(source, *self._lie(ranges), array[target])

    def map(self, source: Source, origin: Origin, key: int) -> NDArray[Any]:
        """The part as a read-only view of the kernel's own pages of the file. Local.

        Args:
            source: The file.
            origin: What `report` says of the memory.
            key: The number of the segment; see `Segment`.

        Raises:
            ArgumentError: A list or a mask selects the items.
            FileError: The file cannot be opened or mapped, or has changed.
        """
        ranges = [axis.indices for axis in self.axes if isinstance(axis.indices, range)]
        if len(ranges) < len(self.axes):
            raise ArgumentError("map=True cannot pick items by a list or a mask. Use slices, or leave map=True out.")
        if not self.spec.nbytes:
            empty = self.spec.view(np.empty(0, np.uint8))
            empty.flags.writeable = False
            return empty
        offset, strides = self._lie(ranges)
        nbytes = _span([*map(len, ranges)], strides, self.spec.dtype.itemsize)
        source = source.linked(self.stored.target)
        with source.errors(self.stored.name):
            memory = Mapping.read_only(source.descriptor, slice(offset, offset + nbytes))
        segment = Segment(Slot(memory, origin, nbytes), nbytes, key, "load")
        segment.seal()
        strides = strides if self.spec.order == "C" else strides[::-1]
        return np.ndarray(self.spec.shape, self.spec.dtype, segment.block(), strides=strides)


def with_chunks(axes: Sequence[Axis], spec: Spec) -> tuple[Axis, ...]:
    """The axes of an array without chunks: for items that a list selects, what lies near each other is as one chunk."""
    return tuple(
        axis if isinstance(axis.indices, range) else replace(axis, chunk=max(_NEAR_BYTES // max(stride, 1), 1))
        for axis, stride in zip(axes, _strides(spec), strict=False)
    )


def _strides(spec: Spec) -> list[int]:
    """For each axis, the bytes from one item to the next."""
    inner = [spec.shape[axis + 1 :] if spec.order == "C" else spec.shape[:axis] for axis in range(len(spec.shape))]
    return [spec.dtype.itemsize * math.prod(lengths) for lengths in inner]


def _gather(source: Source, offset: int, strides: tuple[int, ...], target: NDArray[np.void]) -> None:
    """Reads items that lie `strides` bytes apart in the file, from `offset` on, into `target`."""
    while target.ndim and (target.shape[-1] == 1 or strides[-1] == target.strides[-1] == target.itemsize):
        target = target.view((np.void, target.itemsize * target.shape[-1]))[..., 0]  # as one item
        strides = strides[:-1]
    if not target.ndim:
        source.read(offset, target.reshape(1).view(np.uint8).data)
        return
    nbytes = _span(target.shape, strides, target.itemsize)
    if nbytes <= _STAGED_BYTES:
        staged = np.empty(nbytes, np.uint8)
        source.read(offset, staged.data)
        target[...] = np.ndarray(target.shape, target.dtype, staged, strides=strides)
        return
    for run in chunks(len(target), max(1, _STAGED_BYTES // strides[0])):
        at = offset + run.start * strides[0]
        if run.stop - run.start == 1:
            _gather(source, at, strides[1:], target[run.start, ...])
        else:
            _gather(source, at, strides, target[run])


def _span(lengths: Sequence[int], strides: Sequence[int], itemsize: int) -> int:
    """The bytes from the first to the last of items that lie `strides` apart."""
    return itemsize + sum((length - 1) * stride for length, stride in zip(lengths, strides, strict=True))
