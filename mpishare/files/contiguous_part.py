"""An array that lies in its file as it would in memory, so that its bytes are read without a library between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.raw import Block
from mpishare.arrays.slices import chunks
from mpishare.arrays.spec import Order, Spec
from mpishare.files.pieces import Box, Cut
from mpishare.files.region import Axis, Region
from mpishare.files.source import Source
from mpishare.files.stored import Stored

_STAGED_BYTES = 1 << 20
"""Items that are strewn over so many bytes of a file are read with what lies between them, by one call."""


@dataclass(frozen=True)
class Flat:
    """A part of such an array. It satisfies `Part`.

    Attributes:
        name: Its dataset, None where the file is one array.
        spec: What a load of it gives.
        offset: Where in the file its first item lies.
        strides: How many bytes of the file lie from one item to the next, along each axis of what a load gives.
    """

    name: str | None
    spec: Spec
    offset: int
    strides: tuple[int, ...]

    @classmethod
    def of(cls, stored: Stored, region: Region) -> Flat:
        """What `region` is of an array that has an offset."""
        assert stored.offset is not None
        steps = _strides(stored.spec)
        offset = stored.offset + sum(
            axis.start * step for axis, step in zip(region.axes, steps, strict=True) if axis.count
        )
        strides = [0 if place is None else region.axes[place].step * steps[place] for place in region.places]
        order: Order = stored.spec.order if len(region.shape) > 1 else "C"
        spec = Spec.checked(region.shape, stored.dtype, order)
        return cls(stored.name, spec, offset, tuple(strides))

    @cached_property
    def _runs(self) -> tuple[tuple[int, int], ...]:
        """The axes in the order of memory, as few as can be, with their strides; the last has bytes in one run."""
        axes = list(zip(self.spec.shape, self.strides, strict=True))
        if self.spec.order == "F":
            axes.reverse()
        found = [(self.spec.dtype.itemsize, 1)]
        for count, stride in reversed(axes):
            inner_count, inner_stride = found[0]
            if count == 1:
                continue
            if stride == inner_count * inner_stride:
                found[0] = (count * inner_count, inner_stride)
            else:
                found.insert(0, (count, stride))
        return tuple(found)

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """Where it may be cut: between any two items, or bytes of a run."""
        return tuple(Cut(Axis(0, 1, count)) for count, _ in self._runs)

    @property
    def cut_bytes(self) -> int:
        """What lies between two cuts at least: a byte."""
        return 1

    def read(self, source: Source, box: Box, block: Block) -> None:
        """Reads the items of `box` to their place in `block`, which is that of the whole part."""
        counts, strides = zip(*self._runs, strict=True)
        offset = self.offset + sum(run.start * stride for run, stride in zip(box, strides, strict=True))
        _gather(source, offset, strides, block.reshape(counts)[box])

    @property
    def span(self) -> slice:
        """Where in the file its bytes lie, with all that lies between them."""
        low, high = _span(self.offset, *zip(*self._runs, strict=True))
        return slice(low, high) if self.spec.nbytes else slice(self.offset, self.offset)

    def view(self, block: Block) -> NDArray[Any]:
        """The part as a view of `block`, the bytes of its span."""
        if not self.spec.nbytes:
            return self.spec.view(block)
        at = self.offset - self.span.start
        return np.ndarray(self.spec.shape, self.spec.dtype, block, at, self.strides)


def _strides(stored: Spec) -> list[int]:
    """The bytes from one item to the next along each axis."""
    lengths: Sequence[int] = stored.shape if stored.order == "C" else stored.shape[::-1]
    found, stride = [], stored.dtype.itemsize
    for length in reversed(lengths):
        found.append(stride)
        stride *= length
    return found[::-1] if stored.order == "C" else found


def _gather(source: Source, offset: int, strides: tuple[int, ...], target: Block) -> None:
    """Reads bytes that lie `strides` apart from `offset` on into `target`, the last axis of which is in one run."""
    if strides == (1,):
        source.read(offset, target.data)
        return
    low, high = _span(offset, target.shape, strides)
    if high - low <= _STAGED_BYTES:
        staged = np.empty(high - low, np.uint8)
        source.read(low, staged.data)
        item = np.dtype((np.void, target.shape[-1]))
        target.view(item)[..., 0] = np.ndarray(target.shape[:-1], item, staged, offset - low, strides[:-1])
        return
    for run in chunks(len(target), max(1, _STAGED_BYTES // abs(strides[0]))):
        at = offset + run.start * strides[0]
        if run.stop - run.start == 1:
            _gather(source, at, strides[1:], target[run.start])
        else:
            _gather(source, at, strides, target[run])


def _span(offset: int, counts: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    """Where bytes begin and end that lie `strides` apart, the first of them at `offset`."""
    steps = [(count - 1) * stride for count, stride in zip(counts, strides, strict=True)]
    return offset + sum(min(step, 0) for step in steps), offset + sum(max(step, 0) for step in steps) + 1
