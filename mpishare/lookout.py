"""Keeps watch over a communicator: what its ranks call is compared, and waiting for them has an end.

Used where MPISHARE_CHECK or MPISHARE_TIMEOUT is set, and imported only then. Every wait is a loop that looks at a clock
and answers the question of ranks that have waited too long: where are you?
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from mpishare.abandoned import abandoned_on_error
from mpishare.callers import place
from mpishare.errors import MismatchError, StallError
from mpishare.meanwhile import go_on

if TYPE_CHECKING:
    from mpishare.meanwhile import Going
    from mpishare.watched import Watched

__all__ = ["Lookout"]

_ASK_TAG, _ANSWER_TAG, _STALL_TAG = 11, 12, 13
_GRACE_S = 0.5
"""How long an answer may take. A rank that waits looks for questions every `_LOOK_S`."""
_LOOK_S = 0.01
_SPIN_S = 0.01
_NAP_S = 0.0001
"""For so long a wait only yields the core; after that it sleeps between looks."""


@dataclass(frozen=True)
class _Standing:
    """Where a thread stands: the call it is in, by its number on its communicator, and since when."""

    lookout: int
    number: int
    name: str
    call: str
    since: float


@dataclass(frozen=True)
class _Answer:
    """Where a rank is: the number and the name of the call that it waits in on the communicator asked about."""

    call: tuple[int, str]
    words: str


_waiting: dict[int, _Standing] = {}
"""By thread: where each that waits stands."""

_lookouts: weakref.WeakSet[Lookout] = weakref.WeakSet()


class Lookout:
    """Keeps watch over one communicator of mpishare: what was called on it, and who asks.

    Attributes:
        stalled: Why the communicator is of no more use, None while it is.
        outer: The communicator over all nodes; None until it is there.
    """

    def __init__(self, channel: MPI.Intracomm, hosts: Sequence[str], *, check: bool, timeout_s: float | None) -> None:
        """`hosts` names the host of each rank of `channel`."""
        self._channel = MPI.Intracomm(channel)
        self._hosts = hosts
        self._check = check
        self._timeout_s = timeout_s
        self._number = 0
        self._name = ""
        self._call = ""
        self._sent: list[MPI.Request] = []  # messages on their way, whose bytes must stay
        self.stalled: StallError | None = None
        self.outer: Watched | None = None
        _lookouts.add(self)

    def enter(self, name: str, comms: Sequence[Watched]) -> str:
        """Called at the beginning of each collective; where it was called from.

        Raises:
            MismatchError: With MPISHARE_CHECK, the ranks of one of `comms` are not all in `name`.
            StallError: A rank has given up waiting on this communicator before.
        """
        if self.stalled is not None:
            raise self.stalled.again()
        self._number += 1
        self._name = name
        where = place()
        self._call = f"{name} at {where}"
        if self._check:
            self._compare(name, comms)
        return where

    def _compare(self, name: str, comms: Sequence[Watched]) -> None:
        """Raises where the ranks of one of `comms`, the smallest first, are not all in `name`.

        Where those of a node differ, and one of them is in a call of all nodes, they still meet the other nodes, which
        would wait for them, under a name that is no call's.
        """
        for comm in comms:
            calls = comm.allgather((name, self._call, len(comms)))
            if len({call[0] for call in calls}) > 1:
                if self.outer is not None and comm is not self.outer and any(call[2] > 1 for call in calls):
                    self.outer.allgather((f"!{name}", self._call, len(comms)))
                raise MismatchError({rank: call[1] for rank, call in zip(comm.ranks, calls, strict=True)})

    def wait(self, request: MPI.Request, ranks: Sequence[int], status: MPI.Status | None = None) -> None:
        """Waits for a request of a collective that `ranks` take part in, and fills in `status`.

        Raises:
            StallError: It took longer than MPISHARE_TIMEOUT, here or on another rank.
        """
        standing = _Standing(id(self), self._number, self._name, self._call, time.monotonic())
        with abandoned_on_error([request]), _standing(standing):  # while it asks the others, too
            if not self._ends(request, standing, status):
                self._give_up(ranks)

    def wait_alone(
        self,
        request: MPI.Request,
        ranks: Sequence[int],
        call: str,
        status: MPI.Status | None,
        but: Going | None,
    ) -> None:
        """Waits for a message from or to one of `ranks`, that of `but`. If it does not come, only it is given up.

        Raises:
            StallError: It took longer than MPISHARE_TIMEOUT, or another rank gave up a collective.
        """
        call = f"{call} at {place()}"
        status = MPI.Status() if status is None else status
        standing = _Standing(id(self), 0, call, call, time.monotonic())
        with _standing(standing):
            if self._ends(request, standing, status, but):
                return
        assert self._timeout_s is not None
        try:
            missing = self._missing(ranks, (0, call))
        finally:
            request.Cancel()  # what comes later is for the next receive; what is sent goes on
        if not request.Test(status) or status.Is_cancelled():
            raise StallError(call, self._timeout_s, missing)

    def _ends(
        self,
        request: MPI.Request,
        standing: _Standing,
        status: MPI.Status | None = None,
        but: Going | None = None,
    ) -> bool:
        """Waits for `request`, and lets all but `but` go on meanwhile; False when it takes too long."""
        looked = standing.since
        while not request.Test(status):
            go_on(but)
            now = time.monotonic()
            if now - standing.since < _SPIN_S:
                os.sched_yield()
                continue
            time.sleep(_NAP_S)
            if now - looked > _LOOK_S:
                looked = now
                _look_around()
                if self.stalled is not None:
                    raise self.stalled.again()
                if self._timeout_s is not None and now - standing.since > self._timeout_s:
                    return False
        return True

    def _give_up(self, ranks: Sequence[int]) -> None:
        """Asks the other ranks where they are, tells all that it is over, and raises."""
        assert self._timeout_s is not None
        missing = self._missing(ranks, (self._number, self._name))
        self.stalled = StallError(self._call, self._timeout_s, missing)
        for rank in range(self._channel.size):
            if rank != self._channel.rank:
                self._send(self.stalled.args, rank, _STALL_TAG)
        raise self.stalled.again()

    def _missing(self, ranks: Sequence[int], here: tuple[int, str]) -> dict[int, str]:
        """Those of `ranks` that are not in the call `here`, with what they are found to do; all if none is."""
        others = [rank for rank in ranks if rank != self._channel.rank]
        answers = self._ask(others)
        if self.stalled is not None:  # another rank gave up meanwhile, and told more
            raise self.stalled.again()
        silent = _Answer((0, ""), "is in no call of mpishare, or does not run")
        told = {rank: answers.get(rank, silent) for rank in others}
        absent = {rank: answer for rank, answer in told.items() if answer.call != here}
        return {rank: f"on host {self._hosts[rank]} {answer.words}" for rank, answer in (absent or told).items()}

    def _ask(self, ranks: Sequence[int]) -> dict[int, _Answer]:
        """Where each of `ranks` says that it is; those that do not answer in time are missing."""
        for rank in ranks:
            self._send(None, rank, _ASK_TAG)
        answers: dict[int, _Answer] = {}
        end = time.monotonic() + _GRACE_S
        while len(answers) < len(ranks) and time.monotonic() < end:
            _look_around()
            for source, answer in self._received(_ANSWER_TAG):
                answers[source] = answer
            time.sleep(_NAP_S)
        return answers

    def close(self) -> None:
        """Ends the watch, before the communicator is freed."""
        _lookouts.discard(self)

    def look(self) -> None:
        """Answers the ranks that ask where this one is, and takes note of one that gave up."""
        for source, _ in self._received(_ASK_TAG):
            self._send(self._answer(), source, _ANSWER_TAG)
        for _, args in self._received(_STALL_TAG):
            self.stalled = StallError(*args)

    def _answer(self) -> _Answer:
        """Where the threads of this process wait: on this communicator, or else on others."""
        standings = list(_waiting.values())
        here = [one for one in standings if one.lookout == id(self)]
        elsewhere = "" if here else " on another communicator"
        now = time.monotonic()
        waits = [f"waits in {one.call}{elsewhere}, for {now - one.since:.1f} s" for one in here or standings]
        return _Answer(max(((one.number, one.name) for one in here), default=(0, "")), "; ".join(waits))

    def _send(self, told: object, rank: int, tag: int) -> None:
        self._sent = [request for request in self._sent if not request.Test()]
        self._sent.append(self._channel.isend(told, rank, tag))

    def _received(self, tag: int) -> Iterator[tuple[int, Any]]:
        """The messages with `tag` that have come, and who sent each."""
        status = MPI.Status()
        while (message := self._channel.improbe(MPI.ANY_SOURCE, tag, status)) is not None:
            yield status.Get_source(), message.recv()


@contextmanager
def _standing(standing: _Standing) -> Iterator[None]:
    """Lets other ranks know meanwhile where this thread stands."""
    me = threading.get_ident()
    before = _waiting.get(me)
    _waiting[me] = standing
    try:
        yield
    finally:
        if before is None:
            del _waiting[me]
        else:
            _waiting[me] = before


def _look_around() -> None:
    """Looks for questions on every communicator, so that a rank that waits in one answers on all."""
    for lookout in list(_lookouts):
        lookout.look()
