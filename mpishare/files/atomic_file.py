"""A new file beside the one that it is to replace: whoever reads sees the old one or the new one, never half of one."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from mpishare.errors import FileError
from mpishare.host.filesystems import room

_TEMPORARY = r"\.tmp\.[0-9a-f]{16}"
"""What follows the name of a file while a new one is written beside it."""

_LONGEST_NAME_BYTES = 200
"""So much of a name is kept in that of the file beside it, which together must not exceed the 255 bytes of Linux."""


class AtomicFile:
    """A new file in the folder of `path`, which takes its place by `commit` and else goes with the block.

    It is named like the file, with `.tmp.` and a number behind, and locked as long as it is written. One without a lock
    was left by a process that was killed, and the next save removes it.

    Attributes:
        path: The file to replace, or to make.
        temporary: The new one until then.
        fd: Its descriptor, for reading and writing.
        old: The file to replace as it was, None where there is none.

    Source:
        T. S. Pillai et al., "All file systems are not created equal: on the complexity of crafting crash-consistent
        applications", OSDI 2014: the file must be on the disk before its name is, and the folder after.
    """

    def __init__(self, path: Path, names: str | None = None) -> None:
        """`names` is a pattern for the names of files of which leftovers are removed; None for that of `path` alone."""
        self.path = _target(path)
        _remove_leftovers(self.path.parent, re.escape(_stem(self.path)) if names is None else names)
        self.old = _status(self.path)
        self.temporary, self.fd = _made(self.path.with_name(_stem(self.path)))
        self._is_there = True
        self._adds = False
        try:
            if self.old is not None:
                os.fchmod(self.fd, stat.S_IMODE(self.old.st_mode))
        except OSError:
            self._give_back()
            raise

    def check_room(self, nbytes: int) -> None:
        """Returns when the folder has room for so many.

        Raises:
            OSError: It has not.
        """
        found = room(str(self.path.parent))
        if found is not None and found.free < nbytes:
            told = f"{os.strerror(errno.ENOSPC)}, {nbytes:,} bytes are to be written and {found.free:,} are free"
            raise OSError(errno.ENOSPC, told)

    def copy_old(self) -> None:
        """Begins with the bytes of the file to replace.

        Raises:
            OSError: Another process writes to that, or there is no room.
        """
        old = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _lock_old(old)
            self._adds = True
            self.old = os.fstat(old)
            self.check_room(self.old.st_size)
            left = self.old.st_size
            while left and (copied := os.copy_file_range(old, self.fd, left)):
                left -= copied
        finally:
            os.close(old)

    def commit(self) -> None:
        """The new file, which must have been synced, takes the name. There is no way back then.

        Raises:
            OSError: Another process has written or replaced the file that was copied, which would be lost.
            FileError: It has the name, but that may not be on the disk yet.
        """
        if self._adds and _identity(_status(self.path)) != _identity(self.old):
            raise OSError(errno.EBUSY, "another process has changed the file meanwhile")
        self.temporary.replace(self.path)
        self._is_there = False
        try:
            _sync_folder(self.path.parent)
        except OSError as error:
            what = f"{error.strerror or error}; it was saved, but a loss of power may bring back what was there before"
            failure = FileError(str(self.path), None, what)
            failure.errno = error.errno
            raise failure from error

    def __enter__(self) -> AtomicFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._give_back()

    def _give_back(self) -> None:
        try:
            if self._is_there:
                self._is_there = False
                self.temporary.unlink(missing_ok=True)
        finally:
            os.close(self.fd)


def _target(path: Path) -> Path:
    """The file that `path` names, links followed.

    Raises:
        OSError: It is a folder, or something else that cannot be replaced by a file, or may not be written.
    """
    file = Path(os.path.realpath(path))  # Path.resolve has an error of its own for links in a circle
    status = _status(file)
    if status is None:
        return file
    if stat.S_ISDIR(status.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file, so that none can take its place")
    if not os.access(file, os.W_OK):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    return file


@contextmanager
def telling(path: Path, dataset: str | None, done: str = "saved") -> Iterator[None]:
    """Has an error of the system tell what was not saved, or not `done` what else.

    Raises:
        FileError: Where there was one; with its errno.
    """
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        failure = FileError(str(path), dataset, f"{error.strerror or error}; it was not {done}")
        failure.errno = error.errno
        raise failure from error


def _sync_folder(folder: Path) -> None:
    """Returns when the names in `folder` are on the disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that keep names at once
            raise
    finally:
        os.close(fd)


def _made(stem: Path) -> tuple[Path, int]:
    """A new file, open and locked."""
    while True:
        file = stem.with_name(f"{stem.name}.tmp.{secrets.token_hex(8)}")
        fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with suppress(OSError):  # a file system without locks, where leftovers stay
            fcntl.flock(fd, fcntl.LOCK_SH)  # which HDF5's own locks of readers get along with
        if os.fstat(fd).st_nlink:
            return file, fd
        os.close(fd)  # another save took it for a leftover before it was locked


def _remove_leftovers(folder: Path, names: str) -> None:
    """Removes the files beside those named like `names` that nobody has locked."""
    pattern = re.compile(f"({names}){_TEMPORARY}")
    for file in folder.iterdir():
        if pattern.fullmatch(file.name):
            with suppress(OSError):  # it is someone else's, locked, or gone
                _remove_unlocked(file)


def _remove_unlocked(file: Path) -> None:
    fd = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.unlink()
    finally:
        os.close(fd)


def _lock_old(fd: int) -> None:
    """Keeps writers of HDF5 away while the file is copied. One that is there already has a lock that keeps us away."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise OSError(errno.EBUSY, "another process has the file open for writing") from error
    except OSError:  # a file system without locks
        return


def _stem(path: Path) -> str:
    """The name of the file, as far as it fits."""
    return os.fsdecode(os.fsencode(path.name)[:_LONGEST_NAME_BYTES])


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _identity(status: os.stat_result | None) -> tuple[int, ...] | None:
    return None if status is None else (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
