"""netCDF files of every format and kind are loaded as netCDF4 reads them, without masks and scales."""

import importlib
import sys
import warnings
from pathlib import Path

import h5netcdf
import h5py
import netCDF4
import numpy as np
import pytest

from mpishare.errors import FileError
from mpishare.files.listing import stored
from tests.unit.files.reading import inspected, loaded

HDF5 = "NETCDF4", "NETCDF4_CLASSIC"
CLASSIC = "NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA"
SMALL_DTYPES = "S1 i1 i2 i4 f4 f8"
DTYPES = f"{SMALL_DTYPES} u1 u2 u4 i8 u8"


def write_dtypes(file):
    """Each dtype: with no axis, with two, written in part, and along an unlimited dimension in part."""
    file.createDimension("time", None)
    file.createDimension("y", 3)
    file.createDimension("x", 5)
    has_all = file.data_model in ("NETCDF4", "NETCDF3_64BIT_DATA")
    for dtype in (DTYPES if has_all else SMALL_DTYPES).split():
        file.createVariable(f"{dtype} scalar", dtype, ())[...] = np.array(7).astype(dtype)
        file.createVariable(f"{dtype} whole", dtype, ("y", "x"))[:] = np.arange(15).reshape(3, 5).astype(dtype)
        file.createVariable(f"{dtype} part", dtype, ("y", "x"))[1] = np.arange(5).astype(dtype)
        file.createVariable(f"{dtype} none", dtype, ("y", "x"))
        file.createVariable(f"{dtype} times", dtype, ("time", "x"))[:] = np.arange(20).reshape(4, 5).astype(dtype)
        file.createVariable(f"{dtype} fewer", dtype, ("time", "x"))[:2] = np.arange(10).reshape(2, 5).astype(dtype)


def write_no_records(file):
    file.createDimension("time", None)
    file.createDimension("x", 3)
    file.createVariable("none", "f4", ("time", "x"))
    file.createVariable("time", "f8", ("time",))


def write_fill_values(file):
    file.createDimension("time", None)
    for dtype in ("i2", "f8"):
        file.createVariable(f"{dtype} own", dtype, ("time",), fill_value=-3)[:1] = 1
        file.createVariable(f"{dtype} no", dtype, ("time",), fill_value=False)[:1] = 1
        file.createVariable(f"{dtype} default", dtype, ("time",))[:1] = 1
    file.createVariable("whole", "i4", ("time",))[:] = np.arange(6)
    file["whole"].setncatts({"scale_factor": 0.5, "add_offset": 3.0, "valid_min": np.int32(2)})


def write_names(file):
    """Variables with the names of dimensions, coordinates or not, and dimensions without a variable."""
    for name, length in {"x": 3, "y": 2, "z": 4, "w": 2, "cell": 1000}.items():
        file.createDimension(name, length)
    file.createVariable("x", "f8", ("y", "x"))[:] = np.arange(6).reshape(2, 3) + 10
    file.createVariable("y", "f8", ("y",))[:] = [1, 2]
    file.createVariable("z", "f8", ())[...] = 5
    file.createVariable("w", "i4", ("w", "z"))[:] = np.arange(8).reshape(2, 4)
    file.createVariable("heat", "f4", ("y", "x"))[:] = 1


def write_attributes(file):
    file.createDimension("x", 2)
    owners = file, file.createVariable("v", "f4", ("x",))
    for owner in owners:
        owner.setncatts({"text": "größer", "empty": "", "one": np.float32(2.5), "several": np.arange(3, dtype="i2")})
        owner.setncatts({"real": 1.5, "list": [1.0, 2.0], "title": "a longer text, with\nlines"})
    if file.data_model == "NETCDF4":
        owners[1].setncattr_string("string", "abc")
        owners[1].setncatts({"strings": ["a", "größer"], "big": np.uint64(2**63)})


def write_groups(file):
    """Dimensions of groups, which the groups in them see."""
    file.createDimension("time", None)
    file.createVariable("time", "f8", ("time",))[:] = np.arange(3)
    outer = file.createGroup("outer")
    outer.createDimension("x", 4)
    outer.createVariable("fewer", "i4", ("time", "x"))[:1] = np.arange(4)
    inner = outer.createGroup("inner")
    inner.createDimension("time", None)
    inner.createVariable("x", "f4", ("time", "x"))[:2] = 3
    inner.createVariable("longer", "f4", ("time",))[:] = np.arange(5)
    file.createGroup("empty")


def write_user_types(file):
    file.createDimension("time", None)
    file.createVariable("time", "i4", ("time",))[:] = np.arange(4)
    pair = file.createCompoundType(np.dtype([("id", "i4"), ("mass", "f8"), ("place", "f4", (3,))]), "pair")
    file.createVariable("pairs", pair, ("time",))[:2] = np.ones(2, pair.dtype)
    enum = file.createEnumType("u1", "color", {"RED": 0, "BLUE": 7, "NONE": 255})
    file.createVariable("colors", enum, ("time",), fill_value=255)[:2] = [0, 7]
    rows = file.createVLType("i4", "rows")
    file.createVariable("ragged", rows, ("time",))[0] = np.arange(3, dtype="i4")
    names = file.createVariable("names", str, ("time",))
    names[0], names[1] = "größer", "a"
    file.createVariable("filled", str, ("time",), fill_value="nothing")[0] = "a"


def write_nothing(file):
    file.createDimension("x", 3)
    file.title = "nothing"


OF_ALL = write_dtypes, write_no_records, write_fill_values, write_names, write_attributes, write_nothing
TABLE = [(write, kind) for write in OF_ALL for kind in (*HDF5, *CLASSIC)]
TABLE += [(write, HDF5[0]) for write in (write_groups, write_user_types)]
DATA = {"scipy": "io/tests/data/*.nc", "xarray": "tests/data/*.nc"}
FILES = [
    path
    for package, files in DATA.items()
    for path in sorted(Path(importlib.import_module(package).__path__[0]).glob(files))
]


def as_netcdf4_reads(file, attributes, name=""):
    """The arrays of a group by name, and the attributes of all by path."""
    file.set_auto_maskandscale(False)
    file.set_auto_chartostring(False)
    attributes[name] = {key: file.getncattr(key) for key in file.ncattrs()}
    result = {}
    for inner, variable in file.variables.items():
        path = f"{name}/{inner}".lstrip("/")
        attributes[path] = {key: variable.getncattr(key) for key in variable.ncattrs()}
        if variable.dtype is str or not isinstance(variable.datatype, netCDF4.VLType):
            result[inner] = variable[...]
    for inner, group in file.groups.items():
        result[inner] = as_netcdf4_reads(group, attributes, f"{name}/{inner}".lstrip("/"))
    return result


def assert_same_tree(result, expected):
    assert result.keys() == expected.keys()
    for name, array in expected.items():
        if isinstance(array, dict):
            assert_same_tree(result[name], array)
        elif array.dtype.hasobject:
            assert np.char.decode(result[name], "utf-8").tolist() == array.tolist(), name
        elif array.dtype.names is not None:
            assert (result[name] == array).all(), name
        else:
            assert result[name].shape == array.shape, name
            assert result[name].dtype.newbyteorder("=") == array.dtype.newbyteorder("="), name
            assert result[name].astype(array.dtype).tobytes() == array.tobytes(), name


def assert_as_netcdf4(path):
    attributes = {}
    with netCDF4.Dataset(path) as file:
        expected = as_netcdf4_reads(file, attributes)
    assert_same_tree(loaded(path, tile_bytes=4096), expected)
    found = inspected(path, attributes=True)
    assert [text for text in found.left_out if "variable length" not in text] == []
    for name in attributes.keys() & found.attributes.keys():
        assert found.attributes[name].keys() == attributes[name].keys()
        for key, value in attributes[name].items():
            assert type(found.attributes[name][key]) is type(value), (name, key)
            assert np.array(found.attributes[name][key] == value).all() or value != value, (name, key)


def write(path, how, kind):
    with netCDF4.Dataset(path, "w", format=kind) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        how(file)


@pytest.mark.parametrize(("how", "kind"), TABLE, ids=lambda value: getattr(value, "__name__", value))
def test_what_netcdf4_writes(tmp_path, how, kind):
    """Also without the attribute that files of before 2016 do not have."""
    path = tmp_path / "a"
    write(path, how, kind)
    assert_as_netcdf4(path)
    if kind in HDF5:
        with h5py.File(path, "r+") as file:
            del file.attrs["_NCProperties"]
        assert_as_netcdf4(path)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_files_of_other_projects(path):
    assert_as_netcdf4(path)


def test_several_unlimited_dimensions(tmp_path):
    """netCDF4 itself, of netCDF-C 4.9 and 4.10, returns memory that it never filled."""
    with netCDF4.Dataset(tmp_path / "a", "w") as file:
        file.createDimension("a", None)
        file.createDimension("b", None)
        file.createVariable("ab", "i4", ("a", "b"))[:2, :5] = np.arange(10).reshape(2, 5)
        file.createVariable("ba", "i4", ("b", "a"), fill_value=9)[:3, :4] = np.arange(12).reshape(3, 4)
    ab = np.full((4, 5), netCDF4.default_fillvals["i4"])
    ba = np.full((5, 4), 9)
    ab[:2], ba[:3] = np.arange(10).reshape(2, 5), np.arange(12).reshape(3, 4)
    arrays = loaded(tmp_path / "a")
    assert (arrays["ab"].tolist(), arrays["ba"].tolist()) == (ab.tolist(), ba.tolist())
    for region in (np.s_[::-1, 1:], np.s_[3], np.s_[[3, 0, 3]], np.s_[1:3, ::4]):
        assert loaded(tmp_path / "a", "ab", region).tolist() == ab[region].tolist()


def test_names_of_dimensions(tmp_path):
    """A dimension without a variable is no array, and a variable is found by its name alone."""
    write(tmp_path / "a", write_names, "NETCDF4")
    assert loaded(tmp_path / "a", "/y").tolist() == [1, 2]
    for name in ("cell", "x/y", "none/x"):
        with pytest.raises(FileError, match=f"{name}' of .*: there is no such array or group; "):
            inspected(tmp_path / "a", name)
    write(tmp_path / "a", write_names, "NETCDF3_CLASSIC")
    for name in ("cell", ""):
        with pytest.raises(FileError, match=f"'{name}' of .*: there is no such array; the file has 'x', 'y', "):
            inspected(tmp_path / "a", name)


@pytest.mark.parametrize("kind", CLASSIC)
def test_attributes_of_any_name(tmp_path, kind):
    """On the variable, scipy puts each in the place of an attribute of its own."""
    names = {"dtype": "i2", "shape": 3, "ncattrs": 1, "maskandscale": 1, "dimensions": "y"}
    with netCDF4.Dataset(tmp_path / "a", "w", format=kind) as file:
        file.createDimension("time", None)
        file.createVariable("v", "f4", ("time",))[:] = np.arange(3)
        file.createVariable("data", "f4", ())[...] = 5
        file["v"].setncatts({**names, "data": np.ones(2)})  # of records, which scipy sets after the attributes
        file["data"].setncatts(names)
    assert {name: array.tolist() for name, array in loaded(tmp_path / "a").items()} == {"v": [0, 1, 2], "data": 5}
    assert inspected(tmp_path / "a", "data", attributes=True).attributes[""] == names


def test_groups(tmp_path):
    write(tmp_path / "a", write_groups, "NETCDF4")
    names = ["", "fewer", "inner", "inner/x", "inner/longer"]
    assert [*inspected(tmp_path / "a", "outer", attributes=True).attributes] == names
    with pytest.raises(FileError, match="there is no such array or group; the file has 'time', 'outer', 'empty'"):
        inspected(tmp_path / "a", "outer/time")


def test_contiguous_variables_are_read_in_place(tmp_path):
    for kind in (*HDF5, "NETCDF3_CLASSIC"):
        write(tmp_path / "a", write_names, kind)
        assert all(array.offset is not None for array in stored(tmp_path / "a").values()), kind


def test_dimension_scales_of_h5py_are_no_netcdf(tmp_path, monkeypatch):
    """One is longer than the dataset that it is attached to."""
    monkeypatch.setitem(sys.modules, "h5netcdf", None)
    with h5py.File(tmp_path / "a", "w") as file:
        for name, length in {"t": 5, "short": 2}.items():
            file.create_dataset(name, data=np.arange(length), maxshape=(None,))
        file["t"].make_scale("seconds")
        file["plain"] = np.arange(3)
        file["short"].dims[0].attach_scale(file["t"])
    assert {name: len(array) for name, array in loaded(tmp_path / "a").items()} == {"plain": 3, "short": 2, "t": 5}
    assert "DIMENSION_LIST" in inspected(tmp_path / "a", "short", attributes=True).attributes[""]


def test_files_of_h5netcdf(tmp_path):
    """Also with dtypes that netCDF does not have, where it writes no `_NCProperties`."""
    for invalid in (False, True):
        with h5netcdf.File(tmp_path / "a", "w", invalid_netcdf=invalid) as file:
            file.dimensions = {"x": 3, "none": 7}
            file.create_variable("v", ("x",), data=np.arange(3.0))
            if invalid:
                file.create_variable("flags", ("x",), data=np.ones(3, bool))
        assert loaded(tmp_path / "a").keys() == ({"v", "flags"} if invalid else {"v"})
