"""A file as HDF5 is to see it: what HDF5 writes stays in memory, and goes to the disk by our own calls.

HDF5 cannot be closed when one of its own writes fails: it keeps the file, tries again when the process ends, and may
end in a segmentation fault (seen with HDF5 2.0.0). Here none of its writes fails.
"""

from __future__ import annotations

import io
import os
from typing import Any

from mpishare.files.parallel_write import put

_PAGE_BYTES = 4096


class WriteBuffer(io.RawIOBase):
    """An open file with changes that are in memory only, for h5py's file-like objects.

    Source:
        The h5py reference, "Python file-like objects".
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._size = os.fstat(fd).st_size
        self._at = 0
        self._pages: dict[int, bytearray] = {}

    def seekable(self) -> bool:
        """It is, and may be read and written."""
        return True

    readable = writable = seekable

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """As of any file."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        """As of any file."""
        return self._at

    def truncate(self, size: int | None = None) -> int:
        """As of any file."""
        self._size = self._at if size is None else size
        return self._size

    def readinto(self, place: Any) -> int:
        """As of any file."""
        target = memoryview(place).cast("B")
        count = max(min(target.nbytes, self._size - self._at), 0)
        for number, page, part in self._cut(count):
            start = number * _PAGE_BYTES + page.start - self._at
            target[start : start + part] = self._page(number)[page]
        self._at += count
        return count

    def write(self, content: Any) -> int:
        """As of any file, but in memory."""
        source = memoryview(content).cast("B")
        for number, page, part in self._cut(source.nbytes):
            start = number * _PAGE_BYTES + page.start - self._at
            changed = self._pages.setdefault(number, self._page(number))
            changed[page] = source[start : start + part]
        self._at += source.nbytes
        self._size = max(self._size, self._at)
        return source.nbytes

    def _cut(self, count: int) -> list[tuple[int, slice, int]]:
        """The pages of the next so many bytes, with what of each it is, and how much."""
        found, at, end = [], self._at, self._at + count
        while at < end:
            number, start = divmod(at, _PAGE_BYTES)
            part = min(_PAGE_BYTES - start, end - at)
            found.append((number, slice(start, start + part), part))
            at += part
        return found

    def _page(self, number: int) -> bytearray:
        """A page as it is now."""
        known = self._pages.get(number)
        if known is None:
            known = bytearray(os.pread(self._fd, _PAGE_BYTES, number * _PAGE_BYTES).ljust(_PAGE_BYTES, b"\0"))
        return known

    def apply(self) -> None:
        """Writes the changes to the file.

        Raises:
            OSError: They cannot be written.
        """
        os.ftruncate(self._fd, self._size)
        for number, page in sorted(self._pages.items()):
            at = number * _PAGE_BYTES
            put(self._fd, at, memoryview(page)[: max(self._size - at, 0)])
