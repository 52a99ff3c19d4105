"""A region is what NumPy's basic indexing gives, and is cut without loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mpishare.errors import ArgumentError
from mpishare.files.pieces import Cut, Cuttable, boxes, offset_of, pieces
from mpishare.files.region import Axis, Region

SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=9)


@given(st.data(), SHAPES)
@settings(max_examples=300, deadline=None)
def test_regions_are_those_of_numpy(data: st.DataObject, shape: tuple[int, ...]) -> None:
    index = data.draw(hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True))
    array = np.arange(np.prod(shape)).reshape(shape)
    region = Region.of(index, shape)
    words = [slice_of(axis) for axis in region.axes]
    assert region.shape == array[index].shape
    assert (array[tuple(words)].reshape(region.shape) == array[index]).all()


def slice_of(axis: Axis) -> slice:
    """The same items as a slice with both ends."""
    if not axis.count:
        return slice(0, 0)
    stop = axis.start + axis.step * axis.count
    return slice(axis.start, stop if stop >= 0 else None, axis.step)


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (5, "index 5 is outside of axis 0, which has 5 items"),
        (np.s_[0, -4], "index -4 is outside of axis 1"),
        (np.s_[0, 0, 0], "has 3 indices, but what is stored has 2 axes"),
        ((..., ...), "more than one Ellipsis"),
        ([1, 2], "[1, 2] is no basic index"),
        (True, "True is no basic index"),
        (np.array([True]), "is no basic index"),
        ("a", "'a' is no basic index"),
        (1.5, "1.5 is no basic index"),
        (slice(0, 5, 0), "zero"),
        (slice("a"), "slice indices must be integers"),
    ],
)
def test_what_is_no_region_is_refused(index: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match="region") as refused:
        Region.of(index, (5, 3))
    assert words in str(refused.value)


AXES = st.builds(
    lambda start, step, count, chunk, back: Cut(
        Axis(start + step * (count - 1), -step, count) if back else Axis(start, step, count), chunk
    ),
    st.integers(0, 20),
    st.integers(1, 9),
    st.integers(1, 12),
    st.integers(1, 8),
    st.booleans(),
)


@given(st.lists(AXES, max_size=3), st.integers(1, 400))
@settings(max_examples=300, deadline=None)
def test_boxes_cover_all_items_once_in_order_and_cut_no_chunk(cuts: list[Cut], most_bytes: int) -> None:
    counts = tuple(cut.axis.count for cut in cuts)
    seen = np.zeros(counts, int)
    chunks: dict[tuple[int, ...], int] = {}
    starts = []
    for number, box in enumerate(boxes(cuts, 8, most_bytes)):
        seen[box] += 1
        starts.append(offset_of(box, cuts, 8))
        for item in np.ndindex(*(run.stop - run.start for run in box)):
            at = [
                cut.axis.start + cut.axis.step * (run.start + one)
                for cut, run, one in zip(cuts, box, item, strict=True)
            ]
            chunk = tuple(one // cut.chunk for one, cut in zip(at, cuts, strict=True))
            assert chunks.setdefault(chunk, number) == number
    assert (seen == 1).all()
    assert starts == sorted(starts)


@given(st.lists(st.lists(AXES, max_size=3), max_size=3), st.integers(1, 400))
@settings(max_examples=100, deadline=None)
def test_what_is_ready_is_there(arrays: list[list[Cut]], most_bytes: int) -> None:
    """With each piece, all bytes before `ready` are there."""
    found, end = [], 0
    for cuts in arrays:
        found.append(Cuttable(end, tuple(cuts), 4))
        end += 4 * int(np.prod([cut.axis.count for cut in cuts]))
    block = np.zeros(end, np.uint8)
    for piece in pieces(found, end, most_bytes):
        at, own, _ = found[piece.part]
        counts = tuple(cut.axis.count for cut in own)
        items = block[at : at + 4 * int(np.prod(counts))].view("V4").reshape(counts)
        items[piece.box] = b"\1\1\1\1"
        assert block[: piece.ready].all()
        assert piece.nbytes == items[piece.box].nbytes
    assert block.all()


def test_pieces_are_near_the_size_asked_for() -> None:
    cut = Cut(Axis(0, 1, 1000), 7)
    assert {run.stop - run.start for run in list(cut.runs(10))[:-1]} == {70}
    assert [box[0] for box in boxes([Cut(Axis(0, 1, 10 << 20))], 1, 4 << 20)] == [
        slice(0, 4 << 20),
        slice(4 << 20, 8 << 20),
        slice(8 << 20, 10 << 20),
    ]
