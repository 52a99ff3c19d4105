"""Paths, trees and chunk sizes, whatever the numbers; and rings, simulated: each byte crosses each link once."""

import random
from collections import Counter, deque

import pytest

from mpishare.comm.placement import Placement
from mpishare.transfer import plan, ring_plan
from mpishare.transfer.plan import LINE_BYTES, Links
from mpishare.transfer.ring_plan import joined_runs, run_bytes


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


LINKS = [
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
]


@pytest.mark.parametrize(("nbytes", "count", "place", "configured", "expected"), LINKS)
def test_the_model_decides(nbytes, count, place, configured, expected):
    assert plan.links(nbytes, count, place, configured) == expected


def test_chunks_of_a_ring():
    mib = 1 << 20
    sizes = {1: 61_440, mib - 1: 61_440, mib: mib // 4, 3 * mib: 3 * mib // 4, 4 * mib + 256: mib}
    assert [plan.ring_chunk_bytes(nbytes, None) for nbytes in sizes] == [*sizes.values()]
    assert [plan.ring_chunk_bytes(mib, configured) for configured in (1, 65)] == [64, 128]


def test_few_bytes_are_exchanged_as_a_whole():
    assert [plan.is_small(nbytes) for nbytes in (0, 16_384, 16_385)] == [True, True, False]


def simulate(rings, held):
    """Sends and receives one chunk at a time, in any order that the rules allow, until all is done."""
    chance, count = random.Random(1), len(rings)
    sent, received = [0] * count, [0] * count
    links = [deque() for _ in rings]

    def can_send(place):
        return sent[place] < min(len(rings[place].ready) + received[place], len(rings[place].sent))

    while places := [place for place in range(count) if links[place] or can_send(place)]:
        place = chance.choice(places)
        ring = rings[place]
        if can_send(place) and (not links[place] or chance.random() < 0.5):
            links[(place + 1) % count].append([Counter(byte) for byte in held[place][ring.sent[sent[place]]]])
            sent[place] += 1
            continue
        chunk, message = ring.coming[received[place]], links[place].popleft()
        assert len(message) == chunk.stop - chunk.start > 0
        assert ring.sends_before(received[place]) <= sent[place]
        if received[place] < ring.reduced:
            message = [before + own for before, own in zip(message, held[place][chunk], strict=True)]
        held[place][chunk] = message
        received[place] += 1
    assert [(len(ring.sent), len(ring.coming)) for ring in rings] == list(zip(sent, received, strict=True))


@pytest.mark.parametrize("chunk_bytes", [1, 7, 1000])
@pytest.mark.parametrize("sizes", [[3, 3], [5, 0], [0, 9, 4], [2, 30, 1, 0], [4, 4, 4, 4, 4]], ids=str)
def test_gathered_bytes_reach_all_places_once(sizes, chunk_bytes):
    count, total = len(sizes), sum(sizes)
    starts = [sum(sizes[:place]) for place in range(count)]
    runs = [[slice(start, start + size)] for start, size in zip(starts, sizes, strict=True)]
    rings = [ring_plan.gather_ring(runs, place, chunk_bytes) for place in range(count)]
    expected = [Counter([place]) for place in range(count) for _ in range(sizes[place])]
    held = [[byte if byte == Counter([place]) else Counter() for byte in expected] for place in range(count)]
    simulate(rings, held)
    assert held == [expected] * count
    for place, ring in enumerate(rings):
        assert run_bytes(ring.coming) == total - sizes[place]
        assert {ring.sends_before(number) for number in range(len(ring.coming))} <= {0}


@pytest.mark.parametrize("chunk_bytes", [64, 1 << 20])
@pytest.mark.parametrize("count", [2, 3, 4, 5])
@pytest.mark.parametrize("size", [1, 64, 65, 320])
def test_reduced_bytes_have_each_place_once(size, count, chunk_bytes):
    rings = [ring_plan.reduce_ring(size, count, place, chunk_bytes) for place in range(count)]
    held = [[Counter([place]) for _ in range(size + 3)] for place in range(count)]
    simulate(rings, held)
    for place, ring in enumerate(rings):
        assert held[place] == [Counter(range(count))] * size + [Counter([place])] * 3
        assert [ring.sends_before(number) for number in range(ring.reduced)] == [0] * ring.reduced
        for number, chunk in enumerate(ring.coming[ring.reduced :], ring.reduced):
            assert ring.sent[ring.sends_before(number) - 1] == chunk  # it is sent before it is overwritten
    if size == 320:  # the links carry alike
        bound = 2 * (count - 1) * (-(-size // count) + LINE_BYTES)
        assert all(run_bytes(ring.sent) <= bound for ring in rings)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_chain_reduces_into_its_last_place(count):
    held = [[Counter([place]) for _ in range(10)] for place in range(count)]
    simulate([ring_plan.reduce_chain(10, count, place, 4) for place in range(count)], held)
    assert held == [[Counter(range(place + 1))] * 10 for place in range(count)]


def test_runs_join_and_skip():
    starts = [0, 10, 10, 30, 31]
    assert joined_runs([0, 1, 2, 3], starts) == [slice(0, 31)]
    assert joined_runs([0, 3], starts) == [slice(0, 10), slice(30, 31)]
    assert joined_runs([1], starts) == []
    assert run_bytes([slice(0, 10), slice(30, 31)]) == 11


@pytest.mark.parametrize(("labels", "expected"), [("aabb", True), ("abab", False), ("abbb", True), ("aba", False)])
def test_ranks_in_order(labels, expected):
    assert ring_plan.is_in_order(Placement.from_labels(labels)) == expected
