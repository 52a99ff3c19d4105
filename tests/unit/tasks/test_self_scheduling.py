"""Self-scheduling: every task goes to one rank, and ranks end together."""

import heapq
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpishare.tasks.self_scheduling import CHUNK_S, ChunkRequest, ChunkSizer, chunk_size


@given(st.integers(0, 10**6), st.integers(1, 100), st.integers(1, 10**6), st.integers(1, 100))
def test_a_chunk_is_of_what_is_left(left, n_ranks, n_tasks, n_takers):
    size = chunk_size(left, n_ranks, ChunkRequest(n_tasks), min(n_takers, n_ranks))
    assert min(left, 1) <= size <= min(left, n_tasks)
    assert size <= max(1, left * n_takers / n_ranks)


@pytest.mark.parametrize(
    ("left", "n_ranks", "request_", "n_takers", "size"),
    [
        *((left, 1, ChunkRequest(10**9), 1, size) for left, size in ((80, 10), (40, 5), (9, 1), (1, 1), (0, 0))),
        # The tail begins at 100 tasks for each of 4 ranks.
        *((left, 4, ChunkRequest(50, 3, 100), 1, size) for left, size in ((10_000, 50), (401, 12), (400, 3), (1, 1))),
        (800, 10, ChunkRequest(10**9), 4, 40),
    ],
)
def test_chunks(left, n_ranks, request_, n_takers, size):
    assert chunk_size(left, n_ranks, request_, n_takers) == size


def test_chunks_take_their_time():
    sizer = ChunkSizer(None)
    assert sizer.request == (1, 1, 0)
    for _ in range(20):
        sizer.note_time(sizer.request.n_tasks, sizer.request.n_tasks * 1e-5)
    assert sizer.request.n_tasks == pytest.approx(CHUNK_S / 1e-5, abs=1)
    assert sizer.request.n_tail_tasks == pytest.approx(5, abs=1)
    assert sizer.request.tail == pytest.approx(4, abs=1)
    sizer.note_time(sizer.request.n_tasks, 1.0)
    assert sizer.request.n_tasks == 1
    assert sizer.request.tail > 1000


def test_a_size_that_was_chosen_stays_and_others_grow_by_steps():
    chosen, sizer = ChunkSizer(7), ChunkSizer(None)
    assert sizer.block_request(3, 0.5) == (3, 3, 0)
    for each in (chosen, sizer):
        each.note_time(1, 0)
    assert (chosen.request, sizer.request.n_tasks) == ((7, 7, 0), 8)
    sizer.note_time(9, 1.0)
    assert sizer.block_request(3, 0.5).n_tasks == 15


def ends(task_s, ranks, take_s=1e-5):
    """When each rank ends, in a simulation of one queue."""
    free = [(0.0, rank) for rank in range(ranks)]
    sizers, at, ended = [ChunkSizer(None) for _ in range(ranks)], 0, [0.0] * ranks
    while free:
        now, rank = heapq.heappop(free)
        count = chunk_size(len(task_s) - at, ranks, sizers[rank].request)
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
    assert max(ended) - min(ended) <= max(uneven) + 2e-5  # and a chunk or two
    for rising in ([1e-6 * number for number in range(1, 3000)][::step] for step in (1, -1)):
        ended = ends(rising, ranks)
        assert max(ended) - min(ended) <= 2 * CHUNK_S + max(rising)
