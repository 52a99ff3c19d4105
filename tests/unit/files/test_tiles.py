"""Tiles cover a selection once and cut no chunk."""

from bisect import bisect_right
from itertools import accumulate, starmap
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mpishare.arrays.region import parse_region
from mpishare.arrays.spec import Spec
from mpishare.files.stored import Stored
from mpishare.files.tiles import Selection
from tests.unit.files.reading import regions


class Reading:
    """A reader of an array in memory, which notes the indices of each read."""

    def __init__(self, array):
        self.array = array
        self.reads = []

    def read(self, _, ranges, out):
        self.reads.append(ranges)
        out[...] = self.array[np.ix_(*ranges)] if ranges else self.array


def number_of_chunk(index, lengths):
    return index // lengths if isinstance(lengths, int) else bisect_right([*accumulate(lengths)], index)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_tiles_cover_all_items_once_and_cut_no_chunk(data):
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=12))
    array = np.arange(np.prod(shape), dtype="i4").reshape(shape)
    region = data.draw(regions(shape))
    lengths = st.integers(1, 8)
    chunks = tuple(data.draw(lengths | st.lists(lengths, min_size=extent).map(tuple)) for extent in shape)
    reader: Any = Reading(array.view("V4"))
    axes, view = parse_region(region, shape)
    selection = Selection(Stored("a", Spec.of(array), len(shape), "chunked", chunks=chunks), tuple(axes))
    tiles = list(selection.tiles(reader, data.draw(st.integers(1, 400))))
    block, unread = np.full(selection.spec.nbytes, 0xFF, np.uint8), {}
    for number, tile in reversed(list(enumerate(tiles))):
        before = block.copy()
        tile.read(block)
        changed = np.flatnonzero(before != block)
        assert (before[changed] == 0xFF).all()
        assert tile.first == changed.min() // 4 * 4
        for item in np.argwhere(np.ones([*map(len, reader.reads[-1])])):
            indices = [along[at] for along, at in zip(reader.reads[-1], item, strict=True)]
            chunk = tuple(starmap(number_of_chunk, zip(indices, chunks, strict=True)))
            assert unread.setdefault(chunk, number) == number
    read = view(selection.spec.view(block))
    assert (read == array[region]).all()
