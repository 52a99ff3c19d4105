"""A pool for codes of which one rank alone knows what is to be done: the others serve it until it closes."""

from __future__ import annotations

import atexit
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from itertools import islice
from types import TracebackType
from typing import Any

from mpishare.comm import mpi
from mpishare.comm.agreement import NOTE_BYTES, is_known
from mpishare.comm.collective import collective
from mpishare.comm.tags import Tag
from mpishare.comm.topology import check_root
from mpishare.errors import ArgumentError
from mpishare.tasks.calls import Failed, refuse_within_task, within_task
from mpishare.tasks.map import Installation, Options, run
from mpishare.tasks.submit import Dispatcher, Worker, called

_MAP, _CALL, _CLOSE = b"M", b"S", b"C"

_SPIN_S = 0.002
"""How long a rank without work only yields its core: a code that maps again and again waits no longer."""
_NAP_S = 0.0005
"""How long it sleeps between looks after that, so that the root has the machine to itself meanwhile."""

_AHEAD = 2
"""How many chunks for each worker `imap` reads ahead."""


class Pool:
    """Ranks that run tasks for one of them, the root, in the shape of multiprocessing and concurrent.futures.

    On the root, `with` gives the pool, and the tasks of `map` run on it as well. On the other ranks, which serve the
    root until it leaves its block, `with` gives None. They sleep while the root computes. A function that `map` gets
    several times in a row, in the same state, stays with the others: to know that, its state is pickled, not sent.

    Args:
        comm: The ranks; MPI_COMM_WORLD when None.
        root: The rank that has the tasks.
        initializer: On `root`, what to call first on each rank, or one rank of each node; ignored elsewhere.
        initargs: Its arguments.
        per: "rank" or "node".

    Raises:
        ArgumentError: `root` is no rank of `comm`, `per` is unknown, or this is called within a task.
        MismatchError: The ranks gave different `root` or `per`, or made different calls.
        PeerError: Another rank raised one of these, or its initializer raised.

    Collective:
        Over `comm`, to make it and to enter it. All else is for the root alone.

    Source:
        The pattern is that of mpi4py.futures.MPICommExecutor.

    Example:
        >>> import mpishare as ms
        >>> with ms.Pool() as pool:
        ...     if pool is not None:
        ...         print(pool.map(abs, [-1, 2, -3]))
        [1, 2, 3]
    """

    def __init__(
        self,
        comm: mpi.Comm | None = None,
        *,
        root: int = 0,
        initializer: Callable[..., Any] | None = None,
        initargs: tuple[Any, ...] = (),
        per: str = "rank",
    ) -> None:
        refuse_within_task(comm)
        self._installation = Installation(initializer, initargs)
        with collective("Pool", comm) as call:
            self._context = call.context
            with call.begin() as agreement:
                self._root = check_root(root, self._context.topology.size)
                Options(per=per).check()
                agreement.call = f"Pool(root={self._root}, per={per!r})"
                self.is_root = self._context.topology.rank == self._root
                if self.is_root:
                    agreement.note = bytes([initializer is not None]).ljust(NOTE_BYTES, b"\0")
            call.release()  # what follows shares arrays by calls of its own
            if agreement.note[0]:
                self._installation.initialize(self._context, self._root, per)
        self._dispatcher: Dispatcher | None = None
        self._is_open = True
        self._calls = 0
        if self.is_root:
            atexit.register(self.close)  # without it, a root that ends would leave the others waiting

    @property
    def size(self) -> int:
        """How many ranks run tasks of `map`, the root among them."""
        return self._context.topology.size

    def __enter__(self) -> Pool | None:
        if self.is_root:
            return self
        self.serve()
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.is_root:
            self.shutdown(cancel_futures=error is not None)

    def serve(self) -> None:
        """On a rank other than the root: runs tasks until the root closes the pool."""
        worker = Worker(self._context, self._root)
        while self._is_open:
            command = self._next_command()
            if command == _MAP:
                self._join_map()
            elif command == _CALL:
                worker.serve(within_task)
            else:
                self._is_open = False

    def map(
        self,
        func: Callable[[Any], Any],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        *,
        progress: bool = False,
    ) -> list[Any]:
        """Applies `func` to each item on all ranks; see `mpishare.map`. Tasks that fail raise TaskError here.

        Args:
            func: What to call.
            iterable: The items.
            chunksize: How many a rank takes at a time; None for as many as take about 2 ms.
            progress: Whether to show a bar.

        Returns:
            The results, in the order of the items.
        """
        self._check_usable()
        for rank in self._others:
            self._command(_MAP, rank)
        options = Options(chunksize, progress=progress)
        return self._run(options, func, iterable) or []

    def starmap(
        self, func: Callable[..., Any], iterable: Iterable[Iterable[Any]], chunksize: int | None = None
    ) -> list[Any]:
        """The same, with the parts of each item as the arguments."""
        return self.map(_Star(func), iterable, chunksize)

    def submit(self, func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Has one of the other ranks call `func` while the root goes on; without such ranks, calls it at once.

        Returns:
            A future, as of concurrent.futures. Where the call failed, its result raises TaskError.
        """
        number, self._calls = self._calls, self._calls + 1
        return self._submit(number, func, args, kwargs)

    def _submit(
        self, number: int, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Future[Any]:
        self._check_usable()
        if not self._others or mpi.Query_thread() < mpi.THREAD_MULTIPLE:
            return called(number, self._context, within_task, func, *args, **kwargs)
        if self._dispatcher is None:
            self._dispatcher = Dispatcher(self._context, lambda rank: self._command(_CALL, rank))
        return self._dispatcher.submit(number, func, args, kwargs)

    def imap(self, func: Callable[[Any], Any], iterable: Iterable[Any], chunksize: int = 1) -> Iterator[Any]:
        """The results one after the other, in order, computed by the other ranks while the root uses them.

        Items are read a few chunks ahead. A call costs some hundred microseconds, so that chunks should take longer.
        """
        for future in self._in_order(self._chunks(func, iterable, chunksize)):
            yield from future.result()

    def imap_unordered(self, func: Callable[[Any], Any], iterable: Iterable[Any], chunksize: int = 1) -> Iterator[Any]:
        """The same, but each as soon as it is there."""
        chunks = self._chunks(func, iterable, chunksize)
        pending = set(islice(chunks, self._ahead))
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            pending |= set(islice(chunks, len(done)))
            for future in done:
                yield from future.result()

    def close(self) -> None:
        """Ends the pool when all calls have ended; the other ranks go on behind their `with`."""
        self.shutdown()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """The same under the name of concurrent.futures; with `cancel_futures`, calls that wait are given up.

        It always waits for those that have begun, whatever `wait` says.
        """
        if not self.is_root or not self._is_open:
            return
        self._is_open = False
        atexit.unregister(self.close)
        if mpi.Is_finalized():
            return
        if self._dispatcher is not None:
            self._dispatcher.close(cancel=cancel_futures)
        for rank in self._others:
            self._command(_CLOSE, rank)

    def _join_map(self) -> None:
        """Takes part in a `map` of the root, whose failures are the root's matter."""
        try:
            self._run(Options(), None, None)
        except (Exception, SystemExit) as error:
            if not is_known(error, self._context.topology.size):
                raise

    def _run(self, options: Options, func: Any, items: Any) -> list[Any] | None:
        """One map, on all ranks."""
        with collective("Pool.map", self._context.topology.comm) as call:
            return run(call, self._root, options, func, items, self._installation, compares=False)

    @property
    def _others(self) -> list[int]:
        return [rank for rank in range(self._context.topology.size) if rank != self._root]

    @property
    def _ahead(self) -> int:
        return _AHEAD * max(1, len(self._others))

    def _chunks(
        self, func: Callable[[Any], Any], iterable: Iterable[Any], chunksize: int
    ) -> Iterator[Future[list[Any]]]:
        """The calls for runs of items, each submitted when it is asked for."""
        if chunksize < 1:
            raise ArgumentError(f"chunksize {chunksize!r} is no number of items. Give one from 1 on.")
        items, each, first = iter(iterable), _Each(func), 0
        while chunk := list(islice(items, chunksize)):
            yield self._submit(first, each, (chunk,), {})
            first += len(chunk)

    def _in_order(self, calls: Iterator[Future[Any]]) -> Iterator[Future[Any]]:
        """The same calls, with some ahead of the one that is asked for; what the iterable raises comes after them."""
        pending, error = deque[Future[Any]](), None
        while True:
            try:
                while error is None and len(pending) < self._ahead:
                    pending.append(next(calls))
            except StopIteration:
                calls = iter(())
            except Exception as raised:
                error = raised
            if not pending:
                break
            yield pending.popleft()
        if error is not None:
            raise error

    def _check_usable(self) -> None:
        refuse_within_task(self._context.topology.comm)
        if not self.is_root:
            raise ArgumentError(f"only the root, rank {self._root}, has tasks; the others are in `with` until it ends.")
        if not self._is_open:
            raise ArgumentError("the pool has been closed. Make another one, on all ranks.")

    def _command(self, command: bytes, rank: int) -> None:
        self._context.data_comm.Send([command, mpi.BYTE], rank, Tag.POOL_COMMAND)

    def _next_command(self) -> bytes:
        """Waits for the root: awake at first, then asleep most of the time."""
        parts, begin, command = self._context.data_comm, time.monotonic(), bytearray(1)
        while not parts.Iprobe(self._root, Tag.POOL_COMMAND):
            if time.monotonic() - begin < _SPIN_S:
                os.sched_yield()
            else:
                time.sleep(_NAP_S)
        parts.Recv([command, mpi.BYTE], self._root, Tag.POOL_COMMAND)
        return bytes(command)


class _Star:
    """A function of one item that has the arguments."""

    def __init__(self, func: Callable[..., Any]) -> None:
        self.func = func

    def __call__(self, arguments: Iterable[Any]) -> Any:
        return self.func(*arguments)


class _Each:
    """A function of a run of items."""

    stays = True

    def __init__(self, func: Callable[[Any], Any]) -> None:
        self.func = func

    def __call__(self, items: list[Any]) -> list[Any]:
        found: list[Any] = []
        for item in items:
            try:
                found.append(self.func(item))
            except Exception as error:
                raise Failed(len(found)) from error
        return found
