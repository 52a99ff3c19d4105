"""An exception that nothing catches: of ranks that end alike one prints it, and mpi4py ends the job.

Otherwise Python would call MPI_Finalize, which waits for all ranks, while these wait for the rank that has failed.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import cache
from types import TracebackType
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from mpishare.comm import mpi
from mpishare.comm.watchdog import ends_within
from mpishare.errors import MpishareError, PeerError, name_ranks

_MEET_S = 1.0
"""How long a rank that ends waits for the others to end, too."""

_FINALIZE_S = 60
"""How long MPI_Finalize may take when all ranks have met; it may wait for messages that nobody receives."""

_RUNNERS = {"runpy", "mpi4py"}
"""Packages that run the program, and so stand above it in each traceback."""

_OURS = {"mpishare", "contextlib", "functools"}
"""Packages in which an error of ours is raised."""


@cache
def end_job_on_exception(meeting: Callable[[], mpi.Intracomm | None]) -> None:
    """From now on an unhandled exception ends the job. Called when the first communicator is used, not at import.

    Args:
        meeting: Returns a communicator of all ranks for a collective, or None where there is none.

    Source:
        mpi4py.run, `set_abort_status`: mpi4py calls MPI_Abort when the interpreter ends.
    """
    previous_hook, parent = sys.excepthook, os.getpid()

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        error.__traceback__ = traceback = _of_program(error, traceback)  # Python prints the attribute
        if os.getpid() != parent or mpi.Is_finalized() or mpi.COMM_WORLD.size == 1:  # a forked child is not a rank
            previous_hook(kind, error, traceback)
            return
        _set_abort_status(error)
        comm = meeting() if isinstance(error, Exception) else None
        ends = None if comm is None else _ends_of_all(comm, _end_of(error, traceback), isinstance(error, PeerError))
        try:
            _print(lambda: previous_hook(kind, error, traceback), error, ends)
        finally:
            if comm is not None and ends is not None:
                comm.Barrier()  # what ends first ends the others
                _end_without_abort()

    sys.excepthook = hook


def _set_abort_status(error: BaseException) -> None:
    from mpi4py.run import set_abort_status

    set_abort_status(error if isinstance(error, KeyboardInterrupt) else 1)


def _of_program(error: BaseException, traceback: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that is the program's. An error of ours says in its text what its cause was."""
    entries = []
    while traceback is not None:
        entries.append(traceback)
        traceback = traceback.tb_next
    while entries and _package(entries[0]) in _RUNNERS:
        del entries[0]
    if isinstance(error, MpishareError):
        object.__setattr__(error, "__cause__", None)  # as the class of a task's error may refuse it
        while entries and _package(entries[-1]) in _OURS:
            del entries[-1]
    for entry in reversed(entries):
        traceback = TracebackType(traceback, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return traceback


def _package(entry: TracebackType) -> str:
    names = entry.tb_frame.f_globals
    return str(names.get("__package__") or names.get("__name__")).partition(".")[0]


def _end_of(error: BaseException, traceback: TracebackType | None) -> int:
    """A number that ranks have in common which end by the same error in the same lines; odd for a `PeerError`."""
    if isinstance(error, PeerError):
        return crc32(str(error).encode(errors="replace")) << 1 | 1
    lines = [type(error).__name__]
    while traceback is not None:
        lines.append(f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}")
        traceback = traceback.tb_next
    return crc32("\n".join(lines).encode(errors="replace")) << 1


def _ends_of_all(comm: mpi.Intracomm, end: int, is_peer: bool) -> NDArray[np.uint64] | None:
    """What `_end_of` gave on each rank; None where not all ranks end.

    Where only some do, they give up one after the other, those with the cause first: the first one ends the others
    before they print the same.
    """
    own, ends = np.array([end], np.uint64), np.empty(comm.size, np.uint64)
    try:
        request = comm.Iallgather(own, ends)
        is_met = ends_within(request, _MEET_S * (1 + comm.rank / comm.size + is_peer))
    except mpi.Exception:
        return None
    if not is_met:
        _unmet.append((request, own, ends))
    return ends if is_met else None


_unmet: list[object] = []
"""Buffers that MPI may write to until the process ends."""


def _print(print_traceback: Callable[[], None], error: BaseException, ends: NDArray[np.uint64] | None) -> None:
    """Prints the error on the first of the ranks that have it, and a `PeerError` where no rank has its cause."""
    rank = mpi.COMM_WORLD.rank
    alike = [rank] if ends is None else np.flatnonzero(ends == ends[rank]).tolist()
    is_peer = isinstance(error, PeerError)
    if rank != alike[0] or (is_peer and ends is not None and not np.all(ends % 2)):
        return
    if not is_peer:
        print_traceback()
    ranks = f"rank {rank} on host {mpi.Get_processor_name()}" if len(alike) == 1 else name_ranks(alike)
    reason = f": {error}" if is_peer else ", so the job ends"
    sys.stderr.write(f"mpishare: {ranks} ended by {type(error).__name__}{reason}\n")
    sys.stderr.flush()


def _end_without_abort() -> None:
    """Has MPI end as in a program without an error, as no rank waits for one that has failed.

    MPI_Abort prints messages of its own, and not all of what the ranks have printed arrives.
    """
    if clear := getattr(sys.modules["mpi4py.MPI"], "_set_abort_status", None):
        clear(0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_FINALIZE_S)
