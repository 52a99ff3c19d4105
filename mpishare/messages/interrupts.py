"""What an exception from outside, such as a signal handler's, does to messages: their communicator is refused.

The ranks no longer agree which messages have been sent. Nothing is repaired; the memory that MPI still reads or writes
lives until the process ends (`comm.pending`).
"""

from __future__ import annotations

from types import TracebackType

from mpishare.comm import mpi
from mpishare.comm.context import Context
from mpishare.errors import MpishareError


class refused_if_interrupted:  # noqa: N801 - used as `with refused_if_interrupted(context):`
    """Refuses the communicator for messages if an exception from outside ends the block."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not (error is None or isinstance(error, MpishareError | mpi.Exception | MemoryError)):
            self._context.refuse_messages()


def check_usable(context: Context) -> None:
    """Raises if messages on the communicator are refused.

    Raises:
        MpishareError: An exception from outside ended an earlier message on this rank.
    """
    if context.is_refused_for_messages:
        raise interrupted()


def interrupted() -> MpishareError:
    """The error of messages on a communicator that is refused."""
    return MpishareError(
        "an exception from outside, such as a signal handler's, ended an earlier message on this rank before it was "
        "complete. Messages on this communicator may be lost: end the job, or use a new communicator."
    )
