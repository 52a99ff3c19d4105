"""The queue of a node: every task once, blocks in time, and a cancel that reaches the root."""

from __future__ import annotations

import pytest

from mpishare.tasks.counters import Counters
from mpishare.tasks.self_scheduling import ChunkRequest
from mpishare.tasks.task_queue import COUNT, TaskQueue

ALL = ChunkRequest(10**6)


def queue_of(n_tasks: int, *, is_closed: bool, n_ranks: int = 2) -> TaskQueue:
    """A queue of its own memory."""
    queue = TaskQueue(Counters.private(COUNT), n_ranks)
    queue.reset(n_tasks, is_closed=is_closed)
    return queue


def chunks_of(queue: TaskQueue, rank: int = 0) -> tuple[list[int], str]:
    """The tasks that a rank gets, and why it gets no more."""
    tasks: list[int] = []
    while isinstance(answer := queue.next_chunk(ALL, 1, rank, 0), range):
        tasks += answer
    return tasks, answer.name


@pytest.mark.parametrize("n_tasks", [0, 1, 100])
def test_each_task_is_taken_once(n_tasks: int) -> None:
    root, node, tasks, reason = queue_of(n_tasks, is_closed=True), queue_of(0, is_closed=False), list[int](), ""
    while reason != "END":
        own = root.next_chunk(ALL, 4, 0, 0)
        chunk, reason = chunks_of(node)
        tasks += [*chunk, *(own if isinstance(own, range) else ())]
        if reason == "FETCH":
            node.add_block(root.next_block(ALL, 4, 2, 0))
    assert sorted(tasks) == list(range(n_tasks))


def test_one_rank_fetches_a_block_while_a_quarter_of_the_last_is_left() -> None:
    node = queue_of(0, is_closed=False)
    assert (chunks_of(node, 0), chunks_of(node, 1)) == (([], "FETCH"), ([], "WAIT"))
    node.add_block(range(40, 60))
    assert chunks_of(node, 1) == (list(range(40, 55)), "FETCH")
    assert chunks_of(node, 0) == (list(range(55, 60)), "WAIT")
    node.add_block(range(0))
    assert chunks_of(node, 0) == ([], "END")


def test_a_cancel_is_reported_once() -> None:
    node = queue_of(0, is_closed=False)
    assert not node.must_report_cancel(0)
    node.cancel()
    assert node.must_report_cancel(1)
    assert not node.must_report_cancel(0)
    assert node.report() == (True, 0)
    node.add_block(range(0))
    assert not node.must_report_cancel(1)
    assert chunks_of(node) == ([], "END")


def test_tasks_that_were_run_are_counted() -> None:
    queue = queue_of(9, is_closed=True)
    queue.next_chunk(ALL, 1, 0, 3)
    queue.next_block(ALL, 1, 1, 4)
    assert queue.done == 7
    assert queue.report() == (False, 7)
    assert queue.done == 0
