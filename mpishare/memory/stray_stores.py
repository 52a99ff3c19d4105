"""Names the array into which a library stored although its pages are read-only, before SIGSEGV ends the rank."""

# Theory of operation.
#
# The rules:
# 1. The signal's handler calls nothing: no Python, no C library, no allocation, no lock. The thread that stored may
#    hold any lock, or be one of OpenMP's that Python does not know. The thread that has Python's lock may wait for it.
# 2. After the line on stderr everything goes on as it would without this handler. The previous handler gets the same
#    arguments on the same stack. Where there was none, the default action ends the process.
# 3. Where a rule cannot be kept, no handler is installed.
#
# So the handler is the machine code below, on a page of its own. It works on numbers that Python has prepared: it looks
# for the address in a table of ranges, writes a text that is ready, and jumps to the previous handler. It returns only
# after it has restored the default action: then the store faults again, which ends the process with the right address
# in its core. A signal that a process sent does not come again by itself: then the handler stores to address 0.
#
# The address is the one of the last fault of the thread (cr2 in the signal's context) and not the signal's own. For a
# handler that was installed later, such as faulthandler's, restores this one and raises SIGSEGV anew, which has no
# address. The number and the error code of the trap beside it say whether the fault was a store into a page.
#
# A range is the memory of one array after the other. It enters the table when its first array becomes read-only, and
# leaves it before its addresses are unmapped. Its length is written last and cleared first, so that no range is found
# half written; its text is one word. The table has a fixed size: arrays beyond it are not named. Texts live as long as
# the process. One flag in the table lets one line through, as all threads of a library may store at once.
#
# A handler that is installed later has this one as its previous handler, and calls or restores it. So this one is never
# put above another one a second time, which could make a circle. It is installed again where the default action is
# found, as after faulthandler.disable().
#
# Source: sigaction(2); Linux, arch/x86/include/uapi/asm/sigcontext.h; System V ABI, AMD64 supplement, 3.2.

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import struct
import sys
from functools import cache
from itertools import count
from types import CodeType, FrameType

import numpy as np

from mpishare.arrays.raw import address_of
from mpishare.comm import callsite
from mpishare.config import Config
from mpishare.memory import pages

_CODE = """
    f3 0f 1e fa           |          endbr64
    49 b8 TABLE           |          movabs r8, TABLE
    83 ba c8 00 00 00 0e  |          cmp    dword ptr [rdx + 200], 14  a page fault?
    75 5d                 |          jne    chain
    f6 82 c0 00 00 00 02  |          test   byte ptr [rdx + 192], 2    a store?
    74 54                 |          jz     chain
    4c 8b 8a d8 00 00 00  |          mov    r9, [rdx + 216]            the address
    49 8b 48 08           |          mov    rcx, [r8 + 8]              the number of ranges
    4d 8d 50 40           |          lea    r10, [r8 + 64]             the first range
    48 85 c9              | next:    test   rcx, rcx
    74 40                 |          jz     chain
    48 ff c9              |          dec    rcx
    4c 89 c8              |          mov    rax, r9
    49 2b 02              |          sub    rax, [r10]                 its start
    49 3b 42 08           |          cmp    rax, [r10 + 8]             its length
    72 06                 |          jb     found
    49 83 c2 18           |          add    r10, 24
    eb e6                 |          jmp    next
    57                    | found:   push   rdi
    56                    |          push   rsi
    52                    |          push   rdx
    49 8b 72 10           |          mov    rsi, [r10 + 16]            its text, which begins with the length
    48 8b 16              |          mov    rdx, [rsi]
    48 83 c6 08           |          add    rsi, 8
    bf 01 00 00 00        |          mov    edi, 1
    49 87 78 10           |          xchg   [r8 + 16], rdi             the first to write?
    48 85 ff              |          test   rdi, rdi
    75 0c                 |          jnz    written
    bf 02 00 00 00        |          mov    edi, 2
    b8 01 00 00 00        |          mov    eax, 1                     write(2, text, length)
    0f 05                 |          syscall
    5a                    | written: pop    rdx
    5e                    |          pop    rsi
    5f                    |          pop    rdi
    49 8b 00              | chain:   mov    rax, [r8]                  the previous handler
    48 85 c0              |          test   rax, rax
    74 02                 |          jz     default
    ff e0                 |          jmp    rax
    57                    | default: push   rdi
    56                    |          push   rsi
    49 8d 70 20           |          lea    rsi, [r8 + 32]             32 zeros: SIG_DFL
    31 d2                 |          xor    edx, edx
    41 ba 08 00 00 00     |          mov    r10d, 8
    b8 0d 00 00 00        |          mov    eax, 13                    rt_sigaction(SIGSEGV, zeros, NULL, 8)
    0f 05                 |          syscall
    5e                    |          pop    rsi
    5a                    |          pop    rdx
    83 7e 08 00           |          cmp    dword ptr [rsi + 8], 0     si_code: from the kernel?
    7f 04                 |          jg     return
    31 c0                 |          xor    eax, eax
    89 00                 |          mov    [rax], eax
    c3                    | return:  ret
"""
"""The handler for x86-64: its bytes, and what they mean. Other machines have none."""

_HEAD_WORDS, _ROW_WORDS = 8, 3
_MAX_ROWS = 1 << 16
_MAX_LINES = 1000
"""Arrays of more calls than this are named without the place."""
_LEAST_DEPTH = 4
"""The call of the user stands at least so far above `name`."""


class _SigAction(ctypes.Structure):
    """struct sigaction of the C library, on machines whose signals need a restorer."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_uint64 * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


_SA_SIGINFO, _SA_ONSTACK = 4, 0x08000000  # asm/signal.h
_sigaction = ctypes.CDLL(None).sigaction
_installed: list[int] = []

_rows = count(_HEAD_WORDS, _ROW_WORDS)
_free_rows: list[int] = []
_lines: dict[tuple[int, int], int] = {}
"""The addresses of the texts, by the `id` of the user's code and the instruction in it."""
_kept: list[tuple[bytes, CodeType]] = []
"""The texts, and the code whose `id` nothing else may get."""


def name(row: int, start: int, nbytes: int, made_by: str) -> int:
    """Notes which call of the user, `made_by`, made the read-only array at these addresses.

    Args:
        row: What was returned for the same addresses before; 0 at first.
        start: Where they begin.
        nbytes: How many there are.
        made_by: The public call.

    Returns:
        The row of the table in which they are, for `forget`; 0 if there is none.
    """
    table = _table()
    if table is None:
        return 0
    frame = sys._getframe(_LEAST_DEPTH)
    while (code := frame.f_code).co_filename.startswith(callsite.PACKAGE) and frame.f_back is not None:
        frame = frame.f_back
    line = _lines.get((id(code), frame.f_lasti)) or _new_line(made_by, frame)
    if row:
        table[row + 2] = line
        return row
    row = _free_rows.pop() if _free_rows else next(_rows)
    if row >= len(table):
        return 0
    table[row], table[row + 2] = start, line
    table[row + 1] = nbytes
    return row


def forget(row: int) -> None:
    """Takes addresses out of the table, which may be used for something else then."""
    table = _table()
    if table is not None:
        table[row + 1] = 0
        _free_rows.append(row)


def _new_line(made_by: str, frame: FrameType) -> int:
    """The address of a new text for arrays that `made_by` makes at this place of the user's code."""
    place, key = f" of {made_by} at {frame.f_code.co_filename}:{frame.f_lineno}", (id(frame.f_code), frame.f_lasti)
    if len(_lines) >= _MAX_LINES:
        place, key = "", (0, 0)
    if key not in _lines:
        text = f"mpishare: the array{place} is read-only: a library stored into it; "
        line = (text + "pass private(array) or a copy\n").encode(errors="surrogateescape")
        line = struct.pack("<Q", len(line)) + line
        _kept.append((line, frame.f_code))
        _lines[key] = address_of(np.frombuffer(line, np.uint8))
    return _lines[key]


@cache
def _table() -> memoryview | None:
    """The words that the handler reads; None where this process can have no handler.

    They are the previous handler, the number of rows, whether a line was written, a word without use, and four zeros;
    then for each row the start of a range, its length and the address of its text.
    """
    if os.uname().machine != "x86_64" or not Config.names_stray_stores():
        return None
    try:
        memory = mmap.mmap(-1, 8 * (_HEAD_WORDS + _MAX_ROWS * _ROW_WORDS), flags=mmap.MAP_PRIVATE)
    except OSError:  # the kernel allows no more maps
        return None
    table = memoryview(memory).cast("Q")
    table[1] = _MAX_ROWS
    return table if _handler(address_of(np.frombuffer(table, np.uint64))) else None


@cache
def _handler(table: int) -> int:
    """The address of the handler for a table; 0 where the process may have no new code."""
    digits = "".join(line.partition("|")[0] for line in _CODE.splitlines())
    code = bytes.fromhex(digits.replace("TABLE", table.to_bytes(8, "little").hex()))
    try:
        page = pages.map_file(None, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
        ctypes.memmove(page, code, len(code))
        pages.mprotect(page, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC)
    except OSError:
        return 0
    return page


def install() -> None:
    """Installs the handler where it was not installed, or where the default action was restored since."""
    table = _table()
    if table is None:
        return
    handler = _handler(address_of(np.frombuffer(table, np.uint64)))
    action = _SigAction()
    _sigaction(signal.SIGSEGV, None, ctypes.byref(action))
    previous = action.handler or 0
    if previous in (handler, int(signal.SIG_IGN)) or (previous and _installed):
        return
    _installed.append(handler)
    table[0] = previous
    action.handler = handler
    action.flags |= _SA_SIGINFO | (0 if previous else _SA_ONSTACK)
    _sigaction(signal.SIGSEGV, ctypes.byref(action), None)
