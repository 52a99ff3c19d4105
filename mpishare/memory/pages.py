"""Pages of memory: the system calls that map, protect and populate them, and how small pages become huge ones.

A page fault costs as much as copying 30 KiB. So filling new memory in pages of 4 KiB takes many times as long as the
copy. The kernel merges pages of a tmpfs file into huge ones on demand, whatever its settings for huge pages are.

Both sizes are the kernel's: 4 KiB and 2 MiB on x86, also 16 KiB and 32 MiB, or 64 KiB and 512 MiB, on arm64.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
from contextlib import suppress
from errno import EINVAL, ENOSYS
from functools import cache

from mpishare.arrays.slices import byte_slice, round_up
from mpishare.host.memory import MADV_COLLAPSE
from mpishare.host.procfs import IS_LINUX, number_of, text_of

# Numbers from the kernel's uapi/asm-generic/mman-common.h and uapi/linux/mman.h.
_MADV_POPULATE_WRITE = 23  # since Linux 5.14
_MAP_FIXED = 0x10
_MREMAP_MAYMOVE = 1
_MREMAP_FIXED = 2
_SYS_MREMAP = {"x86_64": 25, "aarch64": 216, "riscv64": 216, "ppc64le": 163, "s390x": 163}  # asm/unistd.h
_NO_ACCESS = 0  # PROT_NONE
READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
_MAP_FAILED = ctypes.c_void_p(-1).value


def _checked(result: int, *_: object) -> int:
    """Raises the error of a system call that failed; called by ctypes."""
    if result in (-1, _MAP_FAILED):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


_libc = ctypes.CDLL(None, use_errno=True)
_address, _size = ctypes.c_void_p, ctypes.c_size_t
_libc.mmap.restype = _address
_libc.mmap.argtypes = [_address, _size, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.syscall.restype = ctypes.c_long
_libc.syscall.argtypes = [ctypes.c_long, _address, _size, _size, ctypes.c_int, _address]
_libc.munmap.argtypes = [_address, _size]
_libc.mprotect.argtypes = _libc.madvise.argtypes = [_address, _size, ctypes.c_int]
for _call in (_libc.mmap, _libc.syscall, _libc.mprotect, _libc.madvise):
    _call.errcheck = _checked  # type: ignore[assignment]

munmap = _libc.munmap
"""A plain function, which a finalizer can call until the very end of the process."""

mprotect = _libc.mprotect
"""Changes what may be done with the pages of a start, a length, and PROT_ flags. OSError: they cannot be split."""


def map_file(
    address: int | None, length: int, flags: int, descriptor: int, offset: int = 0, access: int = READ_WRITE
) -> int:
    """Makes a map; returns where it begins.

    Args:
        address: Where to map, in place of what is mapped there; None for an address that the kernel chooses.
        length: Bytes to map.
        flags: See mmap(2).
        descriptor: An open file, -1 for memory without a file.
        offset: Where the bytes begin in the file.
        access: PROT_ flags.

    Raises:
        OSError: The kernel refuses it.
    """
    flags |= 0 if address is None else _MAP_FIXED
    return int(_libc.mmap(address, length, access, flags, descriptor, offset))


def mremap_copy(start: int, length: int, target: int | None) -> int:
    """Makes a second map of the shared pages at `start`, at `target` unless that is None; returns where it begins.

    Source:
        mremap(2): "If the value of old_size is zero, and old_address refers to a shareable mapping, then mremap() will
        create a new mapping of the same pages." It is not called as a function of the C library: where Intel MPI
        uses libfabric, it puts its own function in that place, which passes on another target than it was given.

    Raises:
        OSError: The pages are private memory of the process (EINVAL), or there are too many maps (ENOMEM).
    """
    flags = _MREMAP_MAYMOVE | (_MREMAP_FIXED if target is not None else 0)
    number = _SYS_MREMAP.get(os.uname().machine)
    if number is None or not IS_LINUX:
        raise OSError(ENOSYS, os.strerror(ENOSYS))
    return int(_libc.syscall(number, start, 0, length, flags, target))


@cache
def can_populate() -> bool:
    """Whether the kernel can allocate pages without an access, which may be SIGBUS: not before 5.14, nor gVisor's."""
    page = map_file(None, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
    try:
        _libc.madvise(page, mmap.PAGESIZE, _MADV_POPULATE_WRITE)
    except OSError as error:
        return error.errno != EINVAL
    finally:
        munmap(page, mmap.PAGESIZE)
    return True


def populate(start: int, stop: int) -> None:
    """Allocates the shared pages from `start` to `stop`, huge ones as far as whole ones fit, and as the kernel can.

    Each huge page needs one small page first. Pages stay small where the kernel is older than 6.1, the map does not
    begin as `reserve_addresses` requires, or no huge page is free. Nothing is done where the kernel cannot populate.

    Raises:
        OSError: The file system or the machine has no page left.

    Source:
        madvise(2), MADV_POPULATE_WRITE, and MADV_COLLAPSE: "performs a best-effort synchronous collapse of the native
        pages mapped by the memory range into Transparent Huge Pages"; at least one page of each must be there.
    """
    if not can_populate():
        return
    first, last = round_up(start, huge_bytes()), stop // huge_bytes() * huge_bytes()
    for address in range(first, last, huge_bytes()):
        _libc.madvise(address, mmap.PAGESIZE, _MADV_POPULATE_WRITE)
    if first < last:
        with suppress(OSError):  # pages stay small
            _libc.madvise(first, last - first, MADV_COLLAPSE)
    _libc.madvise(start, stop - start, _MADV_POPULATE_WRITE)


@cache
def huge_bytes() -> int:
    """The size of a huge page; 2 MiB where the kernel does not report it."""
    return number_of("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size") or 2 << 20


def aligned_bytes(length: int) -> int:
    """How many bytes to map so that huge pages fit in `length` of them: one huge page more, unless none fits."""
    return length if length < huge_bytes() else length + huge_bytes()


def cut(nbytes: int, parts: int, part: int) -> slice:
    """Like `byte_slice`, cut at huge pages where parts of this size have some, else at small pages."""
    return byte_slice(nbytes, parts, part, grain=mmap.PAGESIZE if nbytes // parts < huge_bytes() else huge_bytes())


def dealt(area: slice, ranks: int, rank: int) -> list[slice]:
    """The parts of `area` whose pages one of the ranks of a node allocates, so that they lie near to all ranks.

    The kernel takes a page from the memory domain (NUMA node) of the core that uses it first. Blocks of one huge page
    are dealt in turn, so that any large part of an array lies on all domains that have ranks. Neighbouring ranks
    often share a domain, so an incomplete last turn skips ranks at equal distances. Where there is no huge page for
    each rank, each has one slice of small pages.
    """
    nbytes = area.stop - area.start
    if ranks == 1 or nbytes // ranks < huge_bytes():
        part = cut(nbytes, ranks, rank)
        return [slice(area.start + part.start, area.start + part.stop)]
    starts = range(area.start, area.stop, huge_bytes())
    whole_turns = len(starts) // ranks * ranks
    last = starts[whole_turns:]
    own = [*starts[rank:whole_turns:ranks], *last[len(last) * rank // ranks : len(last) * (rank + 1) // ranks]]
    return [slice(start, min(start + huge_bytes(), area.stop)) for start in own]


def reserve_addresses(length: int, offset: int) -> int:
    """Reserves addresses for a map of `length` bytes of a file, from `offset` on, so that huge pages fit in it.

    Returns:
        The first address: on a page, and at the same distance from a huge page as `offset` in the file. Nothing can be
        read there until something is mapped over it.

    Raises:
        OSError: There is no room for more maps.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    start = map_file(None, length + huge_bytes(), flags, -1, access=_NO_ACCESS)
    target = start + (offset - start) % huge_bytes()
    target_stop = target + round_up(length, mmap.PAGESIZE)
    munmap(start, target - start)  # which does nothing where there is nothing before or after
    munmap(target_stop, start + length + huge_bytes() - target_stop)
    return target


def huge_areas() -> list[range]:
    """The addresses of those shared maps of this process that contain huge pages.

    Source:
        proc(5), /proc/pid/smaps: ShmemPmdMapped is tmpfs memory that is mapped by huge pages.
    """
    areas: list[range] = []
    area = range(0)
    for line in text_of("/proc/self/smaps").splitlines():
        name, *values = line.split()
        if not name.endswith(":"):
            area = range(*(int(end, 16) for end in name.split("-")))
        elif name == "ShmemPmdMapped:" and values[0] != "0":
            areas.append(area)
    return areas


def domains_of_maps() -> tuple[list[int], list[dict[int, int]]]:
    """The first addresses of the maps of this process, in order, and what it has used of them on each memory domain.

    Returns:
        The addresses; and by domain the bytes, none where no map has begun, then of each map.

    Source:
        numa(7), /proc/pid/numa_maps. It counts small pages also where shared memory has huge ones.
    """
    lines = text_of("/proc/self/numa_maps").splitlines()
    pages = [re.findall(r" N(\d+)=(\d+)", line) for line in ["", *lines]]
    used = [{int(domain): int(count) * mmap.PAGESIZE for domain, count in found} for found in pages]
    return [int(line.split()[0], 16) for line in lines], used


def file_offset(address: int) -> int:
    """The offset of the page at `address` in the mapped file; 0 if nothing is mapped there. It takes up to 1 ms."""
    for line in text_of("/proc/self/maps").splitlines():
        addresses, _, offset, *_ = line.split(maxsplit=3)
        first, stop = (int(end, 16) for end in addresses.split("-"))
        if first <= address < stop:
            return int(offset, 16) + (address & -mmap.PAGESIZE) - first
    return 0
