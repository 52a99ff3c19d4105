"""What the root of a pool has its workers do: commands, and single calls, one at a time to each worker."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from logging import getLogger
from queue import LifoQueue
from typing import Any

from mpishare.comm import mpi
from mpishare.comm.alone import alone
from mpishare.comm.communicator import CollectiveComm
from mpishare.comm.context import Context
from mpishare.comm.in_flight import Tag
from mpishare.errors import MpishareError
from mpishare.objects.pickling import pickle_object
from mpishare.tasks.errors import IN_TASK, Failure
from mpishare.tasks.results import receive_object, send_object
from mpishare.tasks.scheduler import backoff

MAP, CALL, CLOSE = b"M", b"S", b"C"

IN_CALLBACK = "by a callback of a Pool"
"""Where a call was made, in errors."""

_COMMAND = struct.Struct("<cQ")
"""One of these, and the number of the pool."""

_SLEEP_S = 0.0001
_LONGEST_SLEEP_S = 0.05
_SLEEP_FRACTION = 1 / 32
"""Between two looks for a result, a thread of the root sleeps for this fraction of the time that the call has taken, so
that hundreds of threads that wait for long calls leave Python's lock to others."""

_IDLE_SLEEP_S = 0.0005
"""How long a worker without work sleeps between looks, so that the root has the machine to itself meanwhile."""


class Dispatcher:
    """On the root: a thread for each worker that has a call. Needs MPI_THREAD_MULTIPLE."""

    def __init__(self, context: Context, pool: int) -> None:
        """Calls for the workers of the pool of that number."""
        self._context = context
        self._pool = pool
        self._comm = comm = CollectiveComm(context.data_comm)
        self._idle: LifoQueue[int] = LifoQueue()
        for rank in set(range(comm.size)) - {comm.rank}:
            self._idle.put(rank)
        self._functions: dict[int, Any] = {}  # that each worker keeps
        self._unended: set[Future[Any]] = set()
        self._blocks: list[alone] = []
        self._threads = ThreadPoolExecutor(comm.size - 1, initializer=self._begin_thread)

    def submit(self, number: int, func: Callable[..., Any], args: tuple[Any, ...]) -> Future[Any]:
        """Begins a call.

        Args:
            number: Number of the call, or of its first item, for errors.
            func: What to call. The worker keeps it if there are arguments. If it is the same object in the worker's
                next call, it is not sent again.
            args: Its arguments.
        """
        future: Future[Any] = Future()
        self._threads.submit(self._run, future, number, func, args)
        self._unended.add(future)
        future.add_done_callback(self._unended.discard)
        return future

    def wait(self) -> None:
        """Returns when the calls that have been submitted have ended."""
        wait(list(self._unended))

    def shutdown(self, *, is_cancelled: bool) -> None:
        """Begins to end the threads when all calls have ended. Those that have not begun may be cancelled."""
        for future in list(self._unended) if is_cancelled else ():
            future.cancel()  # which the threads then tell to `wait`
        self._threads.shutdown(wait=False)

    def join(self) -> None:
        """Returns when the threads have ended."""
        self._threads.shutdown()
        for block in self._blocks:
            block.end()

    def _begin_thread(self) -> None:
        """Begins a block that lasts as long as the thread, as callbacks of futures run in the thread, too."""
        self._blocks.append(alone(self._context.topology.comm, IN_CALLBACK).__enter__())

    def _run(self, future: Future[Any], number: int, func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """In a thread: makes a call, and ends its future."""
        if not future.set_running_or_notify_cancel():
            return
        try:
            end = partial(future.set_result, self._call(number, func, args))
        except BaseException as error:
            end = partial(future.set_exception, error)
        try:
            end()
        except BaseException:  # of a callback, such as SystemExit, which would end the thread; others are logged there
            getLogger(__name__).exception("a callback of %r has raised", future)

    def _call(self, number: int, func: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Makes a call, by a worker whose result no other thread waits for."""
        context, rank = self._context, self._idle.get()
        try:
            if context.is_out_of_step:
                raise MpishareError("a result could not be received. Make a new pool on another communicator.")
            has_function = self._functions.pop(rank, None) is func  # noted again when the call has been made
            pickled = pickle_object((number, None if has_function else func, args))
            send_command(context, self._pool, CALL, rank)
            send_object(context, self._comm, pickled, rank, Tag.POOL_CALL)
            self._wait_for(rank)
            failure, value = receive_object(context, self._comm, rank, Tag.POOL_RESULT)
            if failure is not None:
                raise failure.task_error()
            if args:
                self._functions[rank] = func
            return value
        finally:
            self._idle.put(rank)

    def _wait_for(self, rank: int) -> None:
        start = time.monotonic()
        while not self._context.data_comm.Iprobe(rank, Tag.POOL_RESULT):
            pause_s = _SLEEP_FRACTION * (time.monotonic() - start)
            time.sleep(min(max(pause_s, _SLEEP_S), _LONGEST_SLEEP_S))


def send_command(context: Context, pool: int, command: bytes, *ranks: int) -> None:
    """On the root: tells workers of the pool with number `pool`; all of them if no rank is given."""
    comm = context.data_comm
    for rank in ranks or set(range(comm.size)) - {comm.rank}:
        comm.Send([_COMMAND.pack(command, pool), mpi.BYTE], rank, Tag.POOL_COMMAND)


def next_command(context: Context, root: int, pool: int) -> bytes:
    """On a worker: waits for the root, asleep most of the time.

    Commands for an earlier pool, which this rank left by an exception, are dropped.
    """
    comm, pauses, message = context.data_comm, backoff(_IDLE_SLEEP_S), bytearray(_COMMAND.size)
    while True:
        while not comm.Iprobe(root, Tag.POOL_COMMAND):
            next(pauses)
        comm.Recv([message, mpi.BYTE], root, Tag.POOL_COMMAND)
        command, number = _COMMAND.unpack(message)
        if number == pool:
            return bytes(command)


def serve_call(context: Context, root: int, kept: Any) -> Any:
    """On a worker: receives a call, makes it, and sends what it returns, or its failure.

    Args:
        context: Of the communicator.
        root: The rank that has announced the call.
        kept: The function of the last call, which the root does not send again.

    Returns:
        The function, to be kept.
    """
    comm, number = CollectiveComm(context.data_comm), 0
    try:
        number, func, args = receive_object(context, comm, root, Tag.POOL_CALL)
        func = kept if func is None else func
        with alone(context.topology.comm, IN_TASK):
            answer = pickle_object((None, func(*args)))
        kept = func if args else None
    except BaseException as error:  # a task must not end the rank that serves
        if context.is_out_of_step:
            raise
        kept, answer = None, pickle_object((Failure.of(context, error, number), None))
    send_object(context, comm, answer, root, Tag.POOL_RESULT)
    return kept
