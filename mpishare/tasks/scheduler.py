"""Who runs which tasks of a map: ranks take chunks from the queue of their node, and nodes take blocks from the root.

The rules:

1. The tasks that no rank has taken are ranges of numbers, one in the queue of each node. A task leaves a queue at its
   front, under the lock of the queue, and never comes back: each task is run once.
2. At first all tasks are in the queue of the root's node. The rank that finds the queue of another node empty asks the
   root for a block, while the other ranks of its node wait. An empty block says that no more tasks come.
3. A chunk, and a block, is an eighth of the share of those that take it in all that is left, so that they are large at
   first and few, and all ranks end together. A chunk lasts 2 ms at most, a block a quarter of a second, as far as is
   known, so that each rank notices soon that the rest is cancelled.
4. In the tail, when each rank has less to do than four of the longest tasks, tasks are taken singly: two long ones in
   one chunk would outlast all others.
5. A cancelled queue gives no task. The cancel reaches the root with the next question of its node, and the other nodes
   with the root's next answers, which are empty then. So a rank that cancels asks once more.
6. The root answers until each node has got an empty block. Only then may it leave the map.

Why this suffices: by 1 and 2 no two ranks run a task, and none is lost, as a rank adds the block that it got also where
a signal handler raises. By 5 and 6 each question is answered, so that no rank waits for ever and no message is left.

A thread of the root answers beside its tasks; where there can be no thread, the root answers between its chunks.
One-sided calls of MPI would not do: over TCP they end only while the target is in MPI as well, and the root computes in
Python. Where the ranks of a node cannot open a common file, each rank has its own queue, as if it were a node. To fetch
a block before the last one is empty gained nothing (2 nodes with 2 ranks each, tasks of 20 us to 2 ms).

The queue of a node is a few numbers in a nameless file in memory that all ranks open. A kernel's lock on the file
guards them, and is released with the process that holds it. Taking and releasing it, the kernel takes and releases a
spin lock of the file, so that the next rank which gets it sees what the last one wrote, on any CPU. Measured on 2 cores
with 2 ranks that do nothing else, a change takes 6 us by this lock, 8 us by one of fcntl(2), 5 us by a token in a pipe,
6 us by a counter in MPI windows (82 us for 4 ranks), and 2.5 us by MPI_Fetch_and_op in a window of shared memory, which
can only count, cannot wait for another rank, and needs a window.

Source:
    C. D. Polychronopoulos and D. J. Kuck, "Guided self-scheduling", IEEE Trans. Computers C-36 (1987); S. F. Hummel,
    E. Schonberg, L. E. Flynn, "Factoring: a method for scheduling parallel loops", Comm. ACM 35 (1992); flock(2); the
    kernel's Documentation/memory-barriers.txt, "Lock acquisition functions".
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import threading
import time
import weakref
from contextlib import AbstractContextManager, nullcontext, suppress
from enum import Enum
from typing import NamedTuple

import numpy as np

from mpishare.comm import mpi
from mpishare.comm.agreement import Severity, agree, severity_of
from mpishare.comm.context import Context
from mpishare.comm.tags import Tag
from mpishare.errors import BackendError, MpishareError
from mpishare.memory.mapping import Mapping
from mpishare.memory.shared_file import memory_file, open_shared
from mpishare.tasks.object_transport import backoff

CHUNK_S = 0.002
"""How long a chunk should take: some hundred times as long as taking it."""

_SHORTEST_S = 0.00005
"""A chunk takes at least this time, unless it is one task, so that taking chunks costs a tenth of the time at most."""

_BLOCK_S = 0.25
"""How long a node takes for a block, as far as is known. To fetch one takes about a millisecond."""

_GROWTH = 8
"""How many times larger a chunk may be than the one before, whose tasks may have been short by chance."""

_FRACTION = 8
"""A chunk is this fraction of a rank's share of all that is left. With 2, as in factoring, simulated ranks ended up to
3 longest tasks apart (tests/unit/tasks/test_scheduler.py); more would cost more chunks, about a hundred in all."""

_TAIL = 4
"""The tail begins when each rank has less to do than this number of the longest tasks."""

_SLEEP_S = 0.0005
"""How long the root's thread sleeps between looks. Each look takes Python's lock from the tasks."""


class ChunkRequest(NamedTuple):
    """How many tasks a rank asks for.

    Attributes:
        n_tasks: Tasks wanted.
        n_tail_tasks: Tasks wanted in the tail.
        tail: The tail begins when each rank has at most this number of tasks to go.
    """

    n_tasks: int
    n_tail_tasks: int = 1
    tail: int = 0


def chunk_size(left: int, n_ranks: int, request: ChunkRequest, n_takers: int = 1) -> int:
    """Number of tasks in the next chunk: at least one, unless none is left.

    Args:
        left: Tasks that no rank has taken.
        n_ranks: Number of ranks that run them.
        request: What is asked for.
        n_takers: Number of ranks, of these, that the chunk is for.
    """
    share = left / n_ranks
    count = request.n_tasks if share > request.tail else request.n_tail_tasks
    return min(left, count, max(1, int(share * n_takers / _FRACTION)))


class ChunkSizer:
    """Finds out how many tasks a rank should ask for, by the time of those that it has run.

    Attributes:
        request: What to ask for next.
    """

    def __init__(self, chunk: int | None) -> None:
        """`chunk` is the number of tasks to ask for each time; None to find it by time."""
        self._is_fixed = chunk is not None
        self.request = ChunkRequest(chunk or 1, chunk or 1)
        self._count = 0
        self._seconds = 0.0
        self._shortest_s = float("inf")
        self._longest_s = 0.0

    def note_time(self, count: int, seconds: float) -> None:
        """Notes that `count` tasks took `seconds`."""
        self._count += count
        self._seconds += seconds
        if not self._is_fixed:
            self.request = self._next_request(count, max(seconds, 1e-9))

    def _next_request(self, count: int, seconds: float) -> ChunkRequest:
        """The longest task is estimated as if one alone took all that a chunk took longer than the shortest tasks."""
        self._shortest_s = min(self._shortest_s, seconds / count)
        self._longest_s = max(self._longest_s, seconds - (count - 1) * self._shortest_s)
        mean_s = max(self._seconds / self._count, 1e-9)
        wanted = max(1, min(int(CHUNK_S * count / seconds), count * _GROWTH))
        tail_count = max(1, min(wanted, int(_SHORTEST_S / mean_s)))
        return ChunkRequest(wanted, tail_count, int(_TAIL * self._longest_s / mean_s))

    def block_request(self, n_ranks: int) -> ChunkRequest:
        """The request for a block of tasks that keeps `n_ranks` ranks busy for a while, with one each at least."""
        per_rank = max(1, int(_BLOCK_S * self._count / max(self._seconds, 1e-9)))
        return ChunkRequest(per_rank * n_ranks, self.request.n_tail_tasks * n_ranks, self.request.tail)


class NoTask(Enum):
    """What a rank does that gets no chunk yet."""

    FETCH = 1  # a block from the root
    WAIT = 2  # for the rank that fetches one


_BEGIN, _END, _FETCHER, _IS_CANCELLED, _IS_CLOSED, _DONE, _COUNT = range(7)
"""The numbers of a queue, by place: the tasks that can be taken now; the rank that fetches a block, plus one; whether
tasks are cancelled; whether the root has no more, or this is its own queue; tasks run since the last report to it."""


class TaskQueue:
    """The tasks that the ranks of one node can take. Several threads of a rank may use it.

    Attributes:
        lock: What one rank holds at a time to change the queue. It does not keep the threads of a rank apart.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        """A queue in an open file, which is closed when it is deleted; without one, a queue of this rank alone.

        Raises:
            BackendError: The file cannot be mapped.
        """
        nbytes, self._thread_lock = _COUNT * 8, threading.Lock()
        self.lock: AbstractContextManager[None] = nullcontext()
        if descriptor is None:
            self._numbers = memoryview(bytearray(nbytes)).cast("q")
            return
        try:
            self._mapping = Mapping.of_file(descriptor, nbytes)
            self._mapping.reserve(slice(0, nbytes))
        except (OSError, MemoryError) as error:
            os.close(descriptor)
            raise BackendError(f"a queue of tasks cannot be mapped: {error}") from error
        weakref.finalize(self, os.close, descriptor).atexit = False
        self.lock = _FileLock(descriptor)
        self._numbers = memoryview((ctypes.c_uint8 * nbytes).from_address(self._mapping.address)).cast("B").cast("q")

    @classmethod
    def of_node(cls, context: Context) -> TaskQueue | None:
        """A queue of each node; None on all ranks where a node cannot have one.

        Collective:
            Over the communicator.
        """
        try:
            with agree(context.collective_comm):
                return cls(open_shared(context, lambda: memory_file(_COUNT * 8)))
        except MpishareError as error:
            if severity_of(error, context.topology.size) == Severity.FATAL:
                raise
            return None

    def reset(self, count: int, *, is_closed: bool) -> None:
        """Fills the queue with tasks 0 to `count`, while no rank uses it. No block follows if `is_closed`."""
        for place in range(_COUNT):
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
        with self._thread_lock, self.lock:
            numbers[_DONE] += done
            if numbers[_BEGIN] < numbers[_END] and not numbers[_IS_CANCELLED]:
                return self._take(request, n_ranks, 1)
            if not numbers[_IS_CLOSED] and numbers[_FETCHER] in (0, rank + 1):  # its own fetch was interrupted
                numbers[_FETCHER] = rank + 1
                return NoTask.FETCH
            return range(0) if numbers[_IS_CLOSED] or numbers[_IS_CANCELLED] else NoTask.WAIT

    def next_block(self, request: ChunkRequest, n_ranks: int, n_takers: int, done: int) -> range:
        """Takes a block for a node with `n_takers` of the `n_ranks` ranks; empty if no task is left.

        `done` is the number of tasks that the node has run since it last asked.
        """
        with self._thread_lock, self.lock:
            self._numbers[_DONE] += done
            return range(0) if self._numbers[_IS_CANCELLED] else self._take(request, n_ranks, n_takers)

    def add_block(self, block: range) -> None:
        """Adds what the root answered. If that is empty, no more tasks come."""
        with self._thread_lock, self.lock:
            self._numbers[_FETCHER] = 0
            self._numbers[_BEGIN], self._numbers[_END] = block.start, block.stop
            self._numbers[_IS_CLOSED] = not block

    def cancel(self) -> None:
        """No rank takes a task from now on."""
        with self._thread_lock, self.lock:
            self._numbers[_IS_CANCELLED] = 1

    def report(self) -> tuple[bool, int]:
        """For the root: whether tasks are cancelled, and how many have been run since the last report."""
        with self._thread_lock, self.lock:
            done, self._numbers[_DONE] = self._numbers[_DONE], 0
            return bool(self._numbers[_IS_CANCELLED]), done

    @property
    def done(self) -> int:
        """How many tasks have been run, as far as this node knows."""
        return int(self._numbers[_DONE])

    def _take(self, request: ChunkRequest, n_ranks: int, n_takers: int) -> range:
        """Under the lock."""
        begin = self._numbers[_BEGIN]
        end = self._numbers[_BEGIN] = begin + chunk_size(self._numbers[_END] - begin, n_ranks, request, n_takers)
        return range(begin, end)


class _FileLock:
    """A lock on an open file. A rank that a signal's exception left holding it acquires and releases it once more."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)


class Scheduler:
    """The tasks of a communicator's maps as one rank sees them. Made by `Context.keep`, collective the first time.

    Use: `reset` on all ranks while none is in a map; `start`; `next_chunk` until it is empty; `cancel` where a task
    failed; `finish`.
    """

    def __init__(self, context: Context) -> None:
        facts = context.topology
        queue = TaskQueue.of_node(context) if facts.n_nodes < facts.size else None
        self._queue = queue or TaskQueue()
        self._groups = [facts.node_of(rank) if queue else rank for rank in range(facts.size)]
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
                self._fetch(sizer.block_request(self._size))
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
