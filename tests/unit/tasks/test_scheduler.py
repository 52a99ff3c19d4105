"""Chunks are of what is left, and ranks end together."""

import heapq
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpishare.tasks.scheduler import CHUNK_S, ChunkSizer, chunk_size


@given(st.integers(0, 10**6), st.integers(1, 100), st.integers(1, 10**6), st.integers(1, 100))
def test_a_chunk_is_of_what_is_left(left, n_ranks, n_tasks, n_takers):
    size = chunk_size(left, n_ranks, n_tasks, min(n_takers, n_ranks))
    assert min(left, 1) <= size <= min(left, n_tasks)
    assert size <= max(1, left * n_takers / n_ranks)


def test_chunks_take_their_time():
    sizer = ChunkSizer(None)
    assert (sizer.n_tasks, sizer.n_block_tasks) == (1, 1)
    for _ in range(20):
        sizer.note_time(sizer.n_tasks, sizer.n_tasks * 1e-5)
    assert sizer.n_tasks == pytest.approx(CHUNK_S / 1e-5, abs=1)
    assert sizer.n_block_tasks == pytest.approx(25_000, abs=9)
    sizer.note_time(sizer.n_tasks, 20.0)
    assert sizer.n_tasks == 1
    sizer.note_time(1, 0)
    assert sizer.n_tasks == 8
    assert ChunkSizer(7).n_tasks == 7


def ends(task_s, ranks, take_s=1e-5):
    """When each rank ends, in a simulation of one queue."""
    free = [(0.0, rank) for rank in range(ranks)]
    sizers, at, ended = [ChunkSizer(None) for _ in range(ranks)], 0, [0.0] * ranks
    while free:
        now, rank = heapq.heappop(free)
        count = chunk_size(len(task_s) - at, ranks, sizers[rank].n_tasks)
        if not count:
            ended[rank] = now
            continue
        seconds = sum(task_s[at : at + count])
        at += count
        sizers[rank].note_time(count, seconds)
        heapq.heappush(free, (now + seconds + take_s, rank))
    return ended


@pytest.mark.parametrize("ranks", [2, 3, 16])
@pytest.mark.parametrize("unit_s", [1e-6, 1e-5, 1e-4, 1e-3])
@pytest.mark.parametrize("seed", range(5))
def test_ranks_end_within_one_longest_task(ranks, unit_s, seed):
    chance = random.Random(seed)
    uneven = [unit_s * (100 if chance.random() < 0.01 else 1) for _ in range(20_000)]
    ended = ends(uneven, ranks)
    assert max(ended) - min(ended) <= max(uneven) + CHUNK_S
    for rising in ([1e-6 * number for number in range(1, 3000)][::step] for step in (1, -1)):
        ended = ends(rising, ranks)
        assert max(ended) - min(ended) <= 2 * CHUNK_S + max(rising)
