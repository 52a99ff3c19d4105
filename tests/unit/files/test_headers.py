"""What is written as .npy, NumPy reads as it was; what it could not is refused."""

from __future__ import annotations

import io

import numpy as np
import pytest

from mpishare.arrays.spec import Order, Spec
from mpishare.errors import SpecError
from mpishare.files.npy import header_of
from tests.arrays import DTYPES, bits, filled

REFUSED = {"overlap"}


@pytest.mark.parametrize("name", sorted(set(DTYPES) - REFUSED))
@pytest.mark.parametrize("order", ["C", "F"])
def test_numpy_reads_it(name: str, order: Order) -> None:
    array = filled(DTYPES[name], (4, 3, 2)).copy(order)
    before = header_of(Spec.of(array))
    assert len(before) % 64 == 0
    read = np.load(io.BytesIO(before + array.tobytes("A")))
    assert (read.dtype, read.shape) == (array.dtype, array.shape)
    assert read.flags.fnc == array.flags.fnc or not array.nbytes
    assert bits(read) == bits(array)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_would_come_back_as_something_else_is_refused(name: str) -> None:
    with pytest.raises(SpecError, match=r"cannot be stored in a \.npy file"):
        header_of(Spec.of(filled(DTYPES[name], (2,))))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2)])
def test_few_items(shape: tuple[int, ...]) -> None:
    array = np.ones(shape, "i2")
    assert np.load(io.BytesIO(header_of(Spec.of(array)) + array.tobytes())).shape == shape


@pytest.mark.parametrize(("letter", "count", "version"), [("a", 3, 1), ("a", 3000, 2), ("é", 3, 1), ("名", 3, 3)])
def test_the_oldest_version_that_can_tell_it(letter: str, count: int, version: int) -> None:
    dtype = np.dtype([(f"{letter * 10}{number}", "f8") for number in range(count)])
    found = header_of(Spec(dtype, (2,)))
    assert found[6] == version
    assert np.load(io.BytesIO(found + bytes(2 * dtype.itemsize)), max_header_size=1 << 20).dtype == dtype
