"""The control groups above this process: how much memory they allow, and how much of that is left."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mpishare.host.procfs import text_of

_PROC = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")
_NO_LIMIT_BYTES = 1 << 60
"""Version 1 says that there is no limit by a number near 2**63."""


@dataclass(frozen=True)
class _Files:
    """What the files of one version of control groups are called."""

    limit: str
    used: str
    reclaimable: str


_VERSION_1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2 = _Files("memory.max", "memory.current", "inactive_file")


def memory_limit(proc: Path = _PROC, root: Path = _ROOT) -> int | None:
    """The smallest memory limit of the control groups of this process and their parents, None without one.

    Source:
        cgroups(7); the kernel's documentation of control groups, "memory.max" and "memory.limit_in_bytes".
    """
    return min((limit for _, limit, _ in _limits(proc, root)), default=None)


def memory_left(proc: Path = _PROC, root: Path = _ROOT) -> int | None:
    """The bytes that may be had before the tightest control group is full, None without a limit.

    Pages of files that the kernel would drop to make room count as free, as MemAvailable counts them.
    """
    rooms = [limit - _used(group, files) for group, limit, files in _limits(proc, root)]
    return max(min(rooms), 0) if rooms else None


def _limits(proc: Path, root: Path) -> list[tuple[Path, int, _Files]]:
    """Each group above this process that has a limit, and the limit."""
    found = []
    for group, files in _groups(proc, root):
        limit = _number(group / files.limit)
        if limit is not None and limit < _NO_LIMIT_BYTES:
            found.append((group, limit, files))
    return found


def _groups(proc: Path, root: Path) -> list[tuple[Path, _Files]]:
    """The groups of this process that control memory, and their parents, in both versions."""
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
    words = (line.split() for line in text_of(group / "memory.stat").splitlines())
    stat = {word[0]: int(word[1]) for word in words}
    return (_number(group / files.used) or 0) - stat.get(files.reclaimable, 0)


def _number(file: Path) -> int | None:
    text = text_of(file).strip()
    return int(text) if text.isdigit() else None
