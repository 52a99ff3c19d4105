"""A dataset that h5py must read: chunked, compressed, converted, or in several files."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.raw import Block, copy_bytes
from mpishare.arrays.spec import Spec
from mpishare.files.errors import file_errors
from mpishare.files.pieces import Box, Cut, boxes
from mpishare.files.region import Axis, Region
from mpishare.files.source import Source
from mpishare.files.stored import Stored

_TEXTS_AT_A_TIME = 1 << 16


@dataclass(frozen=True)
class InHdf5:
    """A part of such a dataset. It satisfies `Part`.

    Attributes:
        name: The dataset.
        spec: What a load of it gives.
        cuts: Its axes, cut at the edges of chunks.
        is_text: Whether it has texts of any length, which become as wide as the longest.
    """

    name: str
    spec: Spec
    cuts: tuple[Cut, ...]
    is_text: bool

    @classmethod
    def of(cls, source: Source, stored: Stored, region: Region) -> InHdf5:
        """What `region` is of a dataset. Texts are read, to find the longest.

        Raises:
            FileError: They cannot be read.
        """
        assert stored.name is not None
        chunks = stored.chunks or (1,) * stored.ndim
        cuts = tuple(Cut(axis, chunk) for axis, chunk in zip(region.axes, chunks, strict=True))
        spec = Spec.checked((*region.shape, *stored.shape[stored.ndim :]), stored.dtype)
        part = cls(stored.name, spec, cuts, stored.is_text)
        if not part.is_text or not region.count:
            return part
        return replace(part, spec=Spec.checked(region.shape, np.dtype(f"S{part._width(source)}")))

    @property
    def cut_bytes(self) -> int:
        """What lies between two cuts at least: an item, with the array within it."""
        return self.spec.nbytes // math.prod(self._lengths) if self.spec.nbytes else 0

    @property
    def _lengths(self) -> tuple[int, ...]:
        return tuple(cut.axis.count for cut in self.cuts)

    def _width(self, source: Source) -> int:
        """The bytes of the longest text; 1 at least, as NumPy has it."""
        found = boxes(self.cuts, 1, _TEXTS_AT_A_TIME)
        return max(1, *(max(map(len, self._texts(source, box).flat)) for box in found))

    def read(self, source: Source, box: Box, block: Block) -> None:
        """Reads the items of `box` to their place in `block`, which is that of the whole part.

        Raises:
            FileError: h5py cannot.
        """
        with file_errors(source.path, self.name):
            if self.is_text:
                self.spec.view(block).reshape(self._lengths)[box] = self._texts(source, box)
            elif all(cut.axis.step > 0 for cut in self.cuts):
                self._read(source, box, block, box, self._lengths)
            else:
                self._read_reversed(source, box, block)

    def _read_reversed(self, source: Source, box: Box, block: Block) -> None:
        """By way of a copy, as HDF5 reads forwards only."""
        counts = tuple(run.stop - run.start for run in box)
        item = np.dtype((np.void, self.cut_bytes))
        found = np.empty(counts, item)
        self._read(source, box, found.reshape(-1).view(np.uint8), tuple(slice(0, count) for count in counts), counts)
        target = block.view(item).reshape(self._lengths)[box]
        copy_bytes(target, found[self._turns()])

    def _turns(self) -> Box:
        return tuple(slice(None, None, 1 if cut.axis.step > 0 else -1) for cut in self.cuts)

    def _read(self, source: Source, box: Box, block: Block, place: Box, lengths: tuple[int, ...]) -> None:
        """Reads `box`, the lowest item of each axis first, to `place` in `block`, an array of `lengths`."""
        from h5py import h5s, h5t

        dataset = source.hdf5[self.name]
        there, context = dataset.id.get_space(), h5s.create_simple(lengths) if lengths else h5s.create(h5s.SCALAR)
        if lengths:
            axes = self._rising(box)
            starts, steps, counts = zip(*map(astuple, axes), strict=True)
            there.select_hyperslab(starts, counts, steps)
            context.select_hyperslab(tuple(run.start for run in place), counts)
        dataset.id.read(context, there, block, h5t.py_create(dataset.dtype))

    def _rising(self, box: Box) -> list[Axis]:
        return [cut.axis.part(run).rising() for cut, run in zip(self.cuts, box, strict=True)]

    def _texts(self, source: Source, box: Box) -> NDArray[Any]:
        """Texts as objects of bytes."""
        axes = self._rising(box)
        words = tuple(slice(axis.start, axis.start + axis.step * axis.count, axis.step) for axis in axes)
        with file_errors(source.path, self.name):
            found: NDArray[Any] = np.empty(tuple(axis.count for axis in axes), object)
            found[...] = source.hdf5[self.name][words]
        turned: NDArray[Any] = found[self._turns()] if axes else found
        return turned
