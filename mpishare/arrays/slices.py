"""Ranges of items and of bytes: which part each rank takes, and in what chunks bytes travel."""

from __future__ import annotations

from collections.abc import Iterator

PAGE_BYTES = 4096
"""The smallest page of any Linux that MPI runs on. Slices that end on pages are faster, not safer."""

_HUGE_PAGE_BYTES = 2 << 20
"""The size of a huge page on nearly all machines."""


def round_up(number: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `number`."""
    return -(-number // multiple) * multiple


def balanced_slice(count: int, parts: int, part: int) -> slice:
    """Part number `part` of `count` items cut into `parts` slices whose lengths differ by at most one."""
    return slice(count * part // parts, count * (part + 1) // parts)


def byte_slice(nbytes: int, parts: int, part: int, *, grain: int = PAGE_BYTES) -> slice:
    """Like `balanced_slice`, in bytes; all inner cuts are multiples of `grain`, so that no page has two owners."""
    grains = balanced_slice(-(-nbytes // grain), parts, part)
    return slice(min(grains.start * grain, nbytes), min(grains.stop * grain, nbytes))


def fill_slice(nbytes: int, parts: int, part: int) -> slice:
    """Like `byte_slice`, cut at huge pages if each part has at least one, else at small pages."""
    return byte_slice(nbytes, parts, part, grain=_HUGE_PAGE_BYTES if nbytes >= parts * _HUGE_PAGE_BYTES else PAGE_BYTES)


def chunks(nbytes: int, chunk: int) -> Iterator[slice]:
    """Slices of `chunk` bytes from 0 to `nbytes`; the last one may be shorter."""
    for start in range(0, nbytes, chunk):
        yield slice(start, min(start + chunk, nbytes))
