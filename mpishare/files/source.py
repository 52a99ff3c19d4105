"""A file on a rank that reads it: opened when first asked for bytes, closed at the end, and the same all the while."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from types import TracebackType
from typing import Any, NamedTuple

from mpishare.errors import BackendError, FileError, MpishareError

_FOREIGN = (OSError, KeyError, RuntimeError, ValueError, TypeError)
"""What h5py raises where a file is broken or lacks what is asked for."""


class Stamp(NamedTuple):
    """What tells that a file is the one that was looked at, and was not written since."""

    inode: int
    nbytes: int
    written_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Stamp:
        """That of an open file."""
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)


@contextmanager
def naming(path: str, dataset: str | None = None) -> Iterator[None]:
    """A block whose errors are told with the names of the file and the dataset.

    Raises:
        FileError: The system or h5py refused something.
    """
    try:
        yield
    except MpishareError:
        raise
    except _FOREIGN as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else _first_line(error)
        raise FileError(path, dataset, reason) from error


def _first_line(error: BaseException) -> str:
    """The words of an error without their repeats: h5py adds the traceback of the HDF5 library."""
    words = error.args[0] if isinstance(error, KeyError) and error.args else error
    return (str(words).splitlines() or [type(error).__name__])[0]


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
        with naming(self.path):
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
        with naming(self.path):
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
        with naming(self.path):
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
        done = 0
        with naming(self.path):
            while done < len(place):
                count = os.preadv(self.descriptor, [place[done:]], offset + done)
                if not count:
                    raise FileError(self.path, None, f"ends at byte {offset + done:,}; it was longer. Load it again.")
                done += count
