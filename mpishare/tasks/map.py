"""map: a function applied to many items by all ranks, each of which takes more tasks when it has none left."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from mpishare.comm import mpi
from mpishare.comm.collective import collective
from mpishare.tasks.run import Options, run_map


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
    options = Options(chunk, gather, per, progress)
    with collective("map", comm) as call:
        return run_map(call, root, options, func, items, initializer, initargs, compares=True)
