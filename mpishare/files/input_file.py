"""A file that a rank reads: opened at the first read, closed after the call, refused if it changes meanwhile."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.slices import chunks
from mpishare.errors import FileError
from mpishare.files.errors import file_errors
from mpishare.files.stored import Listing, Stored

_STAGED_BYTES = 1 << 20
"""Items of a slice with a step are read by one call, with the bytes between them, if all lie within this."""

ReadAt = Callable[[int, memoryview], None]
"""Fills a buffer with the bytes from an offset on."""


class Stamp(NamedTuple):
    """What changes when a file is replaced or written."""

    inode: int
    nbytes: int
    written_ns: int

    @classmethod
    def of(cls, file: int | os.PathLike[str]) -> Stamp:
        """The stamp of an open file, by its descriptor, or of the file at a path."""
        status = os.stat(file)  # noqa: PTH116 - pathlib takes no descriptor
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)


def check_stamp(path: str, before: Stamp, now: Stamp) -> None:
    """Returns if the stamp of a file is as it was `before`.

    Raises:
        FileError: The file was changed.
    """
    if now != before:
        raise FileError(path, None, "was changed while it was read. Load it again.")


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


class InputFile(ExitStack):
    """A file to read from. Leaving the context closes it, and what the readers of its format have opened.

    Attributes:
        path: Its name.
        stamps: The stamps of the rank that inspected the file, by name: its own under "", and of other files that hold
            some of its arrays. On that rank it fills while the file is inspected.
    """

    def __init__(self, path: str, stamps: dict[str, Stamp] | None = None, name: str = "") -> None:
        """`stamps` are those of the rank that inspected the file; None on that rank. `name` is the name among them."""
        super().__init__()
        self.path = path
        self.stamps = {} if stamps is None else stamps
        self._name = name
        self._descriptors: list[int] = []
        self._others: dict[str, InputFile] = {}

    @property
    def absolute_path(self) -> str:
        """Its name for ranks that work in another folder."""
        return os.path.abspath(self.path)  # noqa: PTH100 - does not resolve links

    @property
    def stamp(self) -> Stamp:
        """The stamp of the file when it was inspected."""
        return self.stamps.get(self._name) or Stamp.of(self.descriptor)

    @cached_property
    def descriptor(self) -> int:
        """The file, opened to read bytes.

        Raises:
            FileError: It cannot be opened, is not a regular file, or has changed since it was inspected.
        """
        with file_errors(self.path):
            mode = os.stat(self.path).st_mode  # noqa: PTH116 - before it is opened: a pipe would wait for its writer
            if not stat.S_ISREG(mode):
                is_folder = stat.S_ISDIR(mode)
                reason = "is a folder, and not of zarr. Give a file." if is_folder else "is not a regular file"
                raise FileError(self.path, None, reason)
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            self.callback(os.close, descriptor)
        self.watch(descriptor)
        return descriptor

    def watch(self, descriptor: int) -> None:
        """Checks now, and at each `check`, that a descriptor is of the file as it was inspected; it may read bytes.

        Raises:
            FileError: It is not.
        """
        self.stamps.setdefault(self._name, Stamp.of(descriptor))
        self._descriptors.append(descriptor)
        vars(self).setdefault("descriptor", descriptor)
        self.check()

    def other(self, path: str) -> InputFile:
        """Another file, by its absolute path, which holds some of the arrays of this one."""
        if path not in self._others:
            self._others[path] = self.enter_context(InputFile(path, self.stamps, path))
        return self._others[path]

    def file_of(self, stored: Stored) -> InputFile:
        """The file that has the bytes of an array."""
        return self if stored.target is None else self.other(stored.target[0])

    def check(self) -> None:
        """Returns if the file, and the others that were read, are as they were inspected.

        Raises:
            FileError: One was written, or another has taken its name.
        """
        for stamp in map(Stamp.of, self._descriptors):
            check_stamp(self.path, self.stamps[self._name], stamp)
        for other in self._others.values():
            other.check()

    def check_end(self, stop: int, dataset: str | None = None) -> None:
        """Returns if the file has at least `stop` bytes.

        Raises:
            FileError: It is truncated.
        """
        if stop > self.stamp.nbytes:
            reason = f"is truncated: it has {self.stamp.nbytes:,} bytes, and the array ends at byte {stop:,}."
            raise FileError(self.path, dataset, reason)

    def read_bytes(self, offset: int, nbytes: int) -> bytes:
        """The `nbytes` bytes from `offset` on.

        Raises:
            FileError: They cannot be read, or the file ends before.
        """
        with file_errors(self.path):
            return read_bytes(self.descriptor, offset, nbytes)

    def read(self, stored: Stored, ranges: Sequence[range], out: NDArray[np.void]) -> None:
        """Reads items of an array whose bytes lie in the file as they would in memory. See `FormatReader`."""
        with file_errors(self.path, stored.name):
            read_items(partial(read_exactly, self.file_of(stored).descriptor), stored, ranges, out)


class FormatReader:
    """An open file of one format: it describes the arrays in the file, and reads a tile of one into memory.

    A new format is a class derived from this one and an entry in `FORMATS`. An array whose bytes lie in a file as in
    memory has an `offset`: `InputFile.read` reads it. A file that another library opens is a `sliced.LibraryFile`.
    The `file` closes what the reader has opened: `file.callback`.

    A format that has strings of any length (`Stored.is_text`) also has `strings(stored, ranges)`: the items as an array
    with bytes of Python in the place of strings.

    Attributes:
        file: The file, which reads the others.
        broken_links: The names of the links that were tried and lead nowhere, or back to a group that they are in.
    """

    def __init__(self, file: InputFile) -> None:
        self.file = file
        self.broken_links: set[str] = set()

    def listing(self, name: str | None, *, attributes: bool) -> Listing:
        """Describes the arrays in an object of the file, or the one array of that name.

        Args:
            name: A dataset or a group; None for the whole file.
            attributes: Whether to read the attributes as well.

        Raises:
            FileError: There is no such object, or the file is damaged.
            SpecError: No array in memory can be as the one in the file.
            BackendError: A package that reads the format is not installed.
        """
        raise NotImplementedError

    def read(self, stored: Stored, ranges: Sequence[range], out: NDArray[np.void]) -> None:
        """Fills `out` with the stored items of these indices along each axis, the slowest axis of the file first.

        Raises:
            FileError: They cannot be read, or are damaged.
        """
        self.file.read(stored, ranges, out)

    def check(self) -> None:
        """Returns if the file is as it was inspected; every rank calls it last.

        Raises:
            FileError: It has changed.
        """
        self.file.check()


def read_items(read_at: ReadAt, stored: Stored, ranges: Sequence[range], out: NDArray[np.void]) -> None:
    """Fills `out` with items of an array whose bytes lie as in memory, from its `offset` on; see `FormatReader`."""
    assert stored.offset is not None
    along = list(zip(ranges, stored.strides, strict=True))
    offset = stored.offset + sum(indices.start * stride for indices, stride in along)
    strides = tuple(indices.step * stride for indices, stride in along)
    if stored.spec.order == "F":
        strides, out = strides[::-1], out.T
    _read_rows(read_at, offset, strides, out)


def _read_rows(read_at: ReadAt, offset: int, strides: tuple[int, ...], out: NDArray[np.void]) -> None:
    """Fills `out` with items that lie `strides` bytes apart in a file, from `offset` on, the slowest axis first."""
    nbytes = out.itemsize + sum((length - 1) * stride for length, stride in zip(out.shape, strides, strict=True))
    if out.flags.c_contiguous and nbytes == out.nbytes:
        read_at(offset, out.reshape(-1).view(np.uint8).data)
    elif nbytes <= _STAGED_BYTES:
        staged = np.empty(nbytes, np.uint8)
        read_at(offset, staged.data)
        out[...] = np.ndarray(out.shape, out.dtype, staged, strides=strides)
    elif len(out) == 1:
        _read_rows(read_at, offset, strides[1:], out[0, ...])
    else:
        for rows in chunks(len(out), max(_STAGED_BYTES // strides[0], 1)):
            _read_rows(read_at, offset + rows.start * strides[0], strides, out[rows])
