"""How kernels are compiled, and what is said where numba is missing."""

import subprocess
import sys
from unittest.mock import Mock, call

import numba
import pytest

from mpishare.kernels.compiling import compiled


def test_compiled_where_nothing_can_be_kept(monkeypatch):
    njit = Mock(side_effect=[RuntimeError("cannot cache function: no locator available"), lambda function: function])
    monkeypatch.setattr(numba, "njit", njit)
    assert compiled(lambda number: 2 * number)(21) == 42
    assert njit.call_args_list == [call(nogil=True, cache=True), call(nogil=True)]


NO_NUMBA = "raise ModuleNotFoundError(name='numba')"
INSTALL = "mpishare.kernels needs numba, which is not installed: pip install 'mpishare[numba]'"
TOO_OLD = "Numba needs NumPy 2.2 or less"


@pytest.mark.parametrize(("numba_py", "text"), [(NO_NUMBA, INSTALL), (f"raise ImportError({TOO_OLD!r})", TOO_OLD)])
def test_without_numba(tmp_path, numba_py, text):
    (tmp_path / "numba.py").write_text(numba_py)
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import mpishare; from mpishare import kernels"
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert process.stderr.splitlines()[-1] == f"ImportError: {text}"
