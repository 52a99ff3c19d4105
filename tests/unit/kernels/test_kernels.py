"""Kernels on arrays of one process: what they add, sum and refuse, and how they are compiled."""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from numba.core.errors import TypingError
from numpy.typing import NDArray

import mpishare as ms
from mpishare import kernels
from mpishare.kernels.compiling import compiled
from mpishare.kernels.node_parts import _part_sum

COUNTERS = ("i4", "i8", "u4", "u8", "f4", "f8")


@numba.njit
def add(array: Any, index: Any, value: Any) -> Any:
    """What a user's own function does."""
    return kernels.atomic_add(array, index, value)


def sum_in_numpy(block: NDArray[np.uint8]) -> int:
    """The checksum, less the number of bytes, as its docstring says it."""
    words = np.frombuffer(block.tobytes() + bytes(-block.size % 8), np.uint64)
    mixed = words + np.arange(1, words.size + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return int((mixed ^ (mixed >> np.uint64(31))).sum(dtype=np.uint64))


@pytest.mark.parametrize("dtype", COUNTERS)
def test_threads_lose_nothing(dtype: str) -> None:
    counts = np.zeros(3, dtype)
    indices = np.arange(600_000) % 3
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: kernels.add_at(counts, indices, 2), range(4)))
    assert counts.tolist() == [1_600_000] * 3


@pytest.mark.parametrize("dtype", COUNTERS)
def test_an_atomic_instruction_adds(dtype: str) -> None:
    """Threads may miss one another; what LLVM was told does not depend on it."""
    array = np.zeros(1, dtype)
    add(array, 0, 1)
    code = add.inspect_llvm((numba.typeof(array), numba.int64, numba.int64))
    word = "cmpxchg" if dtype[0] == "f" else "atomicrmw add"  # x86 adds no floats at once, and so tries again
    assert re.search(rf"({word}|atomicrmw fadd) .* seq_cst", code)


def test_the_item_as_it_was_before() -> None:
    array = np.arange(6.0).reshape(2, 3)
    assert kernels.atomic_add(array, (1, 2), 0.5) == 5.0
    assert kernels.atomic_add(array, (-1, -1), 0.5) == 5.5
    assert add(array, (np.uint8(1), -1), 1) == 6.0
    assert array.tolist() == [[0, 1, 2], [3, 4, 7]]


def test_every_layout() -> None:
    base = np.zeros((4, 6), "i8")
    for number, view in enumerate((base[::2, ::3], base.T, base[::-1, ::-1], base[1])):
        index = (1,) * view.ndim
        before = int(view[index])
        assert kernels.atomic_add(view, index, number) == add(view, index, 0) - number == before
    nothing: tuple[int, ...] = ()
    alone = np.zeros((), "u4")
    assert (kernels.atomic_add(alone, nothing, 7), add(alone, nothing, 1), int(alone)) == (0, 7, 8)


@pytest.mark.parametrize("index", [3, -4, 2**62, -(2**62)])
def test_outside(index: int) -> None:
    array = np.zeros(3)
    for call in (kernels.atomic_add, add):
        with pytest.raises(IndexError, match="outside"):
            call(array, index, 1)
    with pytest.raises(IndexError, match="outside"):
        kernels.atomic_add(array, index * 2**62, 1)
    with pytest.raises(IndexError, match="outside"):
        add(array, np.uint64(2**64 - 1), 1)
    with pytest.raises(IndexError, match=f"index {index} at 1 is outside of an array of 3"):
        kernels.add_at(array, [0, index])
    assert not array.any()


SEALED = np.zeros(3)
SEALED.flags.writeable = False
PACKED = np.zeros(3, [("a", "i1"), ("b", "f8")])["b"]
REFUSED: list[tuple[Any, Any, Any, str]] = [
    (SEALED, 0, 1, "read-only"),
    (PACKED, 0, 1, "multiples of their size"),
    (np.zeros(3, "i2"), 0, 1, "cannot be added to at once"),
    (np.zeros(3, "c16"), 0, 1, "cannot be added to at once"),
    (np.zeros((3, 3)), 0, 1, "integer"),
    (np.zeros(3), 0.5, 1, "integer"),
    (np.zeros(3), (0, 0), 1, "integer"),
    (np.zeros(3, "i8"), 0, 1.5, "cannot be added to items of"),
    (np.zeros(3), 0, "a", "cannot be added to items of"),
    (np.zeros(3), 0, None, "cannot be added to items of"),
    (np.zeros(3), 0, [1.0, 2.0], "cannot be added to items of"),
]


@pytest.mark.parametrize(("array", "index", "value", "told"), REFUSED)
def test_refused(array: Any, index: Any, value: Any, told: str) -> None:
    with pytest.raises(ms.MpishareError, match=told):
        kernels.atomic_add(array, index, value)
    with pytest.raises((TypingError, ValueError), match=told):
        add(array, index, value)


@pytest.mark.parametrize(
    ("array", "indices", "values", "told"),
    [
        (np.zeros((3, 3)), [0], 1, "reshape"),
        (np.zeros(3, ">f8"), [0], 1, "cannot be added to at once"),
        (SEALED, [0], 1, "read-only"),
        (np.zeros(3), [0.0], 1, "an index is an integer"),
        (np.zeros(3), [0, 1, 2], [1, 2], "2 values for 3 indices"),
        (np.zeros(3, "i8"), [0, 1], [1.5, 2], "values of float64"),
        (np.zeros(3, "i4"), [0], 2**40, "cannot be added to items of int32"),
        (np.zeros(3, "i4"), [0, 1], [2**40, 1], "some are too large"),
        (np.zeros(3, "i8"), [0, 1], np.array([2**64 - 1, 1], "u8"), "some are too large"),
        ([0, 0], [0], 1, "list"),
    ],
)
def test_add_at_refuses(array: Any, indices: Any, values: Any, told: str) -> None:
    with pytest.raises(ms.MpishareError, match=told):
        kernels.add_at(array, indices, values)


@pytest.mark.parametrize("values", [3, [4], np.arange(1000) % 7])
def test_add_at_is_numpys(values: Any) -> None:
    indices = np.random.default_rng(3).integers(-5, 5, 1000)
    for dtype in COUNTERS:
        ours, theirs = np.zeros((2, 5), dtype)
        given = np.asarray(values, dtype)
        kernels.add_at(ours, indices, given)
        np.add.at(theirs, indices, given)
        assert ours.tolist() == theirs.tolist()
    kernels.add_at(ours, indices.astype(">i2"), given)
    np.add.at(theirs, indices, given)
    kernels.add_at(ours, [])
    kernels.add_at(ours, np.zeros(0, "i4"), np.zeros(0))
    assert ours.tolist() == theirs.tolist()


def test_add_at_of_indices_and_values_that_it_changes() -> None:
    ours = np.array([[1, 2, 0, 3, 4], [4, 4, 4, 4, 4]])
    theirs = ours.copy()
    for one, other in zip(ours, theirs, strict=True):
        kernels.add_at(one, one)
        np.add.at(other, other, 1)
        kernels.add_at(one, np.arange(5)[::-1], one)
        np.add.at(other, np.arange(5)[::-1], other)
    assert ours.tolist() == theirs.tolist()


@pytest.mark.parametrize("nbytes", [0, 1, 7, 8, 9, 64, 1001])
def test_the_sum_of_parts(nbytes: int) -> None:
    room = np.random.default_rng(nbytes).integers(0, 256, nbytes + 1, np.uint8)
    for block in (room[:nbytes], room[1:]):  # one of them is not aligned
        for parts in range(1, 6):
            found = sum(_part_sum(block, parts, part) for part in range(parts)) % 2**64
            assert found == sum_in_numpy(block)


def test_a_sum_tells_words_that_change_places() -> None:
    words = np.arange(100)
    swapped = words.copy()
    swapped[[3, 7]] = swapped[[7, 3]]
    assert _part_sum(words.view("u1"), 1, 0) != _part_sum(swapped.view("u1"), 1, 0)


def test_compiled_where_nothing_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    real = numba.njit

    def njit(**options: Any) -> Any:
        if options.pop("cache", False):
            raise RuntimeError("cannot cache function: no locator available")
        return real(**options)

    monkeypatch.setattr(numba, "njit", njit)

    def double(number: int) -> int:
        return 2 * number

    assert compiled(double)(21) == 42


def test_kept_where_the_package_lies() -> None:
    kernels.add_at(np.zeros(3), [0])
    kept = Path(kernels.__file__).parent / "__pycache__"
    assert list(kept.glob("atomics._add_all-*.nbi"))


def test_what_numba_says_of_itself_is_passed_on() -> None:
    code = (
        "import importlib.abc, sys\n"
        "class Finder(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'numba':\n"
        "            raise ImportError('Numba needs NumPy 2.2 or less')\n"
        "sys.meta_path.insert(0, Finder())\n"
        "import mpishare.kernels\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.stderr.splitlines()[-1] == "ImportError: Numba needs NumPy 2.2 or less"


def test_without_numba_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['numba'] = None\nimport mpishare\nfrom mpishare import kernels\n"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    told = "ImportError: mpishare.kernels needs numba, which is not installed: pip install 'mpishare[numba]'"
    assert told in ended.stderr
