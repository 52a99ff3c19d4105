"""Who runs which tasks of a map: ranks take chunks from the queue of their node, and nodes take blocks from the root.

The rules:

1. The tasks that no rank has taken are ranges of numbers, one in the queue of each node. A task leaves a queue at its
   front, under the lock of the queue, and never comes back: each task is run once.
2. At first all tasks are in the queue of the root's node. The rank that finds the queue of another node empty asks the
   root for a block, and keeps the lock of the queue until it has the answer. An empty block closes the queue: no more
   tasks come.
3. A chunk, and a block, is an eighth of the share of those that take it in all that is left, so that they are large at
   first and few, and all ranks end together. A chunk lasts 2 ms at most, a block a quarter of a second, as far as is
   known, so that each rank notices soon that the rest is cancelled.
4. To cancel empties the queue. Where the queue is open, the rank that cancels asks the root for a block of no tasks. At
   this question the root empties its own queue, so that its next answer to each node is empty.
5. The root answers until each node has got an empty block. Only then may it leave the map.

Why this suffices: by 1 and 2 no two ranks run a task, and none is lost, as a rank adds the block that it got also where
a signal handler raises. By 4 and 5 each question is answered, so that no rank waits for ever and no message is left.
The root's node never asks, so that no rank holds the lock that the root needs to answer.

A thread of the root answers beside its tasks; where there can be no thread, the root answers between its chunks.
One-sided calls of MPI would not do: over TCP they end only while the target is in MPI as well, and the root computes in
Python. Where the ranks of a node cannot open a common file, each rank has its own queue, as if it were a node. To fetch
a block before the last one is empty gained nothing (2 nodes with 2 ranks each, tasks of 20 us to 2 ms).

The queue of a node is three numbers in a nameless file in memory that all ranks map. A kernel's lock on the file guards
them, and is released with the process that holds it. To take and to release it, the kernel takes and releases a spin
lock of the file. So the next rank that gets it sees what the last one wrote, on any CPU. Measured on 2 cores
with 2 ranks that do nothing else, a change takes 6 us by this lock, 8 us by one of fcntl(2), 5 us by a token in a pipe,
6 us by a counter in MPI windows (82 us for 4 ranks), and 2.5 us by MPI_Fetch_and_op in a window of shared memory, which
can only count, cannot wait for another rank, and needs a window.

Source:
    C. D. Polychronopoulos and D. J. Kuck, "Guided self-scheduling", IEEE Trans. Computers C-36 (1987); S. F. Hummel,
    E. Schonberg, L. E. Flynn, "Factoring: a method for scheduling parallel loops", Comm. ACM 35 (1992); flock(2); the
    kernel's Documentation/memory-barriers.txt, "Lock acquisition functions".
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from mpishare.comm import mpi
from mpishare.comm.agreement import Severity, agree, severity_of
from mpishare.comm.context import Context
from mpishare.comm.in_flight import Tag
from mpishare.errors import BackendError, MpishareError
from mpishare.memory.mapping import OpenFile
from mpishare.memory.shared_file import memory_file, open_shared

CHUNK_S = 0.002
"""How long a chunk should take: a few hundred times as long as to take it."""

_BLOCK_S = 0.25
"""How long a node takes for a block, as far as is known. To fetch one takes about a millisecond."""

_GROWTH = 8
"""How many times larger a chunk may be than the one before, whose tasks may have been short by chance."""

_FRACTION = 8
"""A chunk is this fraction of a rank's share of all that is left. With 2, as in factoring, simulated ranks ended up to
3 longest tasks apart (tests/unit/tasks/test_scheduler.py); more would cost more chunks, about a hundred in all."""

_YIELDS = 1000
_SLEEP_S = 0.00005

_ROOT_SLEEP_S = 0.0005
"""How long the root's thread sleeps between looks. Each look takes Python's lock from the tasks."""

_BEGIN, _END, _IS_CLOSED, _COUNT = range(4)
"""The numbers of a queue, by place: the tasks that can be taken now; whether the root has no more, or this is its own
queue."""


def backoff(sleep_s: float = _SLEEP_S) -> Iterator[None]:
    """Pauses with each `next`, between two looks at what another rank does: first yields the core, then sleeps."""
    for _ in range(_YIELDS):
        os.sched_yield()
        yield
    while True:
        time.sleep(sleep_s)
        yield


def chunk_size(left: int, n_ranks: int, wanted: int, n_takers: int = 1) -> int:
    """Number of tasks in the next chunk: at least one, unless none is left.

    Args:
        left: Tasks that no rank has taken.
        n_ranks: Number of ranks that run them.
        wanted: How many are asked for.
        n_takers: Number of ranks, of these, that the chunk is for.
    """
    return min(left, wanted, max(1, left * n_takers // (n_ranks * _FRACTION)))


class ChunkSizer:
    """Finds out how many tasks a rank should ask for, by the time of the tasks that it ran last."""

    def __init__(self, chunk: int | None) -> None:
        """`chunk` is the number of tasks to ask for each time; None to find it by time."""
        self._chunk = chunk
        self._most = 1
        self._task_s = _BLOCK_S

    def note_time(self, count: int, seconds: float) -> None:
        """Notes that `count` tasks took `seconds`."""
        self._most = count * _GROWTH
        self._task_s = max(seconds / count, 1e-9)

    @property
    def n_tasks(self) -> int:
        """How many tasks to take."""
        return self._chunk or max(1, min(self._most, int(CHUNK_S / self._task_s)))

    @property
    def n_block_tasks(self) -> int:
        """How many tasks to ask the root for, for each rank of the node."""
        return max(self.n_tasks, int(_BLOCK_S / self._task_s))


class Scheduler:
    """The tasks of a communicator's maps as one rank sees them. Made by `Context.cached`, collective the first time.

    Use: `reset` on all ranks while none is in a map; `start`; `chunks`; `cancel` where a task failed; `finish`.
    """

    def __init__(self, context: Context) -> None:
        topology = context.topology
        self._thread_lock = threading.Lock()  # the lock of a file does not keep the threads of a rank apart
        self._file: OpenFile | None = None
        self._numbers = memoryview(bytearray(_COUNT * 8)).cast("q")
        if topology.n_nodes < topology.size:
            self._open_file(context)
        self._groups = [rank if self._file is None else topology.node_of(rank) for rank in range(topology.size)]
        """The group of each rank. The ranks of a group have one queue."""
        self._comm = context.data_comm
        self._rank = topology.rank
        self._group = self._groups[self._rank]
        self._root = 0
        self._n_ranks = 1  # that take tasks which are in this queue
        self._open_groups: set[int] = set()  # on the root: those whose ranks do not know yet that no task is left
        self._thread: threading.Thread | None = None

    def _open_file(self, context: Context) -> None:
        """Opens a queue of each node; does nothing on all ranks where a node cannot have one."""
        try:
            with agree(context.collective_comm):
                file = open_shared(context, lambda: memory_file(_COUNT * 8))
                try:
                    os.pwrite(file.descriptor, self._numbers, 0)  # so that no store finds that there is no memory
                    content = mmap.mmap(file.descriptor, _COUNT * 8)
                except OSError as error:
                    raise BackendError(f"a queue of tasks cannot be mapped: {error}") from error
        except MpishareError as error:
            if severity_of(error, context.topology.size) == Severity.FATAL:
                raise
        else:
            self._file, self._numbers = file, memoryview(content).cast("q")

    @contextmanager
    def _locked(self) -> Iterator[memoryview]:
        """The queue, for this thread alone. If a signal's exception leaves the file locked, the next one unlocks it."""
        with self._thread_lock:
            if self._file is not None:
                fcntl.flock(self._file.descriptor, fcntl.LOCK_EX)
            try:
                yield self._numbers
            finally:
                if self._file is not None:
                    fcntl.flock(self._file.descriptor, fcntl.LOCK_UN)

    def reset(self, root: int, count: int) -> None:
        """Begins with `count` tasks, a number that only `root` needs to give."""
        has_root = self._group == self._groups[root]
        self._root = root
        self._n_ranks = len(self._groups) if has_root else self._groups.count(self._group)
        self._open_groups = set(self._groups) - {self._group} if self._rank == root else set()
        if self._rank == (root if has_root else self._groups.index(self._group)):
            self._fill(0, count if has_root else 0, has_root)

    def start(self) -> None:
        """On the root: begins to answer other nodes."""
        if self._open_groups and mpi.Query_thread() == mpi.THREAD_MULTIPLE:
            self._thread = threading.Thread(target=self._answer_all, args=(_ROOT_SLEEP_S,), daemon=True)
            self._thread.start()

    def chunks(self, size: int | None) -> Iterator[range]:
        """Yields chunks until no task is left, of `size` tasks; None to find it by the time that the caller takes."""
        sizer = ChunkSizer(size)
        while chunk := self._next_chunk(sizer):
            start = time.perf_counter()
            yield chunk
            sizer.note_time(len(chunk), time.perf_counter() - start)

    def _next_chunk(self, sizer: ChunkSizer) -> range:
        if self._open_groups and self._thread is None:
            self._answer()
        with self._locked() as numbers:
            if numbers[_BEGIN] == numbers[_END] and not numbers[_IS_CLOSED]:
                self._fetch(sizer.n_block_tasks * self._n_ranks)
            return self._take(sizer.n_tasks, self._n_ranks)

    def cancel(self) -> None:
        """No rank of this node takes more tasks, and no other node gets more blocks."""
        with self._locked() as numbers:
            numbers[_BEGIN] = numbers[_END]
            if not numbers[_IS_CLOSED]:
                self._fetch(0)

    def finish(self) -> None:
        """On the root: returns when the ranks of all nodes know that no task is left. May be called again."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._answer_all(_SLEEP_S)

    @property
    def n_taken(self) -> int:
        """How many tasks have been taken from this queue."""
        return int(self._numbers[_BEGIN])

    def _fill(self, begin: int, end: int, is_closed: bool) -> None:
        self._numbers[_BEGIN], self._numbers[_END], self._numbers[_IS_CLOSED] = begin, end, is_closed

    def _take(self, wanted: int, n_ranks: int, n_takers: int = 1) -> range:
        """Under the lock."""
        begin, end = self._numbers[_BEGIN], self._numbers[_END]
        stop = self._numbers[_BEGIN] = begin + chunk_size(end - begin, n_ranks, wanted, n_takers)
        return range(begin, stop)

    def _fetch(self, wanted: int) -> None:
        """Under the lock, fetches a block from the root. It is added also where a signal handler raises behind that."""
        block = np.full(2, -1, np.int64)
        try:
            question = np.array([wanted], np.int64)
            self._comm.Sendrecv(question, self._root, Tag.BLOCK_REQUEST, block, self._root, Tag.BLOCK)
        finally:
            begin, end = block.tolist()
            if begin >= 0:
                self._fill(begin, end, begin == end)

    def _answer_all(self, sleep_s: float) -> None:
        """On the root, in a thread of its own if it has one."""
        while self._open_groups:
            self._answer()
            time.sleep(sleep_s)

    def _answer(self) -> None:
        """On the root: answers all ranks that have asked for a block."""
        question, status = np.empty(1, np.int64), mpi.Status()
        while self._open_groups and (message := self._comm.Improbe(mpi.ANY_SOURCE, Tag.BLOCK_REQUEST, status)):
            message.Recv(question)
            group = self._groups[status.source]
            with self._locked() as numbers:
                if not question[0]:
                    numbers[_BEGIN] = numbers[_END]
                block = self._take(int(question[0]), len(self._groups), self._groups.count(group))
            if not block:
                self._open_groups.discard(group)
            self._comm.Send(np.array([block.start, block.stop], np.int64), status.source, Tag.BLOCK)
