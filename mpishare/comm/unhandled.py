"""An exception that nothing catches: the rank that has its cause prints it, and mpi4py ends the job.

Otherwise Python would call MPI_Finalize, which waits for all ranks, while these wait for the rank that has failed.
"""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import ExitStack
from errno import EADDRINUSE
from threading import Timer
from traceback import walk_tb
from types import TracebackType
from zlib import crc32

from mpishare.comm import mpi
from mpishare.comm.agreement import is_cause
from mpishare.comm.callsite import log
from mpishare.comm.descriptors import unix_socket

_OTHERS_S = 1.0
"""How long a rank waits at least that has an error which another rank may print. That rank's MPI_Abort ends it."""


def end_job_on_exception() -> None:
    """From now on an unhandled exception ends the job. Called when the first communicator is used, not at import.

    Nothing is sent after an error: a rank knows from the agreement that raised the error whether it prints it. A rank
    that does not know waits in a thread, so that functions of `atexit` run meanwhile on all ranks. Then it prints the
    error if it is the first rank of its host that came here by the same one.

    Source:
        mpi4py.run, `set_abort_status`: mpi4py calls MPI_Abort when the interpreter ends.
    """
    previous_hook, parent, timers, printed = sys.excepthook, os.getpid(), list[Timer](), ExitStack()

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if os.getpid() != parent or mpi.Is_finalized() or mpi.COMM_WORLD.size == 1:  # a forked child is not a rank
            previous_hook(kind, error, traceback)
            return
        from mpi4py.run import set_abort_status

        set_abort_status(error if isinstance(error, KeyboardInterrupt) else 1)
        rank, size, host = mpi.COMM_WORLD.rank, mpi.COMM_WORLD.size, mpi.Get_processor_name()

        def print_error() -> None:
            previous_hook(kind, error, traceback)
            if others := getattr(error, "other_errors", ""):
                log(f"other ranks failed by other errors; {others}")
            log(f"rank {rank} on host {host} ended by {kind.__name__}, so the job ends")

        is_first = _is_first(printed, kind, traceback)
        if is_cause(error, rank):
            print_error()
        else:  # the others of the host wait longer than their first, as who has waited ends the job
            first, other = Timer(_OTHERS_S * (1 + rank / size), print_error), Timer(_OTHERS_S * 3, lambda: None)
            timers.append(first if is_first else other)
            timers[-1].daemon = True
            timers[-1].start()

    def wait_for_timers() -> None:
        for timer in timers:
            timer.join()

    sys.excepthook = hook
    atexit.register(wait_for_timers)


def _is_first(printed: ExitStack, kind: type[BaseException], traceback: TracebackType | None) -> bool:
    """Whether no rank of this host that still runs has called it for the same error, as far as is known.

    The kernel lets one process have a socket of the name, which `printed` keeps to its end.
    """
    frames = [(frame.f_code.co_filename, line) for frame, line in walk_tb(traceback)]
    name = crc32(repr((os.getppid(), kind.__name__, frames)).encode())  # the launcher is the parent of all
    unix = unix_socket(printed, name.to_bytes(4, "little"), 1)
    return not (isinstance(unix, str) and unix.endswith(os.strerror(EADDRINUSE)))
