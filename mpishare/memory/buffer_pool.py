"""Buffers of this process alone for received arrays, used again when the last view of one is deleted.

The kernel clears each page that it provides, which takes longer than to receive its bytes. The C library reuses some of
its memory, but returns to the kernel what is free beyond twice the largest array so far: all of it where several arrays
are received and then deleted. This pool keeps them, up to a part of the node's memory. Single dict operations only: the
garbage collector may run between any two, and put a buffer back.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np

from mpishare.arrays.raw import Block, address_of
from mpishare.comm.context import Context
from mpishare.errors import CapacityError
from mpishare.host import memory as host_memory

SMALLEST_BYTES = 256 << 10
"""Below this size the C library is as fast. From it on, four arrays that are received and then deleted together take at
most half of the time; one that is deleted before the next comes takes 4 us more, which is 0.17 of 256 KiB."""

MAX_SIZE_RATIO = 1.25
"""How many times larger than an array its memory may be."""

_free: dict[int, Block] = {}
"""The buffers of no array, the newest last, by address."""


class _Buffer:
    """A buffer while an array uses it. As the `base` of every view of the bytes, it lives as long as one of them."""

    __slots__ = ("__array_interface__", "_address", "_block", "_limit")

    def __init__(self, address: int, block: Block, nbytes: int, limit: int) -> None:
        """Shows the first `nbytes` of `block`. On deletion the pool keeps it, and `limit` bytes in all."""
        self._address = address
        self._block = block
        self._limit = limit
        # What `block[:nbytes]` has, which NumPy takes a microsecond to describe.
        self.__array_interface__ = {"data": (address, False), "shape": (nbytes,), "typestr": "|u1", "version": 3}

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():
            if _free:
                _trim(self._limit - self._block.nbytes)
            _free[self._address] = self._block


def acquire(nbytes: int, limit: int) -> Block:
    """A block of `nbytes` with arbitrary contents.

    Args:
        nbytes: Its size.
        limit: Bytes that the pool may keep, with this buffer, when its last view is deleted.

    Raises:
        MemoryError: There is no memory.
    """
    if not SMALLEST_BYTES <= nbytes <= limit:
        return np.empty(nbytes, np.uint8)
    address, block = _find(nbytes) or _allocated(nbytes)
    return np.asarray(_Buffer(address, block, nbytes, limit))


def acquire_for(context: Context, nbytes: int, cure: str, *, before: Callable[[], object] | None = None) -> Block:
    """Like `acquire`, within what the ranks of `context` may keep. Calls `before` first, for which it needs memory too.

    Raises:
        CapacityError: There is no memory. It names the `cure`.
    """
    try:
        if before is not None:
            before()
        return acquire(nbytes, context.buffer_pool_bytes)
    except (MemoryError, ValueError, OverflowError) as error:
        free = host_memory.memory_room().free
        raise CapacityError(context.topology.host, "the memory of this process", nbytes, free, cure) from error


def free_bytes() -> int:
    """How many bytes the pool keeps."""
    return sum([block.nbytes for block in list(_free.values())])


def clear() -> None:
    """Returns all free buffers to the system."""
    _free.clear()


def _find(nbytes: int) -> tuple[int, Block] | None:
    """The newest free buffer that holds `nbytes` without too much waste, and its address."""
    largest = nbytes * MAX_SIZE_RATIO
    for address in list(_free)[::-1]:  # a list of items would make tuples, and the collector may run at each
        block = _free.get(address)
        fits = block is not None and nbytes <= block.nbytes <= largest
        if fits and (taken := _free.pop(address, None)) is not None:  # else another thread has taken it
            return address, taken
    return None


def _allocated(nbytes: int) -> tuple[int, Block]:
    block = np.empty(nbytes, np.uint8)
    return address_of(block), block


def _trim(limit: int) -> None:
    """Releases the oldest free buffers until at most `limit` bytes are left."""
    for address in list(_free):
        if free_bytes() <= limit:
            return
        _free.pop(address, None)
