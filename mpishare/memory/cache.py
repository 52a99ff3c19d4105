"""Segments that no rank views any more, cached for later arrays: their pages exist, so that filling them is a copy.

Each rank caches a segment when its own last view is deleted, by local work alone. The ranks meet in
`SegmentCache.acquire`, before new memory is allocated: there a segment may be used again if every rank has it cached.
Meanwhile, a rank whose cached segments exceed the limit releases the oldest, and all of them when memory is short.

Single dict operations only: other threads, and the garbage collector between any two, cache and release segments.
"""

from __future__ import annotations

import sys
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
        is_cacheable = nbytes <= self._limit and node_memory.origin.is_shared
        segment = _Segment(nbytes, backend, self._limit, is_retired=not is_cacheable)
        if nbytes <= self._limit:
            self._segments.append(segment)
        return Lease(segment, node_memory)

    def acquire(self, context: Context, nbytes: int, backend: str | None) -> Lease | None:
        """A segment that may be used again for an array of `nbytes`; None if there is none.

        Collective:
            Over the communicator.
        """
        if not self._segments:
            return None
        # While the ranks choose, the memory is out of the cache, so that nothing else releases it.
        uses = [segment.is_in_use for segment in self._segments]
        memories = [_cached.pop(segment, None) for segment in self._segments]
        lacks = [memory is None and not is_used for memory, is_used in zip(memories, uses, strict=True)]
        in_use, released = any_rank(context.collective_comm, np.array([uses, lacks]).ravel()).reshape(2, -1)
        lease = None
        columns = zip(self._segments, memories, in_use, released, strict=True)
        for segment, memory, is_used, is_released in sorted(columns, key=lambda row: row[0].nbytes):
            # The rule: a segment may be used again if no rank has a view of it and no rank has released it.
            if is_released:
                segment.retire()
            elif memory is not None and lease is None and not is_used and segment.fits(nbytes, backend):
                lease = Lease(segment, memory)
            elif memory is not None:
                _cached[segment] = memory
        self._segments = list(compress(self._segments, ~released))
        return lease


class _Segment:
    """Memory of a communicator that arrays use one after the other.

    Attributes:
        nbytes: Its size.
        backend: The kinds that were requested.
        age: A number that grows from use to use.
        is_in_use: Whether an array of this rank has it. If not, it is cached, or released.
        is_retired: Whether it is never cached again.
    """

    def __init__(self, nbytes: int, backend: str | None, limit: int, *, is_retired: bool) -> None:
        self.nbytes = nbytes
        self.backend = backend
        self.age = 0
        self.is_in_use = False
        self.is_retired = is_retired
        self._limit = limit

    def fits(self, nbytes: int, backend: str | None) -> bool:
        """Whether an array of `nbytes` may use it."""
        return self.backend == backend and nbytes <= self.nbytes <= nbytes * MAX_SIZE_RATIO

    def end_lease(self, node_memory: NodeMemory) -> None:
        """Caches it with its pages writable, so that its next use cannot fail; or releases it."""
        try:
            if not self.is_retired:
                node_memory.memory.unprotect()
                _cached[self] = node_memory
        except OSError:
            self.is_retired = True
        self.is_in_use = False
        if self.is_retired:
            self.retire()  # it may have been retired when it was cached already
            return
        is_short = self.nbytes >= _LARGE_BYTES and host_memory.memory_room().free < self._limit
        _trim(0 if is_short else self._limit)

    def retire(self) -> None:
        """Releases it, now or when the array that uses it is deleted."""
        self.is_retired = True
        _cached.pop(self, None)


_cached: dict[_Segment, NodeMemory] = {}
"""The memory of the cached segments of this process, over all communicators."""


class Lease:
    """Held while an array uses a segment; deleting it caches or releases the segment.

    Attributes:
        node_memory: The memory of the segment.
    """

    def __init__(self, segment: _Segment, node_memory: NodeMemory) -> None:
        segment.is_in_use, segment.age = True, next(_ages)
        self.node_memory = node_memory
        weakref.finalize(self, segment.end_lease, node_memory).atexit = False


def clear() -> None:
    """Returns all cached segments of this process to the system. Local."""
    _trim(0)


def _trim(limit: int) -> None:
    """Releases the oldest cached segments until at most `limit` bytes are cached."""
    oldest_first = sorted(_cached, key=lambda segment: segment.age)  # by last use: the same order on all ranks
    total = sum(segment.nbytes for segment in oldest_first)
    for segment in oldest_first:
        if total <= limit:
            return
        _cached.pop(segment, None)
        total -= segment.nbytes
