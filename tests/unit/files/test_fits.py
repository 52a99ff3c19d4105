"""FITS files are read as astropy reads them; what a header says wrongly is refused."""

import numpy as np
import pytest
from astropy.io import fits

from mpishare.errors import FileError, SpecError
from mpishare.files.listing import stored
from tests.arrays import assert_same
from tests.unit.files.reading import inspected, loaded

SCALED = [(0.5, 3, "i2"), (2, 0, "i4"), (1, 32768, "i2"), (1, -128, "u1"), (1, 2**63, "i8"), (2.0, 1, "f4")]


@pytest.mark.parametrize(("scale", "zero", "dtype"), SCALED)
def test_scaled_images(tmp_path, scale, zero, dtype):
    """They are as astropy converts them, also in part."""
    fits.PrimaryHDU(np.arange(200).reshape(10, 20).astype(dtype)).writeto(tmp_path / "a")
    with fits.open(tmp_path / "a", mode="update", do_not_scale_image_data=True) as file:
        file[0].header["BSCALE"], file[0].header["BZERO"] = scale, zero
    expected = fits.getdata(tmp_path / "a")
    for region in ((), np.s_[::-3, 2:9:2], np.s_[[7, 1], 3]):
        assert_same(loaded(tmp_path / "a", "PRIMARY", region), expected[region])
    assert stored(tmp_path / "a")["PRIMARY"].offset is None


def test_tables_that_are_converted(tmp_path):
    columns = [
        fits.Column("flag", "L", array=[True, False, True]),
        fits.Column("count", "I", bzero=32768, array=np.array([1, 2, 65535], "u2")),
        fits.Column("bits", "9X", array=np.eye(3, 9, dtype=bool)),
        fits.Column("name", "5A", array=["a", "bb", "c"]),
        fits.Column("flux", "2E", array=np.arange(6.0).reshape(3, 2)),
    ]
    fits.BinTableHDU.from_columns(columns, name="T").writeto(tmp_path / "a")
    table, expected = loaded(tmp_path / "a", "T", tile_bytes=20), fits.getdata(tmp_path / "a")
    for name in ("flag", "count", "bits", "flux"):
        assert_same(table[name].copy(), np.array(expected[name]))
    assert table["name"].tolist() == [b"a", b"bb", b"c"]


def test_names(tmp_path):
    """EXTNAME, and the number where it is missing or not the first; a number is always a name."""
    images = [fits.ImageHDU(np.full(3, number), name=name) for number, name in enumerate(["A", "", "A"], 1)]
    fits.HDUList([fits.PrimaryHDU(np.zeros(3)), *images]).writeto(tmp_path / "a")
    assert [*loaded(tmp_path / "a")] == ["PRIMARY", "A", "2", "3"]
    assert [loaded(tmp_path / "a", str(number))[0] for number in range(4)] == [0, 1, 2, 3]
    attributes = inspected(tmp_path / "a", attributes=True).attributes
    assert (attributes["A"]["NAXIS1"], attributes["A"]["EXTNAME"]) == (3, "A")
    with pytest.raises(FileError, match="there is no such array; the file has 'PRIMARY', 'A', '2', '3'"):
        inspected(tmp_path / "a", "B")


def test_columns_of_variable_length(tmp_path):
    rows = np.array([np.arange(2), np.arange(3)], object)
    fits.BinTableHDU.from_columns([fits.Column("v", "PJ()", array=rows)], name="T").writeto(tmp_path / "a")
    with pytest.raises(SpecError, match="Python objects"):
        inspected(tmp_path / "a", "T")
    assert len(inspected(tmp_path / "a").left_out) == 1


DAMAGED = {
    "BITPIX  =                  -64": ("BITPIX  =                  -63", "has BITPIX = -63; expected one of"),
    "NAXIS1  =                    7": ("NAXIS1  =                   -7", "has NAXIS1 = -7; expected an integer >= 0"),
    "NAXIS2  =                    5": ("NAXIS2  =           9999999999", "is truncated"),
    "NAXIS   =                    2": ("NAXIS   =                    3", "has NAXIS3 = None; expected an integer"),
    "END     ": ("ENDE    ", "ends at byte"),
}


@pytest.mark.parametrize("card", DAMAGED)
def test_damaged_headers(tmp_path, card):
    fits.PrimaryHDU(np.arange(35.0).reshape(5, 7)).writeto(tmp_path / "a")
    content, (damaged, message) = (tmp_path / "a").read_bytes(), DAMAGED[card]
    assert content.count(card.encode()) == 1
    (tmp_path / "a").write_bytes(content.replace(card.encode(), damaged.encode()))
    with pytest.raises(FileError, match=message):
        inspected(tmp_path / "a")
