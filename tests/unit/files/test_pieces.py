"""Pieces cover an array once and cut no chunk."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpishare.files.pieces import piece_bytes, pieces_of, runs
from mpishare.files.region import Axis

AXES = st.builds(
    lambda start, step, count, chunk: Axis(range(start, start + step * count, step), chunk=chunk),
    st.integers(0, 20),
    st.integers(1, 9),
    st.integers(0, 12),
    st.integers(1, 8),
)


@given(st.lists(AXES, max_size=3), st.integers(1, 400))
@settings(max_examples=150, deadline=None)
def test_pieces_cover_all_items_once_in_order_and_cut_no_chunk(axes, largest_bytes):
    counts = tuple(len(axis.indices) for axis in axes)
    numbers = np.full(counts, -1)
    owners = {}
    starts = []
    for number, piece in enumerate(pieces_of(axes, 8, largest_bytes)):
        assert (numbers[piece.items] == -1).all()
        numbers[piece.items] = number
        assert piece.start == 8 * np.flatnonzero(numbers == number)[0]
        starts.append(piece.start)
        for item in np.argwhere(numbers == number) if axes else ():
            chunk = tuple(axis.indices[at] // axis.chunk for axis, at in zip(axes, item, strict=True))
            assert owners.setdefault(chunk, number) == number
    assert (numbers >= 0).all()
    assert starts == sorted(starts)
    for number, start in enumerate(starts[1:], 1):  # all before the first item of a piece is in earlier pieces
        assert (numbers.reshape(-1)[: start // 8] < number).all()


def test_pieces_are_near_the_largest_size():
    whole = Axis(range(10 << 20))
    assert [piece.start for piece in pieces_of([whole], 1, 4 << 20)] == [0, 4 << 20, 8 << 20]
    rows = [Axis(range(4)), Axis(range(1000))]
    assert [piece.start for piece in pieces_of(rows, 1, 500)] == list(range(0, 4000, 500))
    chunked = Axis(range(1000), chunk=7)
    assert {run.stop - run.start for run in list(runs(chunked, 75))[:-1]} == {70}
    assert [piece.start for piece in pieces_of([chunked], 1, 6)][:3] == [0, 7, 14]
    assert len(list(pieces_of([Axis(range(0, 1000, 50), chunk=7)], 1, 10))) == 2
    assert list(pieces_of([], 0, 100)) == []


PIECE_BYTES = [(0, 1, 256 << 10), (40 << 20, 4, 2560 << 10), (1 << 40, 4, 4 << 20), (4 << 20, 2, 512 << 10)]


@pytest.mark.parametrize(("nbytes", "readers", "expected"), PIECE_BYTES)
def test_piece_bytes(nbytes, readers, expected):
    assert piece_bytes(nbytes, readers) == expected
