"""The files of the newest maps of this process, kept open so that they can be mapped again as copy-on-write.

A map itself needs no descriptor, and a process has few. So the files of older maps are closed.

Single dict operations only: a finalizer, or another thread, may run between any two bytecodes.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

MAX_KEPT = 64
"""The most files that are kept open."""

_LARGEST_PART = 16
"""They take at most one in so many of the descriptors that the process may have (RLIMIT_NOFILE)."""

_descriptors: dict[int, int] = {}
"""The open files by number, the last used last. Whoever removes an entry owns the descriptor, and closes it."""

_numbers = count()


def keep(descriptor: int) -> int:
    """Takes over an open file, and closes those that are too many; returns the file's number for `used` and `close`."""
    number = next(_numbers)
    _descriptors[number] = descriptor
    limit = min(MAX_KEPT, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _LARGEST_PART)
    for oldest in list(_descriptors)[: max(len(_descriptors) - limit, 0)]:
        close(oldest)
    return number


def close(number: int) -> None:
    """Closes a file, unless that was done before."""
    descriptor = _descriptors.pop(number, None)
    if descriptor is not None:
        os.close(descriptor)


@contextmanager
def used(number: int) -> Iterator[int | None]:
    """The descriptor of a file, which nobody closes within the block; None if the file is closed, or used elsewhere."""
    descriptor = _descriptors.pop(number, None)
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            _descriptors[number] = descriptor
