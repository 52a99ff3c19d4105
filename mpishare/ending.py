"""A rank that ends by an exception ends the job, since the others would wait for it for ever.

`python -m mpi4py` does the same. MPI_Finalize, which Python calls otherwise, waits for all ranks, and these wait for
the one that failed.
"""

from __future__ import annotations

import atexit
import os
import sys
from functools import cache
from types import TracebackType

from mpishare import mpi

__all__ = ["end_job_on_exception"]


@cache
def end_job_on_exception() -> None:
    """Sees to it from now on. Done when the first communicator is used, not at import."""
    before, parent = sys.excepthook, os.getpid()

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        before(kind, error, traceback)
        if os.getpid() == parent:  # a forked child is no rank
            atexit.register(_abort, kind.__name__)

    sys.excepthook = hook


def _abort(name: str) -> None:
    if mpi.Is_finalized() or mpi.COMM_WORLD.size == 1:
        return
    me, host = mpi.COMM_WORLD.rank, mpi.Get_processor_name()
    sys.stderr.write(
        f"mpishare: rank {me} on host {host} ended by {name}, so the job ends, as others may wait for it\n"
    )
    sys.stderr.flush()
    mpi.COMM_WORLD.Abort(1)
