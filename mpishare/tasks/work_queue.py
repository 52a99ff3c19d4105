"""Who runs which tasks: ranks take chunks from a queue of their node, and nodes take blocks from the root's queue.

The queue of a node lies in its memory, where taking a chunk costs microseconds (`counters`). At first all tasks are in
the queue of the root's node. Another node's queue is filled from it: the rank that finds it low asks the root for a
block, while the other ranks of its node take what is left. A thread of the root answers beside its tasks; where MPI
allows no threads, the root answers between its chunks. One-sided calls of MPI would not do: over TCP they end only
while the target is in MPI as well, and the root computes in Python.

A block is a part of what is left, as a chunk is (`self_scheduling`), and lasts `_BLOCK_S` at most. So nodes end
together, and each notices soon that tasks are cancelled. Where the ranks of a node cannot open a common file, each rank
has its own queue, as if it were a node.
"""

from __future__ import annotations

import threading
import time
from enum import Enum

import numpy as np

from mpishare.comm import mpi
from mpishare.comm.context import Context
from mpishare.comm.tags import Tag
from mpishare.tasks.counters import Counters
from mpishare.tasks.object_transport import backoff
from mpishare.tasks.self_scheduling import ChunkRequest, ChunkSizer, chunk_size

_BLOCK_S = 0.25
"""How long a node takes for a block, as far as is known. To fetch one takes about a millisecond."""

_LOW = 4
"""A node asks for the next block when this part of the last one is left."""

_SLEEP_S = 0.0005
"""How long the root's thread sleeps between looks. Each look takes Python's lock from the tasks."""

_CANCELLED = ChunkRequest(0)
"""What a node asks for to tell the root that its tasks are cancelled."""


class _NoTask(Enum):
    """What a rank does that gets no chunk."""

    FETCH = 1  # a block from the root
    WAIT = 2  # for the rank that fetches one
    END = 3


_BEGIN, _END, _NEXT_BEGIN, _NEXT_END, _LOW_COUNT, _FETCHER, _IS_CANCELLED, _IS_CLOSED, _DONE, _COUNT = range(10)
"""The numbers of a queue, by place: the tasks that can be taken now; those of the next block; how few are low; the rank
that fetches a block, plus one; whether tasks are cancelled; whether the root has no more; tasks run since the last
report to the root."""


class TaskQueue:
    """The tasks that the ranks of one node can take."""

    def __init__(self, counters: Counters, n_ranks: int) -> None:
        """`counters` holds `_COUNT` numbers, which `n_ranks` ranks share."""
        self._counters = counters
        self._numbers = counters.numbers
        self._n_ranks = n_ranks

    def for_thread(self) -> TaskQueue:
        """The same queue for another thread of this rank."""
        return TaskQueue(self._counters.for_thread(), self._n_ranks)

    def reset(self, count: int, *, is_closed: bool) -> None:
        """Fills the queue with tasks 0 to `count`, while no rank uses it. No block follows if `is_closed`."""
        for place in range(_COUNT):
            self._numbers[place] = 0
        self._numbers[_END] = count
        self._numbers[_IS_CLOSED] = is_closed

    def next_chunk(self, request: ChunkRequest, n_ranks: int, rank: int, done: int) -> range | _NoTask:
        """Takes a chunk.

        Args:
            request: What `rank` asks for.
            n_ranks: Number of ranks that run the tasks of this queue.
            rank: This rank.
            done: Tasks that it has run since its last call.
        """
        numbers = self._numbers
        with self._counters.lock:
            numbers[_DONE] += done
            if numbers[_IS_CANCELLED]:
                return _NoTask.END
            left = numbers[_END] - numbers[_BEGIN]
            has_next = numbers[_NEXT_BEGIN] < numbers[_NEXT_END]
            if left <= numbers[_LOW_COUNT] and not (has_next or numbers[_IS_CLOSED] or numbers[_FETCHER]):
                numbers[_FETCHER] = rank + 1
                return _NoTask.FETCH
            if not left and not has_next:
                return _NoTask.END if numbers[_IS_CLOSED] else _NoTask.WAIT
            if not left:
                numbers[_BEGIN], numbers[_END] = numbers[_NEXT_BEGIN], numbers[_NEXT_END]
                numbers[_NEXT_BEGIN] = numbers[_NEXT_END] = 0
            return self._take_chunk(request, n_ranks, 1)

    def next_block(self, request: ChunkRequest, n_ranks: int, n_takers: int, done: int) -> range:
        """Takes a block for a node with `n_takers` of the `n_ranks` ranks; empty if no task is left.

        `done` is the number of tasks that the node has run since it last asked.
        """
        with self._counters.lock:
            self._numbers[_DONE] += done
            return range(0) if self._numbers[_IS_CANCELLED] else self._take_chunk(request, n_ranks, n_takers)

    def add_block(self, block: range) -> None:
        """Adds what the root answered. If that is empty, no more tasks come."""
        numbers = self._numbers
        with self._counters.lock:
            numbers[_FETCHER] = 0
            numbers[_NEXT_BEGIN], numbers[_NEXT_END] = block.start, block.stop
            numbers[_IS_CLOSED] = not block
            numbers[_LOW_COUNT] = len(block) // _LOW if self._n_ranks > 1 else 0  # a rank alone has to wait anyway

    def cancel(self) -> None:
        """No rank takes a task from here on."""
        with self._counters.lock:
            self._numbers[_IS_CANCELLED] = 1

    def must_report_cancel(self, rank: int) -> bool:
        """Whether `rank` has to report a cancel to the root: no other rank will, and the root may not know it."""
        numbers = self._numbers
        with self._counters.lock:
            if not numbers[_IS_CANCELLED] or numbers[_IS_CLOSED] or numbers[_FETCHER] not in (0, rank + 1):
                return False
            numbers[_FETCHER] = rank + 1
            return True

    def report(self) -> tuple[bool, int]:
        """For the root: whether tasks are cancelled, and how many have been run since the last report."""
        with self._counters.lock:
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


class WorkQueue:
    """The tasks of a communicator's maps as one rank sees them. Made by `Context.keep`, collective the first time.

    Use: `reset` on all ranks while none is in a map; `start`; `next_chunk` until it is empty; `cancel` where a task
    failed; `finish`.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        facts = context.topology
        counters = Counters.of_node(context, _COUNT) if facts.n_nodes < facts.size else None
        self._is_per_node = counters is not None
        self._queue = TaskQueue(counters or Counters.private(_COUNT), self._group_size(facts.rank))
        self._root = 0
        self._has_root = True  # whether the root uses the same queue
        self._open_groups = 0  # on the root: other queues whose ranks do not know yet that no task is left
        self._thread: threading.Thread | None = None
        self._thread_error: BaseException | None = None

    def _group_size(self, rank: int) -> int:
        """Number of ranks that share a queue with `rank`."""
        facts = self._context.topology
        return len(facts.ranks_of(facts.node_of(rank))) if self._is_per_node else 1

    def reset(self, root: int, count: int) -> None:
        """Begins with `count` tasks, a number that only `root` needs to give."""
        facts = self._context.topology
        is_root = facts.rank == root
        self._root = root
        self._has_root = is_root or (self._is_per_node and facts.node == facts.node_of(root))
        n_groups = facts.n_nodes if self._is_per_node else facts.size
        self._open_groups = n_groups - 1 if is_root else 0
        if is_root if self._has_root else (facts.is_leader or not self._is_per_node):
            self._queue.reset(count, is_closed=self._has_root)

    def start(self) -> None:
        """On the root: begins to answer other nodes."""
        if self._open_groups and mpi.Query_thread() == mpi.THREAD_MULTIPLE:
            self._thread = threading.Thread(target=self._answer_all, args=(self._queue.for_thread(),), daemon=True)
            self._thread.start()

    def next_chunk(self, sizer: ChunkSizer, done: int) -> range:
        """Takes a chunk, empty if no task is left. `done` is the number of tasks run since the last call."""
        facts, pauses = self._context.topology, backoff()
        n_ranks = facts.size if self._has_root else self._group_size(facts.rank)
        while True:
            if self._open_groups and self._thread is None:
                self._answer(self._queue)
            chunk = self._queue.next_chunk(sizer.request, n_ranks, facts.rank, done)
            done = 0
            if isinstance(chunk, range):
                return chunk
            if chunk is _NoTask.END:
                return range(0)
            if chunk is _NoTask.FETCH:
                self._fetch(sizer.block_request(self._group_size(facts.rank), _BLOCK_S))
            else:
                next(pauses)

    def cancel(self) -> None:
        """No rank of this node takes more tasks, and those of other nodes no more blocks."""
        self._queue.cancel()
        self._report_cancel()

    def finish(self) -> None:
        """On the root: returns when the ranks of all nodes know that no task is left. May be called again."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        pauses = backoff()
        while self._open_groups:
            self._answer(self._queue)
            next(pauses)
        error, self._thread_error = self._thread_error, None
        if error is not None:
            raise error

    @property
    def done(self) -> int:
        """How many tasks have been run, as far as the root's node knows."""
        return self._queue.done

    def _report_cancel(self) -> None:
        if not self._has_root and self._queue.must_report_cancel(self._context.topology.rank):
            self._fetch(_CANCELLED)

    def _fetch(self, request: ChunkRequest) -> None:
        """Fetches a block from the root. It is added also where a signal handler raises when it has come."""
        is_cancelled, done = self._queue.report()
        question, block = np.array([is_cancelled, done, *request], np.int64), np.full(2, -1, np.int64)
        try:
            self._context.data_comm.Sendrecv(question, self._root, Tag.BLOCK_REQUEST, block, self._root, Tag.BLOCK)
        finally:
            if block[0] >= 0:
                self._queue.add_block(range(*block.tolist()))
        self._report_cancel()

    def _answer_all(self, queue: TaskQueue) -> None:
        """The root's thread."""
        try:
            while self._open_groups:
                self._answer(queue)
                time.sleep(_SLEEP_S)
        except BaseException as error:
            self._thread_error = error

    def _answer(self, queue: TaskQueue) -> None:
        """On the root: answers all ranks that have asked for a block."""
        question, status, comm = np.empty(5, np.int64), mpi.Status(), self._context.data_comm
        while self._open_groups and comm.Iprobe(mpi.ANY_SOURCE, Tag.BLOCK_REQUEST, status):
            rank = status.source
            comm.Recv(question, rank, Tag.BLOCK_REQUEST)
            is_cancelled, done, *request = question.tolist()
            if is_cancelled:
                queue.cancel()
            size = self._context.topology.size
            block = queue.next_block(ChunkRequest(*request), size, self._group_size(rank), done)
            if not block:
                self._open_groups -= 1
            comm.Send(np.array([block.start, block.stop], np.int64), rank, Tag.BLOCK)
