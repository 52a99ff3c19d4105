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
# in its core. A signal that a process sent does not come again by itself, so the handler sends it again.
#
# The address is the one of the last fault of the thread (cr2 in the signal's context) and not the signal's own. For a
# handler that was installed later, such as faulthandler's, restores this one and raises SIGSEGV anew, which has no
# address. The number and the error code of the trap beside it say whether the fault was a store into a page.
#
# A range enters the table when its first array becomes read-only, and leaves it before its addresses are unmapped. Its
# length is written last and cleared first, so that no range is found half written. The table has a fixed size: a
# process has no more maps by default. A range keeps its texts alive. One flag in the table lets one line through, as
# all threads of a library may store at once.
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
import sys
from functools import cache
from itertools import count
from types import CodeType, FrameType
from typing import NamedTuple

import numpy as np

from mpishare.arrays.raw import address_of
from mpishare.comm import callsite
from mpishare.config import Config
from mpishare.memory import syscalls

_CODE = """
    f3 0f 1e fa           |          endbr64
    49 b8 TABLE           |          movabs r8, TABLE
    83 ba c8 00 00 00 0e  |          cmp    dword ptr [rdx + 200], 14  a page fault?
    75 67                 |          jne    chain
    f6 82 c0 00 00 00 02  |          test   byte ptr [rdx + 192], 2    a store?
    74 5e                 |          jz     chain
    4c 8b 8a d8 00 00 00  |          mov    r9, [rdx + 216]            the address
    49 8b 48 08           |          mov    rcx, [r8 + 8]              the number of ranges
    4d 8d 50 40           |          lea    r10, [r8 + 64]             the first range
    48 85 c9              | next:    test   rcx, rcx
    74 4a                 |          jz     chain
    48 ff c9              |          dec    rcx
    4c 89 c8              |          mov    rax, r9
    49 2b 02              |          sub    rax, [r10]                 its start
    49 3b 42 08           |          cmp    rax, [r10 + 8]             its length
    72 06                 |          jb     found
    49 83 c2 20           |          add    r10, 32
    eb e6                 |          jmp    next
    57                    | found:   push   rdi
    56                    |          push   rsi
    52                    |          push   rdx
    31 d2                 |          xor    edx, edx
    49 f7 72 10           |          div    qword ptr [r10 + 16]       the bytes of a slot
    48 c1 e0 04           |          shl    rax, 4
    49 03 42 18           |          add    rax, [r10 + 24]            the address and the length of each text
    48 8b 30              |          mov    rsi, [rax]
    48 8b 50 08           |          mov    rdx, [rax + 8]
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
    7f 1d                 |          jg     return
    b8 ba 00 00 00        |          mov    eax, 186                   gettid()
    0f 05                 |          syscall
    41 89 c1              |          mov    r9d, eax
    b8 27 00 00 00        |          mov    eax, 39                    getpid()
    0f 05                 |          syscall
    89 c7                 |          mov    edi, eax
    44 89 ce              |          mov    esi, r9d
    b8 ea 00 00 00        |          mov    eax, 234                   tgkill(pid, tid, SIGSEGV)
    0f 05                 |          syscall
    c3                    | return:  ret
"""
"""The handler for x86-64: its bytes, and what they mean. Other machines have none."""

_HEAD_WORDS, _RANGE_WORDS = 8, 4
_MAX_RANGES = 1 << 16
_MAX_LINES = 1000
_LEAST_DEPTH = 5
"""The call of the user stands at least so far above `ReadOnlyRange.name`."""


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


class ReadOnlyRange:
    """Read-only addresses in slots of one size, with one array each, whose origins the handler can name."""

    def __init__(self, start: int, nbytes: int, slot_bytes: int) -> None:
        """Enters it in the table, as far as this process has one."""
        n_slots = -(-nbytes // slot_bytes)
        self._kept: list[_Line | None] = [None] * n_slots
        self._table = _table()
        if self._table is None:
            return
        lines = bytearray(16 * n_slots)
        self._words = memoryview(lines).cast("Q")
        self._row = _free_rows.pop() if _free_rows else next(_rows)
        if self._row >= _MAX_RANGES:
            self._table = None
            return
        at = _HEAD_WORDS + self._row * _RANGE_WORDS
        for word, value in ((0, start), (2, slot_bytes), (3, address_of(np.frombuffer(lines, np.uint8))), (1, nbytes)):
            self._table[at + word] = value
        self._table[1] = max(self._table[1], self._row + 1)
        _install(self._table)

    def name(self, number: int, made_by: str) -> None:
        """Notes which call of the user, `made_by`, made the array in slot `number`."""
        if self._table is None:
            return
        frame = sys._getframe(_LEAST_DEPTH)
        while (code := frame.f_code).co_filename.startswith(callsite.PACKAGE) and frame.f_back is not None:
            frame = frame.f_back
        line = _lines.get((made_by, id(code), frame.f_lasti)) or _new_line(made_by, frame)
        if self._kept[number] is not line:
            self._words[2 * number], self._words[2 * number + 1] = line.address, len(line.text)
            self._kept[number] = line

    def end(self) -> None:
        """Takes it out of the table. The addresses may be used for something else then."""
        if self._table is not None:
            self._table[_HEAD_WORDS + self._row * _RANGE_WORDS + 1] = 0
            _free_rows.append(self._row)
            self._table = None


_rows = count()
_free_rows: list[int] = []


class _Line(NamedTuple):
    """A text for stderr, where its bytes are, and the code that makes the array, whose `id` nothing else gets then."""

    text: bytes
    address: int
    code: CodeType


_lines: dict[tuple[str, int, int], _Line] = {}


def _new_line(made_by: str, frame: FrameType) -> _Line:
    """The line for arrays that `made_by` makes at this place of the user's code."""
    text = (
        f"mpishare: the array of {made_by} at {frame.f_code.co_filename}:{frame.f_lineno} is read-only: a library "
        "stored into it; pass private(array) or a copy\n"
    ).encode(errors="surrogateescape")
    if len(_lines) >= _MAX_LINES:
        _lines.clear()
    line = _Line(text, address_of(np.frombuffer(text, np.uint8)), frame.f_code)
    _lines[made_by, id(frame.f_code), frame.f_lasti] = line
    return line


@cache
def _table() -> memoryview | None:
    """The words that the handler reads; None where this process can have no handler.

    They are the previous handler, the number of ranges, whether a line was written, a word without use, and four zeros;
    then for each range its start, its length, the bytes of a slot and the address of its texts.
    """
    if os.uname().machine != "x86_64" or not Config.names_stray_stores():
        return None
    try:
        pages = mmap.mmap(-1, 8 * (_HEAD_WORDS + _MAX_RANGES * _RANGE_WORDS), flags=mmap.MAP_PRIVATE)
    except OSError:  # the kernel allows no more maps
        return None
    table = memoryview(pages).cast("Q")
    return table if _handler(address_of(np.frombuffer(table, np.uint64))) else None


@cache
def _handler(table: int) -> int:
    """The address of the handler for a table; 0 where the process may have no new code."""
    digits = "".join(line.partition("|")[0] for line in _CODE.splitlines())
    code = bytes.fromhex(digits.replace("TABLE", table.to_bytes(8, "little").hex()))
    try:
        page = syscalls.map_file(None, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
        ctypes.memmove(page, code, len(code))
        syscalls.mprotect(page, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC)
    except OSError:
        return 0
    return page


def _install(table: memoryview) -> None:
    """Installs the handler where it was not installed, or where the default action was restored since."""
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


_installed: list[int] = []
