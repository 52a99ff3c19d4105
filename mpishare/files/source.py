"""A file that a rank reads: opened at the first read, closed after the call, refused if it changes meanwhile."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import cached_property
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from mpishare.errors import BackendError, FileError
from mpishare.files.errors import file_errors, with_outcome


class Stamp(NamedTuple):
    """What changes when a file is replaced or written."""

    inode: int
    nbytes: int
    written_ns: int

    def __str__(self) -> str:
        return f"inode {self.inode}, {self.nbytes:,} bytes and the time {np.datetime64(self.written_ns, 'ns')} (UTC)"

    @classmethod
    def of(cls, file: int | os.PathLike[str]) -> Stamp:
        """The stamp of an open file, by its descriptor, or of the file at a path."""
        status = os.stat(file)  # noqa: PTH116 - pathlib takes no descriptor
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


def read_bytes(fd: int, offset: int, nbytes: int) -> bytes:
    """The `nbytes` bytes of an open file from `offset` on. See `read_exactly`."""
    buffer = bytearray(nbytes)
    read_exactly(fd, offset, memoryview(buffer))
    return bytes(buffer)


def _folder_text(path: str) -> str:
    """What a folder is, and what to do with it.

    Source:
        The Zarr storage specifications, version 2 ("Storage") and version 3 ("Metadata").
    """
    markers = {"zarr.json": " 3", ".zarray": " 2", ".zgroup": " 2", ".zmetadata": " 2"}
    version = next((markers[name] for name in markers if os.path.lexists(f"{path}/{name}")), "")
    if version or path.rstrip("/").endswith(".zarr"):
        return f"is a folder of the format zarr{version}. Read it with the zarr package, and share that."
    return "is a folder. Give the name of a file."


class _H5py:
    """The module h5py, which is imported when the first of its attributes is used."""

    def __getattr__(self, name: str) -> Any:
        value = vars(self)[name] = getattr(_imported_h5py(), name)
        return value


def _imported_h5py() -> Any:
    try:
        import h5py
    except ImportError as error:
        raise BackendError(_NO_H5PY) from error
    return h5py


_NO_H5PY = "HDF5 files need h5py, which is not installed: pip install h5py"


def check_h5py(*, imports: bool) -> None:
    """Checks that h5py is installed. A rank that will not use it need not import it.

    Raises:
        BackendError: It is not.
    """
    if imports:
        _imported_h5py()
    elif find_spec("h5py") is None:
        raise BackendError(_NO_H5PY)


h5py: Any = _H5py()
"""h5py for all that read or write HDF5 files. Its use raises BackendError if it is not installed."""


class Source(ExitStack):
    """A file to read from, and those that its external links lead to. Leaving the context closes them.

    Attributes:
        path: Its name.
    """

    def __init__(self, path: str, stamps: Mapping[str, Stamp] | None = None, linked_from: str = "") -> None:
        """`stamps` are those of the rank that inspected the files, by path; None on that rank.

        `linked_from` is the file that leads to this one by a link.
        """
        super().__init__()
        self.path = path
        self._inspected = stamps or {}
        self._stamp = self._inspected.get(path)
        self._link = linked_from and f"{linked_from} leads to it by a link"
        self._linked: dict[str, Source] = {}
        self._descriptors: list[int] = []

    @property
    def stamp(self) -> Stamp:
        """The stamp of the file when it was inspected."""
        return self._stamp or Stamp.of(self.descriptor)

    @property
    def stamps(self) -> dict[str, Stamp]:
        """The stamps of this file and of those behind its links, by path."""
        return {file.path: file.stamp for file in (self, *self._linked.values())}

    def linked(self, target: tuple[str, str] | None) -> Source:
        """The file that has the dataset `target`, which begins with the path of the file; None for this one."""
        if target is None:
            return self
        if target[0] not in self._linked:
            file = Source(target[0], self._inspected, self.path)
            self._linked[target[0]] = self.enter_context(file)
        return self._linked[target[0]]

    def errors(self, dataset: str | None = None) -> AbstractContextManager[None]:
        """A block whose errors name the file, and the one that leads to it; see `file_errors`."""
        return file_errors(self.path, dataset, self._link)

    def error(self, reason: str, dataset: str | None = None) -> FileError:
        """What is wrong with the file, as an error that names it, and the one that leads to it."""
        return FileError(self.path, dataset, with_outcome(reason, self._link))

    @cached_property
    def descriptor(self) -> int:
        """The file, opened to read bytes.

        Raises:
            FileError: It cannot be opened, is not a regular file, or has changed since it was inspected.
        """
        with self.errors():
            mode = os.stat(self.path).st_mode  # noqa: PTH116 - before it is opened: a pipe would wait for its writer
            if not stat.S_ISREG(mode):
                raise self.error(_folder_text(self.path) if stat.S_ISDIR(mode) else "is not a regular file")
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            self.callback(os.close, descriptor)
            self._add(descriptor)
        return descriptor

    @cached_property
    def hdf5(self) -> Any:
        """The file, opened by h5py.

        Where the file system has locks, no other program can open it for writing meanwhile, and a file that is open
        for writing is refused.

        Raises:
            FileError: It is not an HDF5 file, is damaged, or has changed since it was inspected.
            BackendError: h5py is not installed.

        Source:
            The h5py documentation, "File locking".
        """
        with self.errors():
            try:
                access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)  # as h5py.File does, which takes a third longer
                access.set_file_locking(True, ignore_when_disabled=True)
                file = h5py.File(h5py.h5f.open(os.fsencode(self.path), h5py.h5f.ACC_RDONLY, access))
            except OSError as error:
                if error.errno is not None or h5py.is_hdf5(self.path):
                    raise
                raise self.error(self._unknown_format()) from error
            self.callback(file.close)
            self._add(file.id.get_vfd_handle())
        vars(self).setdefault("descriptor", self._descriptors[-1])  # which reads its bytes, too
        return file

    def object(self, name: str) -> Any:
        """The object of that name in an HDF5 file, as h5py's low-level object."""
        return h5py.h5o.open(self.hdf5.id, name.encode(errors="surrogateescape"))

    def _unknown_format(self) -> str:
        nbytes = self.stamp.nbytes
        reason = f"its {nbytes:,} bytes begin with {self.read_bytes(0, min(nbytes, 8))!r}"
        return f"is neither a .npy nor an HDF5 file: {reason}. Read it with the library of its format, and share that."

    def _add(self, descriptor: int) -> None:
        stamp = Stamp.of(descriptor)
        self._stamp = self._stamp or stamp
        self._descriptors.append(descriptor)
        self._check(stamp)

    def check(self) -> None:
        """Returns if the file, and those behind its links, are as they were inspected.

        Raises:
            FileError: It was written, or another has taken its name.
        """
        with self.errors():
            for descriptor in self._descriptors:
                self._check(Stamp.of(descriptor))
        for file in self._linked.values():
            file.check()

    def _check(self, stamp: Stamp) -> None:
        if stamp != self._stamp:
            text = f"was changed while it was read: it had {self._stamp}, and now has {stamp}. Load it again."
            raise self.error(text)

    def check_end(self, stop: int, dataset: str | None = None) -> None:
        """Returns if the file has at least `stop` bytes.

        Raises:
            FileError: It is truncated.
        """
        if stop > self.stamp.nbytes:
            reason = f"is truncated: it has {self.stamp.nbytes:,} bytes, and the array goes on to byte {stop:,}."
            raise self.error(reason, dataset)

    def read(self, offset: int, buffer: memoryview) -> None:
        """Fills `buffer` with the bytes from `offset` on.

        Raises:
            FileError: They cannot be read, or the file ends before.
        """
        with self.errors():
            read_exactly(self.descriptor, offset, buffer)

    def read_bytes(self, offset: int, nbytes: int) -> bytes:
        """The `nbytes` bytes from `offset` on. See `read`."""
        with self.errors():
            return read_bytes(self.descriptor, offset, nbytes)
