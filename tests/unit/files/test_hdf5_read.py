"""HDF5 files of every kind: what is in them is told and read as h5py reads it, or refused with the reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mpishare.errors import ArgumentError, FileError, SpecError
from mpishare.files.inspect import stored
from mpishare.files.parts import ContiguousPart
from tests.arrays import DTYPES, bits, filled
from tests.unit.files.reading import INDICES, inspected, loaded

FLAT, BY_H5PY = True, False


def assert_same(found: Any, expected: Any) -> None:
    """Both have the same bits and shape, and dtypes that are equal."""
    assert (found.dtype, found.shape, bits(found)) == (expected.dtype, expected.shape, bits(expected))


def is_flat(path: Path, dataset: str) -> bool:
    """Whether its bytes are read without h5py."""
    (part,) = inspected(path, dataset).parts
    return isinstance(part, ContiguousPart)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that is not there yet."""
    return tmp_path / "a.h5"


NOT_IN_HDF5 = {"U3", ">U3", "M8[ns]", "M8[D]", "M8[25s]", "m8[s]", "m8", ">M8[us]", "nested", "overlap", "titles"} | {
    "no columns",
    "no bytes",
    "no characters",
    "G",
}


@pytest.mark.parametrize("name", [name for name in DTYPES if name not in NOT_IN_HDF5])
def test_every_dtype(path: Path, name: str) -> None:
    array = filled(DTYPES[name], (7, 6))
    with h5py.File(path, "w") as file:
        file["flat"] = array
        file.create_dataset("chunked", data=array, chunks=(3, 4), compression="gzip", shuffle=True)
        file["scalar"] = array[0, 0]
        file["nothing"] = array[:0]
        file["wide"] = array[None]
        expected = {name: file[name][...] for name in file}
    found = loaded(path)
    assert list(found) == list(expected)
    for name, one in expected.items():
        assert_same(found[name], np.asarray(one))
    assert is_flat(path, "flat")
    assert not is_flat(path, "chunked")


def make_flat(file: Any, array: Any) -> Any:
    return file.create_dataset("a", data=array)


def make_chunked(file: Any, array: Any) -> Any:
    return file.create_dataset("a", data=array, chunks=(3, 4, 2), compression="lzf", fletcher32=True)


@pytest.mark.parametrize("make", [make_flat, make_chunked])
@pytest.mark.parametrize("name", INDICES)
def test_regions(path: Path, name: str, make: Callable[[Any, Any], Any]) -> None:
    array = filled(np.dtype([("a", "<i4"), ("b", ">f8")]), (7, 6, 4))
    with h5py.File(path, "w") as file:
        make(file, array)
    assert_same(loaded(path, "a", INDICES[name]), np.asarray(array[INDICES[name]]))


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_any_region_of_any_chunks_in_any_pieces(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any.h5"
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=3, max_side=9))
    chunks = tuple(data.draw(st.integers(1, length)) for length in shape)
    array = np.arange(np.prod(shape), dtype="i4").reshape(shape)
    with h5py.File(path, "w") as file:
        file.create_dataset("a", data=array, chunks=chunks)
    index = data.draw(hnp.basic_indices(shape, allow_newaxis=True).filter(lambda one: one is not None))
    found = loaded(path, "a", index, piece_bytes=data.draw(st.integers(1, 300)))
    assert_same(found, np.asarray(array[index]))


def make_big_endian(file: Any) -> None:
    file["a"] = np.arange(5, dtype=">f4")


def make_enumeration(file: Any) -> None:
    file.create_dataset("a", (4,), h5py.enum_dtype({"RED": 0, "BLUE": 7}, "u1"), data=[0, 7, 7, 0])


def make_subarrays(file: Any) -> None:
    made = file.create_dataset("a", (5,), np.dtype(("f4", (2, 3))))
    made[...] = np.arange(30).reshape(5, 2, 3)


def make_chunked_subarrays(file: Any) -> None:
    made = file.create_dataset("a", (5,), np.dtype(("f4", (2, 3))), chunks=(2,))
    made[...] = np.arange(30).reshape(5, 2, 3)


def make_compact(file: Any) -> None:
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_layout(h5py.h5d.COMPACT)
    made = h5py.h5d.create(file.id, b"a", h5py.h5t.NATIVE_INT32, h5py.h5s.create_simple((9,)), plist)
    made.write(h5py.h5s.ALL, h5py.h5s.ALL, np.arange(9, dtype="i4"))


def make_never_written(file: Any) -> None:
    file.create_dataset("a", (9,), "i4", fillvalue=7)


def make_partly_written(file: Any) -> None:
    file.create_dataset("a", (9,), "i4", fillvalue=7, chunks=(2,))[3:5] = 1


def make_virtual(file: Any) -> None:
    file["source"] = np.arange(6.0)
    placement = h5py.VirtualLayout((2, 6), "f8")
    placement[1] = h5py.VirtualSource(".", "source", (6,))
    file.create_virtual_dataset("a", placement, fillvalue=-1)


def make_padded_by_spaces(file: Any) -> None:
    kind = h5py.h5t.C_S1.copy()
    kind.set_size(6)
    kind.set_strpad(h5py.h5t.STR_SPACEPAD)
    made = h5py.h5d.create(file.id, b"a", kind, h5py.h5s.create_simple((2,)))
    made.write(h5py.h5s.ALL, h5py.h5s.ALL, np.array([b"ab    ", b"abcdef"]), kind)


def make_opaque_dates(file: Any) -> None:
    file["a"] = np.arange(5).view("M8[s]").astype(h5py.opaque_dtype("M8[s]"))


def make_reference_to_type(file: Any) -> None:
    file["kind"] = np.dtype("<i2")
    file.create_dataset("a", data=[1, 2, 3], dtype=file["kind"])


def make_offset_and_scale(file: Any) -> None:
    file.create_dataset("a", data=np.linspace(0, 1, 50), chunks=(20,), scaleoffset=2)


KINDS: dict[str, tuple[Callable[[Any], None], bool]] = {
    "big-endian": (make_big_endian, FLAT),
    "an enumeration": (make_enumeration, FLAT),
    "subarrays": (make_subarrays, FLAT),
    "chunks of subarrays": (make_chunked_subarrays, BY_H5PY),
    "compact": (make_compact, BY_H5PY),
    "never written": (make_never_written, BY_H5PY),
    "written in part": (make_partly_written, BY_H5PY),
    "virtual": (make_virtual, BY_H5PY),
    "texts padded by spaces": (make_padded_by_spaces, BY_H5PY),
    "dates as opaque items": (make_opaque_dates, FLAT),
    "a named type": (make_reference_to_type, FLAT),
    "scale and offset": (make_offset_and_scale, BY_H5PY),
}


@pytest.mark.parametrize("name", KINDS)
def test_kinds_of_datasets(path: Path, name: str) -> None:
    make, flat = KINDS[name]
    with h5py.File(path, "w") as file:
        make(file)
    with h5py.File(path) as file:
        expected = file["a"][...]
    found = loaded(path, "a", piece_bytes=12)
    assert_same(found, expected)
    assert_same(loaded(path, "a", np.s_[::-2]), expected[::-2])
    assert found.dtype.metadata is None
    assert is_flat(path, "a") == flat


def test_what_is_said_of_a_dataset(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("a", (9, 4), "f8", chunks=(3, 2), compression="gzip", shuffle=True)
        file["b/c"] = np.zeros(3)
    found = stored(path)
    assert list(found) == ["/a", "/b/c"]
    one = found["/a"]
    assert (one.layout, one.chunks, one.filters, one.offset, one.nbytes) == (
        "chunked",
        (3, 2),
        ("shuffle", "deflate"),
        None,
        288,
    )
    assert stored(path, "b/c")["/b/c"].layout == "contiguous"
    assert list(stored(path, "b")) == ["/b/c"]


def test_an_external_file(path: Path, tmp_path: Path) -> None:
    np.arange(8.0).tofile(tmp_path / "raw")
    with h5py.File(path, "w") as file:
        file.create_dataset("a", (8,), "f8", external=[(str(tmp_path / "raw"), 0, 64)])
    assert stored(path)["/a"].layout == "external"
    assert loaded(path, "a").tolist() == list(range(8))


def test_a_user_block(path: Path) -> None:
    with h5py.File(path, "w", userblock_size=1024) as file:
        file["a"] = np.arange(100)
    assert is_flat(path, "a")
    assert loaded(path, "a").tolist() == list(range(100))


def test_links(path: Path, tmp_path: Path) -> None:
    """Those asked for by name are followed, into another file as well; a group has what is its own."""
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["far"] = np.arange(7)
        file["group/a"] = np.arange(3) + 10
        file.create_dataset("group/inner/b", data=["text"])
    with h5py.File(path, "w") as file:
        file["group/a"] = np.arange(3)
        file["group/itself"] = file["group"]
        file["group/again"] = file["group/a"]
        file["soft"] = h5py.SoftLink("/group/a")
        file["broken"] = h5py.SoftLink("/none")
        file["far"] = h5py.ExternalLink("other.h5", "far")
        file["other"] = h5py.ExternalLink("other.h5", "group")
        file["kind"] = np.dtype("f8")
    assert loaded(path, "soft").tolist() == [0, 1, 2]
    assert loaded(path, "far").tolist() == list(range(7))
    assert not is_flat(path, "far")
    assert loaded(path, "other/a").tolist() == [10, 11, 12]  # its name in the other file is that of one in this
    assert loaded(path, "other//./inner/b").tolist() == [b"text"]
    assert list(stored(path, "other")) == ["/other/a", "/other/inner/b"]
    assert loaded(path, "other")["a"].tolist() == [10, 11, 12]
    found = loaded(path)
    assert list(found) == ["group"]
    assert {name: array.tolist() for name, array in found["group"].items()} == {"a": [0, 1, 2], "again": [0, 1, 2]}


def test_texts_of_any_length_become_as_wide_as_the_longest(path: Path) -> None:
    texts = np.array([["a", "größer"], ["", "four"]], object)
    with h5py.File(path, "w") as file:
        file.create_dataset("a", data=texts, dtype=h5py.string_dtype())
        file.create_dataset("chunked", data=texts, dtype=h5py.string_dtype(), chunks=(1, 2))
        file.create_dataset("one", data="single", dtype=h5py.string_dtype())
        file.create_dataset("none", (0,), dtype=h5py.string_dtype())
        file.create_dataset("empty", (2,), dtype=h5py.string_dtype())
    found = loaded(path, piece_bytes=8)
    for name in ("a", "chunked"):
        assert found[name].dtype == "S8"
        assert (np.char.decode(found[name], "utf-8") == texts).all()
    assert_same(found["one"], np.array(b"single"))
    assert_same(found["none"], np.empty(0, "S1"))
    assert_same(found["empty"], np.zeros(2, "S1"))
    assert_same(loaded(path, "a", np.s_[::-1, 0]), np.array([b"", b"a"], "S1"))
    assert stored(path, "a")["/a"].is_text


def test_attributes(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["group/a"] = np.arange(3)
        one = file["group/a"]
        one.attrs["units"] = "km"
        one.attrs["range"] = np.array([1.0, 2.0])
        one.attrs["names"] = ["x", "yy"]
        one.attrs["nothing"] = h5py.Empty("f8")
        one.attrs["see"] = file["group"].ref
        one.attrs["sees"] = np.array([file["group"].ref, file["group/a"].ref], h5py.ref_dtype)
        one.attrs["enum"] = np.array(1, h5py.enum_dtype({"A": 1}, "u1"))
        file.attrs["title"] = "all"
    told = inspected(path, "group/a", attributes=True).attributes
    assert (told["units"], told["nothing"], told["see"]) == ("km", None, "/group")
    assert told["sees"] == ["/group", "/group/a"]
    assert told["names"] == ["x", "yy"]
    assert told["range"].tolist() == [1.0, 2.0]
    assert told["enum"] == 1
    below = inspected(path, attributes=True).attributes
    assert list(below) == ["", "group", "group/a"]
    assert below[""] == {"title": "all"}
    assert inspected(path).attributes == {}


def make_refused(file: Any) -> None:
    file["references"] = np.array([file.ref], h5py.ref_dtype)
    file.create_dataset("rows", (2,), h5py.vlen_dtype("i4"))
    file.create_dataset("column", (2,), np.dtype([("id", "i4"), ("name", h5py.string_dtype())]))
    file["empty"] = h5py.Empty("f4")
    file["kind"] = np.dtype("f8")
    file["a"] = np.arange(3)


REFUSED = {
    "references": (SpecError, "its items are references into the file"),
    "rows": (SpecError, "its items are arrays of any length"),
    "column": (SpecError, "column 'name': it has texts of any length within its items"),
    "empty": (SpecError, "is empty, an HDF5 null dataspace"),
    "kind": (FileError, "is a Datatype, neither a dataset nor a group"),
    "nowhere": (FileError, "there is no such dataset or group; the file has 'a', 'column', 'empty', 'kind'"),
    "a/b": (FileError, "there is no such dataset or group"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_datasets_that_are_refused(path: Path, name: str) -> None:
    kind, words = REFUSED[name]
    with h5py.File(path, "w") as file:
        make_refused(file)
    with pytest.raises(kind) as refused:
        inspected(path, name)
    assert f"{name}' of {path}" in str(refused.value)
    assert words in str(refused.value)


def test_a_region_of_a_group_is_refused(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["group/a"] = np.arange(3)
    with pytest.raises(ArgumentError, match="is a group"):
        inspected(path, "group", 1)
    with pytest.raises(ArgumentError, match="outside of axis 0"):
        inspected(path, "group/a", 3)


def test_files_that_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text.h5").write_text("no HDF5 file\n" * 1000)
    (tmp_path / "empty.h5").write_bytes(b"")
    with h5py.File(tmp_path / "short.h5", "w") as file:
        file["a"] = np.arange(10_000)
    content = (tmp_path / "short.h5").read_bytes()
    (tmp_path / "short.h5").write_bytes(content[:20_000])
    for name, words in (("text.h5", "signature not found"), ("empty.h5", "signature"), ("short.h5", "truncated")):
        with pytest.raises(FileError, match=words) as refused:
            inspected(tmp_path / name, "a")
        assert str(tmp_path / name) in str(refused.value)


def test_a_file_that_is_open_for_writing_is_refused(path: Path) -> None:
    import subprocess
    import sys

    code = (
        f"import h5py, sys; file = h5py.File({str(path)!r}, 'w'); file['a'] = [1]; file.flush(); print(flush=True); "
        "sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        with pytest.raises(FileError, match="lock"):
            inspected(path, "a")
        writer.communicate()
    assert loaded(path, "a").tolist() == [1]


def test_a_broken_chunk_is_found_out(path: Path) -> None:
    array = np.random.default_rng(1).integers(0, 9, (100, 100))
    with h5py.File(path, "w") as file:
        made = file.create_dataset("a", data=array, chunks=(50, 50), compression="gzip")
        where = made.id.get_chunk_info(2)
    content = bytearray(path.read_bytes())
    for at in range(where.byte_offset + 10, where.byte_offset + 500):
        content[at] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(FileError, match=r"dataset '/a' of .*a\.h5: "):
        loaded(path, "a")
    assert loaded(path, "a", np.s_[:50]).tolist() == array[:50].tolist()


def test_a_filter_that_is_not_there(path: Path) -> None:
    with h5py.File(path, "w") as file:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((4,))
        plist.set_filter(31999, h5py.h5z.FLAG_OPTIONAL, ())
        h5py.h5d.create(file.id, b"a", h5py.h5t.NATIVE_INT32, h5py.h5s.create_simple((8,)), plist)
    with pytest.raises(FileError, match=r"dataset '/a' of .*a\.h5: needs the filter '31999'"):
        inspected(path, "a")


def test_texts_that_are_broken_name_the_dataset(path: Path) -> None:
    """A heap that is overwritten is found out as texts are measured."""
    with h5py.File(path, "w") as file:
        file.create_dataset("a", data=["long enough to find" * 9] * 3, dtype=h5py.string_dtype())
    content = path.read_bytes().replace(b"GCOL", b"XXXX")
    path.write_bytes(content)
    with pytest.raises(FileError, match=r"dataset '/?a' of .*a\.h5: "):
        inspected(path, "a")


def test_files_are_closed_after_an_error(path: Path) -> None:
    with h5py.File(path, "w") as file:
        make_refused(file)
    before = set(Path("/proc/self/fd").iterdir())
    for name in REFUSED:
        with pytest.raises((SpecError, FileError)):
            inspected(path, name)
    assert len(set(Path("/proc/self/fd").iterdir())) == len(before)
