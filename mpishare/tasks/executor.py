"""The methods of the pools that codes know, over two: a `map` by all ranks, and single calls.

Where pools give one name several meanings, `Pool` says whose it has.
"""

from __future__ import annotations

import multiprocessing
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as FuturesTimeoutError
from concurrent.futures import wait as wait_for_all
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from logging import getLogger
from multiprocessing.pool import ApplyResult
from types import SimpleNamespace
from typing import Any, TypeAlias

from mpishare.errors import checked_integer
from mpishare.tasks.errors import ItemFailed, apply_to_items
from mpishare.tasks.map import Job

_AHEAD = 2
"""How many chunks for each worker `imap` reads ahead."""

_CHUNKS = 4
"""Into how many chunks for each worker `map_async` divides the items, as multiprocessing does."""


_Callback: TypeAlias = "Callable[[Any], object] | None"


class AsyncResult(ApplyResult):  # type: ignore[type-arg]
    """The result of a running call, as multiprocessing has it. Its callbacks run in a thread of the pool."""

    def __init__(self, future: Future[Any], callback: _Callback, error_callback: _Callback) -> None:
        """The result of `future`, with which one of the two is called."""
        super().__init__(SimpleNamespace(_cache={}), callback, error_callback)  # type: ignore[arg-type]
        future.add_done_callback(self._end)

    def _end(self, future: Future[Any]) -> None:
        try:
            outcome = True, future.result()
        except BaseException as error:
            outcome = False, error
        try:
            self._set(0, outcome)  # type: ignore[attr-defined]
        except BaseException:  # of a callback, such as SystemExit, which would end the thread
            getLogger(__name__).exception("a callback of %r has raised", future)
        self._event.set()  # type: ignore[attr-defined]


class NotReadyError(multiprocessing.TimeoutError, FuturesTimeoutError):
    """A result was not there in time, as multiprocessing and concurrent.futures name it."""


@dataclass(eq=False, repr=False)
class ResultIterator(Iterator[Any]):
    """The results of calls that return lists, one after the other, as multiprocessing has them. An error ends it.

    It begins the first `_n_ahead` of the calls, and one more with each that has ended. Until the time `_end`, it waits
    for the next result, with which `_callback` is called.
    """

    _calls: Iterator[Future[list[Any]]]
    _n_ahead: int | None
    _is_ordered: bool = True
    _end: float | None = None
    _callback: _Callback = None

    def __post_init__(self) -> None:
        self._values: Iterator[Any] = iter(())
        self._pending = deque(islice(self._calls, self._n_ahead))

    def __next__(self) -> Any:
        try:
            value = self.next(None if self._end is None else self._end - time.monotonic())
            if self._callback is not None:
                try:
                    self._callback(value)
                except StopIteration as error:  # which would end the results
                    raise RuntimeError("the callback raised StopIteration") from error
        except BaseException:
            self.close()
            raise
        return value

    def next(self, timeout: float | None = None) -> Any:
        """The next result. After a TimeoutError it can still be asked for.

        Raises:
            StopIteration: There is none.
            multiprocessing.TimeoutError: It was not there within `timeout` seconds.
        """
        for value in self._values:
            return value
        if not self._pending:
            raise StopIteration
        ended, _ = wait([self._pending[0]] if self._is_ordered else self._pending, timeout, FIRST_COMPLETED)
        if not ended:
            raise NotReadyError
        future = ended.pop()
        self._pending.remove(future)
        try:
            self._values = iter(future.result())
        except BaseException:
            self.close()
            raise
        self._pending += islice(self._calls, 1)
        return next(self._values)

    def close(self) -> None:
        """Ends it, and cancels the calls that have not begun."""
        _cancel(self._pending)
        self._pending.clear()


class TaskExecutor(Executor):
    """What a pool becomes where it is unpickled: this rank alone runs the tasks, at once, and raises what they raise.

    Attributes:
        is_root: Whether this rank has the tasks.
        rank: This rank.
        size: Number of ranks that run tasks of `map`.
        workers: The ranks that make single calls, but for a root that is alone.
    """

    is_root = True
    rank = 0
    size = 1
    workers: frozenset[int] = frozenset()
    _call_numbers = count()

    def _map(self, job: Job) -> list[Any]:
        """Applies a function to items on all ranks."""
        return [job.func(item) for item in job.items]

    def _initialize(self, initializer: Callable[..., object], initargs: tuple[Any, ...]) -> None:
        """Calls an initializer on each rank."""
        initializer(*initargs)

    def _submit(self, number: int, func: Callable[..., Any], args: tuple[Any, ...]) -> Future[Any]:
        """Begins a call, of this number for errors. A worker keeps the function of one that has arguments."""
        future: Future[Any] = Future()
        try:
            future.set_result(func(*args))
        except (Exception, SystemExit) as error:
            future.set_exception(self._error_of(number, error))
        return future

    def _error_of(self, number: int, error: BaseException) -> BaseException:
        """What the future of call `number` raises where the call has raised `error` on this rank."""
        return error.__cause__ or error if isinstance(error, ItemFailed) else error

    def __reduce__(self) -> tuple[Any, ...]:
        return TaskExecutor, ()

    def __copy__(self) -> TaskExecutor:
        """The pool itself. Only pickling, which sends it to another rank, makes another one."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> TaskExecutor:
        return self

    def is_master(self) -> bool:
        """Whether this rank has the tasks; schwimmbad's name of `is_root`."""
        return self.is_root

    def is_worker(self) -> bool:
        """Whether this rank serves another one."""
        return not self.is_root

    @property
    def _processes(self) -> int:
        """What libraries read of multiprocessing's pools: how many tasks of a `map` run at a time."""
        return self.size

    @property
    def _max_workers(self) -> int:
        """How many calls of `submit` run at a time, as executors of concurrent.futures and mpi4py name it."""
        return max(1, len(self.workers))

    num_workers = _max_workers
    """The same by mpi4py's name."""

    def map(  # type: ignore[override]
        self,
        func: Callable[..., Any],
        iterable: Iterable[Any],
        *iterables: Any,
        timeout: float | None = None,
        chunksize: int | None = None,
        callback: Callable[[Any], object] | None = None,
        progress: bool = False,
        buffersize: int | None = None,
    ) -> Any:
        """Applies `func` to each item on all ranks; see `mpishare.map`. Only the root raises.

        Args:
            func: What to call.
            iterable: The items.
            iterables: More of them, where `func` takes as many arguments; or, in their place, `chunksize` or
                `callback`.
            timeout: Seconds for all tasks together.
            chunksize: How many items a rank takes at a time; None for as many as take about 2 ms.
            callback: Called on the root with each result in turn, as soon as it is known and all before it are.
            progress: Whether to show a bar.
            buffersize: How many calls are ahead of the results that have been taken, as in concurrent.futures of Python
                3.14: no more items are read before. None reads all of them.

        With `timeout`, `callback` or `buffersize`, the other ranks run the tasks by single calls, of one item each
        where nothing else is given.

        Returns:
            A list of the results, in the order of the items. With `buffersize`, an iterator over them.

        Raises:
            TaskError: A task failed.
            concurrent.futures.TimeoutError: `timeout` has passed. Tasks that have not begun are cancelled.
            ArgumentError: This is not the root, the pool is closed, MPI has ended, the communicator has been freed, or
                `chunksize` or `buffersize` is not positive.
            MpishareError: `func` or an item cannot be pickled, or a result cannot be unpickled. Its cause is the
                SpecError, which is a TypeError: where SciPy calls `map`, it takes one for a wrong `workers`.
        """
        if len(iterables) == 1 and not isinstance(iterables[0], Iterable):
            if callable(iterables[0]):
                (callback,), iterables = iterables, ()
            else:
                (chunksize,), iterables = iterables, ()
        if iterables:
            func, iterable = partial(_call_with, func), _rows(iterable, *iterables)
        if timeout is None and callback is None and buffersize is None:
            return self._map(Job(func, iterable, chunksize, progress))
        n_ahead = None if buffersize is None else checked_integer("buffersize", buffersize, least=1)
        end = None if timeout is None else time.monotonic() + timeout
        calls = self._chunks(func, iterable, 1 if chunksize is None else chunksize)
        results = ResultIterator(calls, n_ahead, _end=end, _callback=callback)
        return list(results) if buffersize is None else results

    def starmap(
        self, func: Callable[..., Any], iterable: Iterable[Iterable[Any]], chunksize: int | None = None
    ) -> list[Any]:
        """Like `map`, where each item is a tuple of arguments."""
        results: list[Any] = self.map(partial(_call_with, func), iterable, chunksize=chunksize)
        return results

    def submit(self, func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Has another rank call `func` and returns at once. A root without other ranks calls `func` itself.

        Several threads may submit at the same time.

        Returns:
            A future of concurrent.futures. If the call fails, its result raises TaskError.
        """
        return self._submit(next(self._call_numbers), partial(func, *args, **kwargs), ())

    def imap(self, func: Callable[[Any], Any], iterable: Iterable[Any], chunksize: int = 1) -> ResultIterator:
        """Yields the results in order, computed by the other ranks while the root uses them.

        Items are read a few chunks ahead. A call costs a few hundred microseconds, so that chunks should take longer.
        The iterator has multiprocessing's `next(timeout)`.
        """
        return ResultIterator(self._chunks(func, iterable, chunksize), _AHEAD * self._max_workers)

    def imap_unordered(self, func: Callable[[Any], Any], iterable: Iterable[Any], chunksize: int = 1) -> ResultIterator:
        """Like `imap`, but yields each result as soon as it is known."""
        return ResultIterator(self._chunks(func, iterable, chunksize), _AHEAD * self._max_workers, _is_ordered=False)

    def apply(self, func: Callable[..., Any], args: Iterable[Any] = (), kwds: Mapping[str, Any] | None = None) -> Any:
        """What `func(*args, **kwds)` returns on one of the other ranks."""
        return self.submit(func, *args, **(kwds or {})).result()

    def apply_async(
        self,
        func: Callable[..., Any],
        args: Iterable[Any] = (),
        kwds: Mapping[str, Any] | None = None,
        callback: _Callback = None,
        error_callback: _Callback = None,
    ) -> AsyncResult:
        """The same without waiting; see multiprocessing. One of the two functions is called with what comes of it."""
        return AsyncResult(self.submit(func, *args, **(kwds or {})), callback, error_callback)

    def map_async(
        self,
        func: Callable[[Any], Any],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        callback: _Callback = None,
        error_callback: _Callback = None,
    ) -> AsyncResult:
        """Like `map`, on the other ranks, without waiting; see multiprocessing. `callback` gets the list of results."""
        items = iterable if isinstance(iterable, Sized) else list(iterable)
        if chunksize is None:
            chunksize = -(-len(items) // (_CHUNKS * self._max_workers)) or 1
        with_thread = ThreadPoolExecutor(1)
        whole = with_thread.submit(list, ResultIterator(self._chunks(func, items, chunksize), None))
        with_thread.shutdown(wait=False)
        return AsyncResult(whole, callback, error_callback)

    def starmap_async(
        self, func: Callable[..., Any], iterable: Iterable[Iterable[Any]], *args: Any, **kwargs: Any
    ) -> AsyncResult:
        """Like `map_async`, where each item is a tuple of arguments."""
        return self.map_async(partial(_call_with, func), iterable, *args, **kwargs)

    def close(self) -> None:
        """Closes the pool when all calls have ended."""
        self.shutdown()

    def terminate(self) -> None:
        """The same, and cancels the calls that have not begun. Those that have go on to their end."""
        self.shutdown(cancel_futures=True)

    def join(self) -> None:
        """Returns when all calls have ended: here at once."""

    def wait(self) -> None:
        """Returns when the root has ended: here at once."""

    def lent(
        self,
        max_workers: int | None = None,
        mp_context: object = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        **_: object,
    ) -> LentPool:
        """The pool for a library that opens an executor, uses it and closes it: that leaves the pool open.

        Closing it, or leaving its `with`, waits for the calls that were made through it. It takes the arguments of the
        executors of concurrent.futures, and uses two of them: the ranks of the pool run the tasks, whatever the others
        say of workers.

        Args:
            max_workers: Ignored, as are all that have no name here.
            mp_context: Ignored.
            initializer: What to call first on each rank. One that cannot be pickled is left out, with a warning.
            initargs: Its arguments.
        """
        if initializer is not None:
            self._initialize(initializer, initargs)
        return LentPool(self)

    def _chunks(
        self, func: Callable[[Any], Any], iterable: Iterable[Any], chunksize: int
    ) -> Iterator[Future[list[Any]]]:
        """Submits `chunksize` items with each step. If `iterable` raises, the last future has its error."""
        checked_integer("chunksize", chunksize, least=1)
        items, function, first = iter(iterable), partial(apply_to_items, func), 0
        try:
            while chunk := list(islice(items, chunksize)):
                yield self._submit(first, function, (chunk,))
                first += len(chunk)
        except Exception as error:
            failed: Future[list[Any]] = Future()
            failed.set_exception(error)
            yield failed


class LentPool(TaskExecutor):
    """A pool that its user may close, without end for the pool behind it; see `TaskExecutor.lent`."""

    def __init__(self, pool: TaskExecutor) -> None:
        self.is_root, self.rank, self.size, self.workers = pool.is_root, pool.rank, pool.size, pool.workers
        self._pool = pool
        self._futures: set[Future[Any]] = set()  # of calls that have not ended

    def _map(self, job: Job) -> list[Any]:
        return self._pool._map(job)

    def _initialize(self, initializer: Callable[..., object], initargs: tuple[Any, ...]) -> None:
        self._pool._initialize(initializer, initargs)

    def _submit(self, number: int, func: Callable[..., Any], args: tuple[Any, ...]) -> Future[Any]:
        future = self._pool._submit(number, func, args)
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the calls that were made through it; see `Pool.shutdown`."""
        futures = list(self._futures)
        if cancel_futures:
            _cancel(futures)
        if wait:
            wait_for_all(futures)


def _cancel(futures: Iterable[Future[Any]]) -> None:
    """Cancels the futures that have not begun."""
    for future in futures:
        future.cancel()


def _rows(*iterables: Iterable[Any]) -> Iterable[tuple[Any, ...]]:
    """One tuple for each place in all of them; a list if their lengths are known."""
    rows = zip(*iterables, strict=False)
    return list(rows) if all(isinstance(iterable, Sized) for iterable in iterables) else rows


def _call_with(func: Callable[..., Any], args: Iterable[Any]) -> Any:
    return func(*args)
