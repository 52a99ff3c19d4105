"""A function applied to many items by all ranks, each of which takes more when it has none left."""

from __future__ import annotations

import operator
import struct
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from mpishare.comm import mpi
from mpishare.comm.agreement import NOTE_BYTES, agree, mark_known
from mpishare.comm.collective import collective
from mpishare.comm.context import Context
from mpishare.comm.topology import check_root
from mpishare.errors import ArgumentError, SpecError
from mpishare.progress_bar import Bar, check_tqdm
from mpishare.sharing import share
from mpishare.tasks.calls import Failed, called, is_named, refuse_within_task
from mpishare.tasks.errors import Failure, error_of
from mpishare.tasks.install import digest_of, installed
from mpishare.tasks.item_source import Source, source_of
from mpishare.tasks.items import HEADER_BYTES, Items, delivered
from mpishare.tasks.object_transport import rest
from mpishare.tasks.results import Found, Kind, collect, common_kind
from mpishare.tasks.self_scheduling import ChunkSizer
from mpishare.tasks.work_queue import WorkQueue

_GATHERS = ("root", "all", "none")
_PERS = ("rank", "node")

_OPENING = struct.Struct("<??BBq")
"""What the root tells first: whether the function is the same as last time, whether there is an initializer to call,
`gather`, `per`, `chunk`."""

_ROUND = struct.Struct("<?q")
"""What it tells of each batch: whether it is the last, how many items it has. The batch's own header follows."""

_LARGEST_CHUNK = 2**62


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
    """Applies `func` to each of `items` on all ranks, the root among them, and brings the results back in order.

    The function is brought to the other ranks once, the arrays of its state once per node, and not with every task. A
    rank that has no more tasks claims some of those that are left, so that uneven tasks do not make ranks wait.

    Args:
        func: On `root`, what to call with each item: a function of a module, a bound method of any object that can be
            pickled, a partial. The other ranks' copies have read-only arrays. Ignored elsewhere.
        items: On `root`, the items; ignored elsewhere. Of an array each task gets a row, read-only. Of an iterator, or
            anything else whose length is not known, only a few are in memory at a time, and only the root iterates; a
            list is shared more evenly.
        root: The rank that has `func` and `items`.
        comm: The ranks that share the work; MPI_COMM_WORLD when None.
        chunk: How many tasks a rank claims at a time; None for as many as take about 2 ms, and fewer near the end.
        progress: Whether to show a bar, on the root's standard error if that is a terminal, with the rate and the time
            left. Needs tqdm.
        gather: Who gets the results: "root", "all", or "none".
        initializer: On `root`, what to call before the tasks, as for a state that cannot be pickled; ignored elsewhere.
        initargs: Its arguments.
        per: "rank" to call it on each rank, "node" on one rank of each node.

    Returns:
        The results, in the order of the items, on the ranks that `gather` says; None on the others. Where they are
        NumPy arrays alike in dtype and shape, they are views of one array; with "all", read-only views of one copy per
        node.

    Raises:
        TaskError: A task failed, an item could not be made on the rank that was to run its task, or a result cannot be
            pickled. Raised on all ranks; the tasks that had not begun have been given up.
        SpecError: `func` or an item cannot be pickled, or `func` cannot be called.
        ArgumentError: `root` is no rank, `chunk` is not positive, `gather` or `per` is unknown, `items` cannot be
            iterated, or this is called within a task.
        BackendError: `progress` is wanted and tqdm not installed.
        MismatchError: The ranks gave different arguments, or made different calls.
        PeerError: Another rank raised one of these, or its iterator or its initializer raised.

    Collective:
        Over `comm`.

    Source:
        Guided self-scheduling and factoring, as `mpishare.tasks.dealing` tells.

    Example:
        >>> import mpishare as ms
        >>> ms.map(abs, [-3, 1, -4, 1, -5])
        [3, 1, 4, 1, 5]
    """
    refuse_within_task(comm)
    options = Options(chunk, gather, per, progress)
    with collective("map", comm) as call:
        return run(call, root, options, func, items, Installation(initializer, initargs), compares=True)


@dataclass(frozen=True)
class Options:
    """How to run tasks; see `map`."""

    chunk: int | None = None
    gather: str = "root"
    per: str = "rank"
    progress: bool = False

    def __str__(self) -> str:
        return f"chunk={self.chunk}, gather={self.gather!r}, per={self.per!r}"

    def check(self) -> None:
        """Raises ArgumentError where one is not among those allowed."""
        if self.chunk is not None and not 0 < _integer(self.chunk) <= _LARGEST_CHUNK:
            raise ArgumentError(f"chunk {self.chunk!r} is no number of tasks. Give one from 1 on, or None.")
        if self.gather not in _GATHERS:
            raise ArgumentError(f"gather {self.gather!r} is unknown. Use 'root', 'all' or 'none'.")
        if self.per not in _PERS:
            raise ArgumentError(f"per {self.per!r} is unknown. Use 'rank' or 'node'.")

    def opening(self, is_same: bool, is_first: bool) -> bytes:
        """The note that tells the other ranks."""
        words = is_same, is_first, _GATHERS.index(self.gather), _PERS.index(self.per), self.chunk or 0
        return _OPENING.pack(*words).ljust(NOTE_BYTES, b"\0")


class Installation:
    """What a rank calls, and what it has called before.

    Attributes:
        func: The function, once it has been brought here.
    """

    def __init__(self, initializer: Callable[..., Any] | None = None, initargs: tuple[Any, ...] = ()) -> None:
        """`initializer` is what to call first, on the root."""
        self.func: Any = None
        self._digest = b""
        self.initializer = initializer
        self._initargs = initargs

    def has(self, func: Any) -> bool:
        """On the root: whether the others have that function, with the state that it has now.

        From the second time on that it is asked, it compares digests, which takes as long as to pickle the state.
        """
        if self.func is None:
            return False
        if is_named(func):
            return func is self.func
        digest = digest_of(func)
        is_same, self._digest = digest == self._digest, digest
        return is_same

    def bring(self, context: Context, root: int, func: Any) -> None:
        """Brings it to all ranks. Collective over the communicator."""
        self.func = None  # what has not come may not be called
        self.func = installed(context, func, root)

    def initialize(self, context: Context, root: int, per: str) -> None:
        """Brings and calls the initializer, once. Collective over the communicator."""
        initializer, initargs = installed(context, (self.initializer, self._initargs), root)
        with agree(context.collective_comm):
            if per == "rank" or context.topology.is_leader:
                initializer(*initargs)
        self.initializer = None


def run(
    call: collective,
    root: int,
    options: Options,
    func: Any,
    items: Any,
    installation: Installation,
    *,
    compares: bool,
) -> list[Any] | None:
    """What `map` does; `compares` whether the ranks gave arguments that must be equal."""
    source, context = None, call.context
    with call.begin() as agreement:
        rank = check_root(root, context.topology.size)
        options.check()
        is_root = context.topology.rank == rank
        if compares:
            agreement.call = f"map(…, root={rank}, {options})"
        if is_root:
            _check_callable(func, rank)
            source = source_of(items, context.topology.size)
            if options.progress:
                check_tqdm()
            agreement.note = options.opening(installation.has(func), installation.initializer is not None)
    call.release()  # what follows shares arrays by calls of its own
    call.release()  # what follows shares arrays by calls of its own
    is_same, is_first, gather, per, chunk = _OPENING.unpack_from(agreement.note)
    options = Options(chunk or None, _GATHERS[gather], _PERS[per], options.progress)
    if is_first:
        installation.initialize(context, rank, options.per)
    if not is_same:
        installation.bring(context, rank, func)
    bar = Bar(source.total) if source is not None and options.progress else None
    with bar or nullcontext():
        return _Run(context, rank, options, installation.func, source, bar).results()


class _Run:
    """The batches of one call, one after the other."""

    def __init__(
        self, context: Context, root: int, options: Options, func: Any, source: Source | None, bar: Bar | None
    ) -> None:
        """`source` and `bar` are those of the root."""
        self._context = context
        self._root = root
        self._options = options
        self._func = func
        self._source = source
        self._bar = bar
        self._claims = WorkQueue(context, root)
        self._pace = ChunkSizer(options.chunk)
        self._before = 0  # items of earlier batches

    def results(self) -> list[Any] | None:
        """Runs all tasks; see `map`."""
        results: list[Any] = []
        is_last = False
        while not is_last:
            is_last, count, items = self._batch()
            if count:
                results += self._after(count, *self._worked(count, items))
                self._before += count
        gather = self._options.gather
        return results if gather == "all" or (gather == "root" and self._context.topology.rank == self._root) else None

    def _batch(self) -> tuple[bool, int, Items]:
        """The next batch: whether it is the last, how many items it has, and the items."""
        context, batch = self._context, None
        with agree(context.collective_comm) as agreement:
            if self._source is not None:
                batch, is_last = self._source.next()
                agreement.note = (_ROUND.pack(is_last, batch.count) + batch.header).ljust(NOTE_BYTES, b"\0")
            self._claims.reset(0 if batch is None else batch.count)
        is_last, count = _ROUND.unpack_from(agreement.note)
        header = agreement.note[_ROUND.size : _ROUND.size + HEADER_BYTES]
        return is_last, count, delivered(context, self._root, header, batch) if count else Items()

    def _worked(self, count: int, items: Items) -> tuple[Found, Failure | None]:
        """Claims and runs tasks until none is left or one fails; what they returned, and the failure."""
        found, failure, start = Found(), None, time.perf_counter()
        try:
            self._claims.start()
            if self._source is not None:
                self._source.prepare()
            self._work(items, found)
        except BaseException as error:
            failure = Failure.of(error, self._before)
            self._claims.cancel()
        if self._source is not None:
            failure = self._finished() or failure
            self._source.ran(time.perf_counter() - start)
            if self._bar is not None:
                self._bar.end_round(count)
        return found, self._waited() or failure

    def _waited(self) -> Failure | None:
        """Waits for the ranks that still have tasks, in a wait that a signal can end; what did, where one has."""
        if self._context.is_watched:
            return None  # it waits so in the next call, and not for ever
        failure, looks, request = None, 0, self._context.data_comm.Ibarrier()
        while True:
            try:
                while not request.Test():
                    looks = rest(looks)
                return failure
            except BaseException as error:
                failure = failure or Failure.of(error, self._before)
                self._claims.cancel()

    def _finished(self) -> Failure | None:
        """On the root: waits until the others know that there is no more; what kept it from that, as a signal may."""
        try:
            self._claims.finish()
        except BaseException as error:
            self._claims.cancel()
            self._claims.finish()
            return Failure.of(error, self._before)
        return None

    def _work(self, items: Items, found: Found) -> None:
        """Runs tasks, portion after portion."""
        done, keeps = 0, self._options.gather != "none"
        while portion := self._claims.next(self._pace, done):
            start, done = time.perf_counter(), len(portion)
            values = called(self._func, items, portion)
            self._pace.ran(done, time.perf_counter() - start)
            if keeps:
                found.add(portion, values)
            if self._bar is not None:
                self._bar.show(self._claims.done)

    def _after(self, count: int, found: Found, failure: Failure | None) -> list[Any]:
        """The results of one batch, where this rank gets them; raises on all ranks where a task failed on one."""
        kind, context = None, self._context
        if failure is None:
            try:
                kind = found.kind()
            except Exception as error:  # what a class does when it is pickled may fail in any way
                failure = Failure.of(Failed.by(error, found.first_unpicklable()), self._before)
        told, kinds = zip(*context.collective_comm.allgather_obj((failure and failure.told, kind)), strict=True)
        if any(told):
            raise mark_known(context.collective_comm, error_of(context, failure, told))
        if self._options.gather == "none":
            return []
        collected = collect(context, self._root, count, found, kinds)
        return self._values(common_kind(kinds), collected)

    def _values(self, kind: Kind, collected: Any) -> list[Any]:
        """The values that were collected on the root, where this rank gets them."""
        context, is_array = self._context, kind.dtype is not None
        if self._options.gather == "all":
            found = share(collected, root=self._root, comm=context.topology.comm) if is_array else None
            collected = installed(context, collected, self._root) if found is None else found
        if collected is None:
            return []
        return kind.values_of(collected) if is_array else collected


def _check_callable(func: Any, root: int) -> None:
    if not callable(func):
        what = "None" if func is None else f"a {type(func).__name__}"
        raise SpecError(f"root {root} passed {what} as func, which cannot be called. Pass a function on that rank.")


def _integer(number: Any) -> int:
    try:
        return operator.index(number)
    except TypeError as error:
        raise ArgumentError(f"chunk {number!r} is no number of tasks. Give one from 1 on, or None.") from error
