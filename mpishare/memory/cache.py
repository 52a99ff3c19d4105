"""Whole segments that nobody views any more, kept for arrays to come: their pages are there, and filling is a copy.

Each rank sets a segment aside when its own last view has gone, by local work alone. Before a new one is made the ranks
put together what they have set aside, and one that all have may be lent again. Until then, a rank whose segments take
more than the limit gives the oldest back, as it does with all of them when memory is short.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from itertools import count

import numpy as np

from mpishare.comm.agreement import any_rank
from mpishare.comm.context import Context
from mpishare.host import memory as host_memory
from mpishare.memory.kinds import Backing
from mpishare.memory.selection import Obtained

_WASTE = 1.25
"""How much larger than an array the segment may be that it gets."""

_LARGE_BYTES = 64 << 20
"""From this size on it is looked whether memory is short, which takes 100 us, before a segment is set aside."""

_LENT, _ASIDE, _ASKED, _GONE = range(4)

_lock = threading.RLock()
"""Held for a few instructions at a time: the garbage collector may set a segment aside in the midst of any others."""

_aside: dict[_Whole, None] = {}
"""The segments that this process has set aside, over all communicators."""

_ages = count()


class SegmentCache:
    """The segments of one communicator."""

    def __init__(self, limit: int) -> None:
        """Sets aside up to `limit` bytes, which is the same number on all ranks."""
        self._limit = limit
        self._all: list[_Whole] = []

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():
            for whole in self._all:
                whole.retire()

    def retire(self) -> None:
        """No other array gets the segments that are lent now."""
        for whole in self._all:
            whole.retire(if_lent=True)

    def add(self, obtained: Obtained, nbytes: int, backend: str | None) -> CachedLease:
        """Lends a new segment for the first time."""
        whole = _Whole(obtained, nbytes, backend, self._limit)
        if nbytes <= self._limit:
            self._all.append(whole)
        return whole.lend()

    def take(self, context: Context, nbytes: int, backend: str | None) -> CachedLease | None:
        """Lends one that all ranks have set aside, None where none fits. Collective over the communicator."""
        if not self._all:
            return None
        mine = np.array([whole.ask() for whole in self._all]).ravel()
        notes = any_rank(context.collective_comm, mine).tolist()
        fits = range(nbytes, int(nbytes * _WASTE) + 1)
        free, kept = [], []
        for whole, needed, gone in zip(self._all, notes[::2], notes[1::2], strict=True):
            if gone:  # on one rank, so that it is of no more use on the others
                whole.retire()
                continue
            kept.append(whole)
            if not needed and whole.backend == backend and whole.nbytes in fits:
                free.append(whole)
        self._all = kept
        found = min(free, key=lambda whole: whole.nbytes, default=None)
        lease = None if found is None else found.lend()
        for whole in kept:
            whole.keep_aside()
        return lease


class _Whole:
    """One segment of a communicator: lent to an array, set aside, asked for, or gone."""

    def __init__(self, obtained: Obtained, nbytes: int, backend: str | None, limit: int) -> None:
        self.nbytes = nbytes
        self.backend = backend
        self.age = 0
        self._obtained: Obtained | None = obtained
        self._limit = limit
        self._state = _LENT
        self._is_retired = not obtained.kind.is_shared or nbytes > limit

    def lend(self) -> CachedLease:
        """Hands it to an array."""
        assert self._obtained is not None
        self._state, self.age = _LENT, next(_ages)
        return CachedLease(self, self._obtained)

    def take_back(self) -> None:
        """Sets it aside with its pages writable, so that to lend it cannot fail; or gives it back at once."""
        is_kept = not self._is_retired and self._make_writable()
        with _lock:
            if self._is_retired or not is_kept:
                self.give_back()
                return
            self._state = _ASIDE
            _aside[self] = None
        _trim(0 if self.nbytes >= _LARGE_BYTES and _is_memory_short(self._limit) else self._limit)

    def _make_writable(self) -> bool:
        assert self._obtained is not None
        try:
            self._obtained.memory.unprotect()
        except OSError:
            return False
        return True

    def ask(self) -> tuple[bool, bool]:
        """Whether this rank needs it, and whether it has given it back. What is set aside it keeps for an answer."""
        with _lock:
            if self._state == _ASIDE:
                self._state = _ASKED
                del _aside[self]
            return self._state != _ASKED, self._state == _GONE

    def keep_aside(self) -> None:
        """The answer was that no array wants it now."""
        with _lock:
            if self._state == _ASKED:
                self._state = _ASIDE
                _aside[self] = None

    def retire(self, *, if_lent: bool = False) -> None:
        """No other array gets it from here on; with `if_lent` that is so only for one that an array has now."""
        with _lock:
            if self._state == _LENT:
                self._is_retired = True
            elif not if_lent:
                self.give_back()

    def give_back(self) -> None:
        """Gives the memory to the system."""
        self._state, self._obtained = _GONE, None
        _aside.pop(self, None)


class CachedLease:
    """A whole segment while an array has it. It satisfies `Backing`.

    Attributes:
        obtained: The memory, and how it was had.
    """

    lifetime = "is kept for another array after its last view"

    def __init__(self, whole: _Whole, obtained: Obtained) -> None:
        self._whole = whole
        self.obtained = obtained

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():
            del self.obtained
            self._whole.take_back()

    @property
    def address(self) -> int:
        """Where the bytes begin in this process."""
        return self.obtained.memory.address

    def protect(self) -> None:
        """Makes the pages read-only in this process."""
        self.obtained.memory.protect()

    def private(self) -> Backing | None:
        """The same bytes, copy-on-write in this process."""
        return self.obtained.memory.private()


def give_back() -> None:
    """Gives all that this process has set aside to the system. Local."""
    _trim(0)


def _trim(limit: int) -> None:
    with _lock:
        oldest_first = sorted(_aside, key=lambda whole: whole.age)  # the oldest lent, so that all ranks agree
        total = sum(whole.nbytes for whole in oldest_first)
        for whole in oldest_first:
            if total <= limit:
                break
            if whole in _aside:  # the garbage collector may have come in between
                whole.give_back()
            total -= whole.nbytes


def after_fork_in_child() -> None:
    """Another thread may have held the lock when this child was forked."""
    global _lock
    _lock = threading.RLock()


def _is_memory_short(limit: int) -> bool:
    """Whether less is free than may be set aside."""
    return host_memory.memory_room().free < limit
