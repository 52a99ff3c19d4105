"""What an exception from outside, such as a signal handler's, does to messages: their communicator is refused.

The ranks no longer agree which messages have been sent. Nothing is repaired; the memory that MPI still reads or writes
lives until the process ends (`comm.pending`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mpishare.comm import mpi
from mpishare.comm.context import Context
from mpishare.errors import MpishareError


@contextmanager
def refused_if_interrupted(context: Context) -> Iterator[None]:
    """Refuses the communicator for messages if an exception from outside ends the block."""
    try:
        yield
    except (MpishareError, mpi.Exception, MemoryError):
        raise
    except BaseException:
        context.refuse_messages()
        raise


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
