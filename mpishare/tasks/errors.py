"""Why tasks failed: the item and the error, as the other ranks hear of it. Also which calls a task may not make."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from mpishare.comm import mpi
from mpishare.comm.context import Context
from mpishare.comm.lookup import checked_comm
from mpishare.errors import ArgumentError, PeerError, TaskError, text_of_error

_thread = threading.local()
"""`is_in_task` while this thread runs a task."""


class ItemFailed(Exception):  # noqa: N818 - users never see it
    """The task of the item with the number `args[0]` failed. Its error is the `__cause__`."""


class Failure(NamedTuple):
    """What other ranks hear of an error.

    Attributes:
        item: Number of the item whose task raised it; None if no task did, such as a signal handler's.
        reason: Class and text of the error.
        traceback: Its traceback, as text.
    """

    item: int | None
    reason: str
    traceback: str

    @classmethod
    def of(cls, error: BaseException, first: int = 0) -> Failure:
        """The failure by `error`. An `ItemFailed` counts its item from item number `first`."""
        item = first + error.args[0] if isinstance(error, ItemFailed) else None
        cause = cause_of(error)
        return cls(item, text_of_error(cause), "".join(traceback.format_exception(cause)))

    def task_error(self, context: Context, rank: int, first: int = 0, error: BaseException | None = None) -> TaskError:
        """The error for users, where the task ran on `rank`. Its item is counted from item number `first`.

        `error` is the failed task's own one, if that was of this rank.
        """
        item = first + (self.item or 0)
        task_error = TaskError(item, rank, _host(context, rank), self.reason, self.traceback)
        task_error.__cause__ = error and cause_of(error)
        return task_error


def cause_of(error: BaseException) -> BaseException:
    """The error that a task raised, or `error` itself if no task raised it."""
    return error.__cause__ if isinstance(error, ItemFailed) and error.__cause__ is not None else error


def error_of(context: Context, error: BaseException | None, failures: Sequence[Failure | None]) -> BaseException:
    """What this rank raises. If several tasks failed, all ranks name the first item.

    Args:
        context: Of the communicator.
        error: This rank's own error.
        failures: Those of all ranks, by rank; at least one.
    """
    rank = context.topology.rank
    own = failures[rank]
    if error is not None and own is not None and own.item is None:
        return error
    failed = {rank: failure for rank, failure in enumerate(failures) if failure is not None}
    items = [(failure.item, rank) for rank, failure in failed.items() if failure.item is not None]
    if not items:
        lowest = min(failed)
        return PeerError(lowest, _host(context, lowest), failed[lowest].reason, len(failed) - 1)
    first = min(items)[1]
    return failed[first].task_error(context, first, error=error if first == rank else None)


def _host(context: Context, rank: int) -> str:
    return context.topology.hosts[context.topology.node_of(rank)]


def apply_to_items(func: Callable[[Any], Any], items: Iterable[Any], first: int = 0) -> list[Any]:
    """`func(item)` for each of `items`.

    Args:
        func: The task.
        items: May raise as well, such as where an item cannot be unpickled.
        first: Number of the first item.

    Raises:
        ItemFailed: A task or an item raised.
    """
    results: list[Any] = []
    append = results.append
    try:
        for item in items:
            append(func(item))
    except Exception as error:
        raise ItemFailed(first + len(results)) from error
    return results


def call_as_task(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls `func`, which must not map over other ranks meanwhile."""
    was_in_task, _thread.is_in_task = getattr(_thread, "is_in_task", False), True
    try:
        return func(*args, **kwargs)
    finally:
        _thread.is_in_task = was_in_task


def refuse_within_task(comm: mpi.Comm | None) -> None:
    """Checks that no task calls for other ranks, since these run tasks of their own.

    Raises:
        ArgumentError: This thread runs a task, and `comm` (MPI_COMM_WORLD when None) has other ranks, or is none.
    """
    if getattr(_thread, "is_in_task", False) and checked_comm(comm).size > 1:
        raise ArgumentError(
            "map was called within a task, but the other ranks run tasks of their own and do not join. Map over all "
            "items of both levels at once, or pass comm=MPI.COMM_SELF."
        )
