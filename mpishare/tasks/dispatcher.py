"""What the root of a pool has its workers do: commands, and single calls, one at a time to each worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from logging import getLogger
from queue import LifoQueue
from typing import Any

import numpy as np

from mpishare.comm.alone import alone
from mpishare.comm.context import Context
from mpishare.comm.in_flight import Tag
from mpishare.messages.requests import receive_object, send_object
from mpishare.objects.pickling import PickledObject, pickle_object, unpickle_object
from mpishare.objects.references import pickle_referring, resolved
from mpishare.tasks.errors import IN_TASK, task_error
from mpishare.tasks.scheduler import backoff

IN_CALLBACK = "by a callback of a Pool"
"""Where a call was made, in errors."""

_SLEEP_S = 0.0001
_LONGEST_SLEEP_S = 0.05
_SLEEP_FRACTION = 1 / 32
"""Between two looks for a result, a thread of the root sleeps for this fraction of the time that the call has taken, so
that hundreds of threads that wait for long calls leave Python's lock to others."""

_IDLE_SLEEP_S = 0.0005
"""How long a worker without work sleeps between looks, so that the root has the machine to itself meanwhile."""


class Dispatcher:
    """On the root: a thread for each worker that has a call. Needs MPI_THREAD_MULTIPLE."""

    def __init__(self, context: Context, pool: int, workers: Iterable[int]) -> None:
        """Calls for the workers of the pool of that number."""
        self._context = context
        self._pool = pool
        self._idle: LifoQueue[int] = LifoQueue()
        for rank in workers:
            self._idle.put(rank)
        self._functions: dict[int, Any] = {}  # that each worker keeps
        self._unended: set[Future[Any]] = set()
        self._threads = ThreadPoolExecutor(self._idle.qsize())

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

    def cancel(self) -> None:
        """Cancels the calls that have not begun."""
        for future in list(self._unended):
            future.cancel()  # which the threads then tell to `wait`

    def join(self) -> None:
        """Ends the threads, and returns when they have ended, after all calls."""
        self._threads.shutdown()

    def _run(self, future: Future[Any], number: int, func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """In a thread: makes a call, and ends its future."""
        if not future.set_running_or_notify_cancel():
            return
        try:
            end = partial(future.set_result, self._call(number, func, args))
        except BaseException as error:
            end = partial(future.set_exception, error)
        try:
            with alone(self._context.topology.comm, IN_CALLBACK):
                end()
        except BaseException:  # of a callback, such as SystemExit, which would end the thread; others are logged there
            getLogger(__name__).exception("a callback of %r has raised", future)

    def _call(self, number: int, func: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Makes a call, by a worker whose result no other thread waits for."""
        rank = self._idle.get()
        try:
            has_function = self._functions.pop(rank, None) is func  # noted again when the call has been made
            content = None if has_function else func, args
            answer = self._answer(rank, number, pickle_referring(content)[0])
            error, value = self._answer(rank, number, pickle_object(content)) if answer is None else answer
            if error is not None:
                raise error
            if args:
                self._functions[rank] = func
            return value
        finally:
            self._idle.put(rank)

    def _answer(self, rank: int, number: int, call: PickledObject) -> Any:
        """Has a worker make a call. None if it lacks what the call refers to, and has not made it."""
        send_command(self._context, self._pool, (number, call), rank)
        start = time.monotonic()
        while not self._context.data_comm.Iprobe(rank, Tag.POOL_RESULT):
            pause_s = _SLEEP_FRACTION * (time.monotonic() - start)
            time.sleep(min(max(pause_s, _SLEEP_S), _LONGEST_SLEEP_S))
        return receive_object(self._context, rank, Tag.POOL_RESULT)


def send_command(context: Context, pool: int, command: Any, *workers: int) -> None:
    """On the root: tells workers of the pool with number `pool` what to do.

    Args:
        context: Of the communicator.
        pool: The number of the pool.
        command: An integer that the pool knows; or the number of a call, and the pickled call.
        workers: Their ranks.
    """
    content = np.array([pool, command]) if isinstance(command, int) else pickle_object((pool, command))
    for rank in workers:
        send_object(context, content, rank, Tag.POOL_COMMAND)


def next_command(context: Context, root: int, pool: int) -> Any:
    """On a worker: waits for the root, asleep most of the time.

    Commands for an earlier pool, which this rank left by an exception, are dropped.
    """
    pauses = backoff(_IDLE_SLEEP_S)
    while True:
        while not context.data_comm.Iprobe(root, Tag.POOL_COMMAND):
            next(pauses)
        number, command = receive_object(context, root, Tag.POOL_COMMAND)
        if number == pool:
            return command


def serve_call(context: Context, root: int, command: tuple[int, PickledObject], kept: Any) -> Any:
    """On a worker: makes a call, and sends what it returns, or its error.

    Args:
        context: Of the communicator.
        root: The rank that has sent the call.
        command: The number of the call, or of its first item; and, pickled, the function, None for that of the last
            call, and its arguments.
        kept: The function of the last call.

    Returns:
        The function, to be kept.
    """
    number, call = command
    try:
        content, answer = resolved(unpickle_object(call)), pickle_object(None)
        if content is not None:
            func, args = content
            func = kept if func is None else func
            with alone(context.topology.comm, IN_TASK):
                answer = pickle_object((None, func(*args)))
            kept = func if args else None
    except BaseException as error:  # a task must not end the rank that serves
        kept, answer = None, pickle_object((task_error(context, error, number), None))
    send_object(context, answer, root, Tag.POOL_RESULT)
    return kept
