"""A file as HDF5 sees it: what HDF5 writes stays in memory until our own calls write it to the disk.

HDF5 cannot be closed when one of its own writes fails: it keeps the file, tries again when the process ends, and may
end in a segmentation fault (seen with HDF5 2.0.0). With this buffer none of its writes fails.
"""

from __future__ import annotations

import io
import os
from typing import Any

from mpishare.files.atomic_file import write_exactly


class WriteBuffer(io.RawIOBase):
    """An open file with changes in memory, for h5py's file-like objects. Its methods are those of any Python file.

    Source:
        The h5py reference, "Python file-like objects".
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._size = os.fstat(fd).st_size
        self._position = 0
        self._writes: list[tuple[int, bytes]] = []  # offsets and data, in order; HDF5 reads few of them again

    def seekable(self) -> bool:
        """True."""
        return True

    readable = writable = seekable

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """See `io.IOBase.seek`."""
        self._position = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        return self._position

    def tell(self) -> int:
        """See `io.IOBase.tell`."""
        return self._position

    def truncate(self, size: int | None = None) -> int:
        """See `io.IOBase.truncate`."""
        self._size = self._position if size is None else size
        return self._size

    def readinto(self, buffer: Any) -> int:
        """See `io.RawIOBase.readinto`."""
        start = self._position
        target = memoryview(buffer).cast("B")[: max(self._size - start, 0)]
        target[:] = os.pread(self._fd, target.nbytes, start).ljust(target.nbytes, b"\0")
        for offset, data in self._writes:
            low, high = max(offset, start), min(offset + len(data), start + target.nbytes)
            if low < high:
                target[low - start : high - start] = data[low - offset : high - offset]
        self._position += target.nbytes
        return target.nbytes

    def write(self, data: Any) -> int:
        """See `io.RawIOBase.write`."""
        copy = bytes(data)
        self._writes.append((self._position, copy))
        self._position += len(copy)
        self._size = max(self._size, self._position)
        return len(copy)

    def apply(self) -> None:
        """Writes the changes to the file.

        Raises:
            OSError: They cannot be written.
        """
        os.ftruncate(self._fd, self._size)
        for offset, data in self._writes:
            write_exactly(self._fd, offset, memoryview(data)[: max(self._size - offset, 0)])
