"""Spec: what an array is, checked, and there and back through a header."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from mpishare.arrays.header import HEADER_BYTES, extension_bytes
from mpishare.arrays.raw import bytes_of, copy_bytes
from mpishare.arrays.spec import Spec
from mpishare.errors import SpecError
from tests.arrays import DTYPES, bits, filled, layouts


@pytest.mark.parametrize("name", DTYPES)
def test_header_there_and_back(name: str) -> None:
    for array in layouts(DTYPES[name]).values():
        spec = Spec.of(array)
        header, extension = spec.packed
        assert len(header) == HEADER_BYTES == 64
        assert extension_bytes(header) == len(extension)
        twin = Spec.unpack(header, extension)
        assert twin == spec
        assert (twin.dtype.type is np.record) == (spec.dtype.type is np.record)
        assert twin.dtype.isalignedstruct == spec.dtype.isalignedstruct
        assert twin.dtype.fields == spec.dtype.fields


def test_plain_dtypes_need_no_extension() -> None:
    for name in ("f8", ">i4", "U100", "M8[ns]", "?"):
        assert Spec.make((2, 3, 4, 5), name).packed[1] == b""
    assert Spec.make((1, 1, 1, 1, 1), "f8").packed[1] != b""


@pytest.mark.parametrize("name", DTYPES)
def test_view_of_copied_bytes_is_the_array(name: str) -> None:
    for array in layouts(DTYPES[name]).values():
        spec = Spec.of(array)
        block = np.zeros(spec.nbytes, np.uint8)
        copy_bytes(spec.view(block), array)
        assert bits(spec.view(block)) == bits(array)
        if array.flags.forc:
            assert bytes_of(array).tobytes() == block.tobytes()


def test_bytes_of_is_no_copy() -> None:
    for array in (np.zeros((3, 4)), np.zeros((3, 4), order="F"), np.zeros(()), np.zeros((2, 3), "M8[s]")):
        bytes_of(array)[0] = 1
        assert array.tobytes().count(1) == 1


def test_order_is_fortran_only_where_it_is_not_c_as_well() -> None:
    assert Spec.of(np.zeros((3, 4), order="F")).order == "F"
    assert Spec.of(np.zeros((3, 1), order="F")).order == "C"
    assert Spec.of(np.zeros((3, 4))[:, ::2]).order == "C"


def test_sizes_do_not_overflow() -> None:
    assert Spec.make((2**31, 2**10), "f8").nbytes == 2**44
    with pytest.raises(SpecError, match="exceed"):
        Spec.make(2**60, "f8")


def test_user_defined_dtypes_are_refused() -> None:
    strings = getattr(getattr(np, "dtypes", None), "StringDType", None)  # since NumPy 2
    if strings is not None:
        with pytest.raises(SpecError, match="outside the array"):
            Spec.of(np.array(["a"], strings()))
    with pytest.raises(SpecError, match="Python objects"):
        Spec.of(np.array([{}]))


HEADER, _ = Spec.make((2, 3), "f8").packed
LONG_HEADER, EXTENSION = Spec.of(filled(DTYPES["nested"], (2, 3))).packed


def unpacked(header: bytes, extension: bytes) -> Spec | None:
    """The spec, or None where it was refused in the one way that is allowed."""
    try:
        extension_bytes(header)
        return Spec.unpack(header, extension)
    except SpecError:
        return None


def test_every_flipped_bit_is_refused_or_harmless() -> None:
    for header, extension in ((HEADER, b""), (LONG_HEADER, EXTENSION)):
        whole = bytearray(header + extension)
        for bit in range(8 * len(whole)):
            whole[bit // 8] ^= 1 << bit % 8
            check_harmless(unpacked(bytes(whole[:HEADER_BYTES]), bytes(whole[HEADER_BYTES:])))
            whole[bit // 8] ^= 1 << bit % 8


def test_random_and_truncated_bytes_are_refused_or_harmless() -> None:
    source = random.Random(3)
    for length in [0, 1, 63, 64, 65] * 200:
        check_harmless(unpacked(source.randbytes(length), b""))
        check_harmless(unpacked(HEADER, source.randbytes(length)))
        check_harmless(unpacked(b"MSH1" + source.randbytes(60), b""))
    for cut in range(len(EXTENSION)):
        check_harmless(unpacked(LONG_HEADER, EXTENSION[:cut]))


HOSTILE = [b"[[[", b'{"dtype": "O", "shape": [1]}', b'{"dtype": "f8", "shape": [-1]}', b"7", b"[" * 9999]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_extensions(text: bytes) -> None:
    assert unpacked(LONG_HEADER, text) is None


def check_harmless(spec: Spec | None) -> None:
    """What was accepted describes an array without objects, of a size that an address can have."""
    if spec is not None:
        assert not spec.dtype.hasobject
        assert 0 <= spec.nbytes < 2**63


def test_describing_words_are_alike_for_alike_specs() -> None:
    one: Any = Spec.make((2,), [("a", "i4")])
    assert str(one) == str(Spec.unpack(*one.packed))
    assert str(Spec.make(2, "<f8")) != str(Spec.make(2, ">f8"))
