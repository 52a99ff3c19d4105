"""A tile of an array that a library slices has the shape and the dtype that the array says, or is refused."""

from types import SimpleNamespace

import numpy as np
import pytest

from mpishare.errors import FileError
from mpishare.files.sliced import described, read_tile


class OneItem(SimpleNamespace):
    """An array without an axis that returns a scalar, as those of many libraries do."""

    def __getitem__(self, index):
        return self.item


def read(dtype, item):
    array = OneItem(shape=(), dtype=np.dtype(dtype), item=item)
    out = np.empty((), f"V{array.dtype.itemsize}")
    read_tile("call", described("call", None, array), array, [], out)
    return out.view(dtype)


@pytest.mark.parametrize(
    ("dtype", "item"), [("U5", np.str_("ab")), (">U5", "ab"), ("U5", ""), ("S5", np.bytes_(b"ab")), ("S2", b"ab")]
)
def test_one_string(dtype, item):
    assert read(dtype, item)[()] == item


@pytest.mark.parametrize(("dtype", "item"), [("U2", "abc"), ("S2", b"abc"), ("i4", "3"), ("S5", "ab"), ("f4", 1)])
def test_an_item_of_another_dtype(dtype, item):
    with pytest.raises(FileError, match=r"call: tile \[\] "):
        read(dtype, item)
