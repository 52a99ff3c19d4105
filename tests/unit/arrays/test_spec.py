"""What an array is: its dtype, its spec, the spec's header, its bytes. Every dtype in every layout is tried here."""

import random
import struct
import sys

import numpy as np
import pytest

from mpishare.arrays.raw import bytes_of, copy_bytes
from mpishare.arrays.spec import HEADER_BYTES, MAX_DIMS, Spec, extension_bytes
from mpishare.errors import ArgumentError, SpecError
from tests.arrays import DTYPES, assert_same, every_array, filled


def test_arrays_come_back_from_their_headers_and_bytes():
    for name, array in every_array():
        spec = Spec.of(array)
        header, extension = spec.packed
        assert (len(header), extension_bytes(header)) == (HEADER_BYTES, len(extension)), name
        twin = Spec.unpack(header, extension)
        assert (twin, str(twin), twin.nbytes) == (spec, str(spec), array.nbytes), name
        assert twin.dtype.fields == array.dtype.fields, name
        assert twin.dtype.isalignedstruct == array.dtype.isalignedstruct, name
        assert (twin.dtype.type is np.record) == (array.dtype.type is np.record), name
        block = np.zeros(spec.nbytes, np.uint8)
        copy_bytes(twin.view(block), array)
        assert_same(twin.view(block), array)
        if array.flags.forc:
            assert bytes_of(array).tobytes() == block.tobytes(), name
            assert twin.view(block).strides == array.strides or array.size < 2, name


def test_what_numpy_makes_of_a_dtype():
    assert Spec.make(np.int64(3), ("f4", (2,))) == Spec(np.dtype("f4"), (3, 2))
    assert Spec.make((), "S").dtype == np.dtype("S1")
    assert Spec.make([2, np.int8(3)], None) == Spec(np.dtype("f8"), (2, 3))
    assert str(Spec.make(2, "<f8")) != str(Spec.make(2, ">f8"))
    assert [Spec.make(2, dtype).typestr for dtype in ("<f8", ">f8", "S3")] == ["<f8", "", ""]
    titled = [np.dtype({"names": ["a"], "formats": ["f8"], "titles": [title]}) for title in ("x", "y")]
    assert [Spec.of(np.zeros(1, dtype)).dtype.fields for dtype in titled] == [dtype.fields for dtype in titled]


BAD_SHAPES = [
    ("negative", [-1, (2, -1)]),
    ("is not understood: give", ["abc", None, 2.5, (1.5,)]),
    ("exceed", [2**60, (0, 2**60), (0, sys.maxsize + 1), (0, 10**30)]),
    (f"has {MAX_DIMS + 1} dimensions", [(1,) * (MAX_DIMS + 1)]),
]


@pytest.mark.parametrize(("message", "shapes"), BAD_SHAPES)
def test_bad_shapes(message, shapes):
    for shape in shapes:
        with pytest.raises(SpecError, match=message):
            Spec.make(shape, "f8")


def test_bad_dtypes_and_orders():
    for dtype in ("no such", "f8,,"):
        with pytest.raises(SpecError, match="not understood by NumPy"):
            Spec.make(3, dtype)
    for order in ("A", None, 1):
        with pytest.raises(ArgumentError, match="order"):
            Spec.make(1, "f8", order)  # type: ignore[arg-type]


@pytest.mark.parametrize("array", [[1], np.zeros(1).view(np.matrix), np.zeros(1).view(np.recarray), np.ma.zeros(1)])
def test_what_is_not_a_plain_array_is_refused(array):
    with pytest.raises(SpecError, match=rf"{type(array).__name__} was given; expected a (plain )?numpy.ndarray"):
        Spec.of(array)


HEADER, _ = Spec.make((2, 3), "f8").packed
LONG_HEADER, EXTENSION = Spec.of(filled(DTYPES["nested"], (2, 3))).packed


def test_dtypes_of_too_many_columns_are_refused():
    wide = np.dtype([(f"{'x' * 1000}{number}", "u1") for number in range(17_000)])
    with pytest.raises(SpecError, match="bytes to describe"):
        _ = Spec.make(1, wide).packed
    limit, beyond = (struct.pack("<4sI56x", HEADER[:4], (1 << 24) + more) for more in (0, 1))
    assert extension_bytes(limit) == 1 << 24
    with pytest.raises(SpecError, match="announces"):
        extension_bytes(beyond)


def unpacked(header, extension=b""):
    """The spec, which must be harmless: no objects, and a size that an address can have; None if it is refused."""
    try:
        extension_bytes(header)
        spec = Spec.unpack(header, extension)
    except SpecError:
        return None
    assert not spec.dtype.hasobject
    assert 0 <= spec.nbytes < 2**63
    return spec


def test_flipped_and_random_bytes_are_refused_or_harmless():
    for whole in (HEADER, LONG_HEADER + EXTENSION):
        for bit in range(8 * len(whole)):
            flipped = bytearray(whole)
            flipped[bit // 8] ^= 1 << bit % 8
            unpacked(bytes(flipped[:HEADER_BYTES]), bytes(flipped[HEADER_BYTES:]))
    source = random.Random(3)
    for length in [0, 1, 63, 64, 65] * 200:
        unpacked(source.randbytes(length))
        unpacked(HEADER, source.randbytes(length))
        unpacked(HEADER[:8] + source.randbytes(56))


HOSTILE = [b"[[[", b'["O",[1],"C"]', b'["f8",[-1],"C"]', b'["<f8",[1]]', b'["<f8",1.5,"C"]', b"7", b"[" * 9999]


def test_hostile_bytes_are_refused():
    for extension in (*HOSTILE, *(EXTENSION[:length] for length in range(len(EXTENSION)))):
        assert unpacked(LONG_HEADER, extension) is None
    with pytest.raises(SpecError, match="it begins with b'MSH1'"):
        extension_bytes(b"MSH1" + HEADER[4:])
