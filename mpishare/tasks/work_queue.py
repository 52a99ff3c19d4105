"""Who runs which tasks: ranks take chunks from a queue of their node, and nodes take blocks from the root's queue.

Each node has a queue in its memory (`task_queue`). At first all tasks are in the queue of the root's node. Another
node's queue is filled from it: the rank that finds it empty asks the root for a block, while the other ranks of its
node wait. A thread of the root answers beside its tasks; where there can be no thread, the root answers between its
chunks. One-sided calls of MPI would not do: over TCP they end only while the target is in MPI as well, and the root
computes in Python.

A block is a part of what is left, as a chunk is (`self_scheduling`), and lasts `_BLOCK_S` at most. So nodes end
together, and each notices soon that tasks are cancelled. Where the ranks of a node cannot open a common file, each rank
has its own queue, as if it were a node.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress

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


class WorkQueue:
    """The tasks of a communicator's maps as one rank sees them. Made by `Context.keep`, collective the first time.

    Use: `reset` on all ranks while none is in a map; `start`; `next_chunk` until it is empty; `cancel` where a task
    failed; `finish`.
    """

    def __init__(self, context: Context) -> None:
        facts = context.topology
        counters = Counters.of_node(context, COUNT) if facts.n_nodes < facts.size else None
        self._queue = TaskQueue(counters or Counters(COUNT))
        self._groups = [facts.node_of(rank) if counters else rank for rank in range(facts.size)]
        """By rank. The ranks of a group have one queue."""
        self._comm = context.data_comm
        self._rank = facts.rank
        self._size = self._groups.count(self._groups[self._rank])  # of the own group
        self._root = 0
        self._has_root = True  # whether the root uses the same queue
        self._open_groups: set[int] = set()  # on the root: those whose ranks do not know yet that no task is left
        self._thread: threading.Thread | None = None

    def reset(self, root: int, count: int) -> None:
        """Begins with `count` tasks, a number that only `root` needs to give."""
        own = self._groups[self._rank]
        self._root = root
        self._has_root = own == self._groups[root]
        self._open_groups = set(self._groups) - {own} if self._rank == root else set()
        if self._rank == (root if self._has_root else self._groups.index(own)):
            self._queue.reset(count, is_closed=self._has_root)

    def start(self) -> None:
        """On the root: begins to answer other nodes."""
        if self._open_groups and mpi.Query_thread() == mpi.THREAD_MULTIPLE:
            thread = threading.Thread(target=self._answer_all, daemon=True)
            with suppress(RuntimeError):  # the system gives this process no more threads
                thread.start()
                self._thread = thread

    def next_chunk(self, sizer: ChunkSizer, done: int) -> range:
        """Takes a chunk, empty if no task is left. `done` is the number of tasks run since the last call."""
        n_ranks, pauses = len(self._groups) if self._has_root else self._size, backoff()
        while True:
            if self._open_groups and self._thread is None:
                self._answer()
            chunk = self._queue.next_chunk(sizer.request, n_ranks, self._rank, done)
            done = 0
            if isinstance(chunk, range):
                return chunk
            if chunk is NoTask.FETCH:
                self._fetch(sizer.block_request(self._size, _BLOCK_S))
            else:
                next(pauses)

    def cancel(self) -> None:
        """No rank of this node takes more tasks, and those of other nodes no more blocks."""
        self._queue.cancel()
        self.next_chunk(ChunkSizer(None), 0)  # by which the root hears of it

    def finish(self) -> None:
        """On the root: returns when the ranks of all nodes know that no task is left. May be called again."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        pauses = backoff()
        while self._open_groups:
            self._answer()
            next(pauses)

    @property
    def done(self) -> int:
        """How many tasks have been run, as far as the root's node knows."""
        return self._queue.done

    def _fetch(self, request: ChunkRequest) -> None:
        """Fetches a block from the root. It is added also where a signal handler raises when it has come."""
        is_cancelled, done = self._queue.report()
        question, block = np.array([is_cancelled, done, *request], np.int64), np.full(2, -1, np.int64)
        try:
            self._comm.Sendrecv(question, self._root, Tag.BLOCK_REQUEST, block, self._root, Tag.BLOCK)
        finally:
            if block[0] >= 0:
                self._queue.add_block(range(*block.tolist()))

    def _answer_all(self) -> None:
        """The root's thread."""
        while self._open_groups:
            self._answer()
            time.sleep(_SLEEP_S)

    def _answer(self) -> None:
        """On the root: answers all ranks that have asked for a block."""
        question, status = np.empty(5, np.int64), mpi.Status()
        while self._open_groups and (message := self._comm.Improbe(mpi.ANY_SOURCE, Tag.BLOCK_REQUEST, status)):
            message.Recv(question)
            is_cancelled, done, *request = question.tolist()
            if is_cancelled:
                self._queue.cancel()
            group = self._groups[status.source]
            block = self._queue.next_block(ChunkRequest(*request), len(self._groups), self._groups.count(group), done)
            if not block:
                self._open_groups.discard(group)
            self._comm.Send(np.array([block.start, block.stop], np.int64), status.source, Tag.BLOCK)
