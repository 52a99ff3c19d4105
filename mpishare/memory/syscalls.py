"""The system calls on maps that Python's mmap lacks, by ctypes."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import NoReturn

# Numbers from the kernel's uapi/asm-generic/mman-common.h and uapi/linux/mman.h.
MAP_FIXED = 0x10
MADV_POPULATE_WRITE = 23  # since Linux 5.14
MADV_COLLAPSE = 25  # since Linux 6.1
_MAP_NORESERVE = 0x4000
_MREMAP_MAYMOVE = 1
_MREMAP_FIXED = 2
_PROT_NONE = 0
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
_libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class _IoVec(ctypes.Structure):
    """struct iovec of readv(2)."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


_libc.process_vm_readv.restype = ctypes.c_ssize_t
_libc.process_vm_readv.argtypes = [
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_ulong,
    ctypes.c_void_p,
    ctypes.c_ulong,
    ctypes.c_ulong,
]

munmap = _libc.munmap
"""As a plain function, so that a finalizer can call it to the very end of the process."""


def mmap_nothing(length: int) -> int:
    """Addresses that nothing is mapped to, and that nothing else will be mapped to.

    Raises:
        OSError: There are none.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    return _checked(_libc.mmap(None, length, _PROT_NONE, flags, -1, 0))


def map_file(
    address: int | None, length: int, flags: int, descriptor: int, offset: int, *, writable: bool = True
) -> int:
    """A new map for reading, and for writing too; where it begins. The descriptor is -1 for memory without a file.

    Raises:
        OSError: The kernel refuses it.
    """
    access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    return _checked(_libc.mmap(address, length, access, flags, descriptor, offset))


def mremap_copy(start: int, length: int, target: int | None) -> int:
    """A second map of the shared pages at `start`, at `target` if that is given; where it begins.

    Source:
        mremap(2): "If the value of old_size is zero, and old_address refers to a shareable mapping, then mremap() will
        create a new mapping of the same pages."

    Raises:
        OSError: The pages are private memory of the process (EINVAL), or there are too many maps (ENOMEM).
    """
    flags = _MREMAP_MAYMOVE | (_MREMAP_FIXED if target is not None else 0)
    return _checked(_libc.mremap(start, 0, length, flags, target))


def mprotect(start: int, length: int, *, writable: bool) -> None:
    """Makes pages read-only, or writable.

    Raises:
        OSError: The kernel cannot split the map.
    """
    if _libc.mprotect(start, length, mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)):
        _raise_errno()


def read_process(pid: int, source: int, target: int, length: int) -> None:
    """Copies `length` bytes at address `source` of another process to address `target` of this one.

    Source:
        process_vm_readv(2). The kernel copies at most 2 GiB less a page at a time.

    Raises:
        OSError: We may not read there (EPERM), there is no such process (ESRCH) or address (EFAULT).
    """
    done = 0
    while done < length:
        context = _IoVec(target + done, length - done)
        there = _IoVec(source + done, length - done)
        count = _libc.process_vm_readv(pid, ctypes.byref(context), 1, ctypes.byref(there), 1, 0)
        if count <= 0:
            _raise_errno()
        done += count


def madvise(start: int, length: int, advice: int) -> int:
    """The number of the error, 0 when it went well."""
    return ctypes.get_errno() if _libc.madvise(start, length, advice) else 0


def _checked(address: int) -> int:
    if address == _MAP_FAILED:
        _raise_errno()
    return address


def _raise_errno() -> NoReturn:
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number))
