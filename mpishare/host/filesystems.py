"""The file systems of directories: how much space they have, whether other hosts share them; files without a name."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import sys
from dataclasses import dataclass
from errno import EINVAL, ENOSYS
from pathlib import Path

from mpishare.host.procfs import IS_LINUX, text_of

IN_MEMORY = frozenset({"tmpfs", "ramfs"})
"""Types of file systems whose files take memory, and count in the control group of the process that writes them."""

_NODE_LOCAL = IN_MEMORY | {
    *("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "overlay", "jfs", "reiserfs")
}
"""Types of file systems that belong to one host. Any other type counts as a network file system."""

_MFD_CLOEXEC = 1  # these two from uapi/linux/memfd.h
_MFD_NOEXEC_SEAL = 8  # since Linux 6.3
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Room:
    """Space in bytes, of a directory's file system or of the memory of this host."""

    directory: str
    total: int
    free: int


def room(directory: str) -> Room | None:
    """The space of the file system that holds `directory`; None if the directory does not exist.

    A file system in memory without a limit of its own reports no blocks at all.
    """
    try:
        total, _, free = shutil.disk_usage(directory)
    except OSError:
        return None
    return Room(directory, total, free) if total else Room(directory, sys.maxsize, sys.maxsize)


def is_node_local(directory: str, mounts: Path = Path("/proc/self/mountinfo")) -> bool:
    """Whether `directory` lies on a file system that belongs to this host alone."""
    return type_of(directory, mounts) in _NODE_LOCAL


def refusal_of(directory: str) -> str:
    """Why no nameless file of this host alone can be made in `directory`; "" if one was made, without bytes.

    Source:
        open(2), O_TMPFILE.
    """
    if room(directory) is None:
        return f"there is no folder {directory}"
    if not is_node_local(directory):
        return f"{directory} is on {type_of(directory)}, which other hosts may share"
    try:
        os.close(nameless_file(directory))
    except OSError as error:
        return f"no nameless file can be created in {directory}: {error.strerror}"
    return ""


def nameless_file(directory: str) -> int:
    """The descriptor of a new file in `directory` that has no name."""
    return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)


def memfd_create(label: str = "") -> int:
    """The descriptor of a new file without a name in the kernel's own tmpfs. /proc shows the `label`.

    Source:
        memfd_create(2), of the C library: a Python that was built on an old system lacks `os.memfd_create`, as in
        miniforge and uv. Kernels 6.3 to 6.5 refuse files that could become executable where vm.memfd_noexec is 2;
        kernels before 6.3 do not know the flag against that (EINVAL).

    Raises:
        OSError: The kernel refuses it, is not Linux, or the C library has no such function (ENOSYS: glibc before 2.27).
    """
    if not (IS_LINUX and hasattr(_libc, "memfd_create")):
        raise OSError(ENOSYS, os.strerror(ENOSYS))
    for flags in (_MFD_CLOEXEC | _MFD_NOEXEC_SEAL, _MFD_CLOEXEC):
        descriptor: int = _libc.memfd_create(f"mpishare{label}".encode(), flags)
        number = ctypes.get_errno()
        if descriptor >= 0 or number != EINVAL:
            break
    if descriptor < 0:
        raise OSError(number, os.strerror(number))
    return descriptor


def type_of(directory: str, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """The type of the file system that holds `directory`, such as "tmpfs" or "nfs4"; "unknown" if no mount is known.

    Source:
        proc(5), /proc/pid/mountinfo. Of several mounts on one directory, the last one hides the others.
    """
    path, longest, system = Path(os.path.realpath(directory)), -1, "unknown"
    for line in text_of(mounts).splitlines():
        before, _, after = line.partition(" - ")
        # The kernel writes space, tab, newline and backslash as octal numbers.
        mount = Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), before.split()[4]))
        if path.is_relative_to(mount) and len(mount.parts) >= longest:
            longest, system = len(mount.parts), after.split()[0]
    return system
