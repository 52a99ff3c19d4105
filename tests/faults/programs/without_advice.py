"""Runs the command argv[1:] as on a kernel that refuses all advice on memory: each madvise(2) fails with EINVAL.

A filter of seccomp(2), which children inherit, so that a tracer can attach to them and nothing takes longer.
"""

import ctypes
import errno
import os
import platform
import struct
import sys

_NUMBER = {"x86_64": 28, "aarch64": 233}[platform.machine()]  # of madvise
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2  # linux/prctl.h, linux/seccomp.h
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06  # linux/bpf_common.h; each instruction: code, jumps, operand
_ERRNO, _ALLOW = 0x00050000, 0x7FFF0000
_FILTER = [
    (_LOAD, 0, 0, 0),  # the number of the system call
    (_JUMP_IF_EQUAL, 0, 1, _NUMBER),
    (_RETURN, 0, 0, _ERRNO | errno.EINVAL),
    (_RETURN, 0, 0, _ALLOW),
]

instructions = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in _FILTER))
program = struct.pack("HP", len(_FILTER), ctypes.addressof(instructions))
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program, 0, 0):
    raise OSError(ctypes.get_errno(), "seccomp")
os.execvp(sys.argv[1], sys.argv[1:])
