"""Kernels in one process: what atomic additions add and refuse."""

import subprocess
import sys

import numba
import numpy as np
import pytest
from numba.core.errors import TypingError

import mpishare as ms
from mpishare import kernels

NO_NUMBA = "raise ModuleNotFoundError(name='numba')"
INSTALL = "mpishare.kernels needs numba, which is not installed: pip install numba"
TOO_OLD = "Numba needs NumPy 2.2 or less"


@pytest.mark.parametrize(("numba_py", "text"), [(NO_NUMBA, INSTALL), (f"raise ImportError({TOO_OLD!r})", TOO_OLD)])
def test_without_numba(tmp_path, numba_py, text):
    (tmp_path / "numba.py").write_text(numba_py)
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import mpishare; from mpishare import kernels"
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert process.stderr.splitlines()[-1] == f"ImportError: {text}"


COUNTERS = ("i4", "i8", "u4", "u8", "f4", "f8")


@numba.njit
def add(array, index, value):
    """What a user's own function does."""
    return kernels.atomic_add(array, index, value)


@pytest.mark.parametrize("call", [kernels.atomic_add, add])
def test_the_item_as_it_was_before_in_every_layout(call):
    base = np.arange(24.0).reshape(4, 6)
    for view in (base[::2, ::3], base.T, base[::-1, ::-1], base[1], np.zeros((), "u4")):
        for index in ((1,) * view.ndim, (-1,) * view.ndim, (np.uint8(0),) * view.ndim):
            expected = view.copy()
            expected[index] += 3
            assert call(view, index, 3) == expected[index] - 3
            assert view.tolist() == expected.tolist()


@pytest.mark.parametrize("index", [3, -4, 2**62])
def test_outside(index):
    array = np.zeros(3)
    cases = [(kernels.atomic_add, index), (add, index), (add, np.uint64(2**64 - 1))]
    for call, place in cases:
        with pytest.raises(IndexError, match="out of bounds"):
            call(array, place, 1)
    with pytest.raises(IndexError, match=f"index {index} at 1 is outside of an array of 3"):
        kernels.add_at(array, [0, index])
    assert not array.any()


READ_ONLY = np.zeros(3)
READ_ONLY.flags.writeable = False
PACKED = np.zeros(3, [("a", "i1"), ("b", "f8")])["b"]
REFUSED = [
    (READ_ONLY, 0, 1, "read-only"),
    (PACKED, 0, 1, "multiples of their size"),
    (np.zeros(3, "i2"), 0, 1, "has no atomic addition"),
    (np.zeros((3, 3)), 0, 1, "integer"),
    (np.zeros(3), 0.5, 1, "integer"),
    (np.zeros(3, "i8"), 0, 1.5, "cannot be added to items of"),
    (np.zeros(3), 0, "a", "cannot be added to items of"),
]


@pytest.mark.parametrize(("array", "index", "value", "text"), REFUSED)
def test_refused(array, index, value, text):
    with pytest.raises(ms.MpishareError, match=text):
        kernels.atomic_add(array, index, value)
    with pytest.raises((TypingError, ValueError), match=text):
        add(array, index, value)


@pytest.mark.parametrize("values", [3, [4], np.arange(1000) % 7])
def test_add_at_is_numpys(values):
    indices = np.random.default_rng(3).integers(-5, 5, 1000)
    for dtype in COUNTERS:
        array, expected = np.zeros((2, 5), dtype)
        for numbers, given in ((indices, values), (indices.astype(">i2"), values), ([], 1)):
            kernels.add_at(array, numbers, np.asarray(given, dtype))
            np.add.at(expected, np.asarray(numbers, int), np.asarray(given, dtype))
        assert array.tolist() == expected.tolist()
