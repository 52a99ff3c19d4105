"""FITS files hold what astropy reads in them: all that it writes, and the files that its package and healpy's ship."""

from pathlib import Path
from typing import Any

import healpy
import numpy as np
import pytest
from astropy.io import fits

from mpishare.errors import FileError, SpecError
from mpishare.files.listing import stored
from tests.arrays import assert_same
from tests.unit.files.reading import inspected, loaded, peak_of_read

pytestmark = pytest.mark.filterwarnings("ignore::astropy.utils.exceptions.AstropyWarning")

INTEGERS = ["u1", "i2", "i4", "i8"]
UNSIGNED = ["i1", "u2", "u4", "u8"]
FLOATS = ["f4", "f8"]
PIXELS = np.arange(200).reshape(10, 20) % 101


def image(dtype, **cards):
    """An HDU with cards that astropy does not apply when it writes."""
    hdu = fits.ImageHDU(PIXELS.astype(dtype))
    hdu.header.update(cards)
    return hdu


def table(*columns, make=fits.BinTableHDU):
    return make.from_columns([fits.Column(f"c{number}", *one[:1], **one[1]) for number, one in enumerate(columns)])


def column(form, **cards):
    """A column of three rows with some values of its format."""
    repeat, letter = int(form[:-1] or 1), form[-1]
    values: Any = np.arange(3 * repeat).reshape((3, repeat) if repeat != 1 else 3)
    if letter == "A":
        values = np.array(["a", "bc ", ""])
    elif letter in "LX":
        values = values % 2 > 0
    return form, {"array": values, **cards}


def groups():
    data = np.arange(3 * 12, dtype="f4").reshape(3, 1, 1, 2, 6)
    names = {"parnames": ["UU", "VV", "DATE", "DATE"], "pardata": [np.arange(3, dtype="f4")] * 4}
    return fits.GroupsHDU(fits.GroupData(data, bitpix=-32, parbscales=[1, 2, 1, 1], parbzeros=[0, 3, 0, 0], **names))


def with_cards():
    hdu = fits.ImageHDU(np.arange(3), name="cards")
    hdu.header["PROGRAM"] = "A survey of nearby clusters, and of what's behind " * 5
    hdu.header["HIERARCH ESO TEL AIRM START"] = 1.25
    hdu.header["HIERARCH Long keyword"] = "a string"
    hdu.header["COMMENT"] = "one"
    hdu.header["COMMENT"] = "two"
    hdu.header["HISTORY"] = "was made"
    hdu.header["NOTHING"] = None
    hdu.header["FLAG"], hdu.header["COMPLEX"], hdu.header["LARGE"] = True, 1 + 2j, 10**18
    hdu.header.append(("TWICE", 1))
    hdu.header.append(("TWICE", 2))
    return hdu


ROWS = [np.arange(2), np.arange(0), np.arange(3)]
TRACES = np.array([*ROWS, None], object)[:3]

WRITTEN = {
    "images": [image(dtype) for dtype in INTEGERS + UNSIGNED + FLOATS],
    "scaled images": [
        *(image(dtype, BSCALE=0.5, BZERO=3) for dtype in INTEGERS + FLOATS),
        *(image("i2", BZERO=zero) for zero in (32768, 7, -0.5)),
        image("i2", BSCALE=1.0, BZERO=0.0),
    ],
    "images with BLANK": [image(dtype, BLANK=99) for dtype in INTEGERS + FLOATS],
    "images with BLANK, scaled": [image("u2", BLANK=99), *(image(dtype, BLANK=99, BSCALE=2) for dtype in INTEGERS)],
    "shapes": [fits.ImageHDU(np.ones(shape, "f4")) for shape in ((1,), (7,), (0, 3), (1, 2, 3, 4, 5))],
    "an empty primary, and an empty table": [fits.PrimaryHDU(), fits.BinTableHDU(), image("i2")],
    "plain columns": [table(*map(column, ["B", "I", "J", "K", "E", "D", "C", "M", "A", "2B", "3I", "4E", "2M", "5A"]))],
    "logical columns": [table(*map(column, ["L", "X", "2L", "9X", "16X", "E"])), table(column("L"))],
    "converted columns": [
        table(column("B", bzero=-128), column("I", bzero=2**15), column("2J", bzero=2**31), column("K", null=1)),
        table(("6E", {"dim": "(3,2)", "array": np.arange(18.0).reshape(3, 2, 3)}), column("D", bscale=2, bzero=2.5)),
    ],
    "columns of variable length": [
        table(column("J"), ("PJ()", {"array": TRACES}), column("L"), ("QD()", {"array": TRACES}), column("5A")),
        table(("PE()", {"array": TRACES}), column("E")),
    ],
    "ASCII columns": [
        table(
            ("A7", {"array": np.array(["a", "bc", ""])}),
            ("I6", {"array": np.arange(3), "null": "1"}),
            *((form, {"array": np.arange(3) * 1.5}) for form in ("F9.3", "E14.6", "D22.14")),
            make=fits.TableHDU,
        ),
        table(("A3", {"array": np.array(["a", "bc", "def"])}), make=fits.TableHDU),
    ],
    "rows": [fits.BinTableHDU(np.zeros(0, "f4,i2")), fits.BinTableHDU(np.ones(1000, "?,f4,3i2"))],
    "random groups, and what follows": [groups(), table(column("J")), image("i2")],
    "compressed": [
        fits.CompImageHDU(PIXELS.astype(dtype), compression_type=kind, tile_shape=(5, 20))
        for kind, dtype in (("RICE_1", "u2"), ("GZIP_1", "f4"), ("PLIO_1", "i2"))
    ],
    "cards": [with_cards(), image("i2", EXTNAME="a/b", EXTVER=3)],
}


def write(path, name):
    hdus = [hdu.copy() for hdu in WRITTEN[name]]
    first = [] if isinstance(hdus[0], (fits.PrimaryHDU, fits.GroupsHDU)) else [fits.PrimaryHDU()]
    fits.HDUList(first + hdus).writeto(path, output_verify="ignore")


def read_by_astropy(path):
    """The arrays and the headers of all HDUs, None where there is no array."""
    with fits.open(path, character_as_bytes=True, memmap=False) as file:
        headers = [{key: plain(hdu.header[key]) for key in hdu.header} for hdu in file]
        return [plain_array(hdu.data) for hdu in file], headers


def plain(value):
    return value if isinstance(value, str | bool | int | float | complex | None) else str(value)


def plain_array(data):
    """Rows with all columns of a fixed length."""
    if data is None or data.dtype.names is None:
        return data if data is None else np.asarray(data)
    columns = {name: np.asarray(data.field(name)) for name in data.names}
    columns = {name: values for name, values in columns.items() if values.dtype.kind != "O"}
    rows = np.empty(len(data), [(name, values.dtype, values.shape[1:]) for name, values in columns.items()])
    for name, values in columns.items():
        rows[name] = values
    return rows if columns else None


def assert_as_astropy(path, tile_bytes=300):
    """Each HDU by its number, whole and in part, and its header."""
    arrays, headers = read_by_astropy(path)
    listing = inspected(path, attributes=True)
    everything = loaded(path, tile_bytes=tile_bytes)
    assert list(listing.attributes.values()) == headers
    assert listing.attributes.keys() >= everything.keys()
    assert len(everything) == sum(array is not None for array in arrays)
    for number, (name, array) in enumerate(zip(listing.attributes, arrays, strict=True)):
        if array is None:
            continue
        assert_same(everything[name], array)
        assert_same(loaded(path, str(number), tile_bytes=tile_bytes), array)
        if array.size:
            for region in (np.s_[::-3], np.s_[..., 1:], np.s_[[-1, 0, -1]]):
                assert_same(loaded(path, name, region, tile_bytes=tile_bytes), array[region])


@pytest.mark.parametrize("name", WRITTEN)
def test_what_astropy_writes(tmp_path, name):
    write(tmp_path / "a", name)
    assert_as_astropy(tmp_path / "a")


SHIPPED = [
    path
    for package in (fits, healpy, np)
    for path in sorted(Path(package.__path__[0]).rglob("*.fits"))
    if "invalid" not in path.parts
]
"""In the wheels: astropy/io/fits/tests/data, astropy/io/fits/hdu/compressed/tests/data, healpy/data, healpy/test/data,
numpy/_core/tests/data and others."""


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_files_that_packages_ship(path):
    if "vla_logical" in path.name:
        with pytest.raises(SpecError, match="'flag': its items are arrays of variable length"):
            inspected(path)
        return
    assert_as_astropy(path, max(path.stat().st_size // 20, 300))


def test_names(tmp_path):
    """EXTNAME, and the number where it is missing or not the first; a number and astropy's names are always names."""
    images = [fits.ImageHDU(np.full(3, number), name=name) for number, name in enumerate(["A", "", "A", "b"], 1)]
    images[2].ver = 7
    images[3].header["EXTNAME"] = "b"
    fits.HDUList([fits.PrimaryHDU(np.zeros(3)), *images]).writeto(tmp_path / "a")
    assert [*loaded(tmp_path / "a")] == ["PRIMARY", "A", "2", "3", "b"]
    assert [loaded(tmp_path / "a", str(number))[0] for number in range(5)] == [0, 1, 2, 3, 4]
    assert [loaded(tmp_path / "a", name)[0] for name in ("primary", "a", "A,7", "a,1", "B")] == [0, 1, 3, 1, 4]
    attributes = inspected(tmp_path / "a", "a,7", attributes=True).attributes
    assert (attributes[""]["NAXIS1"], attributes[""]["EXTNAME"]) == (3, "A")
    for name in ("C", "5", "A,2", "-1", ""):
        with pytest.raises(FileError, match="there is no such array; the file has 'PRIMARY', 'A', '2', '3', 'b'"):
            inspected(tmp_path / "a", name)

    # A name that is a number:
    images = [fits.ImageHDU(np.full(3, number), name=name) for number, name in enumerate(["2", "", "1"], 1)]
    fits.HDUList([fits.PrimaryHDU(), *images]).writeto(tmp_path / "b")
    assert {name: array[0] for name, array in loaded(tmp_path / "b").items()} == {"1": 1, "2": 2, "3": 3}
    for name in ("0", "primary"):
        with pytest.raises(FileError, match=r"'PRIMARY' of .*: there is no such array; the file has '1', '2', '3'"):
            inspected(tmp_path / "b", name)


LENGTHS = [("NAXIS1", -1), ("NAXIS1", 3_000_000_000), ("NAXIS2", -1)]


@pytest.mark.parametrize(("keyword", "length"), LENGTHS)
def test_a_table_of_a_length_that_no_array_has(tmp_path, keyword, length):
    fits.HDUList([fits.PrimaryHDU(), fits.BinTableHDU(np.ones(3, "f4,f8"), name="T")]).writeto(tmp_path / "a")
    with (tmp_path / "a").open("rb+") as file:
        start = file.read().rindex(f"{keyword}  = ".encode())
        file.seek(start + 10)
        file.write(f"{length:20}".encode())
    assert stored(tmp_path / "a")["T"].layout == "unknown"
    with pytest.raises(FileError, match=str(length)) as caught:
        inspected(tmp_path / "a", "T")
    assert str(caught.value).count(str(tmp_path)) == 1


def test_a_name_that_cannot_be_parsed(tmp_path):
    images = [fits.ImageHDU(np.full(3, float(number)), name=name) for number, name in enumerate(("bad", "next"), 1)]
    fits.HDUList([fits.PrimaryHDU(np.zeros(3)), *images]).writeto(tmp_path / "a")
    content = (tmp_path / "a").read_bytes()
    (tmp_path / "a").write_bytes(content.replace(b"EXTNAME = 'BAD     '", b"EXTNAME = 'BAD      "))
    assert {name: items[0] for name, items in loaded(tmp_path / "a").items()} == {"PRIMARY": 0, "1": 1, "NEXT": 2}
    with pytest.raises(FileError, match=r"'bad' of .*: it cannot be read: VerifyError: "):
        inspected(tmp_path / "a", "bad")


PLAIN = {"images": 6, "plain columns": 1}


@pytest.mark.parametrize("name", PLAIN)
def test_what_lies_as_in_memory_is_read_in_place(tmp_path, name):
    write(tmp_path / "a", name)
    with fits.open(tmp_path / "a") as file:
        starts = [hdu.fileinfo()["datLoc"] for hdu in file]
    offsets = {array.offset for array in stored(tmp_path / "a").values()} - {None}
    assert len(offsets) == PLAIN[name]
    assert offsets <= set(starts)


def test_a_tile_of_a_large_table(tmp_path):
    """A rank that reads it holds a few times its bytes, and not the table."""
    rows, out = np.ones(300_000, "?,8f8"), np.empty(3000, "V65")
    fits.BinTableHDU(rows).writeto(tmp_path / "a")
    assert peak_of_read(tmp_path / "a", "1", 200_000, out) < 10 * out.nbytes < rows.nbytes / 5


@pytest.mark.parametrize("tail", [b"XTENSION= 'IMAGE   '", b"\0" * 2880, b"a note"])
def test_what_follows_the_hdus(tmp_path, tail):
    """It is left out, with one reason."""
    fits.HDUList([fits.PrimaryHDU(), image("i2")]).writeto(tmp_path / "a")
    with (tmp_path / "a").open("ab") as file:
        file.write(tail)
    assert_same(loaded(tmp_path / "a")["1"], PIXELS.astype(">i2"))
    [reason] = inspected(tmp_path / "a").left_out
    assert reason.startswith("what follows HDU 1 at byte 8,640: ")
