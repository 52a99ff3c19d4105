"""Ranges of items and of bytes: which part each rank takes, and in what chunks bytes travel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from mpishare.errors import ArgumentError, checked_integers

PAGE_BYTES = 4096
"""The smallest page of any Linux that MPI runs on. Used where all hosts must compute the same number, and for "one
page", which the kernel rounds up. `memory.pages` knows the pages of this host."""

LINE_BYTES = 64
"""A cache line, and what the widest vector instructions want."""


def round_up(number: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `number`."""
    return -(-number // multiple) * multiple


def balanced_slice(count: int, parts: int, part: int) -> slice:
    """Part number `part` of `count` items cut into `parts` slices as `numpy.array_split` does: longer ones first."""
    length, longer = divmod(count, parts)
    start = part * length + min(part, longer)
    return slice(start, start + length + (part < longer))


def parts_of(count: int, size: int, counts: Sequence[int] | None, takers: str = "ranks") -> list[slice]:
    """The part of each of `size` ranks, or other `takers`.

    Raises:
        ArgumentError: `counts` does not have one number for each, or they do not add up to `count`.
    """
    if counts is None:
        return [balanced_slice(count, size, part) for part in range(size)]
    numbers = checked_integers("counts", counts)
    if len(numbers) != size or sum(numbers) != count:
        given = f"counts has {len(numbers)} numbers that add up to {sum(numbers)}"
        raise ArgumentError(f"{given}. Give one for each of {size} {takers}, which add up to {count}.")
    return [slice(end - number, end) for number, end in zip(numbers, accumulate(numbers), strict=True)]


def byte_slice(nbytes: int, parts: int, part: int, *, grain: int) -> slice:
    """Like `balanced_slice`, in bytes; all inner cuts are multiples of `grain`, such as a page or a cache line."""
    grains = -(-nbytes // grain)
    start, stop = grains * part // parts, grains * (part + 1) // parts
    return slice(min(start * grain, nbytes), min(stop * grain, nbytes))


def chunks(nbytes: int, chunk: int) -> Iterator[slice]:
    """Slices of `chunk` bytes from 0 to `nbytes`; the last one may be shorter."""
    for start in range(0, nbytes, chunk):
        yield slice(start, min(start + chunk, nbytes))
