"""Linux memory maps of this process: made, protected and populated by system calls, unmapped with their object."""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from mpishare.memory import kept_files, syscalls
from mpishare.memory.hugepages import aligned_range, collapse, is_aligned
from mpishare.memory.stray_stores import ReadOnlyRange


class Mapping:
    """A memory map of this process, for one array or for several in turn.

    Attributes:
        address: Where the bytes begin; not always on a page.
        lifetime: When the memory is released, as a phrase for users.
        can_protect: Whether `protect` makes its pages read-only.
    """

    lifetime = "goes with its last view"
    can_protect = True

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
            OSError: No file can be opened, on a kernel before 5.14.
        """
        start = (self.address + part.start) & -mmap.PAGESIZE
        stop = self.address + part.stop
        if part.stop <= part.start:
            return
        collapse(start, stop)
        error = syscalls.populate(start, stop)
        if error:
            raise MemoryError(f"no pages for {part.stop - part.start:,} bytes: {os.strerror(error)}")

    def name(self, made_by: str, *, offset: int = 0, slot_bytes: int = 0) -> None:
        """Notes which call made the read-only array at `offset`, for who stores into it.

        Args:
            made_by: The public call.
            offset: Where the array begins.
            slot_bytes: The bytes of a slot where several arrays share the map; the same each time.
        """
        if not self._read_only:
            nbytes = self._start + self._length - self.address
            self._read_only.append(ReadOnlyRange(self.address, nbytes, slot_bytes or nbytes))
        self._read_only[0].name(offset // slot_bytes if slot_bytes else 0, made_by)

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
        """A private map of the same pages; None where their file is not kept open and may not be opened again."""
        try:
            if self._file is not None:
                with kept_files.used(self._file) as descriptor:
                    if descriptor is not None:
                        return self._private_map(descriptor)
            return self._private_map_of_reopened()
        except OSError:
            return None

    def _private_map(self, descriptor: int) -> Mapping:
        def make(target: int | None) -> int:
            return syscalls.map_file(target, self._length, mmap.MAP_PRIVATE, descriptor, self._file_offset)

        start = _map_aligned(self._length, self._file_offset, make)
        return Mapping(start + self.address - self._start, start, self._length)

    def _private_map_of_reopened(self) -> Mapping:
        """The same, of the files that the kernel names.

        Source:
            proc(5), /proc/pid/map_files: the files behind the maps, unlinked ones too. Opening one takes
            CAP_CHECKPOINT_RESTORE, and CAP_SYS_ADMIN before Linux 5.9.

        Raises:
            OSError: This process may not open them.
        """
        start = syscalls.map_file(None, self._length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
        twin = Mapping(start + self.address - self._start, start, self._length)
        for low, high, offset in _areas(self._start, self._start + self._length):
            first, stop = max(low, self._start), min(high, self._start + self._length)
            with Path(f"/proc/self/map_files/{low:x}-{high:x}").open("rb", buffering=0) as file:
                target = start + first - self._start
                syscalls.map_file(target, stop - first, mmap.MAP_PRIVATE, file.fileno(), offset + first - low)
        return twin


def _unmap(start: int, length: int, read_only: list[ReadOnlyRange]) -> None:
    for addresses in read_only:
        addresses.end()
    syscalls.munmap(start, length)


def _areas(start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """The maps of this process that overlap the addresses from `start` to `stop`.

    Yields:
        The first address of a map, the address behind it, and the offset of the first one in the mapped file.
    """
    with Path("/proc/self/maps").open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            addresses, _, offset, *_ = line.split(maxsplit=3)
            first, last = (int(end, 16) for end in addresses.split("-"))
            if first < stop and start < last:
                yield first, last, int(offset, 16)


def file_offset(address: int) -> int:
    """The offset of the page at `address` in the mapped file; 0 if nothing is mapped there. It takes up to 1 ms."""
    start = address & -mmap.PAGESIZE
    return next((offset + start - first for first, _, offset in _areas(start, start + 1)), 0)


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
