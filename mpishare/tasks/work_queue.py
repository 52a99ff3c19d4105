"""Who runs which tasks: ranks claim them from a stock, a few at a time, and no rank is spent on managing.

The ranks of a node claim from a stock in the node's memory, which takes microseconds (`counters`). All tasks are in the
stock of the root's node in the beginning. The stock of another node is filled from it, in blocks: the rank that finds
it low asks the root and waits for the answer, while the other ranks of its node claim what is left. The root answers
between its chunks and, where MPI allows threads, in a thread beside its tasks, as soon as these let go of Python's
lock. Not by MPI's one-sided calls: over TCP they end only while the target is in MPI as well, and the root computes in
Python.

A block is a part of what is left, as a chunk is (`dealing`), and at most `_BLOCK_S` long. So nodes end together, and
each hears soon that a task has failed. Where the ranks of a node cannot open a common file, each has its own stock.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from mpishare.comm import mpi
from mpishare.comm.tags import Tag
from mpishare.tasks.counters import Counters
from mpishare.tasks.object_transport import rest
from mpishare.tasks.self_scheduling import ChunkRequest, ChunkSizer, portion

if TYPE_CHECKING:
    from mpishare.comm.context import Context

_BLOCK_S = 0.25
"""How long a node takes for a block, as far as is known. To fetch one takes about a millisecond."""

_LOW = 4
"""A node asks for more when this part of its last block is left."""

_NAP_S = 0.0005
"""How long the root's thread sleeps between looks. Python takes the core from a thread that computes each time."""


class _Sign(Enum):
    """What a rank does that gets no tasks now: ask the root, wait for the rank that asks, end."""

    ASK = 1
    WAIT = 2
    OVER = 3


_BEGIN, _END, _NEXT_BEGIN, _NEXT_END, _LOW_MARK, _ASKER, _IS_CANCELLED, _IS_CLOSED, _DONE, _COUNT = range(10)
"""What each of the numbers in the memory of a node is: the tasks that can be claimed, those after them, how few are so
few that somebody asks, the rank that asks and one more, whether tasks have been given up, whether the root has no more
of them, and how many have been run since the root was last told."""


class TaskQueue:
    """The tasks that the ranks of one group can claim now."""

    def __init__(self, counters: Counters, group_size: int) -> None:
        self._counters = counters
        self._numbers = counters.numbers
        self._group_size = group_size

    def for_thread(self) -> TaskQueue:
        """The same for another thread of this rank."""
        return TaskQueue(self._counters.for_thread(), self._group_size)

    def reset(self, count: int, *, is_closed: bool) -> None:
        """The tasks are those from 0 to `count`. While nobody claims."""
        for number in range(_COUNT):
            self._numbers[number] = 0
        self._numbers[_END] = count
        self._numbers[_IS_CLOSED] = is_closed

    def take(self, wish: ChunkRequest, ranks: int, me: int, done: int) -> range | _Sign:
        """Claims tasks for the rank `me`, one of so many, which has run `done` since it was last here."""
        numbers = self._numbers
        with self._counters.lock:
            numbers[_DONE] += done
            if numbers[_IS_CANCELLED]:
                return _Sign.OVER
            left = numbers[_END] - numbers[_BEGIN]
            has_next = numbers[_NEXT_BEGIN] < numbers[_NEXT_END]
            if left <= numbers[_LOW_MARK] and not (has_next or numbers[_IS_CLOSED] or numbers[_ASKER]):
                numbers[_ASKER] = me + 1
                return _Sign.ASK
            if not left and not self._turn():
                return _Sign.OVER if numbers[_IS_CLOSED] else _Sign.WAIT
            return self._claimed(wish, ranks)

    def deal(self, wish: ChunkRequest, ranks: int, claimers: int, done: int) -> range:
        """Claims tasks for another group, `claimers` of so many ranks, which has run `done`; maybe none."""
        with self._counters.lock:
            self._numbers[_DONE] += done
            return range(0) if self._numbers[_IS_CANCELLED] else self._claimed(wish, ranks, claimers)

    def put(self, block: range) -> None:
        """Adds what the root gave; if that is nothing, there will be no more."""
        numbers = self._numbers
        with self._counters.lock:
            numbers[_ASKER] = 0
            numbers[_NEXT_BEGIN], numbers[_NEXT_END] = block.start, block.stop
            numbers[_IS_CLOSED] = not block
            numbers[_LOW_MARK] = len(block) // _LOW if self._group_size > 1 else 0  # who asks waits, alone as well

    def cancel(self) -> None:
        """No more tasks are claimed."""
        with self._counters.lock:
            self._numbers[_IS_CANCELLED] = 1

    def must_tell(self, me: int) -> bool:
        """Whether the rank `me` is to tell the root that tasks are given up: nobody does, and the root may not know."""
        numbers = self._numbers
        with self._counters.lock:
            if not numbers[_IS_CANCELLED] or numbers[_IS_CLOSED] or numbers[_ASKER] not in (0, me + 1):
                return False
            numbers[_ASKER] = me + 1
            return True

    def told(self) -> tuple[bool, int]:
        """What the root is told: whether tasks are given up, and how many have been run since."""
        with self._counters.lock:
            done = self._numbers[_DONE]
            self._numbers[_DONE] = 0
            return bool(self._numbers[_IS_CANCELLED]), done

    @property
    def done(self) -> int:
        """How many tasks have been run, as far as this group knows."""
        return int(self._numbers[_DONE])

    def _turn(self) -> bool:
        """Goes on to the next block; whether there is one. Under the lock."""
        numbers = self._numbers
        numbers[_BEGIN], numbers[_END] = numbers[_NEXT_BEGIN], numbers[_NEXT_END]
        numbers[_NEXT_BEGIN] = numbers[_NEXT_END] = 0
        return numbers[_BEGIN] < numbers[_END]

    def _claimed(self, wish: ChunkRequest, ranks: int, claimers: int = 1) -> range:
        """Under the lock."""
        begin = self._numbers[_BEGIN]
        end = begin + portion(self._numbers[_END] - begin, ranks, wish, claimers)
        self._numbers[_BEGIN] = end
        return range(begin, end)


@dataclass(frozen=True)
class TaskQueues:
    """The stock of this rank, and which ranks have one in common: those of a node, or each for itself.

    Attributes:
        stock: That from which this rank claims.
        is_per_node: Which of both.
    """

    stock: TaskQueue
    is_per_node: bool

    def group_of(self, context: Context, rank: int) -> int:
        """The number of the group of `rank`."""
        return context.topology.node_of(rank) if self.is_per_node else rank

    def group_size(self, context: Context, rank: int) -> int:
        """How many ranks are in the group of `rank`."""
        return len(context.topology.ranks_of(context.topology.node_of(rank))) if self.is_per_node else 1


def task_queues(context: Context) -> TaskQueues:
    """Those of a communicator; used by `Context.keep`. Collective over the communicator."""
    counters = Counters.of_node(context, _COUNT) if context.topology.n_nodes < context.topology.size else None
    size = 1 if counters is None else context.topology.node_size
    return TaskQueues(TaskQueue(counters or Counters.private(_COUNT), size), counters is not None)


class WorkQueue:
    """The tasks of one call, as one rank claims them.

    Use: `reset` on all ranks while all are known to be out of the last call, `next` again and again, `cancel` on a
    rank whose task failed, and `finish` at the end.
    """

    def __init__(self, context: Context, root: int) -> None:
        """`root` is the rank that has all tasks in the beginning. Collective over the communicator the first time."""
        found = context.keep(task_queues)
        self._context = context
        self._root = root
        self._stocks = found
        self._stock = found.stock
        self._is_root = context.topology.rank == root
        self._group_size = found.group_size(context, context.topology.rank)
        self._has_all = found.group_of(context, context.topology.rank) == found.group_of(context, root)
        self._ranks = (
            context.topology.size if self._has_all else self._group_size
        )  # that claim from what is in the stock
        self._open_groups = 0  # others that may ask
        self._serving = threading.Lock()
        self._thread: threading.Thread | None = None
        self._thread_error: BaseException | None = None

    def reset(self, count: int) -> None:
        """Begins with `count` tasks, of which only the root need know how many they are."""
        groups = {self._stocks.group_of(self._context, rank) for rank in range(self._context.topology.size)}
        if self._is_root:
            self._open_groups = len(groups) - 1
        is_first = self._context.topology.is_leader or not self._stocks.is_per_node
        if self._is_root if self._has_all else is_first:
            self._stock.reset(count, is_closed=self._has_all)

    def start(self) -> None:
        """From here on the root answers those that ask."""
        if self._open_groups and mpi.Query_thread() == mpi.THREAD_MULTIPLE:
            thread = threading.Thread(target=self._serve_all, args=(self._stock.for_thread(),), daemon=True)
            thread.start()
            self._thread = thread

    def next(self, pace: ChunkSizer, done: int) -> range:
        """Claims tasks, none where none is left; this rank has run `done` since the last time."""
        looks = 0
        while True:
            if self._open_groups:
                self._try_to_serve()
            found = self._stock.take(pace.wish, self._ranks, self._context.topology.rank, done)
            done = 0
            if isinstance(found, range):
                return found
            if found is _Sign.OVER:
                return range(0)
            if found is _Sign.ASK:
                self._ask(pace.block(self._group_size, _BLOCK_S))
                self._tell()
            else:
                looks = rest(looks)

    def cancel(self) -> None:
        """No rank of this node claims more, and the others none after their blocks."""
        self._stock.cancel()
        if not self._has_all:
            self._tell()

    def finish(self) -> None:
        """On the root: returns when all others know that there are no more tasks."""
        looks = 0
        while self._open_groups and self._thread is None:
            self._try_to_serve()
            looks = rest(looks)
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._thread_error = self._thread_error, None
        if error is not None:
            raise error

    @property
    def done(self) -> int:
        """How many tasks have been run, as far as the root's node knows."""
        return self._stock.done

    def _tell(self) -> None:
        """Tells the root that tasks have been given up, where it does not know."""
        while self._stock.must_tell(self._context.topology.rank):
            self._ask(ChunkRequest(0))

    def _ask(self, wish: ChunkRequest) -> None:
        """Fetches a block from the root. The answer is taken also where a signal ends the waiting."""
        is_cancelled, done = self._stock.told()
        answer = np.zeros(2, np.int64)
        receiving = self._context.data_comm.Irecv([answer, mpi.INT64_T], self._root, Tag.BLOCK)
        question = np.array([is_cancelled, done, *wish], np.int64)
        asking = self._context.data_comm.Isend([question, mpi.INT64_T], self._root, Tag.BLOCK_REQUEST)
        looks = 0
        try:
            while not receiving.Test():
                looks = rest(looks)
        finally:
            receiving.Wait()
            asking.Wait()
            self._stock.put(range(*answer.tolist()))

    def _serve_all(self, stock: TaskQueue) -> None:
        """The root's thread."""
        try:
            while self._open_groups:
                with self._serving:
                    self._serve(stock)
                time.sleep(_NAP_S)
        except BaseException as error:
            self._thread_error = error

    def _try_to_serve(self) -> None:
        """Answers between the root's chunks too: tasks that keep Python's lock keep the thread from it."""
        if self._serving.acquire(blocking=False):
            try:
                self._serve(self._stock)
            finally:
                self._serving.release()

    def _serve(self, stock: TaskQueue) -> None:
        """Answers all that have asked."""
        question, status, comm = np.zeros(5, np.int64), mpi.Status(), self._context.data_comm
        while comm.Iprobe(mpi.ANY_SOURCE, Tag.BLOCK_REQUEST, status):
            source = status.source
            comm.Recv([question, mpi.INT64_T], source, Tag.BLOCK_REQUEST)
            is_cancelled, done, *wish = question.tolist()
            if is_cancelled:
                stock.cancel()
            claimers = self._stocks.group_size(self._context, source)
            block = stock.deal(ChunkRequest(*wish), self._context.topology.size, claimers, done)
            if not block:
                self._open_groups -= 1
            comm.Send([np.array([block.start, block.stop]), mpi.INT64_T], source, Tag.BLOCK)
