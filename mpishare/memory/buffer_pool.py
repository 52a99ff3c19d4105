"""Buffers of this process alone for received arrays, used again when the last view of one is deleted.

The kernel clears each page that it provides, which takes longer than to receive its bytes. The C library reuses memory
up to about 32 MiB; this pool reuses larger buffers as well, up to a part of the node's memory. Single dict operations
only: the garbage collector may run between any two, and put a buffer back.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np

from mpishare.arrays.raw import Block

SMALLEST_BYTES = 1 << 20
"""Below this size the C library is as fast."""

MAX_SIZE_RATIO = 1.25
"""How many times larger than an array its memory may be."""

_free: dict[int, Block] = {}
"""The buffers of no array, the newest last, by `id`."""


class _Buffer:
    """A buffer while an array uses it. As the `base` of every view of the bytes, it lives as long as one of them."""

    __slots__ = ("__array_interface__", "_block", "_limit")

    def __init__(self, block: Block, nbytes: int, limit: int) -> None:
        """Shows the first `nbytes` of `block`. On deletion the pool keeps it, and `limit` bytes in all."""
        self._block = block
        self._limit = limit
        self.__array_interface__ = block[:nbytes].__array_interface__

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():
            if _free:
                _trim(self._limit - self._block.nbytes)
            _free[id(self._block)] = self._block


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
    for block in list(_free.values())[::-1]:
        fits = nbytes <= block.nbytes <= nbytes * MAX_SIZE_RATIO
        if fits and _free.pop(id(block), None) is not None:  # else another thread has taken it
            return block
    return None


def _trim(limit: int) -> None:
    """Releases the oldest free buffers until at most `limit` bytes are left."""
    for number in list(_free):
        if free_bytes() <= limit:
            return
        _free.pop(number, None)
