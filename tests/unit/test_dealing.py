"""How many tasks go to whom: all of them, to one rank each, and so that ranks end together."""

from __future__ import annotations

import heapq
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpishare.tasks.self_scheduling import CHUNK_S, ChunkRequest, ChunkSizer, portion


@given(st.integers(0, 10**6), st.integers(1, 100), st.integers(1, 10**6), st.integers(1, 100))
def test_a_portion_is_of_what_is_left(left: int, ranks: int, wanted: int, claimers: int) -> None:
    found = portion(left, ranks, ChunkRequest(wanted), min(claimers, ranks))
    assert min(left, 1) <= found <= min(left, wanted)
    assert found <= max(1, left * claimers / ranks)


def test_even_the_rank_that_is_alone_leaves_some_for_later() -> None:
    assert [portion(left, 1, ChunkRequest(10**9)) for left in (80, 40, 9, 1, 0)] == [10, 5, 1, 1, 0]


def test_in_the_end_it_is_careful() -> None:
    wish = ChunkRequest(50, 3, 100)
    assert [portion(left, 4, wish) for left in (10_000, 401, 400, 1)] == [50, 12, 3, 1]


def test_a_chunk_that_was_chosen_stays() -> None:
    pace = ChunkSizer(7)
    pace.ran(7, 1e-6)
    assert pace.wish == (7, 7, 0)


def test_chunks_take_their_time() -> None:
    pace = ChunkSizer(None)
    assert pace.wish.wanted == 1
    for _ in range(20):
        pace.ran(pace.wish.wanted, pace.wish.wanted * 1e-5)
    assert pace.wish.wanted == pytest.approx(CHUNK_S / 1e-5, abs=1)
    assert pace.wish.tail <= 5
    pace.ran(pace.wish.wanted, 1.0)
    assert pace.wish.wanted == 1
    assert pace.wish.tail > 1000


def test_a_chunk_grows_by_steps() -> None:
    pace = ChunkSizer(None)
    pace.ran(1, 0)
    assert 1 < pace.wish.wanted < 100


def test_a_block_is_for_all_ranks_of_a_node() -> None:
    pace = ChunkSizer(None)
    assert pace.block(3, 0.5).wanted == 3
    pace.ran(10, 1.0)
    assert pace.block(3, 0.5).wanted == 15


def ends(task_s: list[float], ranks: int, claim_s: float = 1e-5) -> list[float]:
    """When each rank ends that claims from one stock, in a simulation."""
    free = [(0.0, rank) for rank in range(ranks)]
    paces, at, ended = [ChunkSizer(None) for _ in range(ranks)], 0, [0.0] * ranks
    while free:
        now, rank = heapq.heappop(free)
        count = portion(len(task_s) - at, ranks, paces[rank].wish)
        if not count:
            ended[rank] = now
            continue
        seconds = sum(task_s[at : at + count])
        at += count
        paces[rank].ran(count, seconds)
        heapq.heappush(free, (now + seconds + claim_s, rank))
    return ended


@pytest.mark.parametrize("ranks", [2, 3, 16])
@pytest.mark.parametrize("unit_s", [1e-6, 1e-5, 1e-4, 1e-3])
@pytest.mark.parametrize("seed", range(5))
def test_ranks_end_within_one_longest_task(ranks: int, unit_s: float, seed: int) -> None:
    chance = random.Random(seed)
    task_s = [unit_s * (100 if chance.random() < 0.01 else 1) for _ in range(20_000)]
    ended = ends(task_s, ranks)
    assert max(ended) - min(ended) <= max(task_s) + 2e-5  # and a claim or two


@pytest.mark.parametrize("order", [1, -1])
def test_sorted_tasks(order: int) -> None:
    task_s = [1e-6 * number for number in range(1, 3000)][::order]
    ended = ends(task_s, 4)
    assert max(ended) - min(ended) <= 2 * CHUNK_S + max(task_s)
