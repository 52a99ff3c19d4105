"""One run of tasks on all ranks, for `map` and for a pool: batch after batch."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from mpishare.arrays.spec import describe
from mpishare.comm import mpi
from mpishare.comm.agreement import PAYLOAD_BYTES, agree, mark_known
from mpishare.comm.alone import alone
from mpishare.comm.collective import CollectiveCall
from mpishare.comm.context import Context
from mpishare.errors import ArgumentError, SpecError, checked_integer
from mpishare.progress_bar import Bar, check_tqdm
from mpishare.sharing import share
from mpishare.tasks.errors import IN_TASK, Failure, apply_to_items, error_of
from mpishare.tasks.items import Items, ItemSource
from mpishare.tasks.object_transport import backoff
from mpishare.tasks.results import RankResults, gather_results
from mpishare.tasks.scheduler import ChunkSizer, Scheduler

_PAYLOAD = struct.Struct("<?q")
"""The root's payload of the first agreement: whether there is an initializer, and `chunk`, 0 for None."""


@dataclass(frozen=True)
class Options:
    """How to run tasks; see `map`."""

    chunk: int | None = None
    gather: str = "root"
    per: str = "rank"
    progress: bool = False

    def check(self) -> None:
        """Checks what users gave.

        Raises:
            ArgumentError: One is not among those allowed.
        """
        if self.chunk is not None:
            checked_integer("chunk", self.chunk, least=1, largest=2**62)
        if self.gather not in ("root", "all", "none"):
            raise ArgumentError(f"gather {self.gather!r} is unknown. Use 'root', 'all' or 'none'.")
        if self.per not in ("rank", "node"):
            raise ArgumentError(f"per {self.per!r} is unknown. Use 'rank' or 'node'.")


def run_map(
    call: CollectiveCall,
    root: int,
    options: Options,
    func: Any,
    items: Any,
    initializer: Callable[..., Any] | None = None,
    initargs: tuple[Any, ...] = (),
    *,
    compares: bool = False,
) -> list[Any] | None:
    """Does what `map` does; see there.

    Args:
        call: The public call.
        root: See `map`, as all that follow.
        options: The root's; elsewhere, `chunk` and `progress` are ignored.
        func: The function.
        items: The items.
        initializer: What to call first.
        initargs: Its arguments.
        compares: Whether the ranks' `root` and `options` are compared.
    """
    source, context = None, call.context
    with call.agree_on_arguments() as agreement:
        root = checked_integer("root", root, largest=context.topology.size - 1)
        options.check()
        if compares:
            gather, per = options.gather, options.per
            agreement.call = f"map(…, root={root}, chunk={options.chunk}, {gather=}, {per=})"
        if context.topology.rank == root:
            if not callable(func):
                cure = "Pass a function on that rank."
                raise SpecError(f"root {root} passed {describe(func)} as func, which cannot be called. {cure}")
            if options.progress:
                check_tqdm()
            source = ItemSource(items, context.topology.size)
            payload = _PAYLOAD.pack(initializer is not None, options.chunk or 0)
            agreement.payload = payload.ljust(PAYLOAD_BYTES, b"\0")
    call.allow_nested_calls()  # what follows shares arrays in calls of its own
    has_initializer, chunk = _PAYLOAD.unpack_from(agreement.payload)
    if has_initializer:
        initialize(context, root, options.per, initializer, initargs)
    with Bar(None if source is None else source.total, is_shown=source is not None and options.progress) as bar:
        sizer = ChunkSizer(chunk or None)
        # A task of one rank may map on the same communicator, while tasks of the outer map are left.
        queue = Scheduler(context) if context.topology.size == 1 else context.cached(Scheduler)
        return _Run(context, root, options.gather, func, source, bar, sizer, queue).results()


def initialize(context: Context, root: int, per: str, initializer: Callable[..., Any] | None, initargs: Any) -> None:
    """Calls the root's `initializer(*initargs)`, on each rank or on one rank of each node; see `map`.

    Raises:
        PeerError: It raised on another rank.

    Collective:
        Over the communicator.
    """
    is_root = context.topology.rank == root
    shared = share((initializer, initargs) if is_root else None, root=root, comm=context.topology.comm)
    function, args = cast("tuple[Any, Any]", (initializer, initargs) if is_root else shared)
    with agree(context.collective_comm):
        if per == "rank":
            function(*args)
        elif context.topology.is_leader:
            with alone(context.topology.node_comm, "by an initializer of each node"):
                function(*args)


@dataclass
class _Run:
    """One call: batch after batch. Only the root has `_source`, and `_func` before the first batch.

    The function comes with the first batch of each call. So every rank calls it in the state that it has on the root at
    that time, whatever earlier calls were and however they ended. The root calls the object that it was given.
    """

    _context: Context
    _root: int
    _gather: str
    _func: Any
    _source: ItemSource | None
    _bar: Bar
    _sizer: ChunkSizer
    _queue: Scheduler
    _first: int = 0  # number of the first item of the batch
    _error: BaseException | None = None

    def results(self) -> list[Any] | None:
        """Runs all tasks; see `map`."""
        results: list[Any] = []
        batch: tuple[bool, Items] | None = None
        is_last = False
        while not is_last:
            with agree(self._context.collective_comm):
                if self._source is not None:
                    with self._reading():
                        batch = self._source.next()
                self._queue.reset(self._root, 0 if batch is None else len(batch[1]))
            is_last, items = self._shared(batch)
            if len(items):
                results += self._gathered(len(items), self._run(items))
                self._first += len(items)
        return results if self._gather == "all" or (self._gather == "root" and self._source is not None) else None

    def _reading(self) -> alone:
        """A block in which the root reads items, while the other ranks run tasks or wait for them."""
        return alone(self._context.topology.comm, "by the items of a map")

    def _shared(self, batch: tuple[bool, Items] | None) -> tuple[bool, Items]:
        """The root's batch on all ranks; with the first one the function."""
        sent = None if batch is None else (*batch, None if self._first else self._func)
        is_last, items, func = share(sent, root=self._root, comm=self._context.topology.comm)
        if self._source is None and func is not None:
            self._func = func
        return is_last, items

    def _run(self, items: Items) -> RankResults:
        """Runs tasks until none is left or one fails, and waits until all ranks have done so."""
        results, start = RankResults(), time.perf_counter()
        try:
            self._queue.start()
            if self._source is not None:
                with self._reading():
                    self._source.read_ahead()
            with alone(self._context.topology.comm, IN_TASK, for_all_threads=True):
                self._run_chunks(items, results)
        except BaseException as error:
            self._fail(error)
        self._wait_for_all()
        if self._source is not None:
            self._source.note_time(len(items), time.perf_counter() - start)
        self._bar.end_round(len(items))
        return results

    def _run_chunks(self, items: Items, results: RankResults) -> None:
        done = 0
        while chunk := self._queue.next_chunk(self._sizer, done):
            start, done = time.perf_counter(), len(chunk)
            values = apply_to_items(self._func, items[chunk.start : chunk.stop], chunk.start)
            self._sizer.note_time(done, time.perf_counter() - start)
            if self._gather != "none":
                results.add(chunk, values)
            self._bar.show(self._queue.done)

    def _fail(self, error: BaseException) -> None:
        """Cancels the tasks that no rank has begun."""
        self._error = self._error or error
        self._queue.cancel()

    def _wait_for_all(self) -> None:
        """Waits until no rank has a task left.

        An exception from outside, such as a signal handler's, cancels the tasks; the wait goes on. Where waits are
        watched, the ranks meet in the next collective instead, which a stall ends.
        """
        request = None
        while True:
            try:
                pauses = backoff()
                self._queue.finish()
                if request is None and not self._context.is_watched:
                    request = self._context.data_comm.Ibarrier()
                while request is not None and not request.Test():
                    self._bar.show(self._queue.done)
                    next(pauses)
                return
            except mpi.Exception:
                raise
            except BaseException as error:
                self._fail(error)

    def _gathered(self, count: int, results: RankResults) -> list[Any]:
        """The results of one batch, on the ranks that get them. Raises on all ranks if one failed."""
        context, pickled = self._context, None
        if self._error is None and self._gather != "none":
            try:
                pickled = results.pickled()
            except Exception as error:
                self._error = error
        failure = None if self._error is None else Failure.of(self._error, self._first)
        failures = context.collective_comm.allgather_obj(failure)
        if any(failures):
            raise mark_known(context.collective_comm, error_of(context, self._error, failures))
        if pickled is None:
            return []
        values = gather_results(context, self._root, count, results, pickled)
        if self._gather == "all":
            (values,) = share((values,), root=self._root, comm=context.topology.comm)  # `share` refuses None
        return [] if values is None else list(values)
