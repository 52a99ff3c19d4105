"""Linux memory maps of this process: made, protected and populated, and unmapped with their object."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import weakref
from collections.abc import Callable
from contextlib import suppress
from errno import EFAULT, ENOMEM, ENOSPC
from functools import partial
from typing import NamedTuple

from mpishare.arrays.slices import round_up
from mpishare.memory import pages


class Origin(NamedTuple):
    """The facts about memory that segments report.

    Attributes:
        backend: Title of the backend that provides it; "private" for a copy-on-write view.
        node_size: Number of ranks on the node.
        node: The number of the node; see `topology`.
        is_shared: Whether these ranks see one copy, or each has its own.
        refusals: For each backend that was tried before, the reason why it was not used, by title.
    """

    backend: str
    node_size: int
    is_shared: bool = True
    refusals: dict[str, str] = {}  # noqa: RUF012 - never changed
    node: int = 0


MAX_KEPT = 64
"""The most files that are kept open, so that their maps can be mapped again as copy-on-write. The newest are kept.
A map itself needs no descriptor, and a process has few."""

_LARGEST_PART = 16
"""They take at most one in 16 of the descriptors that the process may have (RLIMIT_NOFILE)."""


class OpenFile:
    """A descriptor that is closed with the last reference to this object.

    Attributes:
        descriptor: Its number in this process.
        keeps: What must live as long.
    """

    keeps: object = None

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        weakref.finalize(self, os.close, descriptor).atexit = False


_kept: dict[int, OpenFile] = {}
"""The files that are kept open, by the start of the map, the newest last.

Single dict operations only: a finalizer, or another thread, may run between any two bytecodes.
"""


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
        self._file_offset = 0
        self._own_file: OpenFile | None = None
        self._unmap_at_end()

    def _unmap_at_end(self) -> None:
        self._finalizer = weakref.finalize(self, _unmap, self._start, self._length)
        self._finalizer.atexit = False  # views may be read to the very end of the process, which unmaps everything

    @classmethod
    def anonymous(cls, nbytes: int) -> Mapping:
        """New memory of this process alone. Its map is a shared one, so that it can be mapped a second time.

        Raises:
            OSError: The kernel allows no more maps or memory.
        """
        return cls.of_file(-1, nbytes, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)

    @classmethod
    def of_file(cls, descriptor: int, nbytes: int, offset: int = 0, *, flags: int = mmap.MAP_SHARED) -> Mapping:
        """The `nbytes` of an open file from `offset` on, a whole number of pages. It may be closed afterwards.

        Raises:
            OSError: The file cannot be mapped, or the kernel allows no more maps.
        """
        make = partial(pages.map_file, length=nbytes, flags=flags, descriptor=descriptor, offset=offset)
        start = _map_aligned(nbytes, offset, make)
        return cls(start, start, nbytes)

    @classmethod
    def read_only(cls, descriptor: int, part: slice) -> Mapping:
        """The bytes of `part` of an open file, which may be closed afterwards.

        Raises:
            OSError: The file cannot be mapped, or the kernel allows no more maps.
        """
        offset = part.start & -mmap.PAGESIZE
        length = part.stop - offset
        start = pages.map_file(None, length, mmap.MAP_SHARED, descriptor, offset, access=mmap.PROT_READ)
        mapping = cls(start + part.start - offset, start, length)
        with suppress(OSError):  # no descriptor is left
            mapping.keep_file(OpenFile(os.dup(descriptor)), offset)
        return mapping

    @classmethod
    def of_pages(cls, address: int, nbytes: int, file_offset: int = 0) -> Mapping:
        """A second map of the shared pages that are mapped at `address`. It outlives the first.

        Args:
            address: Where the bytes begin in the first map.
            nbytes: How many there are.
            file_offset: Where their first page is in the mapped file, so that huge pages fit.

        Raises:
            OSError: The pages are private memory of the process (EINVAL), or there are too many maps (ENOMEM).
        """
        start = address & -mmap.PAGESIZE
        length = address - start + nbytes
        copy = _map_aligned(length, file_offset, lambda target: pages.mremap_copy(start, length, target))
        return cls(copy + address - start, copy, length)

    def read_only_twin(self) -> Mapping:
        """Another map of the same pages, which is read-only.

        Raises:
            OSError: There are too many maps, or the kernel makes no second map.
        """
        twin = self.of_pages(self.address, self._start + self._length - self.address)
        twin.protect()
        return twin

    def content(self, nbytes: int) -> memoryview:
        """The first `nbytes`, writable. The map stays as long as a view of them."""
        buffer = (ctypes.c_uint8 * nbytes).from_address(self.address)
        buffer.mapping = self  # type: ignore[attr-defined]
        return memoryview(buffer).cast("B")

    def protect(self) -> None:
        """Makes the pages read-only: a stray write ends the process that does it and no other.

        Raises:
            OSError: The kernel cannot split the map.
        """
        pages.mprotect(self._start, self._length, mmap.PROT_READ)

    def keep_file(self, file: OpenFile, offset: int = 0) -> None:
        """Keeps the file, whose bytes from `offset` on these are, for `copy_on_write`."""
        self._file_offset = offset
        _kept[self._start] = file
        limit = min(MAX_KEPT, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _LARGEST_PART)
        for oldest in list(_kept)[: max(len(_kept) - limit, 0)]:
            _kept.pop(oldest, None)

    def file(self, address: int) -> tuple[OpenFile, int] | None:
        """The file of these pages, and where in it `address` is; None if this process has not kept it open."""
        file = self._own_file or _kept.get(self._start)
        return None if file is None else (file, self._file_offset + address - self._start)

    def move_to(self, file: OpenFile, nbytes: int) -> None:
        """Puts the pages of a file in place of the `nbytes` of this map, which are read-only. Views stay as they are.

        Args:
            file: A file with the same bytes, which begin in its first page as far from its start as here. It is kept
                open as long as the map.
            nbytes: Bytes from `address` on. The rest of the map is unmapped.

        Raises:
            OSError: There are too many maps.

        Source:
            mmap(2), MAP_FIXED: the kernel replaces the pages while no other thread can touch them.
        """
        start, stop = self.address & -mmap.PAGESIZE, round_up(self.address + nbytes, mmap.PAGESIZE)
        old_start, old_stop = self._start, round_up(self._start + self._length, mmap.PAGESIZE)
        pages.map_file(start, stop - start, mmap.MAP_SHARED, file.descriptor, access=mmap.PROT_READ)
        self._finalizer.detach()
        _kept.pop(old_start, None)
        pages.munmap(old_start, start - old_start)  # which does nothing where there is nothing before or after
        pages.munmap(stop, old_stop - stop)
        self._own_file, self._file_offset = file, 0
        self._start, self._length = start, stop - start
        self._unmap_at_end()

    def copy_on_write(self, offset: int = 0) -> Mapping | None:
        """A private map of the same pages, in which the bytes begin `offset` later; None if their file is closed."""
        found = self.file(self._start)
        if found is None:
            return None
        file, file_offset = found
        try:
            copy = self.of_file(file.descriptor, self._length, file_offset, flags=mmap.MAP_PRIVATE)
        except OSError:  # there are too many maps
            return None
        copy.address += self.address - self._start + offset
        return copy

    def reserve(self, area: slice, ranks: int = 1, rank: int = 0) -> None:
        """Allocates pages for writing, so that a missing page is an error of this call, not SIGBUS at a later access.

        A kernel that cannot populate pages allocates those of the file, if this process keeps it open.

        Args:
            area: The bytes whose pages to allocate. Whole huge pages in it become huge if possible.
            ranks: How many ranks do so together.
            rank: Which of them this one is. It allocates its own pages alone; see `pages.dealt`.

        Raises:
            MemoryError: The file system or the machine has no page left.
        """
        kept = None if pages.can_populate() else self.file(self.address)
        for part in pages.dealt(area, ranks, rank):
            if part.stop <= part.start:
                continue
            length = part.stop - part.start
            try:
                if kept is None:
                    pages.populate((self.address + part.start) & -mmap.PAGESIZE, self.address + part.stop)
                else:
                    os.posix_fallocate(kept[0].descriptor, kept[1] + part.start, length)
            except OSError as error:
                if error.errno not in (ENOMEM, ENOSPC, EFAULT):
                    raise
                raise MemoryError(f"no pages for {length:,} bytes: {error.strerror}") from error


def _unmap(start: int, length: int) -> None:
    _kept.pop(start, None)
    pages.munmap(start, length)


def _map_aligned(length: int, offset: int, make: Callable[[int | None], int]) -> int:
    """Calls `make` with an address at which huge pages fit, or None where none do; returns where the map begins."""
    if length < pages.huge_bytes():
        return make(None)
    target = pages.reserve_addresses(length, offset)
    try:
        return make(target)
    except OSError:
        pages.munmap(target, length)
        raise
