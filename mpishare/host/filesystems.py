"""Directories as places for bytes: how much room they have, and whether they lie on this host."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from mpishare.host.procfs import text_of

_NODE_LOCAL = frozenset(
    {"tmpfs", "ramfs", "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "overlay", "jfs", "reiserfs"}
)
"""File systems that one host has to itself. Any other may be on a network, and is taken to be."""


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


def is_node_local(directory: str, mounts: Path = Path("/proc/self/mountinfo")) -> bool:
    """Whether `directory` lies on a file system that belongs to this host alone."""
    return type_of(directory, mounts) in _NODE_LOCAL


def type_of(directory: str, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """The type of the file system that holds `directory`, such as "tmpfs" or "nfs4"; "unknown" if nothing says so.

    Source:
        proc(5), /proc/pid/mountinfo. Of several mounts on one directory the last is the one that is seen.
    """
    place, best, found = Path(os.path.realpath(directory)), -1, "unknown"
    for line in text_of(mounts).splitlines():
        before, _, after = line.partition(" - ")
        mount = Path(_unescaped(before.split()[4]))
        if place.is_relative_to(mount) and len(mount.parts) >= best:
            best, found = len(mount.parts), after.split()[0]
    return found


def _unescaped(text: str) -> str:
    """The kernel writes a space, a tab, a newline and a backslash of a path as octal numbers."""
    for escape, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(escape, character)
    return text
