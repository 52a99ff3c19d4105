"""A new file that takes the place of another: whoever reads sees the old one or the new one, never half of one."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

from mpishare.files.errors import file_errors
from mpishare.files.input_file import Stamp
from mpishare.host.filesystems import room
from mpishare.host.procfs import has_ended, reopening_path, scope

_TEMPORARY = re.compile(
    r"(?s:.+)\.tmp\.[\w-]{0,63}\.(?P<pid>[1-9]\d{0,6})\.(?P<scope>[0-9a-f]{8})[0-9a-f]{8}", re.ASCII
)
"""The name of a temporary file: the file's own, the host, the process id and where that is valid, and a number."""

_LONGEST_STEM_BYTES = 150
"""The name of the temporary file begins with at most this much of the file's. Linux allows names of 255 bytes."""

_ABANDONED_S = 86_400
"""Nobody has written to a temporary file for so long whose process has ended. It cannot be asked on another host."""


class AtomicFile:
    """A temporary file in the folder of `path`, which takes the name of `path` by `commit`, or is removed.

    Its name has the process that writes it. The first save of a process in a folder removes what others left there: the
    files of processes that have ended, and files that are a day old, as a process of another host or PID namespace
    cannot be asked. A folder may have a million files, and is not listed for each save.

    Attributes:
        path: The file to replace or to make, symbolic links followed.
        temporary: The new file, until `commit`.
        fd: Its descriptor, for reading and writing.
        old: The status of the file to replace, None if there is none.

    Source:
        T. S. Pillai et al., "All file systems are not created equal: on the complexity of crafting crash-consistent
        applications", OSDI 2014: the file must be on the disk before its name is, and the folder after.
    """

    def __init__(self, path: Path) -> None:
        """Makes the temporary file, and removes the temporary files that killed saves left.

        Raises:
            OSError: The file cannot be made, or `path` is not a file or may not be written.
        """
        self.path, self.old = _target(path)
        _remove_leftovers(self.path.parent)
        self.temporary, self.fd = _create(self.path, 0o666 if self.old is None else 0o600)
        self._copied: Stamp | None = None

    def check_room(self, nbytes: int) -> None:
        """Checks that the file system of the folder has `nbytes` free.

        Raises:
            OSError: It has less.
        """
        space = room(str(self.path.parent))
        if space is not None and space.free < nbytes:
            raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {space.free:,} of {nbytes:,} bytes are free")

    def copy_old(self) -> None:
        """Copies the bytes of the old file, which must exist. No HDF5 program may be writing to it.

        Raises:
            OSError: Another process writes to it, or it cannot be copied.
        """
        with self.path.open("rb") as old:
            try:
                fcntl.flock(old, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise OSError(errno.EBUSY, "another process has the file open for writing") from error
            except OSError:  # a file system without locks
                pass
            self._copied = Stamp.of(old.fileno())
            copied, made = reopening_path(old.fileno(), self.path), reopening_path(self.fd, self.temporary)
            shutil.copyfile(copied, made)  # within the kernel

    def sync(self) -> None:
        """Gives the new file the old one's group, permissions and attributes, and waits until it is on the disk.

        Raises:
            OSError: The disk fails.
        """
        if self.old is not None:
            _pass_on(self.path, self.old, self.fd, self.temporary)
        os.fsync(self.fd)

    def commit(self) -> None:
        """Gives the new file the name of the old one, which is gone then. Call `sync` before.

        Raises:
            OSError: Another process has changed the file that was copied. Its changes would be lost.
            FileError: The new file has the name, but perhaps not on the disk.
        """
        if self._copied is not None and self._copied != Stamp.of(self.path):
            raise OSError(errno.EBUSY, "another process has changed the file meanwhile")
        self.temporary.replace(self.path)
        with file_errors(self.path, None, "it was saved, but a loss of power may bring back the file before it"):
            sync_folder(self.path.parent)

    def __enter__(self) -> AtomicFile:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # the disk has become read-only: a later job removes it
            self.temporary.unlink(missing_ok=True)
        with suppress(OSError):  # `sync` reports what could not be written
            os.close(self.fd)


def write_exactly(fd: int, offset: int, data: memoryview) -> None:
    """Writes all bytes of `data` to an open file from `offset` on.

    Raises:
        OSError: There is no room for them, or the disk fails.
    """
    while data.nbytes:
        count = os.pwrite(fd, data, offset)
        data, offset = data[count:], offset + count


def sync_folder(folder: Path) -> None:
    """Waits until the names in `folder` are on the disk.

    Raises:
        OSError: The disk fails.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that write names at once
            raise
    finally:
        os.close(fd)


def _target(path: Path) -> tuple[Path, os.stat_result | None]:
    """The file that `path` names, symbolic links followed; and its status, None if it does not exist.

    Raises:
        OSError: It is a folder or another thing that a file cannot replace, or it may not be written.
    """
    file = Path(os.path.realpath(path))  # Path.resolve raises RuntimeError for circular links
    try:
        status = file.stat()
    except FileNotFoundError:
        return file, None
    if stat.S_ISDIR(status.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file, so no file can replace it")
    check_access(file, os.W_OK)
    return file, status


def check_access(path: Path, mode: int, subject: str = "") -> None:
    """Checks that this process may use a file or a folder as `os.access` says.

    Raises:
        OSError: It may not, or the file system is mounted read-only; which of these, and the `subject`.
    """
    if not os.access(path, mode):
        number = errno.EROFS if os.statvfs(path).f_flag & os.ST_RDONLY else errno.EACCES
        raise OSError(number, f"{os.strerror(number)}: {subject}" if subject else os.strerror(number))


def _create(path: Path, mode: int) -> tuple[Path, int]:
    """A new file beside another, and its descriptor."""
    stem = os.fsdecode(os.fsencode(path.name)[:_LONGEST_STEM_BYTES])
    host = re.sub(r"[^\w-]", "_", os.uname().nodename.partition(".")[0], flags=re.ASCII)[:63]
    file = path.with_name(f"{stem}.tmp.{host}.{os.getpid()}.{scope():08x}{secrets.token_hex(4)}")
    return file, os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)


def _pass_on(old: Path, status: os.stat_result, fd: int, path: Path) -> None:
    """Gives an open file the group, extended attributes, ACL and permissions of another, and as root its owner.

    What this process may not set stays as it is. If the group differs, it gets no more than all others have.

    Raises:
        OSError: The permissions cannot be set.
    """
    mode = status.st_mode & 0o777  # setuid and setgid are not ours to pass on
    with suppress(OSError):
        os.fchown(fd, status.st_uid if os.geteuid() == 0 else -1, status.st_gid)
    if os.fstat(fd).st_gid != status.st_gid:
        mode &= 0o707 | (mode & 0o007) << 3
    with suppress(OSError):
        shutil.copystat(old, reopening_path(fd, path))  # a stranger may put a link where the file has its name
    os.utime(fd)  # it is new, though it has the name of the old one
    os.fchmod(fd, mode)


@cache
def _remove_leftovers(folder: Path) -> None:
    """Removes the temporary files in a folder that no process writes to any more, once a process."""
    for file in folder.iterdir():
        match = _TEMPORARY.fullmatch(file.name)
        if match is not None:
            with suppress(OSError):  # it is gone, or of another user
                is_old = file.stat().st_mtime < time.time() - _ABANDONED_S
                if is_old or (int(match["scope"], 16) == scope() and has_ended(int(match["pid"]))):
                    file.unlink()
