"""Watches the waits on a communicator: ranks that do not come are named, and a wait ends after MPISHARE_TIMEOUT.

Used where MPISHARE_CHECK or MPISHARE_TIMEOUT is set. Every wait is a loop that looks at a clock and answers the ranks
that have waited too long and ask: which call do you wait in?
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from mpishare.comm import mpi
from mpishare.comm.callsite import call_site
from mpishare.comm.live import LiveObjects
from mpishare.comm.requests import Pending, advance_all, kept_alive_on_error
from mpishare.comm.stopwatch import Stopwatch
from mpishare.comm.tags import Tag
from mpishare.errors import StallError

if TYPE_CHECKING:
    from mpishare.comm.communicator import WatchedComm

_ANSWER_WITHIN_S = 0.5
"""A rank that waits looks for questions every `_LOOK_S`, so that an answer comes well within this."""
_LOOK_S = 0.01
_SPIN_S = 0.01
_SLEEP_S = 0.0001
"""A wait yields the core for `_SPIN_S`; after that it sleeps `_SLEEP_S` between looks."""


class _Wait(NamedTuple):
    """One thread's wait.

    Attributes:
        watchdog: The `id` of the watchdog of its communicator.
        key: The number of the call on that communicator, 0 for a message, and its name.
        call: The call with its file and line.
        since: When it began, of time.monotonic.
    """

    watchdog: int
    key: tuple[int, str]
    call: str
    since: float


class _Answer(NamedTuple):
    """What a rank does: the `key` of its wait on the communicator asked about, and a text."""

    key: tuple[int, str]
    text: str


_SILENT = _Answer((0, ""), "does not answer: it is in no call of mpishare, works in one, has ended, or does not run")
_BUSY = _Answer((0, ""), "is in this call and does not answer: it computes, reads or writes, or does not run")

_waits: set[_Wait] = set()
"""The waits of the threads of this process."""

_watchdogs = LiveObjects["Watchdog"]()


class Watchdog:
    """Watches one communicator over all nodes, and the communicator of this node that belongs to it.

    Attributes:
        compares: Whether the ranks' calls are compared (MPISHARE_CHECK).
        hosts: The host name of each rank; empty until they are known.
        call: The call that this rank is in, with its file and line; and the call of a user that it is a part of.
        stalled: The error that ended the use of this communicator; None while it is in use.
        outer: The watched communicator over all nodes; None until it is made.
    """

    def __init__(self, comm: mpi.Intracomm, timeout_s: float | None) -> None:
        """Begins to watch `comm`; None sets no limit to the waiting."""
        self._comm = comm
        self._timeout_s = math.inf if timeout_s is None else timeout_s
        self._key = (0, "")
        self._names: list[str] = []  # of the calls that this rank is in, the outermost first
        self._met: set[int] = set()  # ranks that are known to have begun the innermost
        self._sent: list[mpi.Request] = []
        self.compares = False
        self.hosts: Sequence[str] = ()
        self.call = first_call()
        self.stalled: StallError | None = None
        self.outer: WatchedComm | None = None
        _watchdogs.add(self)

    def enter(self, name: str) -> str:
        """Notes that this rank begins a public call; its file and line.

        Raises:
            StallError: A rank gave up waiting on this communicator before.
        """
        if self.stalled is not None:
            raise self.stalled.again()
        self._key = self._key[0] + 1, name
        self._names.append(name)
        self._met = set()
        where = call_site()
        self.call = f"{' in '.join(reversed(self._names))} at {where}"
        return where

    def leave(self) -> None:
        """Notes that the call that this rank entered last has ended; the one around it goes on."""
        self._names.pop()
        if self._names:
            self.call = f"{' in '.join(reversed(self._names))} at {call_site()}"

    def wait(
        self,
        request: mpi.Request,
        ranks: Sequence[int],
        status: mpi.Status | None = None,
        *,
        meets: bool = False,
        has_limit: bool = True,
    ) -> None:
        """Waits for a request of a collective.

        Args:
            request: The request.
            ranks: The ranks that take part in it.
            status: Filled in.
            meets: Whether it ends only once all have come.
            has_limit: Whether MPISHARE_TIMEOUT ends the wait.

        Raises:
            StallError: It took longer than MPISHARE_TIMEOUT, here or on another rank.
        """
        wait = _Wait(id(self), self._key, self.call, time.monotonic())
        with kept_alive_on_error([request]), _noted(wait):
            if self._ends_in_time(request, wait, status, self._timeout_s if has_limit else math.inf):
                if meets:
                    self._met.update(ranks)
                return
            self.stalled = StallError(self.call, self._timeout_s, self._missing(ranks, wait))
            for rank in range(self._comm.size):
                if rank != self._comm.rank:
                    self._send(self.stalled.args, rank, Tag.STALLED)
            raise self.stalled.again()

    def wait_for_message(
        self, request: mpi.Request, ranks: Sequence[int], call: str, status: mpi.Status | None, excluded: Pending | None
    ) -> None:
        """Waits for one message from or to one of `ranks`. One that does not come is given up; the communicator is not.

        Args:
            request: The message.
            ranks: The ranks at its other end.
            call: The call that waits, for errors.
            status: Filled in.
            excluded: The pending operation whose message this is; all others are advanced meanwhile.

        Raises:
            StallError: It took longer than MPISHARE_TIMEOUT, or another rank gave up a collective.
        """
        call = f"{call} at {call_site()}"
        status = mpi.Status() if status is None else status
        wait = _Wait(id(self), (0, call), call, time.monotonic())
        with _noted(wait):
            if self._ends_in_time(request, wait, status, self._timeout_s, excluded):
                return
            try:
                missing = self._missing(ranks, wait)
            finally:
                request.Cancel()  # a receive; MPI takes back no message that was sent
        if not request.Test(status) or status.Is_cancelled():
            raise StallError(call, self._timeout_s, missing)

    def _ends_in_time(
        self,
        request: mpi.Request,
        wait: _Wait,
        status: mpi.Status | None,
        limit_s: float,
        excluded: Pending | None = None,
    ) -> bool:
        """Waits for `request`; False after `limit_s`."""
        stopwatch, looked_s = Stopwatch(), 0.0
        while not request.Test(status):
            advance_all(excluded)
            waited_s = stopwatch.seconds()
            if waited_s < _SPIN_S:
                os.sched_yield()
                continue
            time.sleep(_SLEEP_S)
            if waited_s - looked_s > _LOOK_S:
                looked_s = waited_s
                answer_everywhere()
                if self.stalled is not None:
                    raise self.stalled.again()
                if waited_s > limit_s:
                    return False
        return True

    def _missing(self, ranks: Sequence[int], wait: _Wait) -> dict[int, str]:
        """What those of `ranks` do that do not wait as this rank does; what all do if all wait so."""
        if not self.hosts:
            return {}
        others = [rank for rank in ranks if rank != self._comm.rank]
        begun = self._met if wait.key == self._key else ()
        answers = {rank: _BUSY if rank in begun else _SILENT for rank in others} | self._ask(others)
        if self.stalled is not None:  # another rank gave up meanwhile and knows more
            raise self.stalled.again()
        absent = {rank: answer for rank, answer in answers.items() if answer.key != wait.key}
        return {rank: f"on host {self.hosts[rank]} {answer.text}" for rank, answer in (absent or answers).items()}

    def _ask(self, ranks: Sequence[int]) -> dict[int, _Answer]:
        """The answers of `ranks`; those that do not answer in time are missing."""
        for rank in ranks:
            self._send(None, rank, Tag.STALL_QUESTION)
        answers: dict[int, _Answer] = {}
        end = time.monotonic() + _ANSWER_WITHIN_S
        while len(answers) < len(ranks) and time.monotonic() < end:
            answer_everywhere()
            answers.update(self._received(Tag.STALL_ANSWER))
            time.sleep(_SLEEP_S)
        return answers

    def noted(self, call: str) -> AbstractContextManager[None]:
        """A block in which this rank waits in `call` without a request, and calls `answer_everywhere`."""
        call = f"{call} at {call_site()}"
        return _noted(_Wait(id(self), (0, call), call, time.monotonic()))

    def close(self) -> None:
        """Stops watching."""
        _watchdogs.discard(self)

    def drain(self, idle: mpi.Intracomm) -> bool:
        """Receives what other ranks still ask, so that no message is under way when the communicator is freed.

        A message that comes after that would reach the next communicator, to which MPI gives the same number. All
        sends are synchronous: once those of all ranks have ended, none is under way.

        Args:
            idle: A communicator of the same ranks, on which no collective has begun.

        Returns:
            Whether that is so; False if the other ranks did not come within MPISHARE_TIMEOUT.

        Collective:
            Over `idle`.

        Source:
            T. Hoefler, C. Siebert and A. Lumsdaine, "Scalable communication protocols for dynamic sparse data
            exchange", PPoPP 2010: the algorithm NBX.
        """
        stopwatch = Stopwatch()
        barrier: mpi.Request | None = None
        while barrier is None or not barrier.Test():
            for tag in (Tag.STALL_QUESTION, Tag.STALL_ANSWER, Tag.STALLED):
                for _ in self._received(tag):
                    pass
            if barrier is None and all(request.Test() for request in self._sent):
                barrier = idle.Ibarrier()
            if stopwatch.seconds() > self._timeout_s:
                return False
            time.sleep(_SLEEP_S)
        return True

    def answer(self) -> None:
        """Answers the ranks that ask, and notes that a rank gave up."""
        for rank, _ in self._received(Tag.STALL_QUESTION):
            self._send(self._answer(), rank, Tag.STALL_ANSWER)
        for _, (call, seconds, missing) in self._received(Tag.STALLED):
            if self._comm.rank in missing:
                missing[self._comm.rank] = f"on host {self.hosts[self._comm.rank]}, this one, came too late"
            self.stalled = StallError(call, seconds, missing)

    def _answer(self) -> _Answer:
        """What the threads of this process wait for: on this communicator, or else on others."""
        waits = list(_waits)
        waits_on_this = [wait for wait in waits if wait.watchdog == id(self)]
        elsewhere = "" if waits_on_this else " on another communicator"
        now = time.monotonic()
        calls = [f"waits in {wait.call}{elsewhere}, for {now - wait.since:.1f} s" for wait in waits_on_this or waits]
        return _Answer(max((wait.key for wait in waits_on_this), default=(0, "")), "; ".join(calls))

    def _send(self, obj: object, rank: int, tag: int) -> None:
        self._sent = [request for request in self._sent if not request.Test()]
        self._sent.append(self._comm.issend(obj, rank, tag))

    def _received(self, tag: int) -> Iterator[tuple[int, Any]]:
        """The messages with `tag` that have come: the rank that sent each, and its object."""
        status = mpi.Status()
        while (message := self._comm.improbe(mpi.ANY_SOURCE, tag, status)) is not None:
            yield status.Get_source(), message.recv()


def first_call() -> str:
    """The call in which this rank first uses a communicator, for errors: its hosts are not known yet."""
    return f"the first call on a communicator, at {call_site()},"


@contextmanager
def _noted(wait: _Wait) -> Iterator[None]:
    """Answers of this process name `wait` until the block ends."""
    _waits.add(wait)
    try:
        yield
    finally:
        _waits.discard(wait)


def answer_everywhere() -> None:
    """Answers questions on every communicator: a rank that waits on one is asked on all."""
    for watchdog in _watchdogs.all():
        watchdog.answer()
