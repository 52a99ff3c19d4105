"""A library that stores into a read-only array: Python names the line of the program, by no handler of ours."""

import pytest

from tests.blackbox.launch import run_code

pytestmark = pytest.mark.first
STORE = """
import ctypes, numpy as np, mpishare as ms
array = {array}
ctypes.memset(array.ctypes.data + array.nbytes - 1, 0, 1)
"""
MADE = {
    "a slot": "ms.share(np.arange(9.0))",
    "memory of its own": "ms.share(np.zeros(1 << 20))",
}


@pytest.mark.parametrize("made", MADE)
def test_mpishare_run_has_python_print_the_line_that_stored(made):
    """A store into a shared array from C: ctypes, Cython, numba.

    Outcome: SIGSEGV of the rank that stores, as its pages are read-only; the data of all others stay; under `mpishare
    run`, Python prints the line of the program that stored.
    """
    printed = run_code(1, STORE.format(array=MADE[made]), status="failure", limit_s=60).stderr
    assert "Fatal Python error: Segmentation fault" in printed
    assert 'File "<string>", line 4 in <module>' in printed


SIGNALS = """
import numpy as np, mpishare as ms
from mpi4py import MPI
def caught():
    with open("/proc/self/status") as file:
        return [line for line in file if line.startswith(("SigCgt", "SigIgn", "SigBlk"))]
before = caught()
kept = [ms.share(np.zeros(1 << 20)), ms.zeros(9), ms.allreduce(np.ones(3)), ms.map(abs, range(9))]
print(caught() == before)
"""


def test_the_calls_install_no_signal_handler():
    assert run_code(2, SIGNALS).stdout == "True\n" * 2
