""".npy headers are read and written as NumPy does, .npz archives read; a damaged or hostile one is refused at once."""

import struct
import zipfile

import numpy as np
import pytest

from mpishare.arrays.spec import Spec
from mpishare.errors import FileError, SpecError
from mpishare.files.listing import stored
from mpishare.files.npy import header_of
from tests.arrays import DTYPES, REPRESENTATIVES, assert_same, bits, filled
from tests.unit.files.reading import inspected, loaded

ODD_DTYPES = ["titles", "unicode names", "record", "no columns", "subarray"]
STORABLE = {name: array for name, array in REPRESENTATIVES.items() if not name.startswith("foreign")}
ARRAYS = {**STORABLE, **{name: filled(DTYPES[name], (4, 3)).T for name in ODD_DTYPES}}


@pytest.mark.filterwarnings("ignore:Stored array in format")
@pytest.mark.filterwarnings("ignore:metadata on a dtype")
@pytest.mark.parametrize("name", ARRAYS)
def test_numpy_and_mpishare_read_what_either_writes(tmp_path, name):
    np.save(tmp_path / "a.npy", ARRAYS[name])
    expected = np.load(tmp_path / "a.npy")
    header = header_of(Spec.of(expected))
    assert len(header) % 64 == 0
    (tmp_path / "b.npy").write_bytes(header + expected.tobytes("A"))
    for file in ("a.npy", "b.npy"):
        result = loaded(tmp_path / file)
        assert_same(result, expected)
        assert bits(np.load(tmp_path / file)) == bits(result)
        assert result.flags.fnc == expected.flags.fnc
        assert stored(tmp_path / file)[""].nbytes == expected.nbytes


@pytest.mark.parametrize(("character", "count", "version"), [("a", 3, 1), ("a", 3000, 3), ("é", 3, 1), ("名", 3, 3)])
def test_the_version_that_is_written(tmp_path, character, count, version):
    array = filled(np.dtype([(f"{character * 10}{number}", "f8") for number in range(count)]), (2,))
    header = header_of(Spec.of(array))
    assert header[6] == version
    (tmp_path / "a.npy").write_bytes(header + array.tobytes())
    assert_same(loaded(tmp_path / "a.npy"), array)
    assert_same(np.load(tmp_path / "a.npy", max_header_size=1 << 20), array)


def test_a_dtype_that_would_come_back_as_another_is_refused():
    with pytest.raises(SpecError, match=r"cannot be stored in a \.npy file"):
        header_of(Spec(DTYPES["overlap"], (2,)))
    with pytest.raises(SpecError, match=r"come back as .*V.*\. Save its \.view\('V"):
        header_of(Spec(DTYPES["foreign"], (2,)))


def test_a_header_that_load_would_refuse_is_not_written(tmp_path):
    fields = repr({"descr": [("", "<f8")], "fortran_order": False, "shape": (2,)}) + "\n"
    longest = (128 << 10) - 12 - len(fields)  # 12 bytes come before the text, and all are a multiple of 64
    dtype = np.dtype([("a" * longest, "f8")])
    (tmp_path / "a.npy").write_bytes(header_of(Spec(dtype, (2,))) + bytes(16))
    assert stored(tmp_path / "a.npy")[""].dtype == dtype
    with pytest.raises(SpecError, match=r"stored in a \.npy file: its header has 131,124 bytes; 131,072 are allowed"):
        header_of(Spec(np.dtype([("a" * (longest + 1), "f8")]), (2,)))


def file_of(header, version=2):
    """A file of a header alone."""
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(header)) + header


def test_a_header_of_python_2(tmp_path):
    (tmp_path / "a.npy").write_bytes(file_of(b"{'descr': '<f8', 'fortran_order': False, 'shape': (0L, 4L), }", 1))
    with pytest.warns(UserWarning, match="Python 2"):
        assert stored(tmp_path / "a.npy")[""].shape == (0, 4)


FIELDS = "{{'descr': {}, 'fortran_order': {}, 'shape': {}}}"
HEADERS = {
    "code": ("__import__('os')", "malformed"),
    "a shape of strings": (FIELDS.format("'<f8'", False, "('a',)"), "shape is not valid"),
    "a negative shape": (FIELDS.format("'<f8'", False, "(3, -1)"), "the negative shape (3, -1)"),
    "a subarray dtype": (FIELDS.format("'(2,)<f8'", False, "()"), "the subarray dtype"),
    "too large": (FIELDS.format("'<f8'", False, f"({2**70},)"), "exceed the address space"),
    "deep": ("(" * 5000, "its header is not a .npy header"),
    "objects": (FIELDS.format("'|O'", False, "()"), "a pickle of Python objects, which is not read"),
}


DAMAGED = {
    **{name: (file_of(header.encode(), 3), message) for name, (header, message) in HEADERS.items()},
    "short": (header_of(Spec(np.dtype("u1"), (1000,))) + bytes(999), "is truncated: it has 1,127 bytes"),
    "half a header": (b"\x93NUMPY\1\0\xff", "ends at byte 9"),
    "format 9": (b"\x93NUMPY\x09\0\xff\0\0\0", "format 9 is unknown"),
    "long header": (b"\x93NUMPY\2\0\1\0\2\0", "its header has 131,073 bytes; 131,072 are allowed"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_and_hostile_files_are_refused(tmp_path, name):
    content, message = DAMAGED[name]
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(SpecError if name.startswith(("objects", "too large")) else FileError) as caught:
        inspected(tmp_path / "a.npy")
    assert str(caught.value).startswith(str(tmp_path / "a.npy"))
    assert message in str(caught.value)
    assert len(str(caught.value)) < 500


# Archives of several arrays.


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compressions(tmp_path, compression):
    np.save(tmp_path / "a.npy", np.arange(1000))
    with zipfile.ZipFile(tmp_path / "a.npz", "w", compression) as archive:
        archive.write(tmp_path / "a.npy", "a.npy")
    assert_same(loaded(tmp_path / "a.npz", "a"), np.arange(1000))


def test_damaged_members(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", a=np.random.default_rng(5).integers(0, 9, 10_000))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[len(content) // 2] ^= 0xFF
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(FileError, match=r"'a' of .*a\.npz: it cannot be read"):
        loaded(tmp_path / "a.npz")


def test_a_member_shorter_than_its_array(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(1000))
    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(tmp_path / "a.npz", "w", compression) as archive:
            archive.writestr("a.npy", (tmp_path / "a.npy").read_bytes()[:-1])
        with pytest.raises(FileError, match="is truncated: it has 8,127 bytes; 8,128 are needed"):
            inspected(tmp_path / "a.npz")
