"""The queue of a node: every task once, one fetch at a time, and a cancel that reaches the root."""

import pytest

from mpishare.tasks.counters import Counters
from mpishare.tasks.self_scheduling import ChunkRequest
from mpishare.tasks.task_queue import COUNT, TaskQueue

ALL = ChunkRequest(10**6)


def queue_of(n_tasks, *, is_closed):
    """A queue of its own memory."""
    queue = TaskQueue(Counters(COUNT))
    queue.reset(n_tasks, is_closed=is_closed)
    return queue


def chunks_of(queue, rank=0):
    """The tasks that a rank gets, and why it gets no more."""
    tasks: list[int] = []
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
