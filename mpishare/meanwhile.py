"""What goes on while this rank waits for others: receives that have begun, for whose end their senders may wait.

MPI receives the next part of a message only when asked to, which takes a look at the part before. So whoever waits in a
loop calls `go_on` between looks, and a call that waits within MPI is made by `call`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Protocol

from mpishare import mpi

__all__ = ["Going", "call", "go_on", "join", "leave", "under_way", "wait"]

_NAP_S = 0.0001


class Going(Protocol):
    """What has begun and not ended."""

    def go_on(self) -> None:
        """Does what can be done now, without waiting and without raising."""


under_way: dict[int, Going] = {}
"""All of them, by their ids, whether somebody holds them or not."""


def join(one: Going) -> None:
    """From here on it goes on within all waiting."""
    under_way[id(one)] = one


def leave(one: Going) -> None:
    """It has ended."""
    under_way.pop(id(one), None)


def go_on(but: Going | None = None) -> bool:
    """Lets all go on for which something has come, other than `but`; whether there are any."""
    if not under_way:
        return False
    others = [one for one in list(under_way.values()) if one is not but]
    for one in others:
        one.go_on()
    return bool(others)


def wait(request: mpi.Request, status: mpi.Status | None = None, but: Going | None = None) -> None:
    """Waits for `request`; within MPI as soon as there is nothing else."""
    while not request.Test(status):
        if not go_on(but):
            request.Wait(status)
            return
        os.sched_yield()


def call(function: Callable[..., object], *words: Any) -> None:
    """Calls what waits within MPI. Meanwhile another thread lets the others go on, where MPI allows several.

    A nonblocking collective and a loop would do without one. But all ranks would have to use it, at up to twice the
    time, as MPI matches no blocking collective with it (MPI 3.1, section 5.12); and only this rank knows what is open.
    """
    if not under_way or mpi.Query_thread() < mpi.THREAD_MULTIPLE:
        function(*words)
        return
    has_ended = threading.Event()
    thread = threading.Thread(target=_go_on_until, args=(has_ended,))
    try:
        thread.start()
    except RuntimeError:  # the system gives this process no more threads
        function(*words)
        return
    try:
        function(*words)
    finally:
        has_ended.set()
    thread.join()


def _go_on_until(has_ended: threading.Event) -> None:
    while go_on() and not has_ended.wait(_NAP_S):
        pass
