"""Loads without MPI: what the readers of one node would read, piece by piece."""

import os
import tracemalloc

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mpishare.files.formats import reader_of
from mpishare.files.input_file import InputFile
from mpishare.files.listing import inspect_file, selections
from mpishare.files.load import nested
from mpishare.files.parallel_read import layout_of

SMALL_TILE_BYTES = 64


def loaded(path, dataset=None, region=None, *, tile_bytes=SMALL_TILE_BYTES):
    """What `load` returns, read in small tiles, the last one first."""
    with InputFile(str(path)) as file:
        reader = reader_of(file)
        listing = inspect_file(reader, dataset, region, attributes=False)
        chosen, view = selections(listing, region)
        offsets, nbytes = layout_of([*chosen.values()])
        block = np.full(nbytes, 0xEE, np.uint8)
        for selection, offset in zip(chosen.values(), offsets, strict=True):
            for tile in reversed(list(selection.tiles(reader, tile_bytes))):
                tile.read(block[offset : offset + selection.spec.nbytes])
        reader.check()
    arrays = [part.spec.view(block[offset:]) for part, offset in zip(chosen.values(), offsets, strict=True)]
    numbered = dict(zip(chosen, arrays, strict=True))
    return nested(listing.tree, numbered, {}) if listing.is_group else view(arrays[0])


def inspected(path, dataset=None, region=None, *, attributes=False):
    """What `load` finds in the file."""
    with InputFile(str(path)) as file:
        return inspect_file(reader_of(file), dataset, region, attributes=attributes)


def peak_of_read(path, dataset, first, out):
    """The most bytes that Python holds while rows of an array, from the `first` on, are read into `out`."""
    with InputFile(str(path)) as file:
        reader = reader_of(file)
        [array] = reader.listing(dataset, attributes=False).arrays
        tracemalloc.start()
        reader.read(array, [range(first, first + len(out))], out)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return peak


def regions(shape):
    """Indices of an array of that shape, with at most one list or mask; a strategy of hypothesis."""
    return st.one_of(
        hnp.basic_indices(shape, allow_newaxis=True).filter(lambda index: index is not None), _listed(shape)
    )


@st.composite
def _listed(draw, shape):
    """A basic index, with a list or a mask in the place of an integer."""
    index = draw(hnp.basic_indices(shape, min_dims=0, allow_newaxis=True))
    items = list(index) if isinstance(index, tuple) else [index]
    before = 0
    for number, item in enumerate(items):
        if isinstance(item, int):
            dots = next((at for at, other in enumerate(items) if other is ...), len(items))
            given_after = sum(other is not None for other in items[number:])
            length = shape[before if number < dots else len(shape) - given_after]
            numbers = st.integers(-length, length - 1)
            lists = [
                st.lists(numbers, max_size=7),
                hnp.arrays("i4", (2, 2), elements=numbers),
                hnp.arrays(bool, length),
            ]
            items[number] = draw(st.one_of(lists))
            break
        before += item is not None
    return tuple(items)


def failing(code):
    """A call that the operating system refuses."""

    def call(*_, **__):
        raise OSError(code, os.strerror(code))

    return call
