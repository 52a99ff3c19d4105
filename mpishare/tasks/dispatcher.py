"""What the root of a pool has its workers do: commands, and single calls, one at a time to each worker."""

from __future__ import annotations

import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from typing import Any, TypeAlias

from mpishare.comm import mpi
from mpishare.comm.alone import alone
from mpishare.comm.communicator import CollectiveComm
from mpishare.comm.context import Context
from mpishare.comm.tags import Tag
from mpishare.comm.watchdog import Stopwatch
from mpishare.errors import MpishareError, StallError
from mpishare.objects.pickling import pickle_object
from mpishare.tasks.errors import IN_TASK, Failure
from mpishare.tasks.results import receive_object, send_object
from mpishare.tasks.scheduler import backoff

MAP, CALL, CLOSE = b"M", b"S", b"C"

_COMMAND = struct.Struct("<cQ")
"""One of these, and the number of the pool."""

_SLEEP_S = 0.0002
"""How long the root's thread sleeps between looks while calls are running."""

_LONGEST_RECEIVE_S = 1
"""A result that takes longer to receive counts as this many seconds for the other calls; see `Stopwatch`."""

_IDLE_SLEEP_S = 0.0005
"""How long a worker without work sleeps between looks, so that the root has the machine to itself meanwhile."""


Call: TypeAlias = "tuple[int, Callable[..., Any], tuple[Any, ...]]"
"""A call for a worker: its number, or that of its first item, for errors; the function, and its arguments.

A worker keeps the function of a call that has arguments. If it is the same object in the next call, it is not sent.
"""


class Dispatcher:
    """On the root: a thread that sends calls and receives results. Needs MPI_THREAD_MULTIPLE."""

    def __init__(self, context: Context, pool: int, in_other_call: Callable[[], bool]) -> None:
        """Starts the thread, for the pool of that number.

        `in_other_call` tells whether the workers are in a call of all ranks. Then no single call is late.
        """
        self._context = context
        self._pool = pool
        self._in_other_call = in_other_call
        self._comm = CollectiveComm(context.data_comm)
        self._waiting: deque[tuple[Future[Any], Call]] = deque()
        self._unended: set[Future[Any]] = set()
        self._running: dict[int, tuple[Future[Any], Call]] = {}
        self._idle = [rank for rank in range(self._comm.size) if rank != self._comm.rank]
        self._functions: dict[int, Any] = {}  # that each worker keeps
        self._error: BaseException | None = None
        self._closing = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def submit(self, call: Call) -> Future[Any]:
        """Begins a call.

        Raises:
            MpishareError: The thread has ended by an error.
        """
        future: Future[Any] = Future()
        self._unended.add(future)
        future.add_done_callback(self._unended.discard)
        self._waiting.append((future, call))
        self._wake.set()
        if self._error is not None:  # looked at last, so that a thread that ends now ends the future
            text = "the pool's thread has ended, by the error that caused this one. Make a new pool on all ranks."
            raise MpishareError(text) from self._error
        return future

    def wait(self) -> None:
        """Returns when the calls that have been submitted have ended."""
        wait(list(self._unended))

    def is_this_thread(self) -> bool:
        """Whether this thread, which runs the callbacks of futures, is the one that makes calls and so cannot wait."""
        return self._thread is threading.current_thread()

    def close(self, *, is_cancelled: bool) -> None:
        """Ends the service of the workers when all calls have ended. Those that have not begun may be cancelled."""
        for future in list(self._unended) if is_cancelled else ():
            future.cancel()
        self._closing.set()
        self._wake.set()

    def join(self) -> None:
        """Returns when that is done."""
        self._thread.join()

    def _run(self) -> None:
        try:
            with alone(self._context.topology.comm, "by a callback of a Pool"):
                self._run_calls()
        except BaseException as error:  # such as MemoryError: no caller may wait for ever
            self._error = error
            self._context.is_out_of_step |= bool(self._running)  # results are on their way, which nobody receives
            for future in list(self._unended):
                with suppress(InvalidStateError):  # it is cancelled just now
                    future.set_exception(error)
        self._closing.wait()
        send_command(self._context, self._pool, CLOSE)

    def _run_calls(self) -> None:
        clock, limit_s = Stopwatch(_LONGEST_RECEIVE_S), self._context.config.timeout_s
        while self._waiting or self._running or not self._closing.is_set():
            if not (self._waiting or self._running):
                self._wake.wait()
                self._wake.clear()
            has_worked = self._send_next() or self._receive_next()
            if has_worked or not self._running or self._in_other_call():
                clock = Stopwatch(_LONGEST_RECEIVE_S)
            elif limit_s is not None and clock.seconds() > limit_s:
                raise self._stall(limit_s)
            if not has_worked:
                time.sleep(_SLEEP_S)

    def _send_next(self) -> bool:
        """Sends the next call to a worker; False if there is no call, or no worker."""
        if not self._waiting or not self._idle:
            return False
        future, call = self._waiting.popleft()
        if not future.set_running_or_notify_cancel():
            return True
        rank, (number, func, args) = self._idle[-1], call
        has_function = self._functions.pop(rank, self) is func  # noted again when the call has been made
        try:
            pickled = pickle_object((number, None if has_function else func, args))
        except BaseException as error:  # raised by a class that is pickled; the pool stays usable
            future.set_exception(error)
            return True
        self._idle.pop()
        self._running[rank] = future, call
        send_command(self._context, self._pool, CALL, rank)
        send_object(self._context, self._comm, pickled, rank, Tag.POOL_CALL)
        return True

    def _receive_next(self) -> bool:
        """Receives a result; False if there is none."""
        status = mpi.Status()
        if not self._context.data_comm.Iprobe(mpi.ANY_SOURCE, Tag.POOL_RESULT, status):
            return False
        rank = status.source
        future, (_, func, args) = self._running.pop(rank)
        self._idle.append(rank)
        try:
            failure, value = receive_object(self._context, self._comm, rank, Tag.POOL_RESULT)
            if failure is not None:
                raise failure.task_error()
        except BaseException as error:
            future.set_exception(error)
            if self._context.is_out_of_step:
                raise
        else:
            future.set_result(value)
            if args:
                self._functions[rank] = func
        return True

    def _stall(self, limit_s: float) -> StallError:
        topology = self._context.topology
        hosts = {rank: topology.hosts[topology.node_of(rank)] for rank in self._running}
        doing = "is in a call of a pool: it computes, or does not run"
        return StallError("Pool.submit", limit_s, {rank: f"on host {host} {doing}" for rank, host in hosts.items()})


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
