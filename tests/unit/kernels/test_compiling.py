"""How kernels are compiled, and what is said where numba is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

from mpishare import kernels
from mpishare.kernels.compiling import compiled


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


NUMBA_FAILS = """
import importlib.abc, sys
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "numba":
            raise ImportError("Numba needs NumPy 2.2 or less")
sys.meta_path.insert(0, Finder())
import mpishare.kernels
"""
NO_NUMBA = "import sys; sys.modules['numba'] = None; import mpishare; from mpishare import kernels"
INSTALL = "ImportError: mpishare.kernels needs numba, which is not installed: pip install 'mpishare[numba]'"


@pytest.mark.parametrize(
    ("program", "text"), [(NUMBA_FAILS, "ImportError: Numba needs NumPy 2.2 or less"), (NO_NUMBA, INSTALL)]
)
def test_without_numba(program: str, text: str) -> None:
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert process.stderr.splitlines()[-1] == text
