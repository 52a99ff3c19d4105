"""What a new file takes over from the file that it replaces, besides its name: who may use it, and how it is kept."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

_ACL = "system.posix_acl_access"
_STRIPING = "lustre.lov"

_COPIED = ("user.", "system.")
"""The namespaces of extended attributes that are copied. Those of "security" and "trusted" belong to the system: a
capability or a checksum is that of the old bytes."""


def make_striped(file: Path, old: Path) -> bool:
    """Makes `file` with the striping of `old`, for its owner alone, if that lies on Lustre; returns whether it does.

    Lustre takes a striping only before a file is opened for the first time.

    Raises:
        OSError: The file cannot be made, or exists.

    Source:
        The Lustre manual, "Extended Attributes"; mpifileutils and GNU tar copy a striping in the same way.
    """
    try:
        striping = os.getxattr(old, _STRIPING)
    except OSError:  # another file system
        return False
    os.mknod(file, stat.S_IFREG | stat.S_IRUSR | stat.S_IWUSR)
    with suppress(OSError):  # such as that of a pool that is no longer there
        os.setxattr(file, _STRIPING, striping)
    return True


def pass_on(old: Path, status: os.stat_result, fd: int) -> None:
    """Gives an open file the group, extended attributes, ACL and permissions of another, and as root its owner.

    What this process may not set stays as it is. Then the group gets no more than all others have, as in vim: it may be
    another group.

    Args:
        old: The other file.
        status: Its status.
        fd: The open file, which only its owner may use so far.

    Raises:
        OSError: The permissions cannot be set.
    """
    with suppress(OSError):
        for name in os.listxattr(old):
            if name.startswith(_COPIED) and name != _ACL:
                with suppress(OSError):
                    os.setxattr(fd, name, os.getxattr(old, name))
    mode = status.st_mode & 0o777  # setuid and setgid are not ours to pass on
    if not (_has_group(fd, status) and _has_acl(fd, old)):
        mode &= 0o707 | (mode & 0o007) << 3
    os.fchmod(fd, mode)


def _has_group(fd: int, status: os.stat_result) -> bool:
    """Whether the open file has the group of `status` now."""
    for owner in (status.st_uid, -1):
        with suppress(OSError):  # only root may give a file away, and others only to groups that they are in
            os.fchown(fd, owner, status.st_gid)
            break
    return os.fstat(fd).st_gid == status.st_gid


def _has_acl(fd: int, old: Path) -> bool:
    """Whether the open file has the ACL of `old` now; without one it loses what the folder's default ACL gave it."""
    try:
        acl = os.getxattr(old, _ACL)
    except OSError:
        with suppress(OSError):
            os.removexattr(fd, _ACL)
        return True
    with suppress(OSError):
        os.setxattr(fd, _ACL, acl)
        return True
    return False
