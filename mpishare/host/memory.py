"""The memory of this host: how much there is, how much is free, and in which pages."""

from __future__ import annotations

import os
import platform
import resource
from dataclasses import dataclass

from mpishare.errors import CapacityError
from mpishare.host.cgroups import memory_left, memory_limit
from mpishare.host.filesystems import Room, room
from mpishare.host.procfs import table_of, text_of

SHM_DIR = "/dev/shm"  # noqa: S108 - only its free space is read
MAX_STEPS = 32
"""In how many steps all of the free memory is allocated."""

_LARGE_BYTES = 1 << 20
_HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage"


def memory_room() -> Room:
    """The memory that is available without swapping, within the limits of the control groups.

    Source:
        proc(5), /proc/meminfo, MemAvailable; sysconf(3) where the kernel does not report it.
    """
    kib, total = table_of("/proc/meminfo"), _physical_bytes()
    free = kib["MemAvailable"] << 10 if "MemAvailable" in kib else total
    left = memory_left()
    return Room("memory", total, free if left is None else min(free, left))


def _physical_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def memory_bytes() -> int:
    """The memory of this host, within the limits of the control groups, in bytes."""
    limit = memory_limit()
    return _physical_bytes() if limit is None else min(_physical_bytes(), limit)


def check_memory(host: str, nbytes: int, allocated: int = 0) -> int:
    """Checks that `nbytes` of memory are free on `host`, which is this host, or `allocated` of them already.

    Below 1 MiB nothing is checked: reading the free memory takes 100 us.

    Returns:
        In how many steps to allocate them, with another check before each: 1 where much more is free. Otherwise two
        jobs that find the last memory free at the same time would fill it, until the kernel kills one.

    Raises:
        CapacityError: They are not free.
    """
    if nbytes < _LARGE_BYTES:
        return 1
    free = memory_room().free + allocated
    if nbytes > free:
        cure = "Ask the batch system for more memory, start fewer ranks on the node, or share less."
        raise CapacityError(host, "memory", nbytes, free, cure)
    return -(-nbytes * MAX_STEPS // free)


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
    return int(text_of("/proc/self/statm").split()[0]) * resource.getpagesize()


@dataclass(frozen=True)
class Machine:
    """The facts about one host that decide how arrays are shared on it.

    Attributes:
        kernel: Release of the running kernel.
        cores: Cores that this process may run on.
        page_bytes: Size of a page.
        shm: Space of /dev/shm; None if the host has none.
        huge_pages: The kernel's policy for transparent huge pages in private memory: always, madvise or never.
        shm_huge_pages: The same for shared memory.
        memory_bytes: Physical memory.
        memory_limit: The smallest limit of the memory cgroups above this process, None if there is none.
    """

    kernel: str
    cores: int
    page_bytes: int
    shm: Room | None
    huge_pages: str
    shm_huge_pages: str
    memory_bytes: int
    memory_limit: int | None

    @classmethod
    def probe(cls) -> Machine:
        """The facts about this host."""
        return cls(
            kernel=platform.release(),
            cores=len(os.sched_getaffinity(0)),
            page_bytes=os.sysconf("SC_PAGE_SIZE"),
            shm=room(SHM_DIR),
            huge_pages=_selected(f"{_HUGE_PAGES}/enabled"),
            shm_huge_pages=_selected(f"{_HUGE_PAGES}/shmem_enabled"),
            memory_bytes=_physical_bytes(),
            memory_limit=memory_limit(),
        )


def _selected(file: str) -> str:
    """The word in brackets of a sysfs file such as 'always [madvise] never'; "unknown" without one."""
    _, bracket, rest = text_of(file).partition("[")
    return rest.partition("]")[0] if bracket else "unknown"
