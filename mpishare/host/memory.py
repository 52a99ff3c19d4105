"""The memory of this host, within the limits of control groups: how much there is, how much is free."""

from __future__ import annotations

import mmap
import os
import platform
import resource
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mpishare.errors import CapacityError
from mpishare.host.filesystems import Room, room
from mpishare.host.procfs import number_of, table_of, text_of

SHM_DIR = "/dev/shm"  # noqa: S108 - only its free space is read
MAX_STEPS = 32
"""The number of steps in which an array of all free memory is allocated."""

_LEAST_CHECKED_BYTES = 1 << 20
_HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage"
MADV_COLLAPSE = 25  # since Linux 6.1; from the kernel's uapi/asm-generic/mman-common.h
_PROC = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")
_DOMAINS = Path("/sys/devices/system/node")

_NO_LIMIT_BYTES = 1 << 60
"""Version 1 of control groups reports a number near 2**63 where there is no limit."""

_GROUPS = {
    1: ("memory/", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("", "memory.max", "memory.current", "inactive_file"),
}
"""Each version of control groups: a folder, the files of the limit and of the used bytes, and the name in memory.stat
of the bytes that the kernel would drop to make room."""


def memory_limit(proc: Path = _PROC, root: Path = _ROOT) -> int | None:
    """The smallest memory limit of the control groups of this process and their parents, in bytes; None without one.

    Source:
        cgroups(7); the kernel's documentation of control groups, "memory.max" and "memory.limit_in_bytes".
    """
    return min((limit for limit, _ in _limits(proc, root)), default=None)


def _limits(proc: Path, root: Path) -> Iterator[tuple[int, int]]:
    """The limit and the used bytes of each group with a limit, among this process's groups and their parents."""
    for line in text_of(proc).splitlines():
        _, controllers, group = line.split(":", maxsplit=2)
        if controllers and "memory" not in controllers.split(","):
            continue
        folder, limit_file, used_file, reclaimable = _GROUPS[1 if controllers else 2]
        base = root / folder
        inner = base / group.lstrip("/")
        for group_folder in (inner, *inner.parents):
            limit = number_of(group_folder / limit_file) if group_folder.is_relative_to(base) else None
            if limit is not None and limit < _NO_LIMIT_BYTES:
                dropped = table_of(group_folder / "memory.stat").get(reclaimable, 0)
                yield limit, (number_of(group_folder / used_file) or 0) - dropped


def memory_room(proc: Path = _PROC, root: Path = _ROOT) -> Room:
    """The memory that is available without swapping, and before the first control group is full.

    File pages that the kernel would drop to make room count as free.

    Source:
        proc(5), /proc/meminfo, MemAvailable; sysconf(3) where the kernel does not report it.
    """
    kib, total = table_of("/proc/meminfo"), _physical_bytes()
    free = kib["MemAvailable"] << 10 if "MemAvailable" in kib else total
    return Room("memory", total, min([free, *(max(limit - used, 0) for limit, used in _limits(proc, root))]))


def _physical_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def memory_bytes() -> int:
    """The memory of this host, within the limits of the control groups, in bytes."""
    return min(_physical_bytes(), memory_limit() or _NO_LIMIT_BYTES)


def check_memory(host: str, nbytes: int, allocated: int = 0) -> int:
    """Checks that `nbytes` of memory are free on `host`, which is this host, or `allocated` of them already.

    Below 1 MiB nothing is checked: reading the free memory takes 100 us.

    Returns:
        In how many steps to allocate them, with another check before each: 1 where much more is free. Otherwise two
        jobs that find the last memory free at the same time would fill it, until the kernel kills one.

    Raises:
        CapacityError: They are not free.
    """
    if nbytes < _LEAST_CHECKED_BYTES:
        return 1
    free = memory_room().free + allocated
    if nbytes > free:
        cure = "Ask the batch system for more memory, start fewer ranks on the node, or share less."
        raise CapacityError(host, "memory", nbytes, free, cure)
    return -(-nbytes * MAX_STEPS // free)


def allocate_buffer(host: str, nbytes: int, cure: str) -> NDArray[np.uint8]:
    """Memory of this process alone, with arbitrary contents.

    Raises:
        CapacityError: `host`, which is this host, has no memory. It names the `cure`.
    """
    try:
        return np.empty(nbytes, np.uint8)
    except (MemoryError, ValueError, OverflowError) as error:
        raise CapacityError(host, "the memory of this process", nbytes, memory_room().free, cure) from error


def check_limits(host: str, nbytes: int, *, map_bytes: int, file_bytes: int = 0) -> None:
    """Checks that this process may map `map_bytes` more, and make a file of `file_bytes`, for an array of `nbytes`.

    Source:
        getrlimit(2), RLIMIT_AS and RLIMIT_FSIZE.

    Raises:
        CapacityError: It may not.
    """
    for option, place, number, wanted, used in (
        ("v", "the address space of a process", resource.RLIMIT_AS, map_bytes, _mapped_bytes),
        ("f", "a file", resource.RLIMIT_FSIZE, file_bytes, lambda: 0),
    ):
        limit = resource.getrlimit(number)[0]
        if limit != resource.RLIM_INFINITY and wanted > (free := max(limit - used(), 0)):
            raise CapacityError(host, place, nbytes, free, f"Raise the limit, ulimit -{option}, or share less.")


def _mapped_bytes() -> int:
    return int((text_of("/proc/self/statm") or "0").split()[0]) * resource.getpagesize()


def own_cores() -> frozenset[int]:
    """The cores that this process may run on: all of them where the system has no affinity, as macOS."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _merges_pages() -> bool:
    """Whether the kernel knows MADV_COLLAPSE: it refuses advice that it does not know, even on no bytes."""
    with mmap.mmap(-1, mmap.PAGESIZE) as page:
        try:
            page.madvise(MADV_COLLAPSE, 0, 0)
        except OSError:
            return False
    return True


def _selected(file: str) -> str:
    """The word in brackets of a sysfs file such as 'always [madvise] never'; "unknown" without one."""
    _, bracket, rest = text_of(file).partition("[")
    return rest.partition("]")[0] if bracket else "unknown"


@dataclass(frozen=True)
class Machine:
    """The facts about one host that decide how arrays are shared on it. A new object has those of this host.

    Attributes:
        kernel: Release of the running kernel.
        cores: Cores that this process may run on.
        host_cores: Cores of the host.
        page_bytes: Size of a page.
        shm: Space of /dev/shm; None if the host has none.
        huge_pages: The kernel's policy for transparent huge pages in private memory: always, madvise or never.
        shm_huge_pages: The same for shared memory.
        merges_pages: Whether the kernel merges small pages into huge ones on demand, whatever its policy is.
        memory_bytes: Physical memory.
        memory_domains: How many domains (NUMA nodes) it has.
        memory_limit: The smallest limit of the memory cgroups above this process, None if there is none.
    """

    kernel: str = field(default_factory=platform.release)
    cores: int = field(default_factory=lambda: len(own_cores()))
    host_cores: int = field(default_factory=lambda: os.cpu_count() or 1)
    page_bytes: int = mmap.PAGESIZE
    shm: Room | None = field(default_factory=lambda: room(SHM_DIR))
    huge_pages: str = field(default_factory=lambda: _selected(f"{_HUGE_PAGES}/enabled"))
    shm_huge_pages: str = field(default_factory=lambda: _selected(f"{_HUGE_PAGES}/shmem_enabled"))
    merges_pages: bool = field(default_factory=_merges_pages)
    memory_bytes: int = field(default_factory=_physical_bytes)
    memory_domains: int = field(default_factory=lambda: len([*_DOMAINS.glob("node[0-9]*")]) or 1)
    memory_limit: int | None = field(default_factory=memory_limit)
