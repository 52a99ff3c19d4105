"""System calls on memory that Python lacks, by ctypes."""

from __future__ import annotations

import ctypes
import mmap
import os
from errno import EINVAL, ENOSYS
from functools import cache

# Numbers from the kernel's uapi/asm-generic/mman-common.h and uapi/linux/mman.h.
MADV_POPULATE_WRITE = 23  # since Linux 5.14
MADV_COLLAPSE = 25  # since Linux 6.1
_MAP_FIXED = 0x10
MAP_NORESERVE = 0x4000
_MREMAP_MAYMOVE = 1
_MREMAP_FIXED = 2
_SYS_MREMAP = {"x86_64": 25, "aarch64": 216, "riscv64": 216, "ppc64le": 163, "s390x": 163}  # asm/unistd.h
NO_ACCESS = 0  # PROT_NONE
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
_libc.mmap.errcheck = _libc.syscall.errcheck = _libc.mprotect.errcheck = _checked  # type: ignore[assignment]
_libc.munmap.argtypes = [_address, _size]
_libc.mprotect.argtypes = _libc.madvise.argtypes = [_address, _size, ctypes.c_int]

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
        access: PROT_ flags, NO_ACCESS to reserve the addresses alone.

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
    if number is None:
        raise OSError(ENOSYS, os.strerror(ENOSYS))
    return int(_libc.syscall(number, start, 0, length, flags, target))


def madvise(start: int, length: int, advice: int) -> int:
    """Advises the kernel on pages; returns the error number, 0 for success."""
    return ctypes.get_errno() if _libc.madvise(start, length, advice) else 0


def populate(start: int, stop: int) -> int:
    """Allocates the shared pages from `start` to `stop`; returns the error number, 0 for success.

    Source:
        madvise(2), MADV_POPULATE_WRITE. Where a kernel does not have it, see `can_populate`, nothing is done.
    """
    return madvise(start, stop - start, MADV_POPULATE_WRITE) if can_populate() else 0


@cache
def can_populate() -> bool:
    """Whether the kernel can allocate pages without an access, which may be SIGBUS: not before 5.14, nor gVisor's."""
    page = map_file(None, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
    error = madvise(page, mmap.PAGESIZE, MADV_POPULATE_WRITE)
    munmap(page, mmap.PAGESIZE)
    return error != EINVAL
