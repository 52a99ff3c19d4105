"""A way to write a file of each format, by the library of the format."""

import json
import tempfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import ml_dtypes
import netCDF4
import numpy as np
import zarr
from astropy.io import fits
from safetensors.numpy import save_file

ARRAYS = {
    "small": np.arange(24, dtype="i4").reshape(2, 3, 4),
    "fortran": np.asfortranarray(np.arange(35.0).reshape(5, 7)),
    "none": np.empty((0, 3), "f4"),
    "one": np.array(2.5),
    "flags": np.arange(300) % 3 > 0,
    "complex": (np.arange(9) * 1j).astype("c8"),
}


class Format(NamedTuple):
    """A way to write a file.

    Attributes:
        write: Writes arrays by name to a path, by the library of the format.
        arrays: What it writes.
    """

    write: Callable[[Any, dict[str, Any]], Any]
    arrays: dict[str, Any]


def write_npy(path, arrays):
    [array] = arrays.values()
    with path.open("wb") as file:  # numpy.save would add a suffix
        np.save(file, array)


def write_hdf5(path, arrays, **options):
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array, **(options if array.ndim and array.size else {}))


def write_npz(path, arrays, save=np.savez):
    with path.open("wb") as file:
        save(file, **arrays)


def write_safetensors(path, arrays):
    save_file(arrays, path, {"by": "test"})


def write_index(path, arrays):
    """An index, and a file for every other array."""
    shards: dict[str, dict[str, Any]] = {"data-1": {}, "data-2": {}}
    for number, (name, array) in enumerate(arrays.items()):
        shards[f"data-{number % 2 + 1}"][name] = array
    for shard, content in shards.items():
        save_file(content, path.with_name(shard))
    weights = {name: shard for shard, content in shards.items() for name in content}
    path.write_text(json.dumps({"metadata": {"total_size": 3}, "weight_map": weights}, indent=2))


def write_fits(path, arrays):
    """Images, and a table of each array with one axis."""
    hdus = fits.HDUList([fits.PrimaryHDU()])
    for name, array in arrays.items():
        if array.dtype.names is None:
            hdus.append(fits.ImageHDU(array, name=name))
        else:
            hdus.append(fits.BinTableHDU(array, name=name))
    hdus.writeto(path)


def write_compressed(path, arrays):
    hdus = [fits.CompImageHDU(array, name=name, tile_shape=(1, *array.shape[1:])) for name, array in arrays.items()]
    fits.HDUList([fits.PrimaryHDU(), *hdus]).writeto(path)


def write_netcdf(path, arrays, kind="NETCDF3_CLASSIC"):
    with netCDF4.Dataset(path, "w", format=kind) as file:
        for name, array in arrays.items():
            axes = [file.createDimension(f"{name} {axis}", length).name for axis, length in enumerate(array.shape)]
            file.createVariable(name, array.dtype.newbyteorder("="), axes)[...] = array


ZARR_VERSIONS = [2, 3] if zarr.__version__ >= "3" else [2]
zarr.zeros(1)[:]  # starts its thread, before descriptors are counted


def write_zarr(path, arrays, version=ZARR_VERSIONS[-1]):
    """A group."""
    options: dict[str, Any] = {"zarr_format": version} if len(ZARR_VERSIONS) > 1 else {}
    zarr.open_group(str(path), mode="w", **options)
    options = options or {"compressor": zarr.codecs.Zstd()}  # Blosc, the default, decodes chunks that end too early
    for name, array in arrays.items():
        chunks = [max(length // 2, 1) for length in array.shape]
        options |= {"shape": array.shape, "dtype": array.dtype, "chunks": chunks}
        zarr.open_array(str(path), path=name, mode="w", **options)[...] = array


def write_zip(path, arrays, version=ZARR_VERSIONS[-1]):
    """A zip of the folder of a group."""
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(path, "w") as archive:
        write_zarr(folder, arrays, version)
        for file in sorted(Path(folder).rglob("*")):
            archive.write(file, file.relative_to(folder))


TENSORS = {name: array.copy(order="C") for name, array in ARRAYS.items()}
FLOATS = ["bfloat16", "float8_e4m3fn", "float8_e5m2"]
ML_TENSORS = {name: np.arange(-8, 8).astype(getattr(ml_dtypes, name)) for name in FLOATS}

TABLE = np.zeros(50, [("id", ">i4"), ("mass", ">f8", (3,)), ("name", "S5"), ("flag", "?"), ("z", ">c8")])
TABLE["id"], TABLE["mass"], TABLE["name"] = np.arange(50), np.arange(150.0).reshape(50, 3), b"ab"
IMAGES = {
    "PIXELS": np.arange(24, dtype=">i4").reshape(2, 3, 4),
    "HEAT": np.arange(35, dtype=">f8").reshape(5, 7),
    "BYTES": np.arange(300).astype("u1"),
    "TABLE": TABLE,
}

WRITTEN = {
    "npy": Format(write_npy, {"": ARRAYS["fortran"]}),
    "hdf5": Format(write_hdf5, ARRAYS),
    "hdf5, chunked": Format(partial(write_hdf5, chunks=True, compression="gzip"), ARRAYS),
    "npz": Format(write_npz, ARRAYS),
    "npz, deflated": Format(partial(write_npz, save=np.savez_compressed), ARRAYS),
    "FITS": Format(write_fits, IMAGES),
    "FITS, compressed": Format(write_compressed, {"SMALL": ARRAYS["small"]}),
    "netCDF 3": Format(write_netcdf, {name: IMAGES[name] for name in ("PIXELS", "HEAT")}),
    "netCDF 4": Format(partial(write_netcdf, kind="NETCDF4"), {name: TENSORS[name] for name in ("small", "fortran")}),
    "safetensors": Format(write_safetensors, {**TENSORS, **ML_TENSORS}),
    "safetensors, index": Format(write_index, TENSORS),
}
for number in ZARR_VERSIONS:
    WRITTEN[f"zarr {number}"] = Format(partial(write_zarr, version=number), TENSORS)
    WRITTEN[f"zarr {number}, zip"] = Format(partial(write_zip, version=number), TENSORS)

NUMBERS = "i1 u1 i2 u2 i4 u4 i8 u8 f4 f8"
BIG = ">i2 >i4 >i8 >u2 >u4 >u8 >f4 >f8"


def arrays_of(dtypes):
    """An array of each dtype, by its name."""
    values = np.random.default_rng(7).integers(0, 100, (5, 8))
    return {dtype.replace(">", "big "): values.astype(dtype) for dtype in dtypes.split()}


EVERY_DTYPE = {
    "npz": Format(write_npz, arrays_of(f"? {NUMBERS} f2 g c8 c16 S5 U3 M8[ns] m8[s] {BIG} >c16 >U3")),
    "safetensors": Format(write_safetensors, arrays_of(f"? {NUMBERS} f2 c8")),
    "zarr 2": Format(partial(write_zarr, version=2), arrays_of(f"? {NUMBERS} f2 c8 c16 S5 U3 M8[ns] m8[s] {BIG}")),
    "zarr": Format(write_zarr, arrays_of(f"? {NUMBERS} f2 c8 c16 M8[ns] m8[s] {BIG}")),
}
"""Arrays of every dtype that a library has."""
