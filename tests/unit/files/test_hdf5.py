"""HDF5 files are inspected and read as h5py reads them, also those of other programs, or refused; and written."""

import errno
import fcntl
import os
import struct

import h5py
import numpy as np
import pytest

from mpishare.arrays.spec import Spec
from mpishare.errors import FileError
from mpishare.files.hdf5_write import lay_out
from mpishare.files.listing import stored
from tests.arrays import assert_same
from tests.unit.files.reading import failing, inspected, loaded

STRING = h5py.string_dtype()


def is_contiguous(path, dataset):
    """Whether it is read without h5py."""
    return inspected(path, dataset).arrays[0].offset is not None


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A file that is not there yet, in the working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "a.h5"


COMPACT = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
COMPACT.set_layout(h5py.h5d.COMPACT)


def make_virtual(file):
    file["source"] = np.arange(6.0)
    layout = h5py.VirtualLayout((2, 6), "f8")
    layout[1] = h5py.VirtualSource(".", "source", (6,))
    file.create_virtual_dataset("a", layout, fillvalue=-1)


def make_padded_by_spaces(file):
    kind = h5py.h5t.C_S1.copy()
    kind.set_size(6)
    kind.set_strpad(h5py.h5t.STR_SPACEPAD)
    made = h5py.h5d.create(file.id, b"a", kind, h5py.h5s.create_simple((2,)))
    made.write(h5py.h5s.ALL, h5py.h5s.ALL, np.array([b"ab    ", b"abcdef"]), kind)


def make_by(*args, values=None, **options):
    """A function that makes a dataset by h5py's own, and writes `values` to it."""

    def make(file):
        made = file.create_dataset("a", *args, **options)
        if values is not None:
            made[...] = values

    return make


SUBARRAY, PAIRS = np.dtype(("f4", (2, 3))), np.arange(30).reshape(5, 2, 3)
DATES = np.arange(5).view("M8[s]").astype(h5py.opaque_dtype("M8[s]"))
KINDS = {
    "an enumeration": (make_by((3,), h5py.enum_dtype({"RED": 0, "BLUE": 7}, "u1"), data=[0, 7, 7]), "contiguous", True),
    "subarrays": (make_by((5,), SUBARRAY, values=PAIRS), "contiguous", True),
    "chunks of subarrays": (make_by((5,), SUBARRAY, values=PAIRS, chunks=(2,)), "chunked", False),
    "compact": (make_by((9,), "i4", values=np.arange(9), dcpl=COMPACT), "compact", False),
    "never written": (make_by((9,), "i4", fillvalue=7), "contiguous", False),
    "virtual": (make_virtual, "virtual", False),
    "external": (make_by((8,), "f8", values=np.arange(8.0), external=[("raw", 0, 64)]), "external", False),
    "strings padded by spaces": (make_padded_by_spaces, "contiguous", False),
    "dates as opaque items": (make_by(data=DATES), "contiguous", True),
}


@pytest.mark.parametrize("name", KINDS)
def test_kinds_of_datasets(path, name):
    make, layout, contiguous = KINDS[name]
    with h5py.File(path, "w") as file:
        make(file)
    with h5py.File(path) as file:
        expected = file["a"][...]
    result = loaded(path, "a", tile_bytes=12)
    assert_same(result, expected)
    assert_same(loaded(path, "a", np.s_[::-2]), expected[::-2])
    assert result.dtype.metadata is None
    assert (stored(path)["/a"].layout, is_contiguous(path, "a")) == (layout, contiguous)


@pytest.mark.parametrize("user_block_bytes", [0, 512, 1024])
def test_stored(path, user_block_bytes):
    with h5py.File(path, "w", userblock_size=user_block_bytes) as file:
        file.create_dataset("a", (9, 4), "f8", chunks=(3, 2), compression="gzip", shuffle=True)
        file["b/c"] = np.arange(3)
    datasets = stored(path)
    assert list(datasets) == ["/a", "/b/c"]
    array = datasets["/a"]
    assert (array.chunks, array.filters, array.offset, array.nbytes) == ((3, 2), ("shuffle", "deflate"), None, 288)
    assert (datasets["/b/c"].chunks, datasets["/b/c"].filters, datasets["/b/c"].is_text) == (None, (), False)
    assert loaded(path, "b/c").tolist() == [0, 1, 2]  # with HDF5's own offsets behind the user block
    assert is_contiguous(path, "b/c")


def test_links(path):
    """They are followed, also into another file. Each dataset is read once, and has the same array under each name."""
    path.with_name("data").mkdir()
    with h5py.File(path.with_name("data") / "other.h5", "w") as file:
        file["far"] = np.arange(7)
        file["group/a"] = np.arange(3) + 10
        file.create_dataset("group/inner/b", data=["text"])
        file["group/back"] = h5py.ExternalLink("../a.h5", "/group")
    with h5py.File(path, "w") as file:
        file["group/a"] = np.arange(3)
        file["group/again"] = file["group/a"]
        file["same"] = file["group"]
        file["soft"] = h5py.SoftLink("/group/a")
        file["far"] = h5py.ExternalLink("data/other.h5", "far")
        file["other"] = h5py.ExternalLink("data/other.h5", "group")
        file["kind"] = np.dtype("f8")
    arrays = loaded(path)
    assert {name: sorted(value) for name, value in arrays.items() if isinstance(value, dict)} == {
        "group": ["a", "again"],
        "same": ["a", "again"],
        "other": ["a", "back", "inner"],
    }
    assert arrays["group"] is arrays["same"] is arrays["other"]["back"]
    assert arrays["group"]["a"] is arrays["group"]["again"] is arrays["soft"]
    assert_same(arrays["soft"], np.arange(3))
    assert_same(arrays["far"], np.arange(7))
    assert_same(arrays["other"]["a"], np.arange(3) + 10)
    assert_same(arrays["other"]["inner"]["b"], np.array([b"text"]))
    for name, expected in {"soft": np.arange(3), "far": np.arange(7), "other/a": np.arange(3) + 10}.items():
        assert_same(loaded(path, name), expected)
        assert is_contiguous(path, name) == (name == "soft")
    assert list(stored(path, "other//.")) == ["/other/a", "/other/back/a", "/other/back/again", "/other/inner/b"]
    assert inspected(path).left_out == []
    assert list(inspected(path, "same", attributes=True).attributes) == ["", "a", "again"]


DANGLING = {
    "b": "it leads to dataset 'x' of b.h5: Unable to synchronously open object",
    "gone": "it leads to '/nowhere': Unable to synchronously open object",
    "group/inner/root": "it leads to the group '/', which it is in.",
    "group/inner/up": "it leads to the group '/group', which it is in.",
    "loop": "it leads to '/loop': ",
    "none": "it leads to dataset 'x' of none.h5: Unable to synchronously open object",
}


def test_links_that_cannot_be_followed(path):
    """They are left out of a group, each with where it leads; and are errors alone. `stored` lists them."""
    with h5py.File(path, "w") as file:
        file["a"] = np.arange(3)
        file["group/inner/up"] = file.create_group("group")
        file["group/inner/root"], file["loop"] = h5py.SoftLink("/"), h5py.SoftLink("/loop")
        file["gone"], file["b"] = h5py.SoftLink("/nowhere"), h5py.ExternalLink("b.h5", "x")
        file["none"] = h5py.ExternalLink("none.h5", "x")
    h5py.File("b.h5", "w").close()
    contents, datasets = inspected(path), stored(path)
    for text, (name, reason) in zip(contents.left_out, DANGLING.items(), strict=True):
        assert text.startswith(f"link '/{name}': {reason}")
        assert text == f"link '/{name}': {datasets[f'/{name}'].reason}"
        assert (datasets[f"/{name}"].layout, datasets[f"/{name}"].nbytes) == ("link", 0)
    for name in ("gone", "none", "loop"):
        with pytest.raises(FileError, match=f"'/{name}' of .*: {DANGLING[name]}") as caught:
            inspected(path, name)
        assert type(caught.value) is FileError
    assert loaded(path).keys() == {"a", "group"}
    assert loaded(path)["group"] == {"inner": {}}
    assert loaded(path, "group/inner/up/inner/root/a").tolist() == [0, 1, 2]


def test_groups_that_link_to_each_other(path, monkeypatch):
    """Each is listed once, however many ways lead to it; their names are too many at some number."""
    with h5py.File(path, "w") as file:
        file["0/a"] = np.arange(3)
        for number in range(1, 60):
            file[f"{number}/left"] = file[f"{number}/right"] = file[f"{number - 1}"]
    array = loaded(path)
    for number in reversed(range(1, 60)):
        array = (array if number < 59 else array["59"])["left"]
        assert "right" in array or number == 1
    assert array["a"].tolist() == [0, 1, 2]
    assert list(stored(path, "1")) == ["/1/left/a", "/1/right/a"]
    monkeypatch.setattr("mpishare.files.stored._MOST_NAMES", 1000)
    with pytest.raises(FileError, match="has more than 1,000 names, as its groups link to each other"):
        stored(path)


def test_strings_of_variable_length(path):
    """They become as wide as the longest."""
    strings = np.array([["a", "größer"], ["", "four"]], object)
    with h5py.File(path, "w") as file:
        file.create_dataset("a", data=strings, dtype=STRING)
        file.create_dataset("scalar", data="single", dtype=STRING)
        file.create_dataset("empty", (2,), dtype=STRING)
    arrays = loaded(path, tile_bytes=8)
    assert arrays["a"].dtype == "S8"
    assert (np.char.decode(arrays["a"], "utf-8") == strings).all()
    assert_same(arrays["scalar"], np.array(b"single"))
    assert_same(arrays["empty"], np.zeros(2, "S1"))
    assert_same(loaded(path, "a", np.s_[::-1, 0]), np.array([b"", b"a"], "S1"))
    assert stored(path, "a")["/a"].is_text


def test_attributes(path):
    with h5py.File(path, "w") as file:
        file["group/a"] = np.arange(3)
        see, sees = file["group"].ref, np.array([file["group"].ref, file["group/a"].ref], h5py.ref_dtype)
        enum = np.array(1, h5py.enum_dtype({"A": 1}, "u1"))
        values = {"range": np.array([1.0, 2.0]), "names": ["x", "yy"], "nothing": h5py.Empty("f8"), "unit": "km"}
        file["group/a"].attrs.update({**values, "see": see, "sees": sees, "enum": enum})
        file.attrs["title"] = "all"
    attributes = dict(inspected(path, "group/a", attributes=True).attributes[""])
    assert attributes.pop("range").tolist() == [1.0, 2.0]
    assert attributes.pop("sees") == ["/group", "/group/a"]
    assert attributes == {"names": ["x", "yy"], "nothing": None, "unit": "km", "see": "/group", "enum": 1}
    members = inspected(path, attributes=True).attributes
    assert (list(members), members[""]) == (["", "group", "group/a"], {"title": "all"})
    assert inspected(path).attributes == inspected(path, "group/a").attributes == {}


def test_attributes_that_cannot_be_read(path):
    """One that leads to what is gone is None, as one that leads nowhere; one of a type that h5py lacks is left out."""
    with h5py.File(path, "w") as file:
        file["a"], file["gone"] = np.arange(3), np.arange(3)
        file["a"].attrs.update({"see": file["gone"].ref, "part": file["gone"].regionref[1:], "unit": "km"})
        h5py.h5a.create(file["a"].id, b"when", h5py.h5t.UNIX_D32LE, h5py.h5s.create(h5py.h5s.SCALAR))
        del file["gone"]
    contents = inspected(path, "a", attributes=True)
    assert contents.attributes[""] == {"part": None, "see": None, "unit": "km"}
    (text,) = contents.left_out
    assert text.startswith("attribute 'when' of '/a': No NumPy equivalent")


def test_a_damaged_table_of_attributes(path):
    """It costs no array."""
    with h5py.File(path, "w", libver="latest") as file:
        file["a"] = np.arange(4)
        file["a"].attrs.update({f"k{number}": number for number in range(200)})
    path.write_bytes(path.read_bytes().replace(b"BTLF", b"XXXX"))
    for contents in (inspected(path, attributes=True), inspected(path, "a", attributes=True)):
        (text,) = contents.left_out
        assert text.startswith("attributes of '/a': they cannot be read: RuntimeError: ")
        assert [array.reason for array in contents.arrays] == [""]


def table_of(dtype, encode):
    """A table with columns of strings, of which another library or NumPy has made something."""
    table = np.zeros((2, 3), dtype)
    table["name"] = encode(np.array([["Sun", "größer", ""], ["a", "b", "c"]]))
    table["inner"]["of"] = encode(np.array(["x", "yyy"]))
    table["mass"] = np.arange(6.0).reshape(2, 3)
    table["inner"]["x"], table["code"] = 7, b"ab"
    return table


def test_columns_of_strings(path):
    """They become as wide as the longest, in nested columns and arrays in columns, too; other columns stay."""
    dtype, fixed = (
        np.dtype([("name", name), ("mass", ">f8"), ("inner", [("of", of, (2,)), ("x", "f4")], (2,)), ("code", "S3")])
        for name, of in ((STRING, STRING), ("S8", "S3"))
    )
    table, expected = table_of(dtype, lambda texts: texts.astype(object)), table_of(fixed, np.char.encode)
    with h5py.File(path, "w") as file:
        file["plain"] = table
        file.create_dataset("chunked", data=table, chunks=(1, 2), compression="gzip")
        file.create_dataset("empty", (2,), dtype)
    arrays = loaded(path, tile_bytes=100)
    for name in ("plain", "chunked"):
        assert_same(arrays[name], expected)
        for region in (np.s_[::-1, 1], np.s_[1, [2, 0, 2]], np.s_[[False, True]]):
            narrow = loaded(path, name, region)
            assert narrow["name"].dtype == ("S8" if region == np.s_[::-1, 1] else "S1")
            assert (narrow.astype(expected.dtype) == expected[region]).all()
    assert arrays["empty"].dtype["name"] == "S1"
    assert stored(path)["/plain"].is_text
    assert inspected(path).left_out == []


def test_columns_that_are_left_out(path):
    """Those of references and of arrays of variable length; the rest is loaded, packed."""
    inner = np.dtype([("rows", h5py.vlen_dtype("i4")), ("x", "f4")])
    with h5py.File(path, "w") as file:
        file.create_dataset("a", (2,), np.dtype([("id", "i4"), ("see", h5py.ref_dtype), ("inner", inner)]))
        file.create_dataset("b", (2,), np.dtype([("name", STRING), ("see", h5py.ref_dtype)]))
    for contents in (inspected(path), inspected(path, "a")):
        reasons = [text.partition(": it")[0] for text in contents.left_out]
        both = ["dataset '/a': column 'see'", "dataset '/a': column 'inner.rows'", "dataset '/b': column 'see'"]
        assert reasons == both[: len(reasons)]
    assert_same(loaded(path, "a"), np.zeros(2, [("id", "i4"), ("inner", [("x", "f4")])]))
    assert_same(loaded(path)["b"], np.zeros(2, [("name", "S1")]))


@pytest.mark.parametrize("name", ["nowhere", "/runs/first/speed", "runs/second/speed", "grid/x", "kind"])
def test_a_name_that_is_not_there(path, name):
    with h5py.File(path, "w") as file:
        file["grid"] = file["runs/first/velocity"] = np.arange(3)
        file["kind"] = np.dtype("f8")
    with pytest.raises(FileError, match=f"'{name}' of .*: there is no such array or group; the file has 'grid', "):
        inspected(path, name)


def test_a_file_that_is_open_for_writing(path):
    h5py.File(path, "w").close()
    with path.open("rb+") as other:
        fcntl.flock(other, fcntl.LOCK_EX)  # as HDF5 does where it writes
        message = r"unable to lock file.*'\)\. A program has it open for writing: .*FILE_LOCKING"
        with pytest.raises(FileError, match=message):
            inspected(path)


def test_damaged_chunks_and_strings(path):
    """The rest of the dataset can be read."""
    array = np.random.default_rng(1).integers(0, 9, (100, 100))
    with h5py.File(path, "w") as file:
        made = file.create_dataset("a", data=array, chunks=(50, 50), compression="gzip")
        start = made.id.get_chunk_info(2).byte_offset + 10
        file.create_dataset("strings", data=["long enough to find" * 9] * 3, dtype=STRING)
    content = bytearray(path.read_bytes().replace(b"GCOL", b"XXXX"))
    content[start : start + 490] = bytes(byte ^ 0xFF for byte in content[start : start + 490])
    path.write_bytes(content)
    for name in ("a", "strings"):
        with pytest.raises(FileError, match=rf"dataset '/{name}' of .*a\.h5: "):
            loaded(path, name)
    assert loaded(path, "a", np.s_[:50]).tolist() == array[:50].tolist()


def test_a_chunk_shorter_than_its_checksum(path):
    """HDF5 ends in a segmentation fault when it reads one."""
    with h5py.File(path, "w") as file:
        made = file.create_dataset("a", data=np.arange(100), chunks=(50,), compression="gzip", fletcher32=True)
        in_tree = struct.pack("<IIQ", made.id.get_chunk_info(1).size, 0, 50)  # bytes, mask of filters, first index
    content = path.read_bytes()
    assert content.count(in_tree) == 1
    path.write_bytes(content.replace(in_tree, struct.pack("<IIQ", 3, 0, 50)))
    for name in ("a", None):
        with pytest.raises(FileError, match=r"'/a' of .*its chunk at \(50,\) has 3 bytes, fewer than its checksum"):
            inspected(path, name)


def test_no_write_fails_for_hdf5(tmp_path, monkeypatch):
    """Where each call writes a part, as on a disk that is nearly full, all is written; the first error waits."""
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: pwrite(fd, data[:7], offset))
    path, small = tmp_path / "a.h5", {"small": np.arange(300)}
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    lay_out(fd, path, {"a": Spec(np.dtype("u1"), (9,))}, small=small)
    with h5py.File(path) as file:
        assert (file["small"][:] == small["small"]).all()
    monkeypatch.setattr(os, "pwrite", failing(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        lay_out(fd, path, {"b": Spec(np.dtype("u1"), (9,))}, adds=True)
    os.close(fd)
