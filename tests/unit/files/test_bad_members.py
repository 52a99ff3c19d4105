"""One part of a file that cannot be read costs no other part, in any format; and a file that is none is an error."""

import bz2
import gzip
import itertools
import json
import lzma
import struct
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import h5py
import netCDF4
import numcodecs
import numpy as np
import pytest
import zarr
from astropy.io import fits
from safetensors.numpy import save_file

from mpishare.errors import FileError, MpishareError
from mpishare.files.listing import stored
from tests.formats import ZARR_VERSIONS, write_zarr
from tests.unit.files.reading import inspected, loaded
from tests.unit.files.test_safetensors import entry, file_of

GOOD = np.arange(6.0)


def hdf5_of(path, kind):
    """A dataset of a type that no array has."""
    with h5py.File(path, "w") as file:
        file["good"] = GOOD
        h5py.h5d.create(file.id, b"bad", kind, h5py.h5s.create_simple((2,)))


def hdf5_damaged_header(path, name="bad"):
    with h5py.File(path, "w", libver="latest") as file:
        file["good"], file[name] = GOOD, np.arange(3)
    damage_header(path, "bad")


def damage_header(path, name):
    with h5py.File(path) as file:
        at = h5py.h5o.get_info(file[name].id).addr
    content = bytearray(path.read_bytes())
    content[at : at + 12] = bytes(12)
    path.write_bytes(content)


def hdf5_unknown_filter(path):
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_filter(31999, h5py.h5z.FLAG_OPTIONAL, ())
    with h5py.File(path, "w") as file:
        file["good"] = GOOD
        file.create_dataset("bad", (8,), "i4", chunks=(4,), dcpl=plist)


def hdf5_damaged_strings(path):
    """They are read to know how wide they are."""
    with h5py.File(path, "w") as file:
        file["good"] = GOOD
        bad = file.create_dataset("bad", data=["a", "bcd"], dtype=h5py.string_dtype(), chunks=(2,), compression="gzip")
        bad.id.write_direct_chunk((0,), b"no deflated bytes")


def npz_with(path, member):
    """An archive whose member "bad" has these bytes."""
    with path.open("wb") as file:
        np.savez(file, good=GOOD)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("bad.npy", member)


def npy_bytes(dtype="<f8"):
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': (2,), }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(16)


def npz_in_central_directory(path, at, value):
    """An archive whose member "bad" has another 16-bit number in both of its headers."""
    npz_with(path, npy_bytes())
    content = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x01\x02", at + 2), (b"PK\x03\x04", at)):
        start = content.rfind(signature)
        content[start + offset : start + offset + 2] = struct.pack("<H", value)
    path.write_bytes(content)


def safetensors_f4(path):
    content = {"bad": entry("F4", [4, 2], [0, 4]), "good": entry("F64", [6], [4, 52])}
    path.write_bytes(file_of(content, bytes(4) + GOOD.tobytes()))


def index_of_shards(path, shard):
    save_file({"good": GOOD}, path.with_name("shard-1"))
    if shard:
        path.with_name("shard-2").write_bytes(shard)
    path.write_text(json.dumps({"weight_map": {"good": "shard-1", "bad": "shard-2"}}))


def zarr_with(path, version, edit):
    """A group whose array "bad" has other metadata."""
    write_zarr(path, {"good": GOOD, "bad": np.arange(3)}, version)
    metadata = path / "bad" / (".zarray" if version == 2 else "zarr.json")
    content = edit(json.loads(metadata.read_text()))
    metadata.write_text(content if isinstance(content, str) else json.dumps(content))


ZARR = {
    "codec": lambda found: (
        {**found, "compressor": {"id": "none"}}
        if found["zarr_format"] == 2
        else {**found, "codecs": [{"name": "bytes"}, {"name": "none", "configuration": {}}]}
    ),
    "dtype": lambda found: {**found, "dtype": "<Q9", "data_type": "int3"},
    "no dtype": lambda found: {key: value for key, value in found.items() if key not in ("dtype", "data_type")},
    "no JSON": lambda found: '{"zarr_format":',
    "nothing": lambda found: "",
}


def zarr_of_objects(path):
    write_zarr(path, {"good": GOOD})
    zarr.create(store=str(path), path="bad", shape=3, dtype=object, object_codec=numcodecs.JSON())


def zarr_damaged_strings(path):
    write_zarr(path, {"good": GOOD})
    zarr.create(store=str(path), path="bad", shape=3, dtype=str)[:] = ["a", "bcd", ""]
    [chunk] = [inner for inner in (path / "bad").rglob("*") if inner.is_file() and inner.name in ("0", "c.0")]
    chunk.write_bytes(b"no chunk")


def netcdf_with(path, name, kind="NETCDF4"):
    """A variable, and one that may be in a group, and has an attribute with the name that scipy gives its items."""
    with netCDF4.Dataset(path, "w", format=kind) as file:
        file.createDimension("x", len(GOOD))
        file.createVariable("good", "f8", ("x",))[:] = GOOD
        file.createVariable(name, "f8", ("x",))[:] = GOOD
        file[name].setncattr("data", GOOD)


def netcdf_damaged_member(path):
    """h5netcdf opens no group that has one."""
    netcdf_with(path, "bad/x")
    damage_header(path, "bad/x")


def netcdf_with_link(path, name):
    netcdf_with(path, "bad/x")
    with h5py.File(path, "r+") as file:
        file[name] = h5py.SoftLink("/nowhere")


def fits_with(path, card, text):
    """A file whose HDU "bad" has another card in its header."""
    hdus = fits.ImageHDU(GOOD), fits.BinTableHDU(np.ones(3, "f4,f8"))
    for hdu, name in zip(hdus, ("good", "bad"), strict=True):
        hdu.header["EXTNAME"] = name
    fits.HDUList([fits.PrimaryHDU(), *hdus]).writeto(path)
    content = path.read_bytes()
    assert content.count(card) == 1
    path.write_bytes(content.replace(card, text.ljust(len(card))))


BAD: dict[str, Callable[[Path], None]] = {
    "HDF5, a time": lambda path: hdf5_of(path, h5py.h5t.UNIX_D32LE),
    "HDF5, references": lambda path: hdf5_of(path, h5py.h5t.STD_REF_OBJ),
    "HDF5, variable length": lambda path: hdf5_of(path, h5py.h5t.vlen_create(h5py.h5t.NATIVE_INT32)),
    "HDF5, damaged header": hdf5_damaged_header,
    "HDF5, damaged group": lambda path: hdf5_damaged_header(path, "bad/x"),
    "HDF5, unknown filter": hdf5_unknown_filter,
    "HDF5, damaged strings": hdf5_damaged_strings,
    "netCDF-4, damaged member of a group": netcdf_damaged_member,
    "netCDF-4, a link in a group": lambda path: netcdf_with_link(path, "bad/link"),
    "netCDF 3, an attribute named data": lambda path: netcdf_with(path, "bad", "NETCDF3_CLASSIC"),
    "npz, objects": lambda path: npz_with(path, npy_bytes("|O")),
    "npz, text": lambda path: npz_with(path, b"no array at all"),
    "npz, damaged header": lambda path: npz_with(path, npy_bytes().replace(b"'descr'", b"'escr' ")),
    "npz, encrypted": lambda path: npz_in_central_directory(path, 6, 1),
    "npz, unknown compression": lambda path: npz_in_central_directory(path, 8, 97),
    "npz, damaged deflate": lambda path: npz_in_central_directory(path, 8, zipfile.ZIP_DEFLATED),
    "safetensors, half bytes": safetensors_f4,
    "index, missing shard": lambda path: index_of_shards(path, b""),
    "index, damaged shard": lambda path: index_of_shards(path, b"no shard at all"),
    "zarr, damaged strings": zarr_damaged_strings,
    "FITS, no such format": lambda path: fits_with(path, b"TFORM2  = 'D       '", b"TFORM2  = 'Y       '"),
    "FITS, a wrong length": lambda path: fits_with(path, b"NAXIS1  =                   12", b"NAXIS1  = 11"),
    "FITS, an unknown extension": lambda path: fits_with(path, b"XTENSION= 'BINTABLE'", b"XTENSION= 'NOTHING '"),
}
for version, name in itertools.product(ZARR_VERSIONS, ZARR):
    BAD[f"zarr {version}, {name}"] = partial(zarr_with, version=version, edit=ZARR[name])
if len(ZARR_VERSIONS) == 1:
    BAD["zarr, objects"] = zarr_of_objects


@pytest.fixture(params=BAD)
def path(request, tmp_path):
    """A file of a good and a bad member."""
    path = tmp_path / "a"
    BAD[request.param](path)
    return path


def test_the_others_are_loaded(path):
    """One warning names each that is left out; it alone is an error, and `stored` says why."""
    assert loaded(path).keys() == {"good"}
    assert loaded(path)["good"].tolist() == loaded(path, "good").tolist() == GOOD.tolist()
    (text,) = inspected(path).left_out
    assert text.partition(" ")[2].lstrip("'/").startswith("bad': ")
    described = {name.lstrip("/"): array for name, array in stored(path).items()}
    assert described.keys() == {"good", "bad"}
    assert (described["good"].reason, described["good"].nbytes) == ("", 48)
    assert described["bad"].reason in text
    with pytest.raises(MpishareError) as caught:
        inspected(path, "bad")
    message = str(caught.value)
    assert message.count(str(path)) == 1
    assert ".." not in message
    assert "bad' of" not in text


def zarr_damaged_root(path):
    write_zarr(path, {"good": GOOD})
    (path / (".zgroup" if len(ZARR_VERSIONS) == 1 else "zarr.json")).write_text("{")


ROOTS = {"netCDF-4": lambda path: netcdf_with_link(path, "link"), "zarr": zarr_damaged_root}


@pytest.mark.parametrize("name", ROOTS)
def test_the_root_cannot_be_read(tmp_path, name):
    """Nothing says then which names are there."""
    ROOTS[name](tmp_path / "a")
    for dataset in (None, "nowhere", "group/nowhere"):
        with pytest.raises(FileError, match=r"a: it cannot be read: \w+Error: ") as caught:
            inspected(tmp_path / "a", dataset)
        assert str(caught.value).count(str(tmp_path)) == 1


def test_none_of_several_can_be_loaded(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.array([None]), y=np.array([{}]))
    with pytest.raises(FileError, match=r"a\.npz: none of its 2 arrays can be loaded: dataset 'x': it is a pickle"):
        inspected(tmp_path / "a.npz")
    assert all(array.reason for array in stored(tmp_path / "a.npz").values())


def zip_of(path, *names):
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, bytes(16))


def compressed(path, compress):
    path.write_bytes(compress(npy_bytes()))


OTHERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "gzip": (partial(compressed, compress=gzip.compress), "by gzip. .* gunzip"),
    "bzip2": (partial(compressed, compress=bz2.compress), "by bzip2. .* bunzip2"),
    "xz": (partial(compressed, compress=lzma.compress), "by xz. .* unxz"),
    "zstd": (partial(compressed, compress=numcodecs.Zstd().encode), "by zstd. .* unzstd"),
    "PyTorch": (lambda path: zip_of(path, "model/data.pkl", "model/data/0"), "neither .npy .*'model/data.pkl'"),
    "parquet": (lambda path: path.write_bytes(b"PAR1" + bytes(99)), r"none of the formats .*: \.npy, .*PAR1"),
    "JSON": (lambda path: path.write_text("{}"), "is a JSON file, but no index of safetensors"),
    "a damaged zip": (lambda path: path.write_bytes(b"PK\x03\x04" + bytes(99)), "archive cannot be read: BadZipFile"),
    "a damaged netCDF 3": (lambda path: path.write_bytes(b"CDF\x01" + bytes(2)), "netCDF 3 cannot be read"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_load_does_not_read(tmp_path, name):
    """The error says what it is, and how it is read."""
    write, message = OTHERS[name]
    write(tmp_path / "a.fits.gz")
    with pytest.raises(FileError, match=message):
        inspected(tmp_path / "a.fits.gz")
