""".npy files: every format, dtype and layout; regions; what is refused."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mpishare.errors import ArgumentError, FileError, MpishareError, SpecError
from mpishare.files.inspect import stored
from mpishare.files.npy import spec_in
from mpishare.files.parts import ContiguousPart
from tests.arrays import DTYPES, bits, filled, layouts
from tests.unit.files.reading import INDICES, inspected, loaded

CANNOT = {"no bytes", "no characters", "overlap"}  # which numpy.save makes one wide, or refuses


def assert_same(found: Any, expected: Any) -> None:
    """Both have the same bits, dtype and shape."""
    assert (found.dtype, found.shape, bits(found)) == (expected.dtype, expected.shape, bits(expected))


@pytest.mark.filterwarnings("ignore:Stored array in format")
@pytest.mark.filterwarnings("ignore:metadata on a dtype")
@pytest.mark.parametrize("name", [name for name in DTYPES if name not in CANNOT])
def test_every_dtype_and_layout(tmp_path: Path, name: str) -> None:
    for source in layouts(DTYPES[name]).values():
        np.save(tmp_path / "a.npy", source)
        expected = np.load(tmp_path / "a.npy")
        found = loaded(tmp_path / "a.npy")
        assert_same(found, expected)
        assert found.flags.fnc == expected.flags.fnc
        assert stored(tmp_path / "a.npy")[""].nbytes == expected.nbytes


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_format(tmp_path: Path, version: tuple[int, int]) -> None:
    array = filled(np.dtype("f8"), (5, 3))
    with (tmp_path / "a.npy").open("wb") as file:
        np.lib.format.write_array(file, array, version)
    assert_same(loaded(tmp_path / "a.npy"), array)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("name", INDICES)
def test_regions(tmp_path: Path, name: str, order: str) -> None:
    array = np.asarray(filled(DTYPES["gaps"], (7, 6, 4)), order=order)  # type: ignore[call-overload]
    np.save(tmp_path / "a.npy", array)
    assert_same(loaded(tmp_path / "a.npy", region=INDICES[name]), np.asarray(array[INDICES[name]]))


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_any_region_in_any_pieces(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any.npy"
    shape = data.draw(hnp.array_shapes(max_dims=4, max_side=7))
    array = np.asarray(filled(np.dtype("i4"), shape), order=data.draw(st.sampled_from("CF")))
    index = data.draw(hnp.basic_indices(shape, allow_newaxis=True).filter(lambda one: one is not None))
    np.save(path, array)
    assert_same(loaded(path, region=index, piece_bytes=data.draw(st.integers(1, 200))), np.asarray(array[index]))


def test_items_that_lie_far_apart(tmp_path: Path) -> None:
    """They are read without what lies between, and near ones together."""
    array = np.arange(3 << 20, dtype="u1").reshape(3, 1 << 20)
    np.save(tmp_path / "a.npy", array)
    for index in (np.s_[:, 5:7], np.s_[::2, ::300_001], np.s_[:, ::-2], np.s_[2, 3]):
        assert_same(loaded(tmp_path / "a.npy", region=index, piece_bytes=1 << 20), np.asarray(array[index]))


def test_a_view_of_a_map_is_the_region(tmp_path: Path) -> None:
    array = np.asfortranarray(filled(np.dtype("f8"), (7, 6, 4)))
    np.save(tmp_path / "a.npy", array)
    content = np.frombuffer((tmp_path / "a.npy").read_bytes(), np.uint8)
    for index in INDICES.values():
        (part,) = inspected(tmp_path / "a.npy", region=index).parts
        assert isinstance(part, ContiguousPart)
        assert_same(part.view(content[part.span]), np.asarray(array[index]))


def test_a_header_of_python_2(tmp_path: Path) -> None:
    assert spec_in(b"{'descr': '<f8', 'fortran_order': False, 'shape': (3L, 4L), }", 1).shape == (3, 4)


HEADERS = {
    "no dict": (b"[1, 2]", "it is list, not a dict"),
    "no literal": (b"__import__('os')", "malformed"),
    "broken": (b"{'descr': ", "never closed"),
    "a key too few": (b"{'descr': '<f8', 'shape': ()}", "it has the keys ['descr', 'shape']"),
    "a shape of texts": (b"{'descr': '<f8', 'fortran_order': False, 'shape': ('a',)}", "its shape is ('a',)"),
    "a negative shape": (b"{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}", "its shape is (-1,)"),
    "a list for a shape": (b"{'descr': '<f8', 'fortran_order': False, 'shape': [1]}", "its shape is [1]"),
    "no order": (b"{'descr': '<f8', 'fortran_order': 2, 'shape': ()}", "fortran_order is 2"),
    "no dtype": (b"{'descr': 'what', 'fortran_order': False, 'shape': ()}", "what"),
    "an empty dtype": (b"{'descr': (), 'fortran_order': False, 'shape': ()}", "out of range"),
    "half a dtype": (b"{'descr': ('<f8',), 'fortran_order': False, 'shape': ()}", "out of range"),
    "lengths in the dtype": (b"{'descr': '(2,)<f8', 'fortran_order': False, 'shape': ()}", "lengths of its own"),
    "too large": (b"{'descr': '<f8', 'fortran_order': False, 'shape': (2**70,)}", "malformed"),
    "deep": (b"(" * 5000, "its header is no .npy header"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_broken_headers(tmp_path: Path, name: str) -> None:
    text, words = HEADERS[name]
    write(tmp_path / "a.npy", text)
    with pytest.raises(FileError) as refused:
        inspected(tmp_path / "a.npy")
    assert str(tmp_path / "a.npy") in str(refused.value)
    assert words in str(refused.value)


def write(path: Path, header: bytes, content: bytes = b"") -> None:
    """A file of format 1."""
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content)


def test_files_that_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "objects.npy", np.array([None, "a"]), allow_pickle=True)
    np.save(tmp_path / "short.npy", np.zeros(1000))
    os.truncate(tmp_path / "short.npy", 5000)
    np.savez(tmp_path / "several.npz", a=np.zeros(2))
    (tmp_path / "header.npy").write_bytes(b"\x93NUMPY\x01\x00\xff")
    (tmp_path / "future.npy").write_bytes(b"\x93NUMPY\x09\x00\xff\x00\x00\x00")
    (tmp_path / "long.npy").write_bytes(b"\x93NUMPY\x02\x00\xff\xff\xff\x7f")
    os.mkfifo(tmp_path / "pipe")
    refusals: dict[str, tuple[type[MpishareError], str]] = {
        "objects.npy": (SpecError, "a pickle of Python objects, which is not read"),
        "short.npy": (FileError, "is truncated: it has 5,000 bytes, and the array goes on to byte 8,128"),
        "several.npz": (FileError, "is an archive"),
        "header.npy": (FileError, "ends at byte 9"),
        "future.npy": (FileError, "format 9 is unknown"),
        "long.npy": (FileError, "is longer than"),
        "missing.npy": (FileError, "No such file"),
        "pipe": (FileError, "is no regular file"),
        "": (FileError, "is a folder"),
    }
    for name, (kind, words) in refusals.items():
        with pytest.raises(kind) as refused:
            inspected(tmp_path / name)
        assert str(tmp_path / name) in str(refused.value)
        assert words in str(refused.value)


def test_datasets_and_regions_that_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((2, 3)))
    with pytest.raises(FileError, match=r"dataset 'x' of .*a\.npy: is a \.npy file"):
        inspected(tmp_path / "a.npy", "x")
    with pytest.raises(ArgumentError, match="outside of axis 0"):
        inspected(tmp_path / "a.npy", region=2)
    with pytest.raises(ArgumentError, match="no name of a file"):
        stored(3)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="dataset 3 is no name"):
        stored(tmp_path / "a.npy", 3)  # type: ignore[arg-type]


def test_a_file_that_is_changed_is_found_out(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(100))
    known = inspected(tmp_path / "a.npy")
    with (tmp_path / "a.npy").open("ab") as file:
        file.write(b"!")
    from mpishare.files.source import Source

    with Source(known.path, known.stamp) as source, pytest.raises(FileError, match="was changed while it was read"):
        source.read(0, memoryview(bytearray(3)))


def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.zeros(3))
    path.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # root may read all
    try:
        with pytest.raises(FileError, match=r"a\.npy: Permission denied"):
            inspected(path)
    finally:
        os.seteuid(user)
