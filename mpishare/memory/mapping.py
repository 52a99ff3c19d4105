"""Linux memory maps of this process: made, protected and populated by system calls, unmapped with their object."""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from mpishare.host.procfs import text_of
from mpishare.memory import kept_files, syscalls
from mpishare.memory.hugepages import aligned_range, collapse, is_aligned
from mpishare.memory.stray_stores import ReadOnlyRange


class Mapping:
    """A memory map of this process, for one array or for several in turn.

    Attributes:
        address: Where the bytes begin; not always on a page.
    """

    def __init__(self, address: int, start: int, length: int) -> None:
        """Takes over the map of `length` bytes at `start`, in which the bytes begin at `address`."""
        self.address = address
        self._start = start
        self._length = length
        self._file: int | None = None
        self._file_offset = 0
        self._read_only: list[ReadOnlyRange] = []
        finalizer = weakref.finalize(self, _unmap, start, length, self._read_only)
        finalizer.atexit = False  # views may be read to the very end of the process, which unmaps everything

    @classmethod
    def anonymous(cls, nbytes: int) -> Mapping:
        """New memory of this process alone. Its map is a shared one, so that it can be mapped a second time.

        Raises:
            OSError: The kernel allows no more maps or memory.
        """
        return cls.of_file(-1, nbytes, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)

    @classmethod
    def of_file(cls, descriptor: int, nbytes: int, *, flags: int = mmap.MAP_SHARED) -> Mapping:
        """The first `nbytes` of an open file, which may be closed afterwards.

        Raises:
            OSError: The file cannot be mapped, or the kernel allows no more maps.
        """
        start = _map_aligned(nbytes, 0, lambda target: syscalls.map_file(target, nbytes, flags, descriptor))
        return cls(start, start, nbytes)

    def keep_file(self, descriptor: int, offset: int = 0) -> None:
        """Takes over a descriptor of the file, of which these are the bytes from `offset` on, for `copy_on_write`."""
        self._file = kept_files.keep(descriptor)
        self._file_offset = offset
        weakref.finalize(self, kept_files.close, self._file).atexit = False

    @classmethod
    def read_only(cls, descriptor: int, part: slice) -> Mapping:
        """The bytes of `part` of an open file, which may be closed afterwards.

        Raises:
            OSError: The file cannot be mapped, or the kernel allows no more maps.
        """
        offset = part.start & -mmap.PAGESIZE
        length = part.stop - offset
        start = syscalls.map_file(None, length, mmap.MAP_SHARED, descriptor, offset, access=mmap.PROT_READ)
        mapping = cls(start + part.start - offset, start, length)
        with suppress(OSError):  # no descriptor is left
            mapping.keep_file(os.dup(descriptor), offset)
        return mapping

    @classmethod
    def of_pages(cls, address: int, nbytes: int, find_offset: Callable[[int], int] | None = None) -> Mapping | None:
        """A second map of the shared pages that are mapped at `address`. It outlives the first.

        Args:
            address: Where the bytes begin in the first map.
            nbytes: How many there are.
            find_offset: Called in place of `file_offset` where huge pages fit.

        Returns:
            The map; None where the pages are private memory of the process (EINVAL), or there are too many maps
            (ENOMEM).
        """
        start = address & -mmap.PAGESIZE
        length = address - start + nbytes
        offset = (find_offset or file_offset)(start) if is_aligned(length) else 0
        try:
            copy = _map_aligned(length, offset, lambda target: syscalls.mremap_copy(start, length, target))
        except OSError:
            return None
        return cls(copy + address - start, copy, length)

    def reserve(self, part: slice) -> None:
        """Allocates pages for writing, so that a missing page is an error of this call, not SIGBUS at a later access.

        Args:
            part: The bytes whose pages to allocate. Whole huge pages in it become huge if possible.

        Raises:
            MemoryError: The file system or the machine has no page left.
        """
        start = (self.address + part.start) & -mmap.PAGESIZE
        stop = self.address + part.stop
        if part.stop <= part.start:
            return
        collapse(start, stop)
        error = syscalls.populate(start, stop)
        if error:
            raise MemoryError(f"no pages for {part.stop - part.start:,} bytes: {os.strerror(error)}")

    def read_only_range(self, slot_bytes: int) -> ReadOnlyRange:
        """The addresses, where the calls that made read-only arrays in slots of this size are noted."""
        if not self._read_only:
            self._read_only.append(ReadOnlyRange(self.address, self._start + self._length - self.address, slot_bytes))
        return self._read_only[0]

    def protect(self) -> None:
        """Makes the pages read-only: a stray write ends the process that does it and no other.

        Raises:
            OSError: The kernel cannot split the map.
        """
        syscalls.mprotect(self._start, self._length, mmap.PROT_READ)

    def unprotect(self) -> None:
        """Makes the pages writable again.

        Raises:
            OSError: The kernel cannot split the map.
        """
        syscalls.mprotect(self._start, self._length, syscalls.READ_WRITE)

    def second_map(self) -> Mapping | None:
        """Another map of the same pages; None if there are too many maps."""
        return self.of_pages(self.address, self._start + self._length - self.address)

    def copy_on_write(self) -> Mapping | None:
        """A private map of the same pages; None where their file is not kept open."""
        if self._file is None:
            return None
        with kept_files.used(self._file) as descriptor, suppress(OSError):  # there are too many maps
            if descriptor is not None:
                return self._private_map(descriptor)
        return None

    def _private_map(self, descriptor: int) -> Mapping:
        def make(target: int | None) -> int:
            return syscalls.map_file(target, self._length, mmap.MAP_PRIVATE, descriptor, self._file_offset)

        start = _map_aligned(self._length, self._file_offset, make)
        return Mapping(start + self.address - self._start, start, self._length)


class Origin(NamedTuple):
    """The facts about memory that segments report.

    Attributes:
        backend: Title of the backend that provides it; "private" for a copy-on-write view.
        node_size: Number of ranks on the node.
        is_shared: Whether these ranks see one copy, or each has its own.
        refusals: For each backend that was tried before, the reason why it was not used, by title.
    """

    backend: str
    node_size: int
    is_shared: bool = True
    refusals: dict[str, str] = {}  # noqa: RUF012 - never changed


class Allocated(NamedTuple):
    """Memory of this node, and where it comes from."""

    memory: Mapping
    origin: Origin


def _unmap(start: int, length: int, read_only: list[ReadOnlyRange]) -> None:
    for addresses in read_only:
        addresses.end()
    syscalls.munmap(start, length)


def file_offset(address: int) -> int:
    """The offset of the page at `address` in the mapped file; 0 if nothing is mapped there. It takes up to 1 ms."""
    for line in text_of("/proc/self/maps").splitlines():
        addresses, _, offset, *_ = line.split(maxsplit=3)
        first, stop = (int(end, 16) for end in addresses.split("-"))
        if first <= address < stop:
            return int(offset, 16) + (address & -mmap.PAGESIZE) - first
    return 0


def _map_aligned(length: int, offset: int, make: Callable[[int | None], int]) -> int:
    """Calls `make` with an address at which huge pages fit, or None where none do; returns where the map begins."""
    if not is_aligned(length):
        return make(None)
    target = aligned_range(length, offset)
    try:
        return make(target)
    except OSError:
        syscalls.munmap(target, length)
        raise
