"""Who runs which tasks: ranks take chunks from a queue of their node, and nodes take blocks from the root's queue.

Each node has a queue in its memory (`task_queue`). At first all tasks are in the queue of the root's node. Another
node's queue is filled from it: the rank that finds it low asks the root for a block, while the other ranks of its node
take what is left. A thread of the root answers beside its tasks; where MPI allows no threads, the root answers between
its chunks. One-sided calls of MPI would not do: over TCP they end only while the target is in MPI as well, and the root
computes in Python.

A block is a part of what is left, as a chunk is (`self_scheduling`), and lasts `_BLOCK_S` at most. So nodes end
together, and each notices soon that tasks are cancelled. Where the ranks of a node cannot open a common file, each rank
has its own queue, as if it were a node.
"""

from __future__ import annotations

import threading
import time

import numpy as np

from mpishare.comm import mpi
from mpishare.comm.context import Context
from mpishare.comm.tags import Tag
from mpishare.tasks.counters import Counters
from mpishare.tasks.object_transport import backoff
from mpishare.tasks.self_scheduling import ChunkRequest, ChunkSizer
from mpishare.tasks.task_queue import COUNT, NoTask, TaskQueue

_BLOCK_S = 0.25
"""How long a node takes for a block, as far as is known. To fetch one takes about a millisecond."""

_SLEEP_S = 0.0005
"""How long the root's thread sleeps between looks. Each look takes Python's lock from the tasks."""

_CANCELLED = ChunkRequest(0)
"""What a node asks for to tell the root that its tasks are cancelled."""


class WorkQueue:
    """The tasks of a communicator's maps as one rank sees them. Made by `Context.keep`, collective the first time.

    Use: `reset` on all ranks while none is in a map; `start`; `next_chunk` until it is empty; `cancel` where a task
    failed; `finish`.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        facts = context.topology
        counters = Counters.of_node(context, COUNT) if facts.n_nodes < facts.size else None
        self._is_per_node = counters is not None
        self._queue = TaskQueue(counters or Counters.private(COUNT), self._group_size(facts.rank))
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
            if chunk is NoTask.END:
                return range(0)
            if chunk is NoTask.FETCH:
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
