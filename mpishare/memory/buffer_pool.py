"""Buffers of this process alone for received arrays, used again when the last view of one is deleted.

The kernel clears each page that it provides, which takes longer than to receive its bytes. The C library reuses memory
up to about 32 MiB; this pool reuses larger buffers as well, up to a part of the node's memory. Single dict operations
only: the garbage collector may run between any two, and put a buffer back.
"""

from __future__ import annotations

import weakref

import numpy as np

from mpishare.arrays.raw import Block, address_of

SMALLEST_BYTES = 1 << 20
"""Below this size the C library is as fast."""

MAX_SIZE_RATIO = 1.25
"""How many times larger than an array its memory may be."""

_free: dict[int, Block] = {}
"""The buffers of no array, the newest last, by address."""


class _Buffer:
    """A buffer while an array uses it. As the `base` of every view of the bytes, it lives as long as one of them."""

    __slots__ = ("__array_interface__", "__weakref__")

    def __init__(self, block: Block, nbytes: int, limit: int) -> None:
        """Shows the first `nbytes` of `block`. On deletion the pool keeps it, and `limit` bytes in all."""
        self.__array_interface__ = block[:nbytes].__array_interface__
        weakref.finalize(self, _put_back, block, limit).atexit = False


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
    block = _find(nbytes)
    return np.asarray(_Buffer(np.empty(nbytes, np.uint8) if block is None else block, nbytes, limit))


def free_bytes() -> int:
    """How many bytes the pool keeps."""
    return sum([block.nbytes for block in list(_free.values())])


def clear() -> None:
    """Returns all free buffers to the system."""
    _free.clear()


def _find(nbytes: int) -> Block | None:
    """The newest free buffer that holds `nbytes` without too much waste."""
    for address, block in list(_free.items())[::-1]:
        fits = nbytes <= block.nbytes <= nbytes * MAX_SIZE_RATIO
        if fits and _free.pop(address, None) is not None:  # else another thread has taken it
            return block
    return None


def _put_back(block: Block, limit: int) -> None:
    _trim(limit - block.nbytes)
    _free[address_of(block)] = block


def _trim(limit: int) -> None:
    """Releases the oldest free buffers until at most `limit` bytes are left."""
    for address in list(_free):
        if free_bytes() <= limit:
            return
        _free.pop(address, None)
