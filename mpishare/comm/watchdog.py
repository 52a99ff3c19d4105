"""Names on stderr where this rank waits long for others, and ends waits at MPISHARE_TIMEOUT.

By default a thread looks every two seconds where the other threads of the process are, and writes to stderr where one
has waited long. It reads their stacks. So it also sees a rank that blocks inside MPI.
With MPISHARE_TIMEOUT each wait is a loop that looks at a clock. A wait for a rank that works for all stands in a folder
that the thread does not look for.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from mpishare.comm import mpi
from mpishare.comm.callsite import call_of, call_site, current_call, log
from mpishare.comm.requests import advance_all, keep_alive, waits
from mpishare.errors import StallError

REPORT_AFTER_S = 60
"""How long a rank waits in one call before it says so."""

REPORT_LOOK_S = 2
"""Time between two looks at the stacks."""

SPIN_S = 0.01
_SLEEP_S = 0.0001
"""A wait with a limit yields the core for `SPIN_S`; after that it sleeps `_SLEEP_S` between looks."""

_FIRST_TESTS = 30
"""How often it asks MPI before all else, within some 10 us: each time MPI makes a step of a collective."""

_LONGEST_S = 0.1
"""The longest time between two looks at a clock that counts as waiting."""

FOR_EVER_S = 1e9
"""A limit that no wait reaches, for ranks without one that meet ranks with one."""

_WAITING = tuple(f"{Path(__file__).parents[1] / folder}{os.sep}" for folder in ("comm", "messages"))
"""A thread whose innermost function lies in one of these folders waits for another rank."""


class Stopwatch:
    """Counts seconds from when it is made, for limits to waiting.

    Between two looks it counts no more than `_LONGEST_S`: a batch system may suspend the whole job for hours, and no
    rank waits for another in that time. For one thread at a time.
    """

    def __init__(self) -> None:
        """Starts it; it is looked at more often than every `_LONGEST_S`."""
        self._looked_s = time.monotonic()
        self._counted_s = 0.0

    def seconds(self) -> float:
        """Looks at it."""
        now_s = time.monotonic()
        self._counted_s += min(now_s - self._looked_s, _LONGEST_S)
        self._looked_s = now_s
        return self._counted_s


class WaitLimit:
    """MPISHARE_TIMEOUT for the waits on one communicator.

    Attributes:
        seconds: The limit; infinite where there is none.
    """

    def __init__(self, timeout_s: float | None) -> None:
        """None sets no limit."""
        self.seconds = math.inf if timeout_s is None else timeout_s
        self._stalled: StallError | None = None

    def wait(self, request: mpi.Request, status: mpi.Status | None = None, *, spin_s: float = SPIN_S) -> None:
        """Waits for a request of a collective; see `ends_within`.

        Raises:
            StallError: It took longer than the limit, or an earlier wait did: the ranks are out of step.
        """
        waits[0] += 1
        try:
            if self._stalled is None and not ends_within(request, self.seconds, status, spin_s=spin_s):
                self._stalled = gave_up(current_call(), self.seconds)
            if self._stalled is not None:
                raise self._stalled.again()
        except BaseException:
            keep_alive([request])
            raise

    def wait_for_message(self, request: mpi.Request, call: str, status: mpi.Status | None) -> None:
        """Waits for one message. One that does not come is given up; the communicator is not.

        Args:
            request: The message.
            call: The call that waits, for errors.
            status: Filled in.

        Raises:
            StallError: It took longer than MPISHARE_TIMEOUT.
        """
        status = mpi.Status() if status is None else status
        if ends_within(request, self.seconds, status):
            return
        request.Cancel()  # a receive; MPI takes back no message that was sent
        if not request.Test(status) or status.Is_cancelled():
            raise gave_up(f"{call} at {call_site()}", self.seconds)


def ends_within(request: mpi.Request, limit_s: float, status: mpi.Status | None = None, spin_s: float = SPIN_S) -> bool:
    """Waits for `request`, asleep after `spin_s`; False after `limit_s`. Pending operations are advanced meanwhile."""
    if any(request.Test(status) for _ in range(_FIRST_TESTS)):
        return True
    stopwatch = Stopwatch()
    while not request.Test(status):
        advance_all()
        waited_s = stopwatch.seconds()
        if waited_s < spin_s:
            os.sched_yield()
        elif waited_s > limit_s:
            return False
        else:
            time.sleep(_SLEEP_S)
    return True


def gave_up(call: str, seconds: float) -> StallError:
    """The error of a rank that waits no longer. It says so on stderr, as every rank that gives up does."""
    place = f"rank {mpi.COMM_WORLD.rank} on host {mpi.Get_processor_name()}"
    log(f"{place} gives up after {seconds:g} s (MPISHARE_TIMEOUT) in {call}")
    return StallError(f"{call}, on {place},", seconds, {})


def report_long_waits() -> None:
    """From now on this rank says on stderr where it waits long, once for each wait."""
    rank = f"rank {mpi.COMM_WORLD.rank}"
    cure = (
        f"it is on host {mpi.Get_processor_name()}. Ranks that print no such line have not come, or work. "
        "MPISHARE_TIMEOUT=600, in seconds, ends the wait by an error"
    )
    if mpi.COMM_WORLD.size > 1:
        with suppress(RuntimeError):  # the system gives this process no more threads
            threading.Thread(target=_report, args=(rank, cure), name="mpishare.watchdog", daemon=True).start()


def _report(rank: str, cure: str) -> None:
    looks: dict[int, tuple[object, int]] = {}
    while True:
        time.sleep(REPORT_LOOK_S)
        looks = _look(looks, rank, cure)


def _look(before: dict[int, tuple[object, int]], rank: str, cure: str) -> dict[int, tuple[object, int]]:
    """Reports the threads that have been in one wait for long.

    Returns:
        For each thread that waits, the number of its wait and how many looks have found it there. A frame would keep
        the caller's arrays alive, so none is kept.
    """
    looks: dict[int, tuple[object, int]] = {}
    for thread, frame in sys._current_frames().items():
        call, where, number = call_of(frame)
        if frame.f_code.co_filename.startswith(_WAITING) and not where.startswith(threading.__file__):
            last, count = before.get(thread, (None, 0))
            wait = number, waits[0]
            looks[thread] = wait, count + 1 if last == wait else 0
            if looks[thread][1] == REPORT_AFTER_S // REPORT_LOOK_S:
                log(f"{rank} has waited {REPORT_AFTER_S} s in {call} at {where}; {cure}")
    return looks
