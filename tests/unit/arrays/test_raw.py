"""The bytes of arrays. That they are copied whole is tried for every dtype and layout in test_spec."""

import numpy as np
import pytest

from mpishare.arrays.raw import address_of, bytes_of, scalar, zero
from mpishare.errors import SpecError


def test_bytes_of_is_no_copy():
    for array in (np.zeros((3, 4)), np.zeros((3, 4), order="F"), np.zeros(()), np.zeros((2, 3), "M8[s]")):
        bytes_of(array)[0] = 1
        assert array.tobytes().count(1) == 1
        assert address_of(bytes_of(array)) == address_of(array) == array.ctypes.data


def test_one_item():
    assert zero("M8[s]") == np.datetime64(0, "s")
    assert [item.dtype.str for item in (zero("U"), scalar(3, "<f4"), scalar("ab", None))] == ["<U1", "<f4", "<U2"]


def test_what_is_not_one_item_is_refused():
    for value, dtype in (("a", "f8"), ([1], "f8"), (1, "nothing"), (300, np.dtype([("a", "u1")])), (1e400, "i4")):
        with pytest.raises(SpecError):
            scalar(value, dtype)
