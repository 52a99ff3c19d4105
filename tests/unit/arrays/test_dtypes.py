"""Which dtypes can be shared, and their description. Each one that can is tried in test_spec."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mpishare.arrays.dtypes import check_dtype, is_native_number, rebuild
from mpishare.errors import SpecError

BAD: dict[str, Any] = {
    "it holds Python objects": object,
    "column 'b' holds Python objects": [("a", "i4"), ("b", "O")],
    "column 'a' holds Python objects": [("a", [("b", "O")])],
    "title of a column is not a string": {"names": ["a"], "formats": ["f8"], "titles": [b"x"]},
}


@pytest.mark.parametrize("message", BAD)
def test_dtypes_that_are_not_bytes(message: str) -> None:
    with pytest.raises(SpecError, match=message):
        check_dtype(np.dtype(BAD[message]))


@pytest.mark.skipif(not hasattr(np, "dtypes"), reason="strings of any length came with NumPy 2")
def test_strings_of_any_length() -> None:
    with pytest.raises(SpecError, match="outside the array"):
        check_dtype(np.dtypes.StringDType())  # type: ignore[attr-defined, unused-ignore]


def test_native_numbers() -> None:
    assert [name for name in ("f8", "?", ">f8", "S0", "O") if is_native_number(np.dtype(name))] == ["f8", "?"]


@pytest.mark.parametrize("description", ["O", "f8,f8", "(2,)f8", "T", "f12345678901", "", "|V8[s"])
def test_strings_that_numpy_would_evaluate_are_refused(description: str) -> None:
    with pytest.raises(ValueError, match="not a dtype of a fixed size"):
        rebuild(description)
