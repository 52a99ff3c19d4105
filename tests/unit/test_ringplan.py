"""ringplan: played on plain bytes, each byte crosses each link once, and all places end with the same."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from mpishare.comm.placement import Placement
from mpishare.transfer import ring_plan
from mpishare.transfer.ring_plan import LINE_BYTES, Ring, gather_ring, reduce_ring, runs, spread

Held = list[list[Counter[int]]]
"""For each place and each byte, whose bytes are in it, and how often."""


def play(rings: list[Ring], held: Held) -> None:
    """Lets the places of a ring send and receive in any order that their rules allow, one piece at a time."""
    chance = random.Random(1)
    count = len(rings)
    left, came = [0] * count, [0] * count
    on_their_way: list[list[list[Counter[int]]]] = [[] for _ in rings]
    while any(left[place] < len(ring.sent) or came[place] < len(ring.coming) for place, ring in enumerate(rings)):
        ready = [
            place
            for place, ring in enumerate(rings)
            if left[place] < min(len(ring.ready) + came[place], len(ring.sent))
        ]
        full = [place for place in range(count) if on_their_way[place]]
        step = chance.choice([*((True, place) for place in ready), *((False, place) for place in full)])
        sends, place = step
        ring = rings[place]
        if sends:
            piece = ring.sent[left[place]]
            left[place] += 1
            on_their_way[(place + 1) % count].append([Counter(one) for one in held[place][piece]])
            continue
        found, piece, number = on_their_way[place].pop(0), ring.coming[came[place]], came[place]
        assert len(found) == piece.stop - piece.start > 0
        if number < ring.reduced:
            held[place][piece] = [theirs + ours for theirs, ours in zip(found, held[place][piece], strict=True)]
        else:
            assert not ring.reduced or left[place] > number - ring.reduced  # what is overwritten has left
            held[place][piece] = found
        came[place] += 1


@pytest.mark.parametrize("piece", [1, 7, 1000])
@pytest.mark.parametrize("sizes", [[3, 3], [5, 0], [0, 9, 4], [2, 30, 1, 0], [4, 4, 4, 4, 4]], ids=str)
def test_gathered_bytes_reach_all_places_once(sizes: list[int], piece: int) -> None:
    count, total = len(sizes), sum(sizes)
    starts = [sum(sizes[:place]) for place in range(count)]
    parts = [[slice(starts[place], starts[place] + sizes[place])] for place in range(count)]
    rings = [gather_ring(parts, place, piece) for place in range(count)]
    held: Held = [[Counter() for _ in range(total)] for _ in sizes]
    for place, (part,) in enumerate(parts):
        held[place][part] = [Counter([place])] * sizes[place]
    play(rings, held)
    expected = [Counter([place]) for place in range(count) for _ in range(sizes[place])]
    assert held == [expected] * count
    for place, ring in enumerate(rings):
        assert sum(one.stop - one.start for one in ring.coming) == total - sizes[place]
        assert sum(one.stop - one.start for one in ring.sent) == total - sizes[(place + 1) % count]


@pytest.mark.parametrize("piece", [64, 1 << 20])
@pytest.mark.parametrize("count", [2, 3, 4, 5])
@pytest.mark.parametrize("nbytes", [1, 64, 65, 320])
def test_reduced_bytes_have_each_place_once(nbytes: int, count: int, piece: int) -> None:
    start = 5
    run = slice(start, start + nbytes)
    rings = [reduce_ring(run, count, place, piece) for place in range(count)]
    held: Held = [[Counter([place]) for _ in range(start + nbytes + 3)] for place in range(count)]
    play(rings, held)
    for place in range(count):
        assert held[place][run] == [Counter(range(count))] * nbytes
        assert held[place][:start] == [Counter([place])] * start
        assert held[place][run.stop :] == [Counter([place])] * 3
        assert rings[place].staged_bytes <= min(piece, nbytes)
    if nbytes == 320:  # the links carry alike
        bound = 2 * (count - 1) * (-(-nbytes // count) + LINE_BYTES)
        assert all(sum(one.stop - one.start for one in ring.sent) <= bound for ring in rings)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 9, 100])
def test_what_each_place_has_spreads_in_the_fewest_turns(count: int) -> None:
    turns = spread(count)
    assert len(turns) == (count - 1).bit_length()
    held = 1
    for distance, places in turns:
        assert held == distance  # what comes is from the places before those that are known
        assert places <= held
        held += places
    assert held == count


def test_runs_join_and_skip() -> None:
    starts = [0, 10, 10, 30, 31]
    assert runs([0, 1, 2, 3], starts) == [slice(0, 31)]
    assert runs([0, 3], starts) == [slice(0, 10), slice(30, 31)]
    assert runs([1], starts) == []


def test_pieces_cut_no_number() -> None:
    for nbytes in (1, 100_000, 1 << 22, 1 << 40):
        for wanted in (None, 1, 7, 64, 1 << 20):
            piece = ring_plan.piece_bytes(nbytes, wanted)
            assert piece % LINE_BYTES == 0
            assert piece >= (wanted or 1)


@pytest.mark.parametrize(("labels", "is_in_order"), [("aabb", True), ("abab", False), ("abbb", True), ("aba", False)])
def test_ranks_in_order(labels: str, is_in_order: bool) -> None:
    assert ring_plan.is_in_order(Placement.from_labels(labels)) == is_in_order
