"""What Linux says about this host: room in /dev/shm, pages, memory limits. Knows nothing of MPI."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Machine", "Room", "memory_limit", "memory_room", "room"]

SHM_DIR = "/dev/shm"  # noqa: S108 - asked for its size; no file is made in it by name
_HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage"


@dataclass(frozen=True)
class Room:
    """The space of a directory's file system, or of the memory itself, in bytes."""

    directory: str
    total: int
    free: int


def room(directory: str) -> Room | None:
    """The space of the file system that holds `directory`, None where there is no such directory."""
    try:
        found = os.statvfs(directory)
    except OSError:
        return None
    return Room(directory, found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)


def memory_room() -> Room:
    """The memory that can be had without swapping, within the limit of the control groups.

    Source:
        proc(5), /proc/meminfo, MemAvailable; sysconf where it is missing.
    """
    words = (line.split() for line in _text(Path("/proc/meminfo")).splitlines())
    kib = {word[0].rstrip(":"): int(word[1]) for word in words}
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = kib["MemAvailable"] << 10 if "MemAvailable" in kib else total
    limit = memory_limit()
    return Room("memory", total, free if limit is None else min(free, limit))


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
            memory_bytes=page * os.sysconf("SC_PHYS_PAGES"),
            memory_limit=memory_limit(),
        )


def memory_limit(proc: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """The smallest memory limit of the control groups of this process and their parents, in bytes.

    Source:
        cgroups(7); memory.max of version 2; memory.limit_in_bytes of version 1, near 2**63 where there is no limit.
    """
    limits = [limit for file in _limit_files(proc, root) if (limit := _number(file)) is not None]
    return min((limit for limit in limits if limit < 1 << 60), default=None)


def _limit_files(proc: Path, root: Path) -> list[Path]:
    """The files that limit the memory of this process, in the versions 1 and 2 of control groups."""
    files: list[Path] = []
    for line in _text(proc).splitlines():
        _, controllers, group = line.split(":", maxsplit=2)
        if controllers == "":
            base, name = root, "memory.max"
        elif "memory" in controllers.split(","):
            base, name = root / "memory", "memory.limit_in_bytes"
        else:
            continue
        inner = base / group.lstrip("/")
        files += [parent / name for parent in (inner, *inner.parents) if parent.is_relative_to(base)]
    return files


def _number(file: Path) -> int | None:
    text = _text(file).strip()
    return int(text) if text.isdigit() else None


def _chosen(file: str) -> str:
    """The word in brackets of a sysfs file such as 'always [madvise] never'; 'unknown' without one."""
    _, bracket, rest = _text(Path(file)).partition("[")
    return rest.partition("]")[0] if bracket else "unknown"


def _text(file: Path) -> str:
    """What a file of the kernel says; nothing where there is no such file, or it is not for us to read."""
    try:
        return file.read_text()
    except OSError:
        return ""
