"""Dtypes that cannot be shared, and strings that are not the description of a dtype."""

import numpy as np
import pytest

from mpishare.arrays.dtypes import check_dtype, is_native_number, rebuild
from mpishare.errors import SpecError

BAD = [
    (object, "it holds Python objects"),
    ([("a", "i4"), ("b", "O")], "column 'b' holds Python objects"),
    ([("a", [("b", "O")])], "column 'a' holds Python objects"),
    ({"names": ["a"], "formats": ["f8"], "titles": [b"x"]}, "title of a column is not a string"),
]
if np.lib.NumpyVersion(np.__version__) >= "2.0.0":  # strings of any length came with NumPy 2
    BAD.append(("T", "strings live outside the array"))


@pytest.mark.parametrize(("dtype", "message"), BAD)
def test_dtypes_that_are_not_bytes(dtype, message):
    with pytest.raises(SpecError, match=message):
        check_dtype(np.dtype(dtype))


def test_native_numbers():
    assert [name for name in ("f8", "?", ">f8", "S0", "O") if is_native_number(np.dtype(name))] == ["f8", "?"]


@pytest.mark.parametrize("description", ["O", "f8,f8", "(2,)f8", "T", "f12345678901", "", "|V8[s"])
def test_strings_that_numpy_would_evaluate_are_refused(description):
    with pytest.raises(ValueError, match="not a dtype of a fixed size"):
        rebuild(description)
