"""Huge pages for shared maps: where such a map must lie, and how its pages are merged.

A page fault costs as much as copying 30 KiB, so that filling fresh memory by pages of 4 KiB takes many times as long as
the copy. The kernel merges pages of a tmpfs file into huge ones on demand, whatever its settings for huge pages are.
"""

from __future__ import annotations

import mmap
from functools import cache

from mpishare.host.procfs import text_of
from mpishare.memory import syscalls


@cache
def huge_bytes() -> int:
    """Size of a huge page; 2 MiB where the kernel does not say."""
    text = text_of("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").strip()
    return int(text) if text.isdigit() else 2 << 20


def aligned_range(length: int, offset: int) -> int:
    """Takes a range of addresses for a map of the bytes from `offset` of a file on, such that huge pages fit in it.

    Returns:
        Where it begins: on a page, and as far from a huge page's bounds as `offset` is in the file. Nothing can be
        read there until something is mapped over it.

    Raises:
        OSError: There is no room for more maps.
    """
    huge = huge_bytes()
    start = syscalls.mmap_nothing(length + huge)
    target = start + (offset - start) % huge
    stop, target_stop = start + length + huge, target + -(-length // mmap.PAGESIZE) * mmap.PAGESIZE
    if target > start:
        syscalls.munmap(start, target - start)
    if stop > target_stop:
        syscalls.munmap(target_stop, stop - target_stop)
    return target


def collapse(start: int, stop: int) -> None:
    """Merges the pages from `start` to `stop` into huge ones, as far as whole ones fit; best effort.

    Each huge page needs one page of its own there first, which is had here. What cannot be merged stays as it is: the
    kernel is older than 6.1, the map does not lie as `aligned_range` says, there is no huge page free.

    Source:
        madvise(2), MADV_COLLAPSE: "performs a best-effort synchronous collapse of the native pages mapped by the memory
        range into Transparent Huge Pages"; at least one page of each must be there.
    """
    huge = huge_bytes()
    first, last = -(-start // huge) * huge, stop // huge * huge
    for address in range(first, last, huge):
        if syscalls.madvise(address, mmap.PAGESIZE, syscalls.MADV_POPULATE_WRITE):
            return  # no page to be had: whoever populates the rest says so
    if first < last:
        syscalls.madvise(first, last - first, syscalls.MADV_COLLAPSE)


def huge_areas() -> list[range]:
    """The addresses of this process's shared maps that have huge pages, at least in part.

    Source:
        proc(5), /proc/pid/smaps: ShmemPmdMapped is memory of tmpfs mapped by huge pages.
    """
    found: list[range] = []
    area = range(0)
    for line in text_of("/proc/self/smaps").splitlines():
        name, *words = line.split()
        if not name.endswith(":"):
            area = range(*(int(end, 16) for end in name.split("-")))
        elif name == "ShmemPmdMapped:" and words[0] != "0":
            found.append(area)
    return found
