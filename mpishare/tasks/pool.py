"""A pool of ranks for codes of which one rank, the root, has all tasks. The others serve it until it closes."""

from __future__ import annotations

import atexit
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from itertools import count, islice
from typing import Any

from mpishare.comm import mpi
from mpishare.comm.agreement import NOTE_BYTES, is_known
from mpishare.comm.collective import collective
from mpishare.errors import ArgumentError, MpishareError, SpecError, checked_integer
from mpishare.tasks import dispatcher
from mpishare.tasks.errors import apply_to_items, refuse_within_task
from mpishare.tasks.functions import SharedFunction
from mpishare.tasks.run import Options, initialize, run_map

_AHEAD = 2
"""How many chunks for each worker `imap` reads ahead."""

_NOTE = struct.Struct("<?Q")
"""The root's note of the first agreement: whether there is an initializer, and the number of the pool."""

_pool_numbers = count()
"""Of the pools whose root this rank is. By its number a worker knows a command for a pool that it left."""


class Pool:
    """Ranks that run tasks for one of them, the root, in the shape of multiprocessing and concurrent.futures.

    On the root, `with` returns the pool, and the root runs tasks of `map` as well. On the other ranks, `with` returns
    None when the root leaves its block; until then they serve the root, and sleep while it computes. A task that raises
    does not end this, whatever it raises. A function that `map` gets several times in a row, in the same state, is sent
    once: its state is pickled and compared.

    Attributes:
        is_root: Whether this rank is the root.
        size: Number of ranks that run tasks of `map`, the root among them.

    Args:
        comm: The ranks; MPI_COMM_WORLD when None.
        root: The rank that has the tasks.
        initializer: On `root`, what to call first on each rank, or one rank of each node; ignored elsewhere.
        initargs: Its arguments.
        per: "rank" or "node".

    Raises:
        ArgumentError: `root` is not a rank of `comm`, `per` is unknown, or this is called within a task.
        MismatchError: The ranks gave different `root` or `per`, or made different calls.
        PeerError: Another rank raised one of these, or its initializer raised.

    Collective:
        Over `comm`, to make it and to enter it. All other methods are for the root alone.

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
        with collective("Pool", comm) as call:
            self._context = context = call.context
            with call.begin() as agreement:
                self._root = checked_integer("root", root, largest=context.topology.size - 1)
                Options(per=per).check()
                agreement.call = f"Pool(root={self._root}, per={per!r})"
                self.is_root = context.topology.rank == self._root
                if self.is_root:
                    note = _NOTE.pack(initializer is not None, next(_pool_numbers))
                    agreement.note = note.ljust(NOTE_BYTES, b"\0")
            call.release()  # what follows shares arrays in calls of its own
            has_initializer, self._number = _NOTE.unpack_from(agreement.note)
            if has_initializer:
                initialize(context, self._root, per, initializer, initargs)
        self.size = self._context.topology.size
        self._others = [rank for rank in range(self.size) if rank != self._root]
        self._n_ahead = _AHEAD * max(1, len(self._others))
        self._function = SharedFunction()
        self._dispatcher: dispatcher.Dispatcher | None = None
        self._is_open = True
        self._lock = threading.RLock()  # of both
        self._call_numbers = count()  # of `submit`
        if self.is_root:
            atexit.register(self.close)  # without it, a root that ends would leave the others waiting

    def __enter__(self) -> Pool | None:
        if self.is_root:
            return self
        with self._context.noted("Pool"):
            self.serve()
        return None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.shutdown(cancel_futures=kind is not None)

    def serve(self) -> None:
        """On a rank other than the root: runs tasks until the root closes the pool.

        Raises:
            ArgumentError: MPI has ended, or the communicator has been freed.
        """
        self._check_comm()
        func = None
        while self._is_open:
            command = dispatcher.next_command(self._context, self._root, self._number)
            if command == dispatcher.MAP:
                try:
                    self._run_map(Options(), None, None)
                except BaseException as error:
                    if not is_known(error, self.size):  # else it is left to the root, which raises it as well
                        raise
            elif command == dispatcher.CALL:
                func = dispatcher.serve_call(self._context, self._root, func)
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
        """Applies `func` to each item on all ranks; see `mpishare.map`. Only the root raises.

        Args:
            func: What to call.
            iterable: The items.
            chunksize: How many a rank takes at a time; None for as many as take about 2 ms.
            progress: Whether to show a bar.

        Returns:
            The results, in the order of the items.

        Raises:
            TaskError: A task failed.
            ArgumentError: This is not the root, the pool is closed, MPI has ended, the communicator has been freed, or
                `chunksize` is not positive.
            MpishareError: `func` or an item cannot be pickled, or a result cannot be unpickled. Its cause is the
                SpecError, which is a TypeError: where SciPy calls `map`, it takes one for a wrong `workers`.
        """
        self._check_usable()
        for rank in self._others:
            dispatcher.send_command(self._context, self._number, dispatcher.MAP, rank)
        try:
            return self._run_map(Options(chunksize, progress=progress), func, iterable) or []
        except SpecError as error:
            raise MpishareError(str(error)) from error

    def starmap(
        self, func: Callable[..., Any], iterable: Iterable[Iterable[Any]], chunksize: int | None = None
    ) -> list[Any]:
        """Like `map`, where each item is a tuple of arguments."""
        return self.map(partial(_call_with, func), iterable, chunksize)

    def submit(self, func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Has one of the other ranks call `func` while the root goes on; without other ranks, calls it at once.

        Several threads may submit at the same time.

        Returns:
            A future, as of concurrent.futures. If the call fails, its result raises TaskError.
        """
        return self._submit(dispatcher.Call(next(self._call_numbers), func, args, kwargs))

    def _submit(self, call: dispatcher.Call) -> Future[Any]:
        with self._lock:
            self._check_usable()
            if self._others and mpi.Query_thread() == mpi.THREAD_MULTIPLE:
                if self._dispatcher is None:
                    self._dispatcher = dispatcher.Dispatcher(self._context, self._number)
                return self._dispatcher.submit(call)
        return dispatcher.call_now(self._context, call)

    def imap(self, func: Callable[[Any], Any], iterable: Iterable[Any], chunksize: int = 1) -> Iterator[Any]:
        """Yields the results in order, computed by the other ranks while the root uses them.

        Items are read a few chunks ahead. A call costs some hundred microseconds, so that chunks should take longer.
        """
        chunks = self._submit_chunks(func, iterable, chunksize)
        pending = deque(islice(chunks, self._n_ahead))
        while pending:
            future = pending.popleft()
            pending.extend(islice(chunks, 1))
            yield from future.result()

    def imap_unordered(self, func: Callable[[Any], Any], iterable: Iterable[Any], chunksize: int = 1) -> Iterator[Any]:
        """Like `imap`, but yields each result as soon as it is known."""
        chunks = self._submit_chunks(func, iterable, chunksize)
        pending = set(islice(chunks, self._n_ahead))
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            pending |= set(islice(chunks, len(done)))
            for future in done:
                yield from future.result()

    def close(self) -> None:
        """Closes the pool when all calls have ended; the other ranks go on behind their `with`."""
        self.shutdown()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Closes the pool, as in concurrent.futures.

        Args:
            wait: Ignored: it always waits for calls that have begun.
            cancel_futures: Whether to cancel calls that have not.
        """
        with self._lock:
            if not self.is_root or not self._is_open:
                return
            self._is_open = False
        atexit.unregister(self.close)
        if self._has_no_comm():
            return
        if self._dispatcher is not None:
            self._dispatcher.close(cancel=cancel_futures)
        for rank in self._others:
            dispatcher.send_command(self._context, self._number, dispatcher.CLOSE, rank)

    def _run_map(self, options: Options, func: Any, items: Any) -> list[Any] | None:
        with collective("Pool.map", self._context.topology.comm) as call:
            return run_map(call, self._root, options, func, items, self._function)

    def _submit_chunks(
        self, func: Callable[[Any], Any], iterable: Iterable[Any], chunksize: int
    ) -> Iterator[Future[list[Any]]]:
        """Submits `chunksize` items with each step. An error of `iterable` is that of the last future."""
        checked_integer("chunksize", chunksize, least=1)
        items, function, first = iter(iterable), partial(apply_to_items, func), 0
        try:
            while chunk := list(islice(items, chunksize)):
                yield self._submit(dispatcher.Call(first, function, (chunk,), {}, has_fixed_state=True))
                first += len(chunk)
        except Exception as error:
            failed: Future[list[Any]] = Future()
            failed.set_exception(error)
            yield failed

    def _has_no_comm(self) -> bool:
        return mpi.Is_finalized() or self._context.data_comm == mpi.COMM_NULL

    def _check_comm(self) -> None:
        if self._has_no_comm():
            raise ArgumentError(
                "MPI has ended, or the communicator of the pool has been freed. Use a pool before that."
            )

    def _check_usable(self) -> None:
        self._check_comm()
        refuse_within_task(self._context.topology.comm)
        if not self.is_root:
            raise ArgumentError(f"only the root, rank {self._root}, has tasks; the others are in `with` until it ends.")
        if not self._is_open:
            raise ArgumentError("the pool has been closed. Make another one, on all ranks.")


def _call_with(func: Callable[..., Any], args: Iterable[Any]) -> Any:
    return func(*args)
