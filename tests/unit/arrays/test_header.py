"""The header of a spec: its bytes, and no bytes whatever break its reader."""

import random
import struct

import numpy as np
import pytest

from mpishare.arrays.header import HEADER_BYTES, extension_bytes
from mpishare.arrays.spec import Spec
from mpishare.errors import SpecError
from tests.arrays import DTYPES, filled

HEADER, _ = Spec.make((2, 3), "f8").packed
LONG_HEADER, EXTENSION = Spec.of(filled(DTYPES["nested"], (2, 3))).packed


def test_the_bytes_are_as_other_versions_expect_them():
    layout = "<4sBBxxI4x16s4q"
    assert Spec.make((2, 3), ">f8", "F").packed == (struct.pack(layout, b"MSH1", 1, 2, 0, b">f8", 2, 3, 0, 0), b"")
    extension = b'{"dtype": "<i2", "shape": [1, 1, 1, 1, 1]}'
    header = struct.pack(layout, b"MSH1", 0, 0, len(extension), b"", 0, 0, 0, 0)
    assert Spec.make((1,) * 5, "<i2").packed == (header, extension)


@pytest.mark.parametrize("dtype", ["f8", ">i4", "U100", "M8[ns]", "?", "M8[2147483647s]"])
def test_plain_dtypes_need_no_extension(dtype):
    assert Spec.make((2, 3, 4, 5), dtype).packed[1] == b""
    assert Spec.make((1, 1, 1, 1, 1), dtype).packed[1] != b""
    assert Spec.make(1, "M8[2147483647ns]").packed[1] != b""


def test_dtypes_of_too_many_columns_are_refused():
    wide = np.dtype([(f"{'x' * 1000}{number}", "u1") for number in range(17_000)])
    with pytest.raises(SpecError, match="bytes to describe"):
        _ = Spec.make(1, wide).packed
    limit, beyond = (struct.pack("<4s4xI52x", b"MSH1", (1 << 24) + more) for more in (0, 1))
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
        unpacked(b"MSH1" + source.randbytes(60))


HOSTILE = [b"[[[", b'{"dtype": "O", "shape": [1]}', b'{"dtype": "f8", "shape": [-1]}', b"7", b"[" * 9999]


def test_hostile_bytes_are_refused():
    for extension in (*HOSTILE, *(EXTENSION[:cut] for cut in range(len(EXTENSION)))):
        assert unpacked(LONG_HEADER, extension) is None
    for flags, ndim in ((2, 1), (0, 5), (255, 1)):
        assert unpacked(HEADER[:4] + bytes([flags, ndim]) + HEADER[6:]) is None
    with pytest.raises(SpecError, match="it begins with b'MSH2'"):
        extension_bytes(b"MSH2" + HEADER[4:])
