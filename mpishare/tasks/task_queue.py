"""The tasks that the ranks of one node can take, in the memory of the node (`counters`).

Taking a chunk costs microseconds there. Where more tasks can come from the root, the rank that finds few left fetches
them; see `work_queue`.
"""

from __future__ import annotations

from enum import Enum

from mpishare.tasks.counters import Counters
from mpishare.tasks.self_scheduling import ChunkRequest, chunk_size

_LOW = 4
"""A node asks for the next block when this part of the last one is left."""


class NoTask(Enum):
    """What a rank does that gets no chunk."""

    FETCH = 1  # a block from the root
    WAIT = 2  # for the rank that fetches one
    END = 3


_BEGIN, _END, _NEXT_BEGIN, _NEXT_END, _LOW_COUNT, _FETCHER, _IS_CANCELLED, _IS_CLOSED, _DONE, COUNT = range(10)
"""The numbers of a queue, by place: the tasks that can be taken now; those of the next block; how few are low; the rank
that fetches a block, plus one; whether tasks are cancelled; whether the root has no more; tasks run since the last
report to the root."""


class TaskQueue:
    """The tasks that the ranks of one node can take."""

    def __init__(self, counters: Counters, n_ranks: int) -> None:
        """`counters` holds `COUNT` numbers, which `n_ranks` ranks share."""
        self._counters = counters
        self._numbers = counters.numbers
        self._n_ranks = n_ranks

    def for_thread(self) -> TaskQueue:
        """The same queue for another thread of this rank."""
        return TaskQueue(self._counters.for_thread(), self._n_ranks)

    def reset(self, count: int, *, is_closed: bool) -> None:
        """Fills the queue with tasks 0 to `count`, while no rank uses it. No block follows if `is_closed`."""
        for place in range(COUNT):
            self._numbers[place] = 0
        self._numbers[_END] = count
        self._numbers[_IS_CLOSED] = is_closed

    def next_chunk(self, request: ChunkRequest, n_ranks: int, rank: int, done: int) -> range | NoTask:
        """Takes a chunk.

        Args:
            request: What `rank` asks for.
            n_ranks: Number of ranks that run the tasks of this queue.
            rank: This rank.
            done: Tasks that it has run since its last call.
        """
        numbers = self._numbers
        with self._counters.lock():
            numbers[_DONE] += done
            if numbers[_IS_CANCELLED]:
                return NoTask.END
            left = numbers[_END] - numbers[_BEGIN]
            has_next = numbers[_NEXT_BEGIN] < numbers[_NEXT_END]
            if left <= numbers[_LOW_COUNT] and not (has_next or numbers[_IS_CLOSED] or numbers[_FETCHER]):
                numbers[_FETCHER] = rank + 1
                return NoTask.FETCH
            if not left and not has_next:
                return NoTask.END if numbers[_IS_CLOSED] else NoTask.WAIT
            if not left:
                numbers[_BEGIN], numbers[_END] = numbers[_NEXT_BEGIN], numbers[_NEXT_END]
                numbers[_NEXT_BEGIN] = numbers[_NEXT_END] = 0
            return self._take_chunk(request, n_ranks, 1)

    def next_block(self, request: ChunkRequest, n_ranks: int, n_takers: int, done: int) -> range:
        """Takes a block for a node with `n_takers` of the `n_ranks` ranks; empty if no task is left.

        `done` is the number of tasks that the node has run since it last asked.
        """
        with self._counters.lock():
            self._numbers[_DONE] += done
            return range(0) if self._numbers[_IS_CANCELLED] else self._take_chunk(request, n_ranks, n_takers)

    def add_block(self, block: range) -> None:
        """Adds what the root answered. If that is empty, no more tasks come."""
        numbers = self._numbers
        with self._counters.lock():
            numbers[_FETCHER] = 0
            numbers[_NEXT_BEGIN], numbers[_NEXT_END] = block.start, block.stop
            numbers[_IS_CLOSED] = not block
            numbers[_LOW_COUNT] = len(block) // _LOW if self._n_ranks > 1 else 0  # a rank alone has to wait anyway

    def cancel(self) -> None:
        """No rank takes a task from here on."""
        with self._counters.lock():
            self._numbers[_IS_CANCELLED] = 1

    def must_report_cancel(self, rank: int) -> bool:
        """Whether `rank` has to report a cancel to the root: no other rank will, and the root may not know it."""
        numbers = self._numbers
        with self._counters.lock():
            if not numbers[_IS_CANCELLED] or numbers[_IS_CLOSED] or numbers[_FETCHER] not in (0, rank + 1):
                return False
            numbers[_FETCHER] = rank + 1
            return True

    def report(self) -> tuple[bool, int]:
        """For the root: whether tasks are cancelled, and how many have been run since the last report."""
        with self._counters.lock():
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
