"""Huge pages for shared maps: at which addresses they fit, and how small pages are merged into them.

A page fault costs as much as copying 30 KiB. So filling new memory in pages of 4 KiB takes many times as long as the
copy. The kernel merges pages of a tmpfs file into huge ones on demand, whatever its settings for huge pages are.

Both sizes are the kernel's: 4 KiB and 2 MiB on x86, also 16 KiB and 32 MiB, or 64 KiB and 512 MiB, on arm64.
"""

from __future__ import annotations

import mmap
from functools import cache

from mpishare.arrays.slices import byte_slice, round_up
from mpishare.host.procfs import number_of, text_of
from mpishare.memory import syscalls

_FEW_BYTES = 2 << 20
"""This many more addresses are few for any map. Without them, windows of 4 to 12 MiB would have half their huge pages
of 2 MiB or fewer: filling new ones took 1.3 to 1.9 times as long."""

_LARGEST_GROWTH = 8
"""Beyond that, a map grows by one part in so many at most. Huge pages of 512 MiB are worth no more: the small pages of
such machines have 64 KiB, beside which a page fault costs little."""


@cache
def huge_bytes() -> int:
    """The size of a huge page; 2 MiB where the kernel does not report it."""
    return number_of("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size") or 2 << 20


def is_aligned(length: int) -> bool:
    """Whether a map of `length` bytes, or a rank's part of one, begins at a huge page: if it need not grow too much."""
    return huge_bytes() <= length and huge_bytes() <= max(length // _LARGEST_GROWTH, _FEW_BYTES)


def aligned_bytes(length: int) -> int:
    """How many bytes to map so that huge pages fit in `length` of them: one huge page more, if that is aligned."""
    return length + huge_bytes() if is_aligned(length) else length


def fill_slice(nbytes: int, parts: int, part: int) -> slice:
    """Like `byte_slice`, cut at huge pages if parts of this size are aligned, else at small pages."""
    return byte_slice(nbytes, parts, part, grain=huge_bytes() if is_aligned(nbytes // parts) else mmap.PAGESIZE)


def aligned_range(length: int, offset: int) -> int:
    """Reserves addresses for a map of `length` bytes of a file, from `offset` on, so that huge pages fit in it.

    Returns:
        The first address: on a page, and at the same distance from a huge page as `offset` in the file. Nothing can be
        read there until something is mapped over it.

    Raises:
        OSError: There is no room for more maps.
    """
    huge = huge_bytes()
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | syscalls.MAP_NORESERVE
    start = syscalls.map_file(None, length + huge, flags, -1, access=syscalls.NO_ACCESS)
    target = start + (offset - start) % huge
    target_stop = target + round_up(length, mmap.PAGESIZE)
    syscalls.munmap(start, target - start)  # which does nothing where there is nothing before or after
    syscalls.munmap(target_stop, start + length + huge - target_stop)
    return target


def collapse(start: int, stop: int) -> None:
    """Merges the pages from `start` to `stop` into huge ones, as far as whole ones fit; best effort.

    Each huge page needs one small page first, which is allocated here. Pages stay small where the kernel is older than
    6.1, the map does not begin as `aligned_range` requires, or no huge page is free.

    Source:
        madvise(2), MADV_COLLAPSE: "performs a best-effort synchronous collapse of the native pages mapped by the memory
        range into Transparent Huge Pages"; at least one page of each must be there.
    """
    huge = huge_bytes()
    first, last = round_up(start, huge), stop // huge * huge
    for address in range(first, last, huge):
        if syscalls.madvise(address, mmap.PAGESIZE, syscalls.MADV_POPULATE_WRITE):
            return  # there is no page; the caller reports it when it populates the rest
    if first < last:
        syscalls.madvise(first, last - first, syscalls.MADV_COLLAPSE)


def huge_areas() -> list[range]:
    """The addresses of those shared maps of this process that contain huge pages.

    Source:
        proc(5), /proc/pid/smaps: ShmemPmdMapped is tmpfs memory that is mapped by huge pages.
    """
    areas: list[range] = []
    area = range(0)
    for line in text_of("/proc/self/smaps").splitlines():
        name, *values = line.split()
        if not name.endswith(":"):
            area = range(*(int(end, 16) for end in name.split("-")))
        elif name == "ShmemPmdMapped:" and values[0] != "0":
            areas.append(area)
    return areas
