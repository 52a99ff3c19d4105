"""The memory limits of the control groups that contain this process, and how much of them is left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mpishare.host.procfs import number_of, table_of, text_of

_PROC = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")
_NO_LIMIT_BYTES = 1 << 60
"""Version 1 reports a number near 2**63 where there is no limit."""


class _Files(NamedTuple):
    """The names of the files of one version of control groups."""

    limit: str
    used: str
    reclaimable: str


_VERSION_1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2 = _Files("memory.max", "memory.current", "inactive_file")


def memory_limit(proc: Path = _PROC, root: Path = _ROOT) -> int | None:
    """The smallest memory limit of the control groups of this process and their parents, in bytes; None without one.

    Source:
        cgroups(7); the kernel's documentation of control groups, "memory.max" and "memory.limit_in_bytes".
    """
    return min((limit for limit, _ in _limits(proc, root)), default=None)


def memory_left(proc: Path = _PROC, root: Path = _ROOT) -> int | None:
    """The bytes that this process can get before the first control group is full; None without a limit.

    File pages that the kernel would drop to make room count as free, as in MemAvailable.
    """
    left = min((limit - used for limit, used in _limits(proc, root)), default=None)
    return None if left is None else max(left, 0)


def _limits(proc: Path, root: Path) -> Iterator[tuple[int, int]]:
    """The limit and the used bytes of each group with a limit, of those of this process and their parents."""
    for line in text_of(proc).splitlines():
        _, controllers, group = line.split(":", maxsplit=2)
        if controllers == "":
            base, files = root, _VERSION_2
        elif "memory" in controllers.split(","):
            base, files = root / "memory", _VERSION_1
        else:
            continue
        inner = base / group.lstrip("/")
        for folder in (inner, *inner.parents):
            limit = number_of(folder / files.limit) if folder.is_relative_to(base) else None
            if limit is not None and limit < _NO_LIMIT_BYTES:
                reclaimable = table_of(folder / "memory.stat").get(files.reclaimable, 0)
                yield limit, (number_of(folder / files.used) or 0) - reclaimable
