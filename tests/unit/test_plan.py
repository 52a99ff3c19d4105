"""plan: every item, byte and node is served once, whatever the numbers."""

from __future__ import annotations

from itertools import pairwise

import pytest

from mpishare import plan
from mpishare.layout import Layout

COUNTS = [0, 1, 2, 3, 7, 100, 4095, 4096, 4097, 2**31 + 5, 2**40 + 3]


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 128])
@pytest.mark.parametrize("count", COUNTS)
def test_balanced_slices_cover_and_balance(count: int, parts: int) -> None:
    slices = [plan.balanced_slice(count, parts, part) for part in range(parts)]
    lengths = [one.stop - one.start for one in slices]
    assert slices[0].start == 0
    assert slices[-1].stop == count
    assert all(one.stop == two.start for one, two in pairwise(slices))
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 128])
@pytest.mark.parametrize("count", COUNTS)
def test_byte_slices_cover_and_share_no_page(count: int, parts: int) -> None:
    slices = [plan.byte_slice(count, parts, part) for part in range(parts)]
    assert slices[0].start == 0
    assert slices[-1].stop == count
    assert all(one.stop == two.start for one, two in pairwise(slices))
    assert all(one.stop % plan.PAGE_BYTES == 0 or one.stop == count for one in slices)


@pytest.mark.parametrize("nbytes", [0, 1, 9, 10, 11, 1001])
def test_chunks_cover(nbytes: int) -> None:
    parts = list(plan.chunks(nbytes, 10))
    assert [byte for part in parts for byte in range(nbytes)[part]] == list(range(nbytes))
    assert all(part.stop - part.start == 10 for part in parts[:-1])


@pytest.mark.parametrize("nbytes", COUNTS)
def test_a_chunk_between_nodes_fits_an_mpi_count(nbytes: int) -> None:
    assert 1 <= plan.chunk_bytes(nbytes, 2) < 2**31
    assert plan.chunk_bytes(nbytes, 1) >= nbytes


@pytest.mark.parametrize("labels", ["aaaa", "abcd", "abab", "abbb", "aabc", "a"])
def test_a_chain_begins_at_the_root_and_visits_each_node_once(labels: str) -> None:
    layout = Layout.from_labels(list(labels))
    for root in range(len(labels)):
        path = plan.chain(layout, root)
        assert path[0] == root
        assert sorted(layout.node_of[rank] for rank in path) == list(range(len(layout.nodes)))
        assert all(rank == layout.leader(layout.node_of[rank]) for rank in path[1:])
