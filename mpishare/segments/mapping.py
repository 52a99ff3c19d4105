"""Linux memory maps that we own: made, protected and reserved by system calls, unmapped when their object goes."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

__all__ = ["Mapping", "populate"]

# Numbers from the kernel's uapi/asm-generic/mman-common.h and uapi/linux/mman.h; Python's mmap lacks them.
_MAP_FIXED = 0x10
_MREMAP_MAYMOVE = 1
_MADV_POPULATE_WRITE = 23  # since Linux 5.14
_MAP_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.mremap.restype = ctypes.c_void_p
_libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


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
        finalizer = weakref.finalize(self, _libc.munmap, start, length)
        finalizer.atexit = False  # views may be read to the very end of the process, which unmaps by itself

    @classmethod
    def anonymous(cls, nbytes: int) -> Mapping:
        """Fresh memory of this process alone, shared in kind so that it behaves like the memory of a larger node.

        Raises:
            OSError: The kernel gives no more maps or memory.
        """
        start = _mmap(None, nbytes, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS, -1, 0)
        return cls(start, start, nbytes)

    @classmethod
    def of_file(cls, descriptor: int, nbytes: int) -> Mapping:
        """The first `nbytes` of an open file, which may be closed afterwards.

        Raises:
            OSError: The file cannot be mapped, or the kernel gives no more maps.
        """
        start = _mmap(None, nbytes, mmap.MAP_SHARED, descriptor, 0)
        return cls(start, start, nbytes)

    @classmethod
    def second(cls, address: int, nbytes: int) -> Mapping:
        """A second map of the shared pages that are mapped at `address`. It outlives the first.

        Source:
            mremap(2): "If the value of old_size is zero, and old_address refers to a shareable mapping, then mremap()
            will create a new mapping of the same pages."

        Raises:
            OSError: The pages are private memory of the process (EINVAL), or there are too many maps (ENOMEM).
        """
        start = address & -mmap.PAGESIZE
        length = address - start + nbytes
        copy = _checked_address(_libc.mremap(start, 0, length, _MREMAP_MAYMOVE))
        return cls(copy + address - start, copy, length)

    def reserve(self, part: slice) -> None:
        """Faults in the pages of `part`; see `populate`."""
        populate(self.address, part)

    def protect(self) -> None:
        """Makes the pages read-only: a stray store ends the process that makes it and no other.

        Raises:
            OSError: The kernel cannot split the map.
        """
        if _libc.mprotect(self._start, self._length, mmap.PROT_READ):
            _raise_errno()

    def private(self) -> Mapping | None:
        """The same pages copy-on-write, None where the kernel does not let us open the file behind them.

        Source:
            proc(5), /proc/pid/map_files: the files behind the maps, unlinked ones too. Opening one takes
            CAP_CHECKPOINT_RESTORE, and CAP_SYS_ADMIN before Linux 5.9.
        """
        start = _mmap(None, self._length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        twin = Mapping(start + self.address - self._start, start, self._length)
        try:
            for area in _areas(self._start, self._start + self._length):
                with _opened(f"/proc/self/map_files/{area.start:x}-{area.stop:x}") as descriptor:
                    low, high = max(area.start, self._start), min(area.stop, self._start + self._length)
                    offset = area.offset + low - area.start
                    _mmap(start + low - self._start, high - low, mmap.MAP_PRIVATE | _MAP_FIXED, descriptor, offset)
        except (PermissionError, FileNotFoundError):
            return None
        return twin


def populate(address: int, part: slice) -> None:
    """Faults in pages for writing, so that one that cannot be had is an error here, not SIGBUS at a later touch.

    Args:
        address: Where the bytes begin.
        part: Which of them, from `address` on.

    Raises:
        MemoryError: The file system or the machine has no page left.

    Source:
        madvise(2), MADV_POPULATE_WRITE. Kernels before 5.14 do not know it (EINVAL), and then nothing is reserved.
    """
    start = (address + part.start) & -mmap.PAGESIZE
    length = address + part.stop - start
    if part.stop > part.start and _libc.madvise(start, length, _MADV_POPULATE_WRITE):
        number = ctypes.get_errno()
        if number != errno.EINVAL:
            raise MemoryError(f"no pages for {part.stop - part.start:,} bytes: {os.strerror(number)}")


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


def _mmap(address: int | None, nbytes: int, flags: int, descriptor: int, offset: int) -> int:
    """A new map for reading and writing; where it begins."""
    return _checked_address(_libc.mmap(address, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, descriptor, offset))


def _checked_address(address: int) -> int:
    if address == _MAP_FAILED:
        _raise_errno()
    return address


def _raise_errno() -> NoReturn:
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number))
