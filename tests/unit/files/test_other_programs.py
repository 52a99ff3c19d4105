"""Files that other programs write: netCDF4 and PyTables."""

import netCDF4
import numpy as np
import tables

from tests.arrays import assert_same
from tests.unit.files.reading import inspected, loaded

RECORDS = np.array([(1, 2.5, b"ab"), (2, -1.0, b"c")], [("id", "i8"), ("mass", "f4"), ("name", "S3")])


def test_netcdf(tmp_path):
    path = tmp_path / "a.nc"
    heat = np.arange(24.0).reshape(4, 6)
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("time", None)
        file.createDimension("place", 6)
        file.createVariable("heat", "f4", ("time", "place"), zlib=True, fill_value=-1)[:] = heat
        file.createVariable("names", str, ("place",))[:] = np.array([f"place {n}" for n in range(6)], object)
        file["heat"].units = "K"
    found = loaded(path)
    assert found["heat"].tolist() == heat.tolist()
    assert found["names"].tolist() == [b"place %d" % n for n in range(6)]
    attributes = inspected(path, "heat", attributes=True).attributes
    assert attributes["units"] == b"K"
    assert attributes["DIMENSION_LIST"] == [["/time"], ["/place"]]


def test_pytables(tmp_path):
    path = tmp_path / "a.h5"
    with tables.open_file(path, "w") as file:
        file.create_table("/", "table", RECORDS)
        file.create_carray("/", "small", obj=np.arange(10_000).reshape(100, 100), filters=tables.Filters(5, "zlib"))
    assert_same(loaded(path, "table"), RECORDS)
    assert loaded(path, "small", np.s_[::-9, 3]).tolist() == list(range(9903, 0, -900))
