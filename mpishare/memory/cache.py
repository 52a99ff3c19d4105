"""Segments that no rank views any more, cached for later arrays: their pages exist, so that filling them is a copy.

Each rank caches a segment when its own last view is deleted, by local work alone. The ranks meet in
`SegmentCache.acquire`, before new memory is allocated: there a segment may be used again if every rank has it cached.
Meanwhile, a rank whose cached segments exceed the limit releases the oldest, and all of them when memory is short.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from itertools import compress, count

import numpy as np

from mpishare.comm.agreement import any_rank
from mpishare.comm.context import Context
from mpishare.host import memory as host_memory
from mpishare.memory.buffer_pool import MAX_SIZE_RATIO
from mpishare.memory.kinds import NodeMemory

_LARGE_BYTES = 64 << 20
"""From this size on, the free memory is read before a segment is cached. That takes 100 us."""

_lock = threading.RLock()
"""Held for a few instructions at a time. It is reentrant, as the garbage collector may run between any two of them and
delete the last view of another segment."""

_ages = count()


class SegmentCache:
    """The segments of one communicator, in use or cached."""

    def __init__(self, limit: int) -> None:
        """Caches up to `limit` bytes, which is the same number on all ranks."""
        self._limit = limit
        self._segments: list[_Segment] = []

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():
            for segment in self._segments:
                segment.retire()

    def retire_used(self) -> None:
        """No other array gets the segments that are in use now."""
        for segment in self._segments:
            segment.is_retired |= segment.is_in_use

    def add(self, node_memory: NodeMemory, nbytes: int, backend: str | None) -> Lease:
        """Puts a new segment to its first use."""
        segment = _Segment(node_memory, nbytes, backend, self._limit)
        if nbytes <= self._limit:
            self._segments.append(segment)
        return segment.lease()

    def acquire(self, context: Context, nbytes: int, backend: str | None) -> Lease | None:
        """A segment that may be used again for an array of `nbytes`; None if there is none.

        Collective:
            Over the communicator.
        """
        if not self._segments:
            return None
        flags = np.array([segment.pin() for segment in self._segments])
        in_use, released = any_rank(context.collective_comm, flags.ravel()).reshape(-1, 2).T
        # The rule: a segment may be used again if no rank has a view of it and no rank has released it.
        may_be_used = ~(in_use | released)
        candidates = [segment for segment in compress(self._segments, may_be_used) if segment.fits(nbytes, backend)]
        lease = min(candidates, key=lambda segment: segment.nbytes).lease() if candidates else None
        for segment in self._segments:
            segment.is_pinned = False
        for segment in compress(self._segments, released):
            segment.retire()
        self._segments = list(compress(self._segments, ~released))
        return lease


class _Segment:
    """Memory of a communicator that arrays use one after the other.

    Attributes:
        nbytes: Its size.
        backend: The kinds that were requested.
        age: A number that grows from use to use.
        is_in_use: Whether an array of this rank has it. If not, it is cached, or released.
        is_pinned: Whether other ranks may be choosing it now, so that it must not be released.
        is_retired: Whether it is never cached again.
    """

    def __init__(self, node_memory: NodeMemory, nbytes: int, backend: str | None, limit: int) -> None:
        self.nbytes = nbytes
        self.backend = backend
        self.age = 0
        self.is_in_use = self.is_pinned = False
        self.is_retired = not node_memory.origin.is_shared or nbytes > limit
        self._node_memory: NodeMemory | None = node_memory
        self._limit = limit

    def fits(self, nbytes: int, backend: str | None) -> bool:
        """Whether an array of `nbytes` may use it."""
        return self.backend == backend and nbytes <= self.nbytes <= nbytes * MAX_SIZE_RATIO

    def lease(self) -> Lease:
        """Gives it to an array."""
        assert self._node_memory is not None
        _cached.pop(self, None)
        self.is_in_use, self.age = True, next(_ages)
        return Lease(self, self._node_memory)

    def end_lease(self, node_memory: NodeMemory) -> None:
        """Caches it with its pages writable, so that its next use cannot fail; or releases it."""
        try:
            if not self.is_retired:
                node_memory.memory.unprotect()
        except OSError:
            self.is_retired = True
        with _lock:
            self.is_in_use = False
            if self.is_retired:
                self.release()
                return
            _cached[self] = None
        is_short = self.nbytes >= _LARGE_BYTES and host_memory.memory_room().free < self._limit
        _trim(0 if is_short else self._limit)

    def pin(self) -> tuple[bool, bool]:
        """Whether this rank uses it, and whether this rank has released it. If neither, it is kept for `acquire`."""
        with _lock:
            self.is_pinned = True
            return self.is_in_use, self._node_memory is None

    def retire(self) -> None:
        """Releases it, now or when the array that uses it is deleted."""
        with _lock:
            self.is_retired = True
            if not self.is_in_use:
                self.release()

    def release(self) -> None:
        """Returns the memory to the system."""
        self._node_memory = None
        _cached.pop(self, None)


_cached: dict[_Segment, None] = {}
"""The cached segments of this process, over all communicators."""


class Lease:
    """Held while an array uses a segment; deleting it caches or releases the segment.

    Attributes:
        node_memory: The memory of the segment.
    """

    def __init__(self, segment: _Segment, node_memory: NodeMemory) -> None:
        self.node_memory = node_memory
        weakref.finalize(self, segment.end_lease, node_memory).atexit = False


def clear() -> None:
    """Returns all cached segments of this process to the system. Local."""
    _trim(0)


def _trim(limit: int) -> None:
    """Releases the oldest cached segments until at most `limit` bytes are cached."""
    with _lock:
        oldest_first = sorted(_cached, key=lambda segment: segment.age)  # by last use: the same order on all ranks
        total = sum(segment.nbytes for segment in oldest_first)
        for segment in oldest_first:
            if total <= limit:
                break
            if segment in _cached and not segment.is_pinned:  # the garbage collector may have released it
                segment.release()
            total -= segment.nbytes


def after_fork_in_child() -> None:
    """Makes a new lock, as another thread may have held the old one during the fork."""
    global _lock
    _lock = threading.RLock()
