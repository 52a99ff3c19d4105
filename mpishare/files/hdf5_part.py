"""A dataset that h5py must read: chunked, compressed, converted, in several files, or of strings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.raw import Block
from mpishare.arrays.spec import Spec
from mpishare.files.errors import file_errors
from mpishare.files.parts import Stored
from mpishare.files.pieces import ChunkedAxis, Hyperslab, Piece, pieces_of
from mpishare.files.source import Source, h5py

_STRINGS_AT_A_TIME = 1 << 16


class Hdf5Part(NamedTuple):
    """A part of such a dataset. It satisfies `Part`.

    Attributes:
        name: The dataset.
        spec: What a load of it returns.
        axes: Its axes, without those of a subarray dtype.
        is_string: Whether its items are strings of variable length; they become as wide as the longest.
    """

    name: str | None
    spec: Spec
    axes: tuple[ChunkedAxis, ...]
    is_string: bool

    @classmethod
    def of(cls, source: Source, stored: Stored, axes: Sequence[range]) -> Hdf5Part:
        """The items at the indices `axes`, one range for each axis. Strings are read, to find the longest.

        Raises:
            FileError: They cannot be read.
        """
        spec = Spec.checked((*map(len, axes), *stored.shape[stored.ndim :]), stored.dtype)
        chunked = tuple(map(ChunkedAxis, axes, stored.chunks or (1,) * stored.ndim))
        part = cls(stored.name, spec, chunked, stored.is_text)
        if not part.is_string:
            return part
        strings = (part._strings(source, piece.items) for piece in pieces_of(chunked, 1, _STRINGS_AT_A_TIME))
        width = max((len(string) for array in strings for string in array.flat), default=0)
        return part._replace(spec=Spec.checked(spec.shape, np.dtype(f"S{max(width, 1)}")))

    @property
    def _lengths(self) -> tuple[int, ...]:
        return tuple(len(axis.indices) for axis in self.axes)

    def pieces(self, largest_bytes: int) -> Iterator[Piece]:
        """See `Part`. It is cut at the edges of chunks."""
        itemsize = self.spec.nbytes // max(math.prod(self._lengths), 1)  # with all of a subarray
        return pieces_of(self.axes, itemsize, largest_bytes)

    def read(self, source: Source, items: Hyperslab, block: Block) -> None:
        """See `Part`."""
        if self.is_string:
            self.spec.view(block).reshape(self._lengths)[items] = self._strings(source, items)
            return
        with file_errors(source.path, self.name):
            dataset = source.hdf5[self.name]
            file_space, memory_space = dataset.id.get_space(), h5py.h5s.create_simple(self._lengths)
            if items:
                stored, counts = self._stored_slices(items), tuple(run.stop - run.start for run in items)
                file_space.select_hyperslab(tuple(s.start for s in stored), counts, tuple(s.step for s in stored))
                memory_space.select_hyperslab(tuple(run.start for run in items), counts)
            dataset.id.read(memory_space, file_space, block, h5py.h5t.py_create(dataset.dtype))

    def _stored_slices(self, items: Hyperslab) -> tuple[slice, ...]:
        """The stored indices of `items`."""
        selected = [axis.indices[run] for axis, run in zip(self.axes, items, strict=True)]
        return tuple(slice(indices.start, indices.stop, indices.step) for indices in selected)

    def _strings(self, source: Source, items: Hyperslab) -> NDArray[Any]:
        """The items as Python's bytes, in an array of objects."""
        strings = np.empty([run.stop - run.start for run in items], object)
        with file_errors(source.path, self.name):
            strings[...] = source.hdf5[self.name][self._stored_slices(items)]
        return strings
