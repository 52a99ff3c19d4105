"""A dataset that h5py must read: chunked, compressed, converted, in several files, or with strings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.spec import Spec
from mpishare.files.hdf5_types import readable, with_widths
from mpishare.files.parts import StoredPart, with_chunks
from mpishare.files.pieces import Hyperslab, pieces_of
from mpishare.files.region import Axis
from mpishare.files.source import Source, h5py
from mpishare.files.stored import Stored

_STRINGS_AT_A_TIME = 1 << 16


class Hdf5Part(StoredPart):
    """A part of such a dataset."""

    @classmethod
    def of(cls, stored: Stored, axes: Sequence[Axis]) -> Hdf5Part:
        """What a region selects of a dataset."""
        subarray = stored.shape[stored.ndim :]
        spec = Spec.checked((*(axis.length for axis in axes), *subarray), stored.dtype)
        if stored.chunks is None:
            return cls(stored, spec, with_chunks(axes, stored.spec))
        return cls(stored, spec, tuple(map(lambda axis, chunk: replace(axis, chunk=chunk), axes, stored.chunks)))

    def _read(self, source: Source, ranges: Sequence[range], array: NDArray[np.void], place: Hyperslab) -> None:
        if self.stored.is_text:
            subarray = self.stored.shape[self.stored.ndim :]
            strings = np.ndarray((*array.shape, *subarray), self.spec.dtype, array)
            strings[place] = self._objects(source, ranges)
            return
        with source.errors(self.stored.own_name):
            dataset = source.object(self.stored.own_name)
            space = h5py.h5s.create_simple(array.shape)
            if place:
                space.select_hyperslab(tuple(run.start or 0 for run in place), tuple(map(len, ranges)))
            dtype, _ = readable(dataset.dtype)
            dataset.read(space, _selected(dataset, ranges), array, h5py.h5t.py_create(dtype))

    def _objects(self, source: Source, ranges: Sequence[range]) -> NDArray[Any]:
        """The stored items of these indices as h5py reads them, with strings as bytes of Python."""
        with source.errors(self.stored.own_name):
            dataset = source.object(self.stored.own_name)
            dtype, _ = readable(dataset.dtype)
            assert dtype is not None
            lengths = tuple(map(len, ranges))
            items = np.zeros(lengths, dtype)
            space = h5py.h5s.create_simple(lengths)
            dataset.read(space, _selected(dataset, ranges), items, h5py.h5t.py_create(dtype))
        return items

    def dtype_of_longest(self, source: Source) -> np.dtype[Any]:
        """The dtype of the items with strings as wide as the longest of them, which are read to find it.

        Raises:
            FileError: They cannot be read.
        """
        source = source.linked(self.stored.target)
        dtype, _ = readable(source.object(self.stored.own_name).dtype)
        assert dtype is not None
        widths = [1] * len(list(_strings_in(np.empty(0, dtype))))
        for piece in pieces_of(self.axes, 1, _STRINGS_AT_A_TIME):
            for ranges, _, taken in self._reads(piece.items):
                items = self._objects(source, ranges)
                items = items if taken is None else items.take(*taken)
                longest = [max(map(len, strings.flat), default=0) for strings in _strings_in(items)]
                widths = list(map(max, widths, longest))
        return with_widths(dtype, iter(widths)).base


def _selected(dataset: Any, ranges: Sequence[range]) -> Any:
    """A dataspace of the stored items of these indices."""
    space = dataset.get_space()
    if ranges:
        starts, steps = tuple(r.start for r in ranges), tuple(r.step for r in ranges)
        space.select_hyperslab(starts, tuple(map(len, ranges)), steps)
    return space


def _strings_in(items: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """The columns of strings of variable length in what h5py has read."""
    if items.dtype.kind == "O":
        yield items
    for name in items.dtype.names or ():
        yield from _strings_in(items[name])
