"""What Linux says about this host: cores, pages, room in /dev/shm and in memory. Knows nothing of MPI."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass

from mpishare.errors import CapacityError
from mpishare.host.cgroups import memory_left, memory_limit
from mpishare.host.filesystems import Room, room
from mpishare.host.procfs import text_of

SHM_DIR = "/dev/shm"  # noqa: S108 - asked for its size; no file is made in it by name
_LARGE_BYTES = 1 << 20
_HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage"


def memory_room() -> Room:
    """The memory that can be had without swapping, within what the control groups leave.

    Source:
        proc(5), /proc/meminfo, MemAvailable; sysconf where it is missing.
    """
    words = (line.split() for line in text_of("/proc/meminfo").splitlines())
    kib = {word[0].rstrip(":"): int(word[1]) for word in words}
    total = _physical_bytes()
    free = kib["MemAvailable"] << 10 if "MemAvailable" in kib else total
    left = memory_left()
    return Room("memory", total, free if left is None else min(free, left))


def _physical_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def memory_bytes() -> int:
    """The memory of this host, within what the control groups allow."""
    total = _physical_bytes()
    limit = memory_limit()
    return total if limit is None else min(total, limit)


def check_memory(host: str, nbytes: int) -> None:
    """Returns when `nbytes` of memory can be had. Small sizes are let through, as asking takes 100 us.

    Raises:
        CapacityError: They cannot.
    """
    if nbytes < _LARGE_BYTES:
        return
    memory = memory_room()
    if nbytes > memory.free:
        cure = "Ask the batch system for more memory, start fewer ranks on the node, or share less."
        raise CapacityError(host, memory.directory, nbytes, memory.free, cure)


@dataclass(frozen=True)
class Machine:
    """The facts about one host that decide how arrays are shared on it.

    Attributes:
        kernel: Release of the running kernel.
        cores: Cores that this process may run on.
        page_bytes: Size of a page.
        shm: Space of /dev/shm, None without one.
        huge_pages: The kernel's policy for transparent huge pages in private memory: always, madvise or never.
        shm_huge_pages: The same for shared memory.
        memory_bytes: Physical memory.
        memory_limit: The smallest limit of the memory cgroups above this process, None without a limit.
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
    def here(cls) -> Machine:
        """Asks the running kernel."""
        page = os.sysconf("SC_PAGE_SIZE")
        return cls(
            kernel=platform.release(),
            cores=len(os.sched_getaffinity(0)),
            page_bytes=page,
            shm=room(SHM_DIR),
            huge_pages=_chosen(f"{_HUGE_PAGES}/enabled"),
            shm_huge_pages=_chosen(f"{_HUGE_PAGES}/shmem_enabled"),
            memory_bytes=_physical_bytes(),
            memory_limit=memory_limit(),
        )


def _chosen(file: str) -> str:
    """The word in brackets of a sysfs file such as 'always [madvise] never'; 'unknown' without one."""
    _, bracket, rest = text_of(file).partition("[")
    return rest.partition("]")[0] if bracket else "unknown"
