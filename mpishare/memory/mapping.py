"""Linux memory maps that we own: made, protected and reserved by system calls, unmapped when their object goes."""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from errno import EINVAL
from pathlib import Path

from mpishare.memory import syscalls
from mpishare.memory.hugepages import aligned_range, collapse, huge_bytes

SINK_BYTES = 4 << 20
"""The memory that a sink takes, whatever its length."""


class Mapping:
    """A memory map of this process. It satisfies `Memory`.

    Attributes:
        address: Where the bytes begin; not always on a page.
    """

    lifetime = "goes with its last view"

    def __init__(self, address: int, start: int, length: int) -> None:
        """Takes over the map of `length` bytes at `start`, in which the bytes asked for begin at `address`."""
        self.address = address
        self._start = start
        self._length = length
        finalizer = weakref.finalize(self, syscalls.munmap, start, length)
        finalizer.atexit = False  # views may be read to the very end of the process, which unmaps by itself

    @classmethod
    def anonymous(cls, nbytes: int) -> Mapping:
        """Fresh memory of this process alone, shared in kind so that it behaves like the memory of a larger node.

        Raises:
            OSError: The kernel gives no more maps or memory.
        """
        start = _placed(nbytes, 0, lambda at: _map(at, nbytes, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS, -1))
        return cls(start, start, nbytes)

    @classmethod
    def of_file(cls, descriptor: int, nbytes: int) -> Mapping:
        """The first `nbytes` of an open file, which may be closed afterwards.

        Raises:
            OSError: The file cannot be mapped, or the kernel gives no more maps.
        """
        start = _placed(nbytes, 0, lambda at: _map(at, nbytes, mmap.MAP_SHARED, descriptor))
        return cls(start, start, nbytes)

    @classmethod
    def read_only(cls, descriptor: int, part: slice) -> Mapping:
        """Some bytes of an open file, which may be closed afterwards, as the kernel has them.

        Raises:
            OSError: The file cannot be mapped, or the kernel gives no more maps.
        """
        start = part.start & -mmap.PAGESIZE
        length = part.stop - start
        address = syscalls.map_file(None, length, mmap.MAP_SHARED, descriptor, start, writable=False)
        return cls(address + part.start - start, address, length)

    @classmethod
    def of_pages(cls, address: int, nbytes: int) -> Mapping:
        """A second map of the shared pages that are mapped at `address`. It outlives the first.

        Raises:
            OSError: The pages are private memory of the process (EINVAL), or there are too many maps (ENOMEM).
        """
        start = address & -mmap.PAGESIZE
        length = address - start + nbytes
        offset = _file_offset(start) if length >= huge_bytes() else 0
        copy = _placed(length, offset, lambda at: syscalls.mremap_copy(start, length, at))
        return cls(copy + address - start, copy, length)

    @classmethod
    def sink(cls, nbytes: int) -> Mapping:
        """A map in which the same pages lie again and again, for bytes that have to be put somewhere and are lost.

        Raises:
            OSError: The kernel gives no more maps or memory.
        """
        pages = cls.anonymous(SINK_BYTES)
        length = -(-nbytes // SINK_BYTES) * SINK_BYTES
        found = cls((start := syscalls.mmap_nothing(length)), start, length)
        for at in range(start, start + length, SINK_BYTES):
            syscalls.mremap_copy(pages.address, SINK_BYTES, at)
        return found

    def begin_on_huge_page(self) -> None:
        """Leaves out the bytes before the first huge page."""
        self.address += -self.address % huge_bytes()

    def reserve(self, part: slice) -> None:
        """Faults in the pages of `part`; see `populate`."""
        populate(self.address, part)

    def protect(self) -> None:
        """Makes the pages read-only: a stray store ends the process that makes it and no other.

        Raises:
            OSError: The kernel cannot split the map.
        """
        syscalls.mprotect(self._start, self._length, writable=False)

    def unprotect(self) -> None:
        """Makes them writable again.

        Raises:
            OSError: The kernel cannot split the map.
        """
        syscalls.mprotect(self._start, self._length, writable=True)

    def second(self) -> Mapping | None:
        """Another map of the same pages, None where there are too many maps."""
        skipped = self.address - self._start
        try:
            twin = self.__class__.of_pages(self._start, self._length)
        except OSError:
            return None
        twin.address += skipped
        return twin

    def private(self) -> Mapping | None:
        """The same pages copy-on-write, None where the kernel does not let us open the file behind them.

        Source:
            proc(5), /proc/pid/map_files: the files behind the maps, unlinked ones too. Opening one takes
            CAP_CHECKPOINT_RESTORE, and CAP_SYS_ADMIN before Linux 5.9.
        """
        start = _map(None, self._length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
        twin = Mapping(start + self.address - self._start, start, self._length)
        try:
            for area in _areas(self._start, self._start + self._length):
                with _opened(f"/proc/self/map_files/{area.start:x}-{area.stop:x}") as descriptor:
                    low, high = max(area.start, self._start), min(area.stop, self._start + self._length)
                    offset = area.offset + low - area.start
                    _map(start + low - self._start, high - low, mmap.MAP_PRIVATE, descriptor, offset)
        except (PermissionError, FileNotFoundError):
            return None
        return twin


def populate(address: int, part: slice) -> None:
    """Faults in pages for writing, so that one that cannot be had is an error here, not SIGBUS at a later touch.

    Args:
        address: Where the bytes begin.
        part: Which of them, from `address` on. Where huge pages fit in it, they are huge if the kernel can.

    Raises:
        MemoryError: The file system or the machine has no page left.

    Source:
        madvise(2), MADV_POPULATE_WRITE. Kernels before 5.14 do not know it (EINVAL), and then nothing is reserved.
    """
    start = (address + part.start) & -mmap.PAGESIZE
    stop = address + part.stop
    if part.stop <= part.start:
        return
    if stop - start >= huge_bytes():
        collapse(start, stop)
    error = syscalls.madvise(start, stop - start, syscalls.MADV_POPULATE_WRITE)
    if error not in (0, EINVAL):
        raise MemoryError(f"no pages for {part.stop - part.start:,} bytes: {os.strerror(error)}")


@dataclass(frozen=True)
class _Area:
    """A line of /proc/self/maps: the addresses, and the offset of the first in the file behind them."""

    start: int
    stop: int
    offset: int


def _areas(start: int, stop: int) -> Iterator[_Area]:
    """The areas of this process that overlap the addresses from `start` to `stop`."""
    with Path("/proc/self/maps").open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            span, _, offset, *_ = line.split(maxsplit=3)
            low, high = (int(end, 16) for end in span.split("-"))
            if low < stop and start < high:
                yield _Area(low, high, int(offset, 16))


@contextmanager
def _opened(path: str) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _file_offset(address: int) -> int:
    """How far into the file behind it the page at `address` lies; 0 where nothing is mapped."""
    return next((area.offset + address - area.start for area in _areas(address, address + 1)), 0)


def _placed(length: int, offset: int, make: Callable[[int | None], int]) -> int:
    """What `make` maps, at an address at which huge pages fit if it is large enough for one; where it begins."""
    if length < huge_bytes():
        return make(None)
    target = aligned_range(length, offset)
    try:
        return make(target)
    except OSError:
        syscalls.munmap(target, length)
        raise


def _map(address: int | None, nbytes: int, flags: int, descriptor: int, offset: int = 0) -> int:
    """A new map, in the place of what is mapped at `address` if that is given."""
    fixed = 0 if address is None else syscalls.MAP_FIXED
    return syscalls.map_file(address, nbytes, flags | fixed, descriptor, offset)
