"""plan: paths, trees and chunk sizes, whatever the numbers."""

import pytest

from mpishare.comm.placement import Placement
from mpishare.transfer import plan
from mpishare.transfer.plan import Links


@pytest.mark.parametrize("labels", ["aaaa", "abcd", "abab", "abbb", "aabc", "a"])
def test_a_chain_begins_at_the_root_and_visits_each_node_once(labels):
    placement = Placement.from_labels(list(labels))
    for root in range(len(labels)):
        path = plan.chain(placement, root)
        assert path[0] == root
        nodes, first = [placement.node_of[rank] for rank in path], placement.node_of[root]
        assert nodes == [*range(first, len(placement.nodes)), *range(first)]
        assert all(rank == placement.leader(placement.node_of[rank]) for rank in path[1:])


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 9, 100])
@pytest.mark.parametrize("nbytes", [0, 1, 1000, 100_000, 1 << 20, 1 << 30])
def test_links_reach_every_place_once_and_agree(nbytes, count):
    links = [plan.links(nbytes, count, place) for place in range(count)]
    assert links[0].parent is None
    assert len({link.chunk_bytes for link in links}) == 1
    assert 1 <= links[0].chunk_bytes < 2**31
    pairs = [(place, child) for place, link in enumerate(links) for child in link.children]
    assert sorted(child for _, child in pairs) == list(range(1, count))
    assert all(links[child].parent == place for place, child in pairs)


@pytest.mark.parametrize(
    ("nbytes", "count", "place", "configured", "expected"),
    [
        (1000, 8, 0, None, Links(None, (4, 2, 1), 1000)),
        (1000, 8, 4, None, Links(0, (6, 5), 1000)),
        (1000, 8, 3, 10, Links(2, (4,), 10)),  # chunks of a given size go along a chain
        # 2 (n + 14336) <= 3 (61440 + 560) for a tree of larger messages, and a chain of eager ones
        (78_664, 3, 0, None, Links(None, (2, 1), 78_664)),
        (78_665, 3, 0, None, Links(None, (1,), 61_440)),
        (1 << 20, 2, 1, None, Links(0, (), 1 << 20)),
        ((1 << 20) + 1, 2, 1, None, Links(0, (), 61_440)),
        (1 << 30, 2, 0, None, Links(None, (1,), 3_923_412)),  # the root of 2**30 * 14336
        (1 << 34, 4, 1, None, Links(0, (2,), 11_097_085)),  # the root of 2**34 * 14336 / 2
        (1 << 38, 6, 5, None, Links(4, (), 16 << 20)),
    ],
)
def test_the_model_decides(nbytes, count, place, configured, expected):
    assert plan.links(nbytes, count, place, configured) == expected


def test_chunks_of_a_ring():
    mib = 1 << 20
    sizes = {1: 61_440, mib - 1: 61_440, mib: mib // 4, 3 * mib: 3 * mib // 4, 4 * mib + 256: mib}
    assert [plan.ring_chunk_bytes(nbytes, None) for nbytes in sizes] == [*sizes.values()]
    assert [plan.ring_chunk_bytes(mib, configured) for configured in (1, 65)] == [64, 128]


def test_few_bytes_are_exchanged_as_a_whole():
    assert [plan.is_small(nbytes) for nbytes in (0, 16_384, 16_385)] == [True, True, False]
