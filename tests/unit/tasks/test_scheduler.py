"""Chunks are of what is left, and ranks end together."""

import heapq
import random

import pytest

from mpishare.tasks.scheduler import CHUNK_S, chunk_size, next_wanted


def test_chunks_take_their_time():
    wanted = 1
    for _ in range(20):
        wanted = next_wanted(wanted, wanted * 1e-5)
    assert wanted == pytest.approx(CHUNK_S / 1e-5, abs=1)
    assert next_wanted(wanted, 20.0) == 1
    assert next_wanted(1, 0) == 8


def ends(task_s, ranks, take_s=1e-5):
    """When each rank ends, in a simulation of one queue."""
    free = [(0.0, rank) for rank in range(ranks)]
    wanted, at, ended = [1] * ranks, 0, [0.0] * ranks
    while free:
        now, rank = heapq.heappop(free)
        count = chunk_size(len(task_s) - at, ranks, wanted[rank])
        if not count:
            ended[rank] = now
            continue
        seconds = sum(task_s[at : at + count])
        at += count
        wanted[rank] = next_wanted(count, seconds)
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
