"""Why tasks were given up, as all ranks hear of it."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mpishare.comm import mpi
from mpishare.comm.context import Context
from mpishare.errors import PeerError, TaskError, text_of_error
from mpishare.tasks.calls import Failed


class Told(NamedTuple):
    """What the other ranks hear of a failure; `item` is None where it was no task's."""

    item: int | None
    host: str
    words: str
    traceback: str


@dataclass(frozen=True)
class Failure:
    """Why this rank runs no more tasks: its error, and what the others hear of it."""

    error: BaseException
    told: Told

    @classmethod
    def of(cls, error: BaseException, before: int) -> Failure:
        """Of an error on this rank, where earlier batches had so many items."""
        item, cause = None, error
        if isinstance(error, Failed) and error.__cause__ is not None:
            item, cause = before + error.item, error.__cause__
        text = "".join(traceback.format_exception(cause))
        return cls(cause, Told(item, mpi.Get_processor_name(), text_of_error(cause), text))


def error_of(context: Context, mine: Failure | None, told: Sequence[Told | None]) -> BaseException:
    """What this rank raises: of several tasks that failed all ranks name the first item."""
    if mine is not None and mine.told.item is None:
        return mine.error
    failures = {rank: one for rank, one in enumerate(told) if one is not None}
    tasks = [(one.item, rank) for rank, one in failures.items() if one.item is not None]
    rank = min(tasks)[1] if tasks else min(failures)
    first = failures[rank]
    host = context.topology.hosts[context.topology.node_of(rank)]
    if first.item is None:
        return PeerError(rank, host, first.words, len(failures) - 1)
    error = TaskError(first.item, rank, host, first.words, first.traceback)
    if mine is not None and rank == context.topology.rank:
        error.__cause__ = mine.error
    return error
