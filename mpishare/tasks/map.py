"""map: a function applied to many items by all ranks, each of which takes more tasks when it has none left."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from mpishare.arrays.spec import describe
from mpishare.collectives.share import share
from mpishare.comm import mpi
from mpishare.comm.agreement import PAYLOAD_BYTES, agree, mark_known
from mpishare.comm.alone import alone
from mpishare.comm.collective import CollectiveCall, collective
from mpishare.comm.context import Context
from mpishare.errors import ArgumentError, SpecError, checked_integer
from mpishare.progress_bar import Bar, check_tqdm
from mpishare.tasks.errors import IN_TASK, Failure, apply_to_items, error_of
from mpishare.tasks.items import Batches, Items
from mpishare.tasks.results import RankResults, gather_results
from mpishare.tasks.scheduler import ChunkSizer, Scheduler, backoff

_PAYLOAD = struct.Struct("<?q")
"""The root's payload of the first agreement: whether there is an initializer, and `chunk`, 0 for None."""


def map(  # noqa: A001 - like Python's own
    func: Callable[[Any], Any] | None = None,
    items: Iterable[Any] | None = None,
    *,
    root: int = 0,
    comm: mpi.Comm | None = None,
    chunk: int | None = None,
    progress: bool = False,
    gather: str = "root",
    initializer: Callable[..., Any] | None = None,
    initargs: tuple[Any, ...] = (),
    per: str = "rank",
) -> list[Any] | None:
    """Applies `func` to each of `items` on all ranks, the root among them, and returns the results in order.

    Each call sends the function once, not with every task, and the arrays of its state lie once on each node. A rank
    that has no tasks left takes some of those that no rank has taken, so that uneven tasks do not keep ranks waiting.

    Args:
        func: On `root`, what to call with each item: a function of a module, a bound method of any object that can be
            pickled, a partial. The other ranks' copies have read-only arrays. Ignored elsewhere.
        items: On `root`, the items; ignored elsewhere. Of an array each task gets a row, read-only. Of an iterator, or
            anything else whose length is not known, only a few are in memory at a time, and only the root iterates; a
            list is shared more evenly.
        root: The rank that has `func` and `items`.
        comm: The ranks that share the work; MPI_COMM_WORLD when None.
        chunk: How many tasks a rank takes at a time; None for as many as take about 2 ms, and fewer near the end.
        progress: Whether the root shows the rate and the time left on standard error: as a bar on a terminal, also on
            the one of `mpishare run`, and as a line every ten seconds elsewhere. Needs tqdm.
        gather: Who gets the results: "root", "all", or "none".
        initializer: On `root`, what to call before the tasks, as for a state that cannot be pickled; ignored elsewhere.
        initargs: Its arguments.
        per: "rank" to call it on each rank, "node" on one rank of each node.

    Returns:
        The results, in the order of the items, on the ranks that `gather` names; None on the others. Arrays of one
        dtype and one shape are views of one array; with "all", read-only views of one copy per node.

    Raises:
        TaskError: A task failed, an item could not be unpickled on the rank that was to run its task, or a result
            cannot be pickled. Raised on all ranks; tasks that had not begun are cancelled.
        SpecError: `func` or an item cannot be pickled, or `func` cannot be called.
        ArgumentError: `root` is not a rank, `chunk` is not positive, `gather` or `per` is unknown, `items` cannot be
            iterated, or this is called within a task.
        BackendError: `progress` is set and tqdm is not installed.
        MismatchError: The ranks gave different arguments, or made different calls.
        PeerError: Another rank raised one of these, or its iterator or its initializer raised.

    Collective:
        Over `comm`.

    Source:
        Guided self-scheduling and factoring; see `mpishare.tasks.scheduler`.

    Example:
        >>> import mpishare as ms
        >>> ms.map(abs, [-3, 1, -4, 1, -5])
        [3, 1, 4, 1, 5]
    """
    options = Options(root, chunk, progress, gather, per)
    with collective("map", comm) as call:
        return run_map(call, options, func, items, initializer, initargs, compares=True)


@dataclass(frozen=True)
class Options:
    """How to run tasks; see `map`."""

    root: int
    chunk: int | None = None
    progress: bool = field(default=False, repr=False)  # which is not compared
    gather: str = "root"
    per: str = "rank"

    def checked(self, n_ranks: int) -> Options:
        """These options, with `root` as an int.

        Raises:
            ArgumentError: One is not among those allowed.
        """
        root = checked_integer("root", self.root, largest=n_ranks - 1)
        if self.chunk is not None:
            checked_integer("chunk", self.chunk, least=1, largest=2**62)
        if self.gather not in ("root", "all", "none"):
            raise ArgumentError(f"gather {self.gather!r} is unknown. Use 'root', 'all' or 'none'.")
        if self.per not in ("rank", "node"):
            raise ArgumentError(f"per {self.per!r} is unknown. Use 'rank' or 'node'.")
        return replace(self, root=root)


def run_map(
    call: CollectiveCall,
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
        options: The root's; elsewhere, `chunk` and `progress` are ignored.
        func: See `map`, as all that follow.
        items: The items.
        initializer: What to call first.
        initargs: Its arguments.
        compares: Whether the ranks' options are compared.
    """
    batches, context, topology = None, call.context, call.context.topology
    with call.agree_on_arguments() as agreement:
        options = options.checked(topology.size)
        if compares:
            agreement.call = str(options).replace("Options", "map")
        if topology.rank == options.root:
            if not callable(func):
                cure = "Pass a function on that rank."
                raise SpecError(f"root {options.root} passed {describe(func)} as func, which cannot be called. {cure}")
            if options.progress:
                check_tqdm()
            batches = Batches(items, topology.size)
            payload = _PAYLOAD.pack(initializer is not None, options.chunk or 0)
            agreement.payload = payload.ljust(PAYLOAD_BYTES, b"\0")
    call.allow_nested_calls()  # what follows shares arrays in calls of its own
    has_initializer, chunk = _PAYLOAD.unpack_from(agreement.payload)
    if has_initializer:
        initialize(context, options, initializer, initargs)
    with Bar(None if batches is None else batches.total, is_shown=batches is not None and options.progress) as bar:
        # A task of one rank may map on the same communicator, while tasks of the outer map are left.
        scheduler = Scheduler(context) if topology.size == 1 else context.cached(Scheduler)
        return _Run(context, options, func, batches, bar, ChunkSizer(chunk or None), scheduler).results()


def initialize(context: Context, options: Options, initializer: Callable[..., Any] | None, initargs: Any) -> None:
    """Calls the root's `initializer(*initargs)`, on each rank or on one rank of each node; see `map`.

    Raises:
        PeerError: It raised on another rank.

    Collective:
        Over the communicator.
    """
    topology = context.topology
    given: Any = (initializer, initargs) if topology.rank == options.root else None
    shared = share(given, root=options.root, comm=topology.comm)
    function, args = given or shared
    with agree(context.collective_comm):
        if options.per == "rank":
            function(*args)
        elif topology.is_leader:
            with alone(topology.node_comm, "by an initializer of each node"):
                function(*args)


@dataclass
class _Run:
    """One call: batch after batch. Only the root has `_batches`, and `_func` before the first batch.

    The function comes with the first batch of each call. So every rank calls it in the state that it has on the root at
    that time, whatever earlier calls were and however they ended. The root calls the object that it was given.
    """

    _context: Context
    _options: Options
    _func: Any
    _batches: Batches | None
    _bar: Bar
    _sizer: ChunkSizer
    _scheduler: Scheduler
    _first: int = 0  # number of the first item of the batch
    _error: BaseException | None = None

    def results(self) -> list[Any] | None:
        """Runs all tasks; see `map`."""
        results: list[Any] = []
        is_last = False
        while not is_last:
            is_last, items = self._next_batch()
            if len(items):
                results += self._gathered(len(items), self._run(items))
                self._first += len(items)
        is_given = self._options.gather == "all" or (self._options.gather == "root" and self._batches is not None)
        return results if is_given else None

    def _next_batch(self) -> tuple[bool, Items]:
        """Whether a batch is the last, and the batch, of the root; with the first one the function."""
        root, comm, sent = self._options.root, self._context.topology.comm, None
        with agree(self._context.collective_comm):
            if self._batches is not None:
                with self._reading():
                    items = self._batches.next()
                is_last = self._batches.total is not None or not len(items)
                sent = is_last, items, None if self._first else self._func
            self._scheduler.reset(root, 0 if sent is None else len(sent[1]))
        is_last, items, func = share(sent, root=root, comm=comm)
        if self._batches is None and func is not None:
            self._func = func
        return is_last, items

    def _reading(self) -> alone:
        """A block in which the root reads items, while the other ranks run tasks or wait for them."""
        return alone(self._context.topology.comm, "by the items of a map")

    def _run(self, items: Items) -> RankResults:
        """Runs tasks until none is left or one fails, and waits until all ranks have done so."""
        results, start = RankResults(), time.perf_counter()
        try:
            self._scheduler.start()
            if self._batches is not None:
                with self._reading():
                    self._batches.read_ahead()
            with alone(self._context.topology.comm, IN_TASK, for_all_threads=True):
                self._run_chunks(items, results)
        except BaseException as error:
            self._fail(error)
        self._wait_for_all()
        if self._batches is not None:
            self._batches.note_time(len(items), time.perf_counter() - start)
        self._bar.end_round(len(items))
        return results

    def _run_chunks(self, items: Items, results: RankResults) -> None:
        done = 0
        while chunk := self._scheduler.next_chunk(self._sizer, done):
            start, done = time.perf_counter(), len(chunk)
            values = apply_to_items(self._func, items[chunk.start : chunk.stop], chunk.start)
            self._sizer.note_time(done, time.perf_counter() - start)
            if self._options.gather != "none":
                results.add(chunk, values)
            self._bar.show(self._scheduler.done)

    def _fail(self, error: BaseException) -> None:
        """Cancels the tasks that no rank has begun."""
        self._error = self._error or error
        self._scheduler.cancel()

    def _wait_for_all(self) -> None:
        """Waits until no rank has a task left.

        An exception from outside, such as a signal handler's, cancels the tasks; the wait continues. Where waits are
        watched, the ranks meet in the next collective instead, which a stall ends.
        """
        request = None
        while True:
            try:
                pauses = backoff()
                self._scheduler.finish()
                if request is None and not self._context.is_watched:
                    request = self._context.data_comm.Ibarrier()
                while request is not None and not request.Test():
                    self._bar.show(self._scheduler.done)
                    next(pauses)
                return
            except mpi.Exception:
                raise
            except BaseException as error:
                self._fail(error)

    def _gathered(self, count: int, results: RankResults) -> list[Any]:
        """The results of one batch, on the ranks that get them. Raises on all ranks if one failed."""
        context, options, pickled = self._context, self._options, None
        if self._error is None and options.gather != "none":
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
        values = gather_results(context, options.root, count, results, pickled)
        if options.gather == "all":
            (values,) = share((values,), root=options.root, comm=context.topology.comm)  # `share` refuses None
        return [] if values is None else list(values)
