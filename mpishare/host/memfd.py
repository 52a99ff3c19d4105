"""A file without a name in the kernel's own tmpfs."""

from __future__ import annotations

import ctypes
import os
from errno import EINVAL, ENOSYS

_MFD_CLOEXEC = 1  # these two from uapi/linux/memfd.h
_MFD_NOEXEC_SEAL = 8  # since Linux 6.3
_NUMBERS = {"x86_64": 319, "aarch64": 279}  # arch/x86/entry/syscalls/syscall_64.tbl; uapi/asm-generic/unistd.h

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def memfd_create() -> int:
    """The descriptor of a new file without a name in the kernel's own tmpfs.

    Source:
        memfd_create(2). A Python that was built on an old system lacks `os.memfd_create`, as those of miniforge and uv
        do. Kernels 6.3 to 6.5 refuse files that could become executable where vm.memfd_noexec is 2; kernels before 6.3
        do not know the flag against that (EINVAL).

    Raises:
        OSError: The kernel refuses it, or the number of its system call is unknown here (ENOSYS).
    """
    create = getattr(os, "memfd_create", _memfd_create_by_number)
    try:
        return int(create("mpishare", _MFD_CLOEXEC | _MFD_NOEXEC_SEAL))
    except OSError as error:
        if error.errno != EINVAL:
            raise
        return int(create("mpishare", _MFD_CLOEXEC))


def _memfd_create_by_number(name: str, flags: int) -> int:
    machine = os.uname().machine
    if machine not in _NUMBERS:
        raise OSError(ENOSYS, f"this Python has no os.memfd_create, and none is known for {machine}")
    number = ctypes.c_long(_NUMBERS[machine])
    descriptor = _libc.syscall(number, name.encode(), ctypes.c_uint(flags))
    if descriptor < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return int(descriptor)
