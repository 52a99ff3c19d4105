"""Single calls that the root of a pool hands to its workers, one to each at a time, while it does something else."""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NamedTuple

from mpishare.comm import mpi
from mpishare.comm.collective_comm import CollectiveComm
from mpishare.comm.context import Context
from mpishare.comm.tags import Tag
from mpishare.errors import MpishareError, SpecError, TaskError, text_of_error
from mpishare.objects.pickled import PickledObject
from mpishare.objects.pickling import pickle_object, unpickle_object
from mpishare.tasks.calls import Failed, is_named
from mpishare.tasks.object_transport import receive_object, send_object

_NAP_S = 0.0002
"""How long the root's thread sleeps between looks while calls are under way. When there is none it waits for one."""


class _Call(NamedTuple):
    """A call that waits for a worker."""

    number: int
    future: Future[Any]
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Dispatcher:
    """On the root: a thread that sends calls and receives results. Needs MPI_THREAD_MULTIPLE."""

    def __init__(self, context: Context, announce: Callable[[int], None]) -> None:
        """`announce` tells a worker that a call is about to come."""
        self._context = context
        self._announce = announce
        self._waiting: deque[_Call] = deque()
        self._idle = [rank for rank in range(context.topology.size) if rank != context.topology.rank]
        self._under_way: dict[int, _Call] = {}
        self._last: dict[int, Any] = {}  # the function that each worker has
        self._error: BaseException | None = None
        self._is_closing = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def submit(
        self, number: int, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Future[Any]:
        """Begins a call; `number` is what its failure is to be known by."""
        if self._error is not None:
            raise MpishareError("the pool makes no more calls, since its thread has ended") from self._error
        future: Future[Any] = Future()
        self._waiting.append(_Call(number, future, func, args, kwargs))
        self._wake.set()
        return future

    def close(self, *, cancel: bool) -> None:
        """Returns when all calls have ended; with `cancel`, those that have not begun never do."""
        while cancel and self._waiting:
            with suppress(IndexError):
                self._waiting.pop().future.cancel()
        self._is_closing = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._dispatch()
        except BaseException as error:  # such as that there is no memory for a result; nobody may wait for ever
            self._error = error
            for call in [*self._under_way.values(), *self._waiting]:
                if not call.future.done():
                    call.future.set_exception(error)

    def _dispatch(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._waiting or self._under_way:
                if not self._send() and not self._receive():
                    time.sleep(_NAP_S)
            if self._is_closing:
                return

    def _send(self) -> bool:
        """Hands the next call to a worker; whether there are both."""
        if not self._waiting or not self._idle:
            return False
        try:
            call = self._waiting.popleft()
        except IndexError:  # given up meanwhile
            return False
        if not call.future.set_running_or_notify_cancel():
            return True
        rank = self._idle[-1]
        is_same = rank in self._last and self._last[rank] is call.func
        try:
            parcel = pickle_object((is_same, None if is_same else call.func, call.args, call.kwargs))
        except Exception as error:
            call.future.set_exception(error)
            return True
        self._idle.pop()
        self._under_way[rank] = call
        self._last.pop(rank, None)  # until it is known that the call could be unpacked there
        self._announce(rank)
        send_object(self._context, CollectiveComm(self._context.data_comm), parcel, rank, Tag.POOL_CALL)
        return True

    def _receive(self) -> bool:
        """Takes a result; whether there is one."""
        status = mpi.Status()
        if not self._context.data_comm.Iprobe(mpi.ANY_SOURCE, Tag.POOL_RESULT, status):
            return False
        rank = status.source
        came = receive_object(self._context, CollectiveComm(self._context.data_comm), rank, Tag.POOL_RESULT)
        call = self._under_way.pop(rank)
        self._idle.append(rank)
        is_well = _finish(
            call.future, came, call.number, rank, self._context.topology.hosts[self._context.topology.node_of(rank)]
        )
        if is_well and _stays(call.func):
            self._last[rank] = call.func
        return True


def _finish(future: Future[Any], came: PickledObject | MpishareError, number: int, rank: int, host: str) -> bool:
    """Gives a future what came for it; whether the call was well."""
    try:
        if isinstance(came, MpishareError):
            raise came
        is_well, value = unpickle_object(came)
    except Exception as error:
        future.set_exception(error)
        return False
    if is_well:
        future.set_result(value)
    else:
        offset, *told = value
        future.set_exception(TaskError(number + offset, rank, host, *told))
    return bool(is_well)


def _stays(func: Callable[..., Any]) -> bool:
    """Whether a worker may keep it for the next call: it has no state, or is of one call of `imap`."""
    return is_named(func) or getattr(func, "stays", False)


class Worker:
    """On any other rank: makes the calls that the root announces."""

    def __init__(self, context: Context, root: int) -> None:
        self._context = context
        self._root = root
        self._func: Any = None

    def serve(self, run: Callable[..., Any]) -> None:
        """One call, by `run`, which gets the function and its arguments."""
        context = self._context
        comm = CollectiveComm(context.data_comm)
        came = receive_object(context, comm, self._root, Tag.POOL_CALL)
        send_object(context, comm, self._outcome(came, run), self._root, Tag.POOL_RESULT)

    def _outcome(self, came: PickledObject | MpishareError, run: Callable[..., Any]) -> PickledObject:
        try:
            if isinstance(came, MpishareError):
                raise came
            is_same, func, args, kwargs = unpickle_object(came)
            if not is_same:
                self._func = func
            return pickle_object((True, run(self._func, *args, **kwargs)))
        except (Exception, SystemExit) as error:  # a task does not end the rank that serves
            return pickle_object((False, _told(error)))


def called(number: int, context: Context, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
    """The future of a call that this rank makes itself, at once."""
    future: Future[Any] = Future()
    try:
        future.set_result(run(*args, **kwargs))
    except Exception as error:
        offset, *told = _told(error)
        failure = TaskError(number + offset, context.topology.rank, context.topology.host, *told)
        failure.__cause__ = error.__cause__ if isinstance(error, Failed) else error
        future.set_exception(failure)
    return future


def _told(error: BaseException) -> tuple[int, str, str]:
    """What the root hears of an error: in which item of the call, its words, and from where it came."""
    offset = 0
    if isinstance(error, Failed) and error.__cause__ is not None:
        offset, error = error.item, error.__cause__
    reason = f"the result {error}" if isinstance(error, SpecError) else text_of_error(error)
    return offset, reason, "".join(traceback.format_exception(error))
