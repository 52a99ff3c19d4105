"""A file on a rank that reads it: opened when first asked for bytes, closed at the end, and the same all the while."""

from __future__ import annotations

import os
import stat
from contextlib import ExitStack
from functools import cached_property
from types import TracebackType
from typing import Any, NamedTuple

from mpishare.errors import BackendError, FileError
from mpishare.files.errors import file_errors


class Stamp(NamedTuple):
    """What tells that a file is the one that was looked at, and was not written since."""

    inode: int
    nbytes: int
    written_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Stamp:
        """That of an open file."""
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)


def read_exactly(fd: int, offset: int, buffer: memoryview) -> None:
    """Fills `buffer` with the bytes of an open file from `offset` on.

    Raises:
        OSError: They cannot be read.
        EOFError: The file ends before them.
    """
    end = offset + buffer.nbytes
    while buffer.nbytes:
        count = os.preadv(fd, [buffer], offset)
        if not count:
            raise EOFError(f"the file ends at byte {offset:,}, but its contents go on to byte {end:,}")
        buffer, offset = buffer[count:], offset + count


class Source:
    """A file to read from. A context manager, which closes it.

    Attributes:
        path: Its name.
    """

    def __init__(self, path: str, stamp: Stamp | None = None) -> None:
        """`stamp` is that of the rank that looked at the file, None on that rank itself."""
        self.path = path
        self._known = stamp
        self._opened: list[int] = []
        self._stack = ExitStack()

    def __enter__(self) -> Source:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def stamp(self) -> Stamp:
        """That of the file, which is open from here on."""
        if self._known is None:
            self._known = Stamp.of(os.fstat(self.descriptor))
        return self._known

    @cached_property
    def descriptor(self) -> int:
        """The file, opened to read bytes.

        Raises:
            FileError: It cannot be, or is no regular file, or is another than the one that was looked at.
        """
        with file_errors(self.path):
            if not stat.S_ISREG(os.stat(self.path).st_mode):  # noqa: PTH116 - to open a pipe would wait for its writer
                is_folder = stat.S_ISDIR(os.stat(self.path).st_mode)  # noqa: PTH116
                raise FileError(self.path, None, "is a folder" if is_folder else "is no regular file")
            found = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            self._stack.callback(os.close, found)
            self._note(found)
        return found

    @cached_property
    def hdf5(self) -> Any:
        """The file, opened by h5py.

        Another program may not open it for writing meanwhile, where the file system has locks; and where one has it
        open so, it is refused here. HDF5_USE_FILE_LOCKING=FALSE switches that off, as for h5py itself.

        Raises:
            FileError: It is no HDF5 file, or a broken one, or another than the one that was looked at.
            BackendError: h5py is not installed.

        Source:
            The h5py documentation, "File locking".
        """
        try:
            import h5py
        except ImportError as error:
            raise BackendError(
                f"{self.path} can be read with h5py, which is not installed: pip install h5py"
            ) from error
        with file_errors(self.path):
            found = h5py.File(self.path, "r", locking="best-effort")
            self._stack.callback(found.close)
            self._note(found.id.get_vfd_handle())
        return found

    def _note(self, descriptor: int) -> None:
        if self._known is not None:
            self._check(descriptor)
        self._opened.append(descriptor)

    def check_end(self, stop: int, dataset: str | None = None) -> None:
        """Returns when the file goes on to byte `stop`.

        Raises:
            FileError: It is truncated.
        """
        if stop > self.stamp.nbytes:
            reason = f"is truncated: it has {self.stamp.nbytes:,} bytes, and the array goes on to byte {stop:,}."
            raise FileError(self.path, dataset, reason)

    def check(self) -> None:
        """Returns when the file is still as it was when it was looked at.

        Raises:
            FileError: It was written meanwhile, or another has taken its name.
        """
        with file_errors(self.path):
            for descriptor in self._opened:
                self._check(descriptor)

    def _check(self, descriptor: int) -> None:
        found = Stamp.of(os.fstat(descriptor))
        if found != self._known:
            reason = f"was changed while it was read: it had {self._known}, and now has {found}. Load it again."
            raise FileError(self.path, None, reason)

    def read(self, offset: int, place: memoryview) -> None:
        """Fills `place` with the bytes from `offset` on.

        Raises:
            FileError: They cannot be read, or the file ends before.
        """
        with file_errors(self.path):
            read_exactly(self.descriptor, offset, place)
