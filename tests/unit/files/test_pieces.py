"""Pieces cover an array once and cut no chunk; row blocks say which bytes each rank has; a region is a basic index."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpishare.arrays.spec import Spec
from mpishare.comm.placement import Placement
from mpishare.errors import ArgumentError
from mpishare.files.pieces import ChunkedAxis, piece_bytes, pieces_of
from mpishare.files.region import parse_region
from mpishare.files.row_blocks import BLOCK_BYTES, RowBlocks, Run, choose_way, writers

AXES = st.builds(
    lambda start, step, count, chunk: ChunkedAxis(range(start, start + step * count, step), chunk),
    st.integers(0, 20),
    st.integers(1, 9),
    st.integers(0, 12),
    st.integers(1, 8),
)


@given(st.lists(AXES, max_size=3), st.integers(1, 400))
@settings(max_examples=300, deadline=None)
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
    whole = ChunkedAxis(range(10 << 20))
    assert [piece.start for piece in pieces_of([whole], 1, 4 << 20)] == [0, 4 << 20, 8 << 20]
    rows = [ChunkedAxis(range(4)), ChunkedAxis(range(1000))]
    assert [piece.start for piece in pieces_of(rows, 1, 500)] == list(range(0, 4000, 500))
    chunked = ChunkedAxis(range(1000), 7)
    assert {run.stop - run.start for run in list(chunked.runs(10))[:-1]} == {70}
    assert [piece.start for piece in pieces_of([chunked], 1, 6)][:3] == [0, 7, 14]
    assert len(list(pieces_of([ChunkedAxis(range(0, 1000, 50), 7)], 1, 10))) == 2
    assert list(pieces_of([], 0, 100)) == []


PIECE_BYTES = [(0, 1, 256 << 10), (40 << 20, 4, 2560 << 10), (1 << 40, 4, 4 << 20), (4 << 20, 2, 512 << 10)]


@pytest.mark.parametrize(("nbytes", "readers", "expected"), PIECE_BYTES)
def test_piece_bytes(nbytes, readers, expected):
    assert piece_bytes(nbytes, readers) == expected


BAD = [
    (5, "index 5 is outside of axis 0, which has 5 items"),
    (np.s_[0, -4], "index -4 is outside of axis 1, which has 3 items"),
    (np.s_[0, 0, 0], "has 3 indices, but the stored array has 2 axes"),
    ((..., ...), "more than one Ellipsis"),
    ([1, 2], "[1, 2] is not a basic index"),
    (True, "True is not a basic index"),
    (np.array([True]), "is not a basic index"),
    ("a", "'a' is not a basic index"),
    (1.5, "1.5 is not a basic index"),
    (slice(0, 5, 0), "zero"),
    (slice("a"), "slice indices must be integers"),
]


@pytest.mark.parametrize(("index", "message"), BAD)
def test_bad_indices(index, message):
    with pytest.raises(ArgumentError, match="region") as caught:
        parse_region(index, (5, 3))
    assert message in str(caught.value)


PLACEMENTS = [Placement.from_labels(labels) for labels in ("a", "aaa", "aabb", "abab", "abbbc", "aabbbbb")]


ITEMS = [1, 7, BLOCK_BYTES - 1, BLOCK_BYTES, 3 * BLOCK_BYTES + 1]
LENGTHS = [[0], [3], [2, 0, 1], [0, 0, 0, 5], [700_000, 1, 699_999]]


@pytest.mark.parametrize(("itemsize", "lengths"), [(8, own) for own in LENGTHS] + [(size, [5, 2]) for size in ITEMS])
@pytest.mark.parametrize("shape", [(), (5,), (2, 0)])
def test_the_runs_of_all_ranks_are_the_whole_array_once(itemsize, lengths, shape):
    blocks = RowBlocks.of_rows(Spec(np.dtype(f"V{itemsize}"), (7, *shape), "F"), lengths)
    assert blocks.spec == Spec(np.dtype(f"V{itemsize}"), (sum(lengths), *shape))
    row_bytes, runs = int(np.prod(shape)) * itemsize, [list(blocks.runs(rank)) for rank in range(len(lengths))]
    assert [sum(run.nbytes for run in own) for own in runs] == [length * row_bytes for length in lengths]
    everything = list(blocks.all_runs())
    assert everything == [run for own in runs for run in own]
    assert all(run.offset + run.nbytes == after.offset for run, after in pairwise([Run(0, 0), *everything]))
    assert all(run.nbytes % itemsize == 0 < run.nbytes <= max(itemsize, BLOCK_BYTES) for run in everything)
    assert RowBlocks.of_root(blocks.spec, 3).starts == (0, *(blocks.spec.nbytes,) * 3)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("way", ["root", "node", "hosts", "streams", "mpio"])
def test_each_rank_has_one_writer_and_writers_write_their_own(placement, way):
    writer_of = writers(placement, way)
    assert len(writer_of) == len(placement.node_of)
    assert all(writer_of[writer] == writer for writer in writer_of)
    if way == "streams":
        assert set(writer_of) == set(placement.nodes[0])
        shares = [writer_of.count(rank) for rank in placement.nodes[0]]
        assert max(shares) - min(shares) <= 1
    else:
        assert set(writer_of) == ({0} if way == "root" else set(placement.node_of))


WAYS = """
    aab lustre mpio root
    aaa ext4 rows node
    aaa ext4 rows+mpio mpio
    aaa nfs4 rows+mpio node
    aab lustre rows+mpio mpio
    aab nfs4 rows+mpio streams
    aab beegfs rows+mpio streams
    aab ext4 rows+mpio streams
    aab nfs4 rows streams
    aab beegfs rows streams
    aab lustre rows hosts
"""


@pytest.mark.parametrize("line", WAYS.strip().splitlines())
def test_choose_way(line):
    labels, filesystem, options, way = line.split()
    placement = Placement.from_labels(labels)
    assert choose_way(placement, filesystem, distributed="rows" in options, has_mpio="mpio" in options) == way
