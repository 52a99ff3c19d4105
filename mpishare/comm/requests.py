"""Messages that have begun and not ended: what advances them, and what keeps their memory alive.

A large message arrives in several parts, and MPI receives the next part only when asked to. So whoever waits in a loop
calls `advance_all` between looks, and a call that blocks inside MPI is made by `run_blocking`.

After an exception from outside (KeyboardInterrupt, say), buffers that MPI may still use are kept until the process
exits. The communicator is refused from then on (`comm.collective`).
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Collection
from typing import Any

from mpishare.comm import mpi

_SLEEP_S = 0.0001


pending: dict[Callable[[], None], None] = {}
"""What advances each operation that has begun and not ended, the oldest first, whether or not the user still holds it:
it does what can be done now, without waiting and without raising. On hot paths it is empty mostly."""


waits = [0]
"""How many waits for other ranks this process has begun. If it has not grown between two looks, no wait has ended in
between and begun anew; the watchdog needs this, as Python may use a frame's address again."""


class _Thread(threading.local):
    """What one thread has done.

    Attributes:
        begun: How many agreements and collectives it has begun, less those of calls that have ended; see
            `comm.agreement`.
    """

    begun = 0


this_thread = _Thread()


def count_wait() -> None:
    """Counts a wait for other ranks that this thread begins in a collective."""
    waits[0] += 1
    this_thread.begun += 1


def advance_all() -> bool:
    """Advances all pending operations; whether there are any."""
    operations = list(pending)
    for advance in operations:
        advance()
    return bool(operations)


def wait_for(request: mpi.Request, status: mpi.Status | None = None) -> None:
    """Waits for `request`, inside MPI as soon as nothing is pending."""
    while not request.Test(status):
        if not advance_all():
            request.Wait(status)
            return
        os.sched_yield()


def run_blocking(function: Callable[..., object], *args: Any) -> None:
    """Calls what blocks inside MPI while operations are pending. Where MPI allows it, a second thread advances them.

    A nonblocking collective and a loop would need no thread. But MPI matches no blocking collective with a nonblocking
    one (MPI 3.1, section 5.12), so all ranks would have to use it, at up to twice the time; and only this rank knows
    what is pending here.
    """
    if mpi.Query_thread() < mpi.THREAD_MULTIPLE:
        function(*args)
        return
    has_ended = threading.Event()
    thread = threading.Thread(target=_advance_until, args=(has_ended,))
    try:
        thread.start()
    except RuntimeError:  # the system gives this process no more threads
        function(*args)
        return
    try:
        function(*args)
    finally:
        has_ended.set()
    thread.join()  # so that it is not in MPI when this rank ends MPI, or forks


def _advance_until(has_ended: threading.Event) -> None:
    while advance_all() and not has_ended.wait(_SLEEP_S):
        pass


_kept_alive: list[object] = []


def keep_alive(objects: Collection[object]) -> None:
    """Keeps requests or buffers until the process ends; also past the end of Python, which MPI_Finalize follows."""
    _kept_alive.extend(objects)
    if objects:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(_kept_alive))
