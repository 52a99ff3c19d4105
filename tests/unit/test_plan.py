"""plan: every item, byte and node is served once, whatever the numbers."""

from __future__ import annotations

import pytest

from mpishare.comm.placement import Placement
from mpishare.transfer import plan

COUNTS = [0, 1, 2, 3, 7, 100, 4095, 4096, 4097, 2**31 + 5, 2**40 + 3]


@pytest.mark.parametrize("n_nodes", [2, 3, 4, 5, 8, 100, 1000])
@pytest.mark.parametrize("nbytes", COUNTS)
def test_a_chunk_between_nodes_fits_an_mpi_count(nbytes: int, n_nodes: int) -> None:
    assert 1 <= plan.chunk_bytes(nbytes, n_nodes) < 2**31


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 9, 100])
@pytest.mark.parametrize("nbytes", [0, 1, 1000, 100_000, 1 << 20, 1 << 30])
def test_links_reach_every_place_once_and_agree(nbytes: int, count: int) -> None:
    found = [plan.links(nbytes, count, place) for place in range(count)]
    assert found[0].parent is None
    assert len({one.chunk_bytes for one in found}) == 1
    assert 1 <= found[0].chunk_bytes < 2**31
    pairs = [(place, child) for place, one in enumerate(found) for child in one.children]
    assert sorted(child for _, child in pairs) == list(range(1, count))
    assert all(found[child].parent == place for place, child in pairs)


def test_chunks_of_a_given_size_go_along_a_chain() -> None:
    assert plan.links(1000, 8, 3, 10) == plan.Links(2, (4,), 10)


def test_few_bytes_go_down_a_tree_and_many_along_a_chain() -> None:
    assert plan.links(1000, 8, 0).children == (4, 2, 1)
    assert plan.links(1000, 8, 4).children == (6, 5)
    assert plan.links(32 << 20, 8, 0).children == (1,)


def test_chunks_grow_with_the_bytes_and_shrink_with_the_nodes() -> None:
    sizes = [plan.chunk_bytes(1 << power, 4) for power in range(10, 40)]
    assert sizes == sorted(sizes)
    assert plan.chunk_bytes(1 << 30, 1000) < plan.chunk_bytes(1 << 30, 3)


@pytest.mark.parametrize("labels", ["aaaa", "abcd", "abab", "abbb", "aabc", "a"])
def test_a_chain_begins_at_the_root_and_visits_each_node_once(labels: str) -> None:
    placement = Placement.from_labels(list(labels))
    for root in range(len(labels)):
        path = plan.chain(placement, root)
        assert path[0] == root
        assert sorted(placement.node_of[rank] for rank in path) == list(range(len(placement.nodes)))
        assert all(rank == placement.leader(placement.node_of[rank]) for rank in path[1:])
