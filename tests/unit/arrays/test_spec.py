"""Spec: what an array is, checked, and there and back through a header. Every dtype in every layout is tried here."""

from __future__ import annotations

import re
import sys
from typing import Any, cast

import numpy as np
import pytest

from mpishare.arrays.header import HEADER_BYTES, extension_bytes
from mpishare.arrays.raw import bytes_of, copy_bytes
from mpishare.arrays.spec import MAX_DIMS, Spec
from mpishare.errors import ArgumentError, SpecError
from tests.arrays import bits, every_array


def test_header_there_and_back() -> None:
    for name, array in every_array():
        spec = Spec.of(array)
        header, extension = spec.packed
        assert len(header) == HEADER_BYTES, name
        assert extension_bytes(header) == len(extension), name
        twin = Spec.unpack(header, extension)
        assert (twin, str(twin)) == (spec, str(spec)), name
        assert (twin.dtype.type is np.record) == (spec.dtype.type is np.record), name
        assert twin.dtype.isalignedstruct == spec.dtype.isalignedstruct, name
        assert twin.dtype.fields == spec.dtype.fields, name


def test_view_of_copied_bytes_is_the_array() -> None:
    for name, array in every_array():
        spec = Spec.of(array)
        assert (spec.shape, spec.count, spec.nbytes) == (array.shape, array.size, array.nbytes), name
        block = np.zeros(spec.nbytes, np.uint8)
        copy_bytes(spec.view(block), array)
        view = spec.view(block)
        assert (view.dtype, bits(view)) == (array.dtype, bits(array)), name
        if array.flags.forc:
            assert bytes_of(array).tobytes() == block.tobytes(), name
            assert view.strides == array.strides or array.size < 2, name


def test_order_is_fortran_only_where_it_is_not_c_as_well() -> None:
    assert Spec.of(np.zeros((3, 4), order="F")).order == "F"
    assert Spec.of(np.zeros((3, 1), order="F")).order == "C"
    assert Spec.of(np.zeros((3, 4))[:, ::2]).order == "C"
    assert Spec.make((3, 4), "f8", "F").order == "F"


def test_what_numpy_makes_of_a_dtype() -> None:
    assert Spec.make(np.int64(3), ("f4", (2,))) == Spec(np.dtype("f4"), (3, 2))
    assert Spec.make((), "S").dtype == np.dtype("S1")
    assert Spec.make([2, np.int8(3)], None) == Spec(np.dtype("f8"), (2, 3))
    assert str(Spec.make(2, "<f8")) != str(Spec.make(2, ">f8"))
    assert [Spec.make(2, dtype).typestr for dtype in ("<f8", ">f8", "S3")] == ["<f8", "", ""]


def test_sizes_do_not_overflow() -> None:
    assert Spec.make((2**31, 2**10), "f8").nbytes == 2**44
    assert Spec.make(sys.maxsize, "u1").nbytes == sys.maxsize
    assert Spec.make((1,) * MAX_DIMS, "u1").nbytes == 1
    for shape in (2**60, (0, 2**60), (0, sys.maxsize + 1), (0, 10**30)):
        with pytest.raises(SpecError, match="exceed"):
            Spec.make(shape, "f8")
    with pytest.raises(SpecError, match=f"has {MAX_DIMS + 1} dimensions"):
        Spec.make((1,) * (MAX_DIMS + 1), "u1")


def test_bad_shapes_dtypes_and_orders() -> None:
    for shape in (-1, (2, -1)):
        with pytest.raises(SpecError, match="negative"):
            Spec.make(shape, "f8")
    for shape in cast("Any", ("abc", None, 2.5, (1.5,))):
        with pytest.raises(SpecError, match=re.escape(f"shape {shape!r} is not understood")):
            Spec.make(shape, "f8")
    for dtype in ("no such", "f8,,"):
        with pytest.raises(SpecError, match="not understood by NumPy"):
            Spec.make(3, dtype)
    for order in cast("Any", ("A", None, 1)):
        with pytest.raises(ArgumentError, match="order"):
            Spec.make(1, "f8", order)


@pytest.mark.parametrize("array", [[1], np.zeros(1).view(np.matrix), np.zeros(1).view(np.recarray), np.ma.zeros(1)])
def test_what_is_not_a_plain_array_is_refused(array: Any) -> None:
    with pytest.raises(SpecError, match=rf"{type(array).__name__} cannot be shared"):
        Spec.of(array)
