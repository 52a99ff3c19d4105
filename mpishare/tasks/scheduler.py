"""Who runs which tasks of a map: ranks take chunks of the tasks that no rank has taken.

The rules:

1. The tasks that no rank has taken are one range of numbers: the queue. It lies in the memory of the root's node. A
   task leaves it at its front, under its lock, and never comes back: each task is run once.
2. A rank of that node takes a chunk itself. A rank of another node asks the root, which answers by a chunk, or by none
   when the queue is empty. Then this rank asks no more.
3. A chunk is an eighth of a rank's share of all that is left, so that chunks are large at first and few, and all ranks
   end together. As far as is known, a chunk that a rank takes lasts 2 ms at most, and one that the root sends a quarter
   of a second, so that each rank notices soon that the rest is cancelled.
4. To cancel empties the queue. A rank of another node asks for no tasks, at which the root does so.
5. The root answers until each rank that asks has got no tasks. Only then may it leave the map.

Why this suffices: by 1 no two ranks run a task, and none is lost. By 4 and 5 each question is answered, so that no rank
waits for ever and no message is left. An exception from outside, such as a signal handler's, is an error like that of a
task: this rank cancels the rest. But between a question and its answer it ends the map on this rank at once, which
refuses the communicator (`comm.in_flight`), as a later answer could be that to an earlier question. So does a second
exception. The other ranks then wait for MPISHARE_TIMEOUT, or the end of the job.

The weakest point: a thread of the root answers beside its tasks, and needs Python's lock for that. A task in C that
keeps the lock makes the other nodes wait. Where there can be no thread, the root answers between its chunks.
One-sided calls of MPI would not do: over TCP they end only while the target is in MPI as well, and the root computes in
Python. Where the ranks of a node cannot open a common file, each of them asks the root, as those of another node do.

The queue is two numbers in a nameless file in memory that all ranks of the node map. A kernel's lock on the file guards
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
from itertools import count

import numpy as np

from mpishare.comm import mpi
from mpishare.comm.agreement import Severity, agree, severity_of
from mpishare.comm.context import Context
from mpishare.comm.in_flight import InFlight, Tag
from mpishare.comm.requests import advance_all
from mpishare.errors import BackendError, MpishareError
from mpishare.memory.mapping import OpenFile
from mpishare.memory.shared_file import memory_file, open_shared

CHUNK_S = 0.002
"""How long a chunk should take: a few hundred times as long as to take it."""

_SENT_CHUNK_S = 0.25
"""How long a chunk should take that the root sends, which takes about a millisecond."""

_GROWTH = 8
"""How many times larger a chunk may be than the one before, whose tasks may have been short by chance."""

_FRACTION = 8
"""A chunk is this fraction of a rank's share of all that is left. With 2, as in factoring, simulated ranks ended up to
3 longest tasks apart (tests/unit/tasks/test_scheduler.py); more would cost more chunks, about a hundred in all."""

_LOCK_TRIES = 100
"""How often a rank tries to lock the queue before it sleeps until it can. On 2 cores, a map of 1,000 tasks of 0.1 us
takes 0.52 ms, and 0.75 ms without it."""

_YIELDS = 1000
_SLEEP_S = 0.00005

_ROOT_SLEEP_S = 0.0005
"""How long the root's thread sleeps between looks. Each look takes Python's lock from the tasks."""

_BEGIN, _END, _COUNT = range(3)
"""The numbers of the queue, by place: the tasks that no rank has taken."""


def backoff(sleep_s: float = _SLEEP_S) -> Iterator[None]:
    """Pauses with each `next`, between two looks at what another rank does: first yields the core, then sleeps."""
    for number in count():
        advance_all()  # a task of another rank may send to this one
        if number < _YIELDS:
            os.sched_yield()
        else:
            time.sleep(sleep_s)
        yield


def chunk_size(left: int, n_ranks: int, wanted: int) -> int:
    """Number of tasks in the next chunk, if `wanted` are asked for: at least one, unless none is left."""
    return min(left, wanted, max(1, left // (n_ranks * _FRACTION)))


def next_wanted(count: int, seconds: float, chunk_s: float = CHUNK_S) -> int:
    """How many tasks to ask for where the last `count` of them took so long."""
    return max(1, min(count * _GROWTH, int(count * chunk_s / max(seconds, 1e-9))))


def _lock(descriptor: int) -> None:
    """Locks a file that others lock for some microseconds: to sleep until then takes several times as long."""
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.sched_yield()
        else:
            return
    fcntl.flock(descriptor, fcntl.LOCK_EX)


class Scheduler:
    """The tasks of a communicator's maps as one rank sees them. Made by `Context.cached`, collective the first time.

    Use: `reset` on all ranks while none is in a map; `start`; `chunks`; `cancel` where a task failed; `has_ended` until
    it is true, or `stop` where an exception ends the map on this rank alone.
    """

    def __init__(self, context: Context) -> None:
        topology = context.topology
        self._thread_lock = threading.Lock()  # the lock of a file does not keep the threads of a rank apart
        self._file: OpenFile | None = None
        self._numbers = memoryview(bytearray(_COUNT * 8)).cast("q")
        if topology.n_nodes < topology.size:
            self._open_file(context)
        self._files = [rank if self._file is None else topology.node_of(rank) for rank in range(topology.size)]
        """For each rank, which file it has."""
        self._comm = context.collective_comm
        self._data_comm = context.data_comm

    def _open_file(self, context: Context) -> None:
        """Opens a file for each node; does nothing on all ranks where a node cannot have one."""
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

    def reset(self, root: int, count: int) -> None:
        """Begins with `count` tasks, a number that only `root` needs to give."""
        is_root = self._comm.rank == root
        others = {rank for rank, file in enumerate(self._files) if file != self._files[root]}
        self._root = root
        self._thread: threading.Thread | None = None
        self._asks = self._comm.rank in others  # the root for tasks
        self._asking = others if is_root else set()  # the ranks that ask, and do not know yet that no task is left
        if is_root:
            self._numbers[_BEGIN], self._numbers[_END] = 0, count

    def start(self) -> None:
        """On the root: begins to answer the ranks that ask."""
        if self._asking and mpi.Query_thread() == mpi.THREAD_MULTIPLE:
            self._thread = threading.Thread(target=self._answer_all, daemon=True)
            self._thread.start()

    def chunks(self, size: int | None) -> Iterator[range]:
        """Yields chunks until no task is left, of `size` tasks; None to find it by the time that the caller takes."""
        wanted, chunk_s = size or 1, _SENT_CHUNK_S if self._asks else CHUNK_S
        while chunk := self._next_chunk(wanted):
            start = time.perf_counter()
            yield chunk
            if size is None:
                wanted = next_wanted(len(chunk), time.perf_counter() - start, chunk_s)

    def cancel(self) -> None:
        """No rank takes more tasks."""
        self._next_chunk(0)

    def has_ended(self) -> bool:
        """Whether all ranks that ask know that no task is left. The root answers them, unless its thread does."""
        if self._thread is not None and self._thread.is_alive():
            return False
        self._answer()
        return not self._asking

    def stop(self) -> None:
        """On the root: answers no more."""
        self._asking = set()

    @property
    def n_taken(self) -> int:
        """On the root: how many tasks have been taken."""
        return int(self._numbers[_BEGIN])

    def _next_chunk(self, wanted: int) -> range:
        """A chunk; where none are wanted, the rest is cancelled."""
        if self._asks:
            return self._ask(wanted)
        if self._thread is None:
            self._answer()
        return self._take(wanted)

    def _take(self, wanted: int) -> range:
        """Takes tasks from the queue, which is locked meanwhile.

        Python runs the handler of a signal after a call of the system, so that its exception may come just after the
        file was locked. So the block that unlocks it begins before, and no frame of a generator holds the lock, which
        would live as long as the exception. To unlock what is not locked does nothing.
        """
        with self._thread_lock:
            try:
                if self._file is not None:
                    _lock(self._file.descriptor)
                begin, end = self._numbers
                stop = begin + chunk_size(end - begin, self._comm.size, wanted)
                self._numbers[_BEGIN] = stop if wanted else end
            finally:
                if self._file is not None:
                    fcntl.flock(self._file.descriptor, fcntl.LOCK_UN)
        return range(begin, stop)

    def _ask(self, wanted: int) -> range:
        answer = np.empty(2, np.int64)
        with InFlight(self._comm, Tag.TASKS) as in_flight:
            in_flight.receive(answer, self._root)
            in_flight.send(np.array([wanted]), self._root)
            in_flight.wait_until(0)
            begin, end = answer.tolist()
            self._asks = begin < end
        return range(begin, end)

    def _answer_all(self) -> None:
        """In a thread of the root."""
        while self._asking:
            time.sleep(_ROOT_SLEEP_S)
            self._answer()

    def _answer(self) -> None:
        """On the root: answers the ranks that have asked."""
        while self._asking and self._data_comm.Iprobe(mpi.ANY_SOURCE, Tag.TASKS, status := mpi.Status()):
            with InFlight(self._comm, Tag.TASKS) as in_flight:
                in_flight.receive(question := np.empty(1, np.int64), status.source)
                in_flight.wait_until(0)
                chunk = self._take(int(question[0]))
                if not chunk:
                    self._asking.discard(status.source)
                in_flight.send(np.array([chunk.start, chunk.stop]), status.source)
