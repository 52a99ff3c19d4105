"""The memory limits of the control groups that contain this process, and how much of them is left."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mpishare.host.procfs import number_of, table_of, text_of

_PROC = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")
_NO_LIMIT_BYTES = 1 << 60
"""Version 1 reports a number near 2**63 where there is no limit."""


@dataclass(frozen=True)
class _Files:
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
    return min((limit for _, limit, _ in _limits(proc, root)), default=None)


def memory_left(proc: Path = _PROC, root: Path = _ROOT) -> int | None:
    """The bytes that this process can get before the first control group is full; None without a limit.

    File pages that the kernel would drop to make room count as free, as in MemAvailable.
    """
    rooms = [limit - _used(group, files) for group, limit, files in _limits(proc, root)]
    return max(min(rooms), 0) if rooms else None


def _limits(proc: Path, root: Path) -> list[tuple[Path, int, _Files]]:
    """The control groups of this process that have a limit, with the limit in bytes."""
    limits = ((group, number_of(group / files.limit), files) for group, files in _groups(proc, root))
    return [(group, limit, files) for group, limit, files in limits if limit is not None and limit < _NO_LIMIT_BYTES]


def _groups(proc: Path, root: Path) -> list[tuple[Path, _Files]]:
    """The folders of the groups of this process that control memory, and of their parents, in both versions."""
    groups: list[tuple[Path, _Files]] = []
    for line in text_of(proc).splitlines():
        _, controllers, group = line.split(":", maxsplit=2)
        if controllers == "":
            base, files = root, _VERSION_2
        elif "memory" in controllers.split(","):
            base, files = root / "memory", _VERSION_1
        else:
            continue
        inner = base / group.lstrip("/")
        groups += [(parent, files) for parent in (inner, *inner.parents) if parent.is_relative_to(base)]
    return groups


def _used(group: Path, files: _Files) -> int:
    return (number_of(group / files.used) or 0) - table_of(group / "memory.stat").get(files.reclaimable, 0)
