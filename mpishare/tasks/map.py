"""map: a function applied to many items by all ranks, each of which takes more tasks when it has none left."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import starmap
from operator import itemgetter
from typing import Any, NamedTuple

from mpishare.arrays.spec import describe
from mpishare.collectives.share import share
from mpishare.comm import mpi
from mpishare.comm.agreement import PAYLOAD_BYTES, agree, is_cut_off, mark_cut_off, mark_known
from mpishare.comm.alone import alone
from mpishare.comm.callsite import current_call
from mpishare.comm.collective import collective
from mpishare.comm.context import Context
from mpishare.comm.requests import keep_alive
from mpishare.comm.watchdog import Stopwatch, gave_up
from mpishare.errors import ArgumentError, SpecError, StallError, TaskError, checked_integer
from mpishare.objects.pickling import PickledObject, pickle_object, unpickle_object
from mpishare.progress_bar import Bar, check_tqdm
from mpishare.tasks.errors import IN_TASK, ItemFailed, apply_to_items, task_error
from mpishare.tasks.items import Batches, Items, RankResults, gather_results, stack
from mpishare.tasks.scheduler import Scheduler, backoff

_FAILED = b"\1".ljust(PAYLOAD_BYTES, b"\0")
"""The payload of a rank whose task failed."""


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

    Each call sends the function once, not with every task, and the arrays of its state lie once on each node. What all
    ranks have from `share` or `load` is neither sent nor stored again; see `share`. A rank that has no tasks left takes
    some that no rank has taken, so that uneven tasks do not keep ranks waiting.

    Args:
        func: On `root`, what to call with each item: a function of a module, a bound method of any object that can be
            pickled, a partial. The other ranks' copies have read-only arrays. Ignored elsewhere.
        items: On `root`, the items; ignored elsewhere. Of an array each task gets a row, read-only. Of an iterator, or
            anything else whose length is not known, only a few are in memory at a time, and only the root iterates; a
            list is shared more evenly.
        root: The rank that has `func` and `items`.
        comm: The ranks that share the work; MPI_COMM_WORLD when None.
        chunk: How many tasks a rank takes at a time; None for as many as take about 2 ms, or a quarter of a second on
            other nodes than the root's, and fewer near the end.
        progress: Whether the root shows the rate and the time left on standard error: as a bar on a terminal, also on
            the one of `mpishare run`, and as a line every ten seconds elsewhere. Needs tqdm.
        gather: Who gets the results: "root", "all", or "none".
        initializer: On `root`, what to call before the tasks, as for a state that cannot be pickled; ignored elsewhere.
        initargs: Its arguments.
        per: "rank" to call it on each rank, "node" on one rank of each node.

    Returns:
        The results, in the order of the items, on the ranks that `gather` names; None on the others. With "all", arrays
        of one dtype and one shape are read-only views of one copy per node.

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
    job = Job(func, items, chunk, progress, initializer, initargs, per)
    with collective("map", comm) as call:
        compared = f"map(root={root}, chunk={chunk}, gather={gather!r}, per={per!r})"
        return run_map(call, job, root, gather, compared)


class Job(NamedTuple):
    """What only the root needs to give; see `map`."""

    func: Any = None
    items: Any = None
    chunk: int | None = None
    progress: bool = False
    initializer: Callable[..., Any] | None = None
    initargs: tuple[Any, ...] = ()
    per: str = "rank"


def run_map(call: collective, job: Job, root: int, gather: str = "root", compared: str = "") -> list[Any] | None:
    """Does what `map` does; see there.

    Args:
        call: The public call.
        job: The root's is used. All are checked.
        root: The rank that has the tasks.
        gather: Who gets the results.
        compared: The call, if the ranks' calls are to be compared.
    """
    context, topology = call.context, call.context.topology
    root = checked_integer("root", root, largest=topology.size - 1)
    if job.chunk is not None:
        checked_integer("chunk", job.chunk, least=1, largest=2**62)
    if gather not in ("root", "all", "none"):
        raise ArgumentError(f"gather {gather!r} is unknown. Use 'root', 'all' or 'none'.")
    if job.per not in ("rank", "node"):
        raise ArgumentError(f"per {job.per!r} is unknown. Use 'rank' or 'node'.")
    call.allow_nested_calls()  # of the items; what follows shares arrays in calls of its own
    is_root = topology.rank == root
    if is_root and not callable(job.func):
        text = f"root {root} passed {describe(job.func)} as func, which cannot be called."
        raise SpecError(f"{text} Pass a function on that rank.")
    if is_root and job.progress:
        check_tqdm()
    batches = Batches(job.items if is_root else range(0), topology.comm)
    batch = batches.next()
    call.agree(compared)
    # A task of one rank may map on the same communicator, while tasks of the outer map are left.
    scheduler = Scheduler(context) if topology.size == 1 else context.cached(Scheduler)
    with Bar(batches.total, is_shown=is_root and job.progress) as bar:
        results = _Run(context, root, gather, batches, bar, scheduler).results(job, batch)
    return results if gather == "all" or (gather == "root" and is_root) else None


@dataclass
class _Run:
    """One call: batch after batch. On ranks other than the root, `_batches` has none.

    The function comes with the first batch of each call. So every rank calls it in the state that it has on the root at
    that time, whatever earlier calls were and however they ended. The root calls the object that it was given.
    """

    _context: Context
    _root: int
    _gather: str
    _batches: Batches
    _bar: Bar
    _scheduler: Scheduler
    _first: int = 0  # number of the first item of the batch
    _error: BaseException | None = None

    def results(self, job: Job, batch: tuple[bool, Items]) -> list[Any]:
        """Runs all tasks, the tasks of `batch` first."""
        topology, results, is_last = self._context.topology, list[Any](), False
        is_root = topology.rank == self._root
        while not is_last:
            self._scheduler.reset(self._root, len(batch[1]))
            given = (*batch, None if self._first else tuple(job._replace(items=None)))
            is_last, items, sent = share(given if is_root else None, root=self._root, comm=topology.comm)
            if sent is not None:
                job = job if is_root else Job(*sent)
                self._initialize(job)
            if n_items := len(items):
                results += self._gathered(n_items, self._run(job, items))
                self._first += n_items
            if not is_last:
                with agree(self._context.collective_comm):
                    batch = self._batches.next()
        return results

    def _initialize(self, job: Job) -> None:
        """Calls the initializer on each rank, or on one rank of each node."""
        topology = self._context.topology
        if job.initializer is not None:
            with agree(self._context.collective_comm):
                if job.per == "rank":
                    job.initializer(*job.initargs)
                elif topology.is_leader:
                    with alone(topology.node_comm, "by an initializer of each node"):
                        job.initializer(*job.initargs)

    def _run(self, job: Job, items: Items) -> RankResults:
        """Runs tasks until none is left or one fails, and waits until all ranks have done so.

        An exception cancels the tasks that no rank has begun. Where it comes while this rank waits for the others, such
        as a signal handler's, the wait continues. What is raised here is of this rank alone; see `tasks.scheduler`.
        """
        results, barrier = RankResults(), list[mpi.Request]()
        try:
            try:
                self._run_tasks(job, items, results)
            except BaseException as error:
                self._fail(error)
            try:
                self._wait(barrier)
            except BaseException as error:
                self._fail(error)
                self._wait(barrier)
        except BaseException as error:
            self._scheduler.stop()
            keep_alive(barrier)
            mark_cut_off(error)
            raise
        self._bar.end_round(len(items))
        return results

    def _run_tasks(self, job: Job, items: Items, results: RankResults) -> None:
        self._scheduler.start()
        self._batches.read_ahead()
        with alone(self._context.topology.comm, IN_TASK, for_all_threads=True):
            for chunk in self._scheduler.chunks(job.chunk):
                values = apply_to_items(job.func, items[chunk.start : chunk.stop], chunk.start)
                if self._gather != "none":
                    results.add(chunk, values)
                self._bar.show(self._scheduler.n_taken)

    def _fail(self, error: BaseException) -> None:
        """Cancels the tasks that no rank has begun, unless the other ranks cannot hear of it."""
        if is_cut_off(error) or isinstance(error, StallError | mpi.Exception):
            raise error
        self._error = self._error or error
        self._scheduler.cancel()

    def _wait(self, barrier: list[mpi.Request]) -> None:
        """Waits, asleep, until no rank has a task left. `barrier` has the request of the last wait, if there was one.

        Raises:
            StallError: MPISHARE_TIMEOUT has passed.
        """
        limit_s, stopwatch, pauses = self._context.config.timeout_s or math.inf, Stopwatch(), backoff()
        while True:
            if not barrier and self._scheduler.has_ended():
                barrier.extend(starmap(self._context.data_comm.Ibarrier, [()]))  # see `CollectiveComm.call_together`
            if barrier and barrier[0].Test():
                return
            self._bar.show(self._scheduler.n_taken)
            if stopwatch.seconds() > limit_s:
                raise gave_up(current_call(), limit_s)
            next(pauses)

    def _gathered(self, count: int, results: RankResults) -> list[Any]:
        """The results of one batch, on the ranks that get them. Raises on all ranks if one failed."""
        pickled = self._pickled(results)
        if self._gather == "none":
            return []
        values = gather_results(self._context, self._root, count, results, pickled)
        if self._gather == "all":
            stacked = None if values is None else (stack(values),)  # `share` refuses None
            values = list(*share(stacked, root=self._root, comm=self._context.topology.comm) or ())
        return values or []

    def _pickled(self, results: RankResults) -> PickledObject:
        """This rank's results, pickled. Raises on all ranks if a task failed, or an exception came from outside."""
        comm = self._context.collective_comm
        with agree(comm) as agreement:
            try:
                if self._error is not None:
                    raise self._error
                pickled = results.pickled()
            except ItemFailed as error:
                self._error = error
                agreement.payload = _FAILED
        if agreement.payload == _FAILED:
            raise self._task_error()
        return pickled

    def _task_error(self) -> TaskError:
        """The error of the first item that failed. Collective over the communicator."""
        comm, failure = self._context.collective_comm, None
        if self._error is not None:
            own = task_error(self._context, self._error, self._first)
            failure = own.item, own.rank, pickle_object(own)
        _, rank, pickled = min(filter(None, comm.allgather_obj(failure)), key=itemgetter(0, 1))
        with agree(comm):
            return mark_known(comm, own if rank == comm.rank else unpickle_object(pickled))
