"""The tasks that the ranks of one node can take, in the memory of the node (`counters`).

Taking a chunk costs microseconds there. Where more tasks can come from the root, the rank that finds none left fetches
them; see `work_queue`. To fetch them before that, while other ranks take the last ones, gained nothing (2 nodes with 2
ranks each, tasks of 20 us to 2 ms: 0.95 to 1.1 of the time).
"""

from __future__ import annotations

import threading
from enum import Enum

from mpishare.tasks.counters import Counters
from mpishare.tasks.self_scheduling import ChunkRequest, chunk_size


class NoTask(Enum):
    """What a rank does that gets no chunk yet."""

    FETCH = 1  # a block from the root
    WAIT = 2  # for the rank that fetches one


_BEGIN, _END, _FETCHER, _IS_CANCELLED, _IS_CLOSED, _DONE, COUNT = range(7)
"""The numbers of a queue, by place: the tasks that can be taken now; the rank that fetches a block, plus one; whether
tasks are cancelled; whether the root has no more, or this is its own queue; tasks run since the last report to it."""


class TaskQueue:
    """The tasks that the ranks of one node can take. Several threads of a rank may use it."""

    def __init__(self, counters: Counters) -> None:
        """`counters` holds `COUNT` numbers."""
        self._counters = counters
        self._numbers = counters.numbers
        self._thread_lock = threading.Lock()

    def reset(self, count: int, *, is_closed: bool) -> None:
        """Fills the queue with tasks 0 to `count`, while no rank uses it. No block follows if `is_closed`."""
        for place in range(COUNT):
            self._numbers[place] = 0
        self._numbers[_END] = count
        self._numbers[_IS_CLOSED] = is_closed

    def next_chunk(self, request: ChunkRequest, n_ranks: int, rank: int, done: int) -> range | NoTask:
        """Takes a chunk, empty if no task is left.

        A rank that gets `NoTask.FETCH` has to add a block, also when tasks have been cancelled.

        Args:
            request: What `rank` asks for.
            n_ranks: Number of ranks that run the tasks of this queue.
            rank: This rank.
            done: Tasks that it has run since its last call.
        """
        numbers = self._numbers
        with self._thread_lock, self._counters.lock:
            numbers[_DONE] += done
            if numbers[_BEGIN] < numbers[_END] and not numbers[_IS_CANCELLED]:
                return self._take_chunk(request, n_ranks, 1)
            if not numbers[_IS_CLOSED] and numbers[_FETCHER] in (0, rank + 1):  # its own fetch was interrupted
                numbers[_FETCHER] = rank + 1
                return NoTask.FETCH
            return range(0) if numbers[_IS_CLOSED] or numbers[_IS_CANCELLED] else NoTask.WAIT

    def next_block(self, request: ChunkRequest, n_ranks: int, n_takers: int, done: int) -> range:
        """Takes a block for a node with `n_takers` of the `n_ranks` ranks; empty if no task is left.

        `done` is the number of tasks that the node has run since it last asked.
        """
        with self._thread_lock, self._counters.lock:
            self._numbers[_DONE] += done
            return range(0) if self._numbers[_IS_CANCELLED] else self._take_chunk(request, n_ranks, n_takers)

    def add_block(self, block: range) -> None:
        """Adds what the root answered. If that is empty, no more tasks come."""
        numbers = self._numbers
        with self._thread_lock, self._counters.lock:
            numbers[_FETCHER] = 0
            numbers[_BEGIN], numbers[_END] = block.start, block.stop
            numbers[_IS_CLOSED] = not block

    def cancel(self) -> None:
        """No rank takes a task from here on."""
        with self._thread_lock, self._counters.lock:
            self._numbers[_IS_CANCELLED] = 1

    def report(self) -> tuple[bool, int]:
        """For the root: whether tasks are cancelled, and how many have been run since the last report."""
        with self._thread_lock, self._counters.lock:
            done, self._numbers[_DONE] = self._numbers[_DONE], 0
            return bool(self._numbers[_IS_CANCELLED]), done

    @property
    def done(self) -> int:
        """How many tasks have been run, as far as this node knows."""
        return int(self._numbers[_DONE])

    def _take_chunk(self, request: ChunkRequest, n_ranks: int, n_takers: int) -> range:
        """Under the lock."""
        begin = self._numbers[_BEGIN]
        end = begin + chunk_size(self._numbers[_END] - begin, n_ranks, request, n_takers)
        self._numbers[_BEGIN] = end
        return range(begin, end)
