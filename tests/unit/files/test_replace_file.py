"""Row blocks say which bytes of a file each rank has."""

from itertools import pairwise

import numpy as np
import pytest

from mpishare.arrays.spec import Spec
from mpishare.files.replace_file import BLOCK_BYTES, RowBlocks, Run

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
