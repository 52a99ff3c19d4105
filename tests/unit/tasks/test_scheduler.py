"""Every task goes to one rank, one fetch and one count at a time, and ranks end together."""

import gc
import heapq
import os
import random
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpishare.errors import BackendError
from mpishare.memory.shared_file import memory_file
from mpishare.tasks.scheduler import CHUNK_S, ChunkRequest, ChunkSizer, TaskQueue, chunk_size


@given(st.integers(0, 10**6), st.integers(1, 100), st.integers(1, 10**6), st.integers(1, 100))
def test_a_chunk_is_of_what_is_left(left, n_ranks, n_tasks, n_takers):
    size = chunk_size(left, n_ranks, ChunkRequest(n_tasks), min(n_takers, n_ranks))
    assert min(left, 1) <= size <= min(left, n_tasks)
    assert size <= max(1, left * n_takers / n_ranks)


CHUNKS = [
    *((left, 1, ChunkRequest(10**9), 1, size) for left, size in ((80, 10), (40, 5), (9, 1), (1, 1), (0, 0))),
    # The tail begins at 100 tasks for each of 4 ranks.
    *((left, 4, ChunkRequest(50, 3, 100), 1, size) for left, size in ((10_000, 50), (401, 12), (400, 3), (1, 1))),
    (800, 10, ChunkRequest(10**9), 4, 40),
]


@pytest.mark.parametrize(("left", "n_ranks", "request_", "n_takers", "size"), CHUNKS)
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
    assert sizer.block_request(3) == (3, 3, 0)
    for each in (chosen, sizer):
        each.note_time(1, 0)
    assert (chosen.request, sizer.request.n_tasks) == ((7, 7, 0), 8)
    sizer.note_time(9, 1.0)
    assert sizer.block_request(3).n_tasks == 6


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


ALL = ChunkRequest(10**6)


def queue_of(n_tasks, *, is_closed):
    """A queue of its own memory."""
    queue = TaskQueue()
    queue.reset(n_tasks, is_closed=is_closed)
    return queue


def chunks_of(queue, rank=0):
    """The tasks that a rank gets, and why it gets no more."""
    tasks = []
    while isinstance(answer := queue.next_chunk(ALL, 1, rank, 0), range) and answer:
        tasks += answer
    return tasks, getattr(answer, "name", "END")


@pytest.mark.parametrize("n_tasks", [0, 1, 100])
def test_each_task_is_taken_once(n_tasks):
    root, node, tasks, reason = queue_of(n_tasks, is_closed=True), queue_of(0, is_closed=False), list[int](), ""
    while reason != "END":
        own = root.next_chunk(ALL, 4, 0, 0)
        chunk, reason = chunks_of(node)
        tasks += [*chunk, *(own if isinstance(own, range) else ())]
        if reason == "FETCH":
            assert chunks_of(node, 1) == ([], "WAIT")
            node.add_block(root.next_block(ALL, 4, 2, 0))
    assert sorted(tasks) == list(range(n_tasks))
    assert chunks_of(node, 1) == chunks_of(root) == ([], "END")


def test_a_cancel_is_reported_once_also_by_a_rank_whose_fetch_was_interrupted():
    node = queue_of(0, is_closed=False)
    assert chunks_of(node, 1) == ([], "FETCH")
    node.cancel()
    assert (chunks_of(node, 0), chunks_of(node, 1)) == (([], "END"), ([], "FETCH"))
    assert node.report() == (True, 0)
    node.add_block(range(3))  # which the root had answered before
    assert (chunks_of(node, 0), chunks_of(node, 1)) == (([], "FETCH"), ([], "END"))
    node.add_block(range(0))
    assert chunks_of(node, 1) == ([], "END")


def test_a_cancelled_queue_of_the_root_gives_no_tasks():
    root = queue_of(9, is_closed=True)
    root.cancel()
    assert chunks_of(root) == ([], "END")
    assert root.next_block(ALL, 1, 1, 0) == range(0)


def test_tasks_that_were_run_are_counted():
    queue = queue_of(9, is_closed=True)
    queue.next_chunk(ALL, 1, 0, 3)
    queue.next_block(ALL, 1, 1, 4)
    assert queue.done == 7
    assert queue.report() == (False, 7)
    assert queue.done == 0


def open_files():
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def take(queue, times, taken):
    for _ in range(times):
        chunk = queue.next_chunk(ChunkRequest(1), 1, 0, 1)
        os.sched_yield()  # so that other threads run here, if they may
        taken += chunk


def test_those_who_open_the_file_take_tasks_one_at_a_time():
    descriptor, before = memory_file(64), open_files()
    opened = [TaskQueue(os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)) for _ in range(3)]
    opened[0].reset(3000, is_closed=True)
    taken: list[int] = []
    threads = [threading.Thread(target=take, args=(queue, 1000, taken)) for queue in opened]
    with pytest.raises(KeyboardInterrupt), opened[0].lock:
        raise KeyboardInterrupt
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(3000))
    assert {queue.done for queue in opened} == {3000}
    assert open_files() == before + 3
    del opened, threads
    assert open_files() == before
    os.close(descriptor)


def test_a_file_that_cannot_be_mapped_or_has_no_pages_is_closed(tmp_path):
    (tmp_path / "empty").touch()
    before = open_files()
    for path, flags in ((tmp_path, os.O_RDONLY), (tmp_path / "empty", os.O_RDWR)):
        with pytest.raises(BackendError, match="cannot be mapped"):
            TaskQueue(os.open(path, flags))
    assert open_files() == before
