"""Which bytes of a file each rank has, and who writes them."""

from __future__ import annotations

import numpy as np
import pytest

from mpishare.arrays.spec import Spec
from mpishare.comm.placement import Placement
from mpishare.files.row_blocks import BLOCK_BYTES, RowBlocks, choose, senders, writers

LAYOUTS = [Placement.from_labels(labels) for labels in ("a", "aaa", "aabb", "abab", "abbbc", "aabbbbb")]


@pytest.mark.parametrize("lengths", [[0], [3], [2, 0, 1], [0, 0, 0, 5], [700_000, 1, 699_999]])
@pytest.mark.parametrize("shape", [(), (5,), (2, 0)])
def test_the_runs_of_all_ranks_are_the_whole_array_once(lengths: list[int], shape: tuple[int, ...]) -> None:
    stack = RowBlocks.rows(Spec(np.dtype("f8"), (7, *shape)), lengths)
    assert stack.spec.shape == (sum(lengths), *shape)
    at = 0
    for rank, length in enumerate(lengths):
        before = at
        for run in stack.runs(rank):
            assert run.at == at
            assert 0 < run.nbytes <= BLOCK_BYTES
            at += run.nbytes
        assert at - before == length * int(np.prod(shape)) * 8
    assert at == stack.spec.nbytes


@pytest.mark.parametrize("itemsize", [1, 7, BLOCK_BYTES - 1, BLOCK_BYTES, 3 * BLOCK_BYTES + 1])
def test_runs_are_whole_items(itemsize: int) -> None:
    stack = RowBlocks.whole(Spec(np.dtype(f"V{itemsize}"), (5,)), 3)
    runs = list(stack.runs(0))
    assert sum(run.nbytes for run in runs) == 5 * itemsize
    assert all(run.nbytes % itemsize == 0 for run in runs)
    assert list(stack.runs(1)) == list(stack.runs(2)) == []


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("way", ["root", "node", "hosts", "streams", "mpio"])
def test_each_ranks_bytes_have_one_writer_that_writes_its_own(placement: Placement, way: str) -> None:
    found = writers(placement, way)
    size = len(found)
    assert size == len(placement.node_of)
    taken = [rank for writer in set(found) for rank in [writer, *senders(found, writer)]]
    assert sorted(taken) == list(range(size))
    if way == "streams":
        assert {placement.node_of[writer] for writer in found} == {placement.node_of[0]}
        most = max(len(senders(found, writer)) for writer in found)
        assert most <= -(-size // len(placement.nodes[0]))


@pytest.mark.parametrize(
    ("labels", "filesystem", "distributed", "mpio", "way"),
    [
        ("aab", "lustre", False, True, "root"),
        ("aaa", "ext4", True, False, "node"),
        ("aaa", "ext4", True, True, "mpio"),
        ("aab", "nfs4", True, False, "streams"),
        ("aab", "nfs4", True, True, "mpio"),
        ("aab", "lustre", True, False, "hosts"),
    ],
)
def test_the_way_follows_from_what_there_is(
    labels: str, filesystem: str, distributed: bool, mpio: bool, way: str
) -> None:
    assert choose(Placement.from_labels(labels), filesystem, distributed=distributed, mpio=mpio) == way
