"""Ends the job when a rank ends by an exception, since the other ranks would wait for it for ever.

`python -m mpi4py` does the same. Otherwise Python calls MPI_Finalize, which waits for all ranks, while these wait for
the rank that failed.
"""

from __future__ import annotations

import atexit
import os
import sys
from functools import cache
from types import TracebackType

from mpishare.comm import mpi


@cache
def abort_on_exception() -> None:
    """From now on an unhandled exception aborts the job. Called when the first communicator is used, not at import."""
    previous_hook, parent = sys.excepthook, os.getpid()

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        previous_hook(kind, error, traceback)
        if os.getpid() == parent:  # a forked child is not a rank
            atexit.register(_abort, kind.__name__)

    sys.excepthook = hook


def _abort(exception: str) -> None:
    if mpi.Is_finalized() or mpi.COMM_WORLD.size == 1:
        return
    rank, host = mpi.COMM_WORLD.rank, mpi.Get_processor_name()
    end_job(f"rank {rank} on host {host} ended by {exception}, so the job ends, as others may wait for it")


def end_job(reason: str) -> None:
    """Ends all ranks of the job at once, with a message."""
    sys.stderr.write(f"mpishare: {reason}\n")
    sys.stderr.flush()
    mpi.COMM_WORLD.Abort(1)
