"""Libraries that store into read-only arrays: the line that names the array, and what the signal does besides."""

import pytest

from tests.blackbox.launch import run, run_code

PROGRAM = """
import ctypes, faulthandler, os, signal, threading, numpy as np, mpishare as ms
{before}
array = {array}
{after}
"""
STORE = "ctypes.memset(array.ctypes.data + array.nbytes - 1, 0, 1)"
NAMED = "at <string>:4 is read-only: a library stored into it; pass private(array) or a copy\n"
MADE = {
    "a slot": "ms.share(np.arange(9.0))",
    "a segment": "ms.share(np.zeros(1 << 20))",
    "the second of a slab": "[ms.zeros(3), ms.share(np.arange(300.0))][1]",
}


def ended_by_sigsegv(*, array="ms.share(np.arange(9.0))", before="", after=STORE, environ=None):
    """What a rank, and then mpiexec, print on stderr where SIGSEGV ends the rank."""
    code = PROGRAM.format(array=array, before=before, after=after)
    printed = run_code(1, code, environ, status="failure", limit_s=60).stderr
    assert "signal 11 (Segmentation fault)" in printed
    # Open MPI's handler prints its own lines, unless it found another one when MPI began.
    assert printed.count("*** Process received signal ***") == ("faulthandler" not in before)
    return printed


@pytest.mark.parametrize("made", MADE)
def test_the_array_that_a_library_stored_into_is_named(made):
    assert ended_by_sigsegv(array=MADE[made]).count(NAMED) == 1


HANDLERS = {
    "after": ("", f"faulthandler.enable(); {STORE}"),
    "enabled and disabled": ("", f"faulthandler.enable(); faulthandler.disable(); {STORE}"),
    "disabled before the next map": (
        "faulthandler.enable()",
        "faulthandler.disable(); array = ms.share(np.zeros(1 << 20)); " + STORE,
    ),
}


@pytest.mark.parametrize("order", HANDLERS)
def test_faulthandler_prints_its_own_lines_whichever_was_first(order):
    before, after = HANDLERS[order]
    printed = ended_by_sigsegv(before=before, after=after)
    assert printed.count("a library stored into it; pass private(array) or a copy\n") == 1
    assert printed.count("Fatal Python error: Segmentation fault") == (order == "after")


def test_it_is_named_where_python_is_locked_by_another_thread():
    """A thread of the library, as OpenMP's; the thread that has Python's lock never gives it up."""
    after = f"threading.Thread(target=lambda: {STORE}).start()\nctypes.PyDLL(None).pause()"
    assert NAMED in ended_by_sigsegv(after=after)


OTHERS = {
    "an address of nobody": "ctypes.memset(8, 0, 1)",
    "read-only pages that are not ours": (
        "import mmap; page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ); "
        "ctypes.memset(np.frombuffer(page, 'u1').ctypes.data, 0, 1)"
    ),
    "addresses that were an array's": (
        "import mmap; large = ms.share(np.zeros(1 << 20)); at = large.ctypes.data; del large\n"
        "mapped = ctypes.CDLL(None).mmap; mapped.restype = ctypes.c_void_p\n"
        "mapped(ctypes.c_void_p(at & -4096), ctypes.c_size_t(4096), 1, 0x32, -1, ctypes.c_long(0))\n"
        "ctypes.memset(at, 0, 1)"
    ),
}


@pytest.mark.parametrize("cause", OTHERS)
def test_any_other_fault_ends_the_process_as_ever_and_names_nothing(cause):
    assert "a library stored" not in ended_by_sigsegv(after=OTHERS[cause], environ={"MPISHARE_RECYCLE": "0"})


def test_a_handler_that_was_there_gets_the_signal_and_may_go_on():
    """One of C that makes the page writable, as garbage collectors do, here the C library's own function."""
    before = """
seen = []
@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.POINTER(ctypes.c_long * 3), ctypes.c_void_p)
def handler(number, info, context):
    seen.append((number, info.contents[2]))
    ctypes.CDLL(None).mprotect(ctypes.c_void_p(info.contents[2] & -4096), ctypes.c_size_t(4096), 3)
class Action(ctypes.Structure):
    _fields_ = [("f", ctypes.c_void_p), ("mask", ctypes.c_long * 16), ("flags", ctypes.c_int), ("r", ctypes.c_void_p)]
ctypes.CDLL(None).sigaction(11, ctypes.byref(Action(ctypes.cast(handler, ctypes.c_void_p), flags=4)), None)
"""
    after = "ctypes.memset(array.ctypes.data, 7, 1); print(seen == [(11, array.ctypes.data)], array.view('u1')[0])"
    ended = run_code(1, PROGRAM.format(array=MADE["a segment"], before=before, after=after))
    assert ended.stdout == "True 7\n"
    assert ended.stderr.count("a library stored into it") == 1


CATCHES = "print(int(open('/proc/self/status').read().partition('SigCgt:')[2].split()[0], 16) >> 10 & 1)"


def test_a_setting_leaves_the_handler_off_and_an_import_installs_none():
    assert "a library stored" not in ended_by_sigsegv(environ={"MPISHARE_STRAY_STORES": "0"})
    assert run(["python", "-c", f"import mpishare as ms; ms.share; {CATCHES}"]).stdout == "0\n"
