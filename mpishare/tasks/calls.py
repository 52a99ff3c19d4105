"""Single calls for other ranks, and their results in the shape of multiprocessing's AsyncResult and IMapIterator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures import TimeoutError as LateError
from itertools import chain, count, islice
from typing import Any, NamedTuple

from mpishare.errors import ArgumentError


class Call(NamedTuple):
    """A call for a worker.

    Attributes:
        number: Number of the call, or of its first item, for errors.
        func: What to call.
        args: Its arguments.
        kwargs: Its keyword arguments.
        has_fixed_state: Whether a worker may keep `func`, whose state does not change, for the next call with it.
    """

    number: int
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    has_fixed_state: bool = False


class AsyncResult:
    """The result of a call that goes on, as multiprocessing has it. Its callbacks run in a thread of the pool."""

    def __init__(
        self,
        future: Future[Any],
        callback: Callable[[Any], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> None:
        """The result of `future`, with which one of the two is called."""
        self._future = future

        def call_back(future: Future[Any]) -> None:
            error = None if future.cancelled() else future.exception()
            if error is not None and error_callback is not None:
                error_callback(error)
            elif error is None and callback is not None and not future.cancelled():
                callback(future.result())

        future.add_done_callback(call_back)

    def get(self, timeout: float | None = None) -> Any:
        """Returns the result, or raises what the call raised.

        Raises:
            multiprocessing.TimeoutError: It was not there within `timeout` seconds.
            concurrent.futures.CancelledError: The pool was terminated before the call began.
        """
        self.wait(timeout)
        if not self.ready():
            from multiprocessing import TimeoutError as NotReadyError

            raise NotReadyError
        return self._future.result()

    def wait(self, timeout: float | None = None) -> None:
        """Returns when the call has ended, or after `timeout` seconds."""
        wait([self._future], timeout)

    def ready(self) -> bool:
        """Whether the call has ended."""
        return self._future.done()

    def successful(self) -> bool:
        """Whether it has ended without an error.

        Raises:
            ArgumentError: It has not ended. A ValueError, as multiprocessing raises.
        """
        if not self.ready():
            raise ArgumentError("the call has not ended. Call wait() first.")
        return not self._future.cancelled() and self._future.exception() is None


class ResultIterator(Iterator[Any]):
    """The results of calls that return lists, one after the other, as multiprocessing has them. An error ends it."""

    def __init__(self, calls: Iterator[Future[list[Any]]], n_ahead: int, *, is_ordered: bool) -> None:
        """Begins the first `n_ahead` of `calls`, and one more with each that has ended."""
        self._calls = calls
        self._pending: list[Future[list[Any]]] = []
        self._is_ordered = is_ordered
        self._values: Iterator[Any] = iter(())
        self._pending += islice(calls, n_ahead)

    def __next__(self) -> Any:
        return self.within(None)

    def next(self, timeout: float | None = None) -> Any:
        """The next result. After a TimeoutError it can still be asked for.

        Raises:
            StopIteration: There is none.
            multiprocessing.TimeoutError: It was not there within `timeout` seconds.
        """
        try:
            return self.within(timeout)
        except LateError as error:
            from multiprocessing import TimeoutError as NotReadyError

            raise NotReadyError from error

    def within(self, timeout: float | None) -> Any:
        """The same, which raises concurrent.futures.TimeoutError."""
        for value in self._values:
            return value
        if not self._pending:
            raise StopIteration
        ended, _ = wait(self._pending[:1] if self._is_ordered else self._pending, timeout, FIRST_COMPLETED)
        if not ended:
            raise LateError
        future = ended.pop()
        self._pending.remove(future)
        try:
            self._values = iter(future.result())
            self._pending += islice(self._calls, 1)
        except BaseException:
            self.close()
            raise
        return next(self._values)

    def close(self) -> None:
        """Cancels the calls that have not begun; no result follows."""
        cancel(self._pending)
        self._pending = []

    __del__ = close


def joined(futures: Sequence[Future[list[Any]]]) -> Future[list[Any]]:
    """One future for the lists of all of `futures`. One that fails cancels those that have not begun."""
    whole: Future[list[Any]] = Future()
    ended = count(1)  # one step of it is one of Python's, which no thread comes between

    def note(future: Future[list[Any]]) -> None:
        if not future.cancelled() and future.exception() is not None:
            cancel(futures)  # each calls this function, which would recurse too deep if it cancelled the next
        if next(ended) == len(futures):
            _end(whole, futures)

    for future in futures:
        future.add_done_callback(note)
    if not futures:
        whole.set_result([])
    return whole


def _end(whole: Future[list[Any]], futures: Sequence[Future[list[Any]]]) -> None:
    errors = [future.exception() for future in futures if not future.cancelled()]
    error = next((error for error in errors if error is not None), None)
    if error is not None:
        whole.set_exception(error)
    elif len(errors) < len(futures):
        whole.cancel()
        whole.set_running_or_notify_cancel()
    else:
        whole.set_result(list(chain.from_iterable(future.result() for future in futures)))


def cancel(futures: Iterable[Future[Any]]) -> None:
    """Cancels those that have not begun."""
    for future in futures:
        future.cancel()
