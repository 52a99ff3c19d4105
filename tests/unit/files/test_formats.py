"""Every format: what its own library has written is described, and read to the bit; and damaged files are refused."""

import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import h5py
import numpy as np
import pytest

from mpishare.errors import BackendError, MpishareError
from mpishare.files.listing import stored
from tests.arrays import assert_same
from tests.formats import EVERY_DTYPE, WRITTEN, Format, write_netcdf
from tests.unit.files.reading import loaded


@pytest.fixture(params=WRITTEN)
def written(request, tmp_path):
    """A format, and a file of it whose name tells nothing."""
    written = WRITTEN[request.param]
    written.write(tmp_path / "data", written.arrays)
    return written, tmp_path / "data"


def by_name(form) -> Iterator[tuple[str | None, Any]]:
    for name, array in form.arrays.items():
        yield name or None, array


def test_arrays_are_described(written):
    form, path = written
    found = {name.removeprefix("/"): array for name, array in stored(path).items()}
    assert found.keys() == form.arrays.keys()
    for name, array in form.arrays.items():
        assert (found[name].shape, found[name].dtype, found[name].nbytes) == (array.shape, array.dtype, array.nbytes)
        assert not found[name].reason


def test_arrays_are_read(written):
    """Whole and in part, alone and together."""
    form, path = written
    for name, array in by_name(form):
        assert_same(loaded(path, name), array)
        if array.ndim:
            for region in (np.s_[::-2], np.s_[..., 1:], np.s_[[1, 0, 1]] if len(array) else np.s_[[]]):
                assert_same(loaded(path, name, region, tile_bytes=20), np.asarray(array[region]))
    everything = loaded(path)
    for name, array in by_name(form):
        assert_same(everything if name is None else everything[name], array)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", EVERY_DTYPE)
def test_every_dtype_of_a_library(tmp_path, name):
    """As it was written, but for the order of the bytes of a number."""
    written = EVERY_DTYPE[name]
    written.write(tmp_path / "data", written.arrays)
    everything = loaded(tmp_path / "data", tile_bytes=4096)
    for inner, array in written.arrays.items():
        assert everything[inner].dtype.newbyteorder("=") == array.dtype.newbyteorder("="), inner
        assert (everything[inner] == array).all(), inner


OF_NETCDF = WRITTEN["netCDF 3"].arrays
NEEDED = {
    "FITS": (WRITTEN["FITS"], "FITS files", "astropy.io.fits"),
    "zarr 2": (WRITTEN["zarr 2"], "zarr arrays", "zarr"),
    "zarr 2, zip": (WRITTEN["zarr 2, zip"], "zarr arrays", "zarr"),
    "netCDF 3": (WRITTEN["netCDF 3"], "netCDF.*", "scipy.io"),
    "netCDF 3 of 64 bits": (Format(partial(write_netcdf, kind="NETCDF3_64BIT_DATA"), OF_NETCDF), "netCDF.*", "netCDF4"),
    "netCDF 4": (WRITTEN["netCDF 4"], "netCDF.*", "h5netcdf"),
}


@pytest.mark.parametrize("name", NEEDED)
def test_without_its_library(tmp_path, monkeypatch, name):
    (written, what, module), package = NEEDED[name], NEEDED[name][2].partition(".")[0]
    written.write(tmp_path / "data", written.arrays)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BackendError, match=f"{what} need {package}, which is not installed: pip install {package}"):
        stored(tmp_path / "data")


@pytest.mark.filterwarnings("ignore::astropy.utils.exceptions.AstropyUserWarning")
@pytest.mark.filterwarnings("ignore:Cannot close a netcdf_file")  # of scipy, where its own __init__ fails
def test_files_that_end_too_early(written):
    """At any byte: what is read is as before, or refused."""
    form, path = written
    for file in files_of(path):
        content = file.read_bytes()
        close = range(0, min(len(content), 2500), 17 if path.is_file() else 197)
        for length in {*close, *range(0, len(content), 1 + len(content) // (50 if path.is_file() else 3))}:
            file.write_bytes(content[:length])
            assert_refused_or_same(form, path)
        file.write_bytes(content)


def files_of(path):
    """A file, or those that say what a folder has, and one chunk."""
    inner = sorted(file for file in path.rglob("*") if file.is_file())
    return (
        [path] if path.is_file() else [file for file in inner if "json" in file.name or ".z" in file.name] + inner[-1:]
    )


@pytest.mark.filterwarnings("ignore::astropy.utils.exceptions.AstropyUserWarning")
@pytest.mark.filterwarnings("ignore::astropy.io.fits.verify.VerifyWarning")
def test_damaged_files(written):
    """Whatever stands in the header is refused at once, or loaded; no other error comes."""
    form, path = written
    if h5py.is_hdf5(path):
        return  # see test_hdf5_damage
    files, rng = files_of(path), np.random.default_rng(5)
    for number in range(60):
        file = files[number % len(files)]
        content = file.read_bytes()
        damaged = bytearray(content)
        at = int(rng.integers(0, min(len(content), 1500)))
        damaged[at] = int(rng.choice([0, 0xFF, ord("9"), ord("-"), damaged[at] ^ 1]))
        file.write_bytes(damaged)
        assert_refused_or_same(form, path, is_same=False)
        file.write_bytes(content)


def assert_refused_or_same(form, path, *, is_same=True):
    """One array after the other."""
    for name, array in by_name(form):
        try:
            found = stored(path, name)
            if sum(one.nbytes for one in found.values()) > 1 << 20:
                continue  # a damaged length within a file as long: of HDF5's fill values
            result = loaded(path, name, tile_bytes=1 << 20)
        except MpishareError as error:
            assert str(path.parent) in str(error)  # noqa: PT017 - what comes first decides
        else:
            if is_same:
                assert_same(result, array)
