"""load(dtype=…): the arrays of any file in another dtype, as NumPy casts them."""

import h5py
import numpy as np
import pytest
from astropy.io import fits
from mpi4py import MPI

import mpishare as ms
from tests.arrays import assert_same
from tests.mpi.test_errors import assert_refused_alike

COMM = MPI.COMM_WORLD
TABLE = np.zeros(300, [("id", ">i4"), ("mass", ">f8", (3,)), ("name", "S3")])
TABLE["id"], TABLE["mass"] = np.arange(300), np.arange(900).reshape(300, 3)
ARRAYS = {"IMAGE": np.arange(12.0).astype(">f8").reshape(3, 4), "TABLE": TABLE}


@pytest.fixture
def path(shared_folder):
    """A folder with files of several formats."""
    if COMM.rank == 0:
        hdus = [fits.ImageHDU(ARRAYS["IMAGE"], name="IMAGE"), fits.BinTableHDU(TABLE, name="TABLE")]
        fits.HDUList([fits.PrimaryHDU(), *hdus]).writeto(shared_folder / "a.fits")
        np.save(shared_folder / "f.npy", np.asfortranarray(np.arange(35.0).reshape(5, 7)))
        np.save(shared_folder / "one.npy", np.array(2.5))
        with h5py.File(shared_folder / "a.h5", "w") as file:
            file["chunks"] = np.arange(24, dtype=">i4").reshape(4, 2, 3)
            file.create_dataset("of arrays", (4,), np.dtype((">f4", (2, 3))))[...] = np.arange(24).reshape(4, 2, 3)
    COMM.Barrier()
    return shared_folder


def test_native_byte_order(path):
    for name, array in ms.load(path / "a.fits", dtype="native").items():
        assert_same(array, ARRAYS[name].astype(ARRAYS[name].dtype.newbyteorder("=")))
    found = ms.load(path / "a.h5", dtype="native")
    assert_same(found["chunks"], np.arange(24, dtype="i4").reshape(4, 2, 3))
    assert_same(found["of arrays"], np.arange(24, dtype="f4").reshape(4, 2, 3))


def test_other_dtypes(path):
    assert_same(
        ms.load(path / "a.fits", "IMAGE", dtype="f4", region=np.s_[::-1, [3, 1]]),
        np.array([[11, 9], [7, 5], [3, 1]], "f4"),
    )
    fortran = np.asfortranarray(np.arange(35, dtype="f4").reshape(5, 7))
    assert_same(ms.load(path / "f.npy", dtype=np.float32), fortran)
    assert_same(ms.load(path / "one.npy", dtype=complex), np.array(2.5 + 0j))
    for dtype in (str, bytes, "U40"):
        assert_same(ms.load(path / "f.npy", dtype=dtype), fortran.astype("f8").astype(dtype))
    days = np.arange("2000-01-01", "2000-01-09", dtype="M8[D]")
    assert_same(ms.load(call=lambda: days, dtype=np.datetime64), days)
    split = ms.load(path / "f.npy", dtype="f4", split=True)
    assert split.dtype == "f4"
    assert_same(split.take(np.arange(5)), np.ascontiguousarray(fortran))


@pytest.mark.parametrize(
    ("dtype", "error", "message"),
    [
        ("i4", "ArgumentError", "does not cast to int32 as same_kind"),
        ("(2,)f4", "ArgumentError", "Give the dtype of their items, float32"),
        (object, "SpecError", "cannot be shared"),
    ],
)
def test_dtypes_that_are_refused(path, raised, dtype, error, message):
    assert_refused_alike(raised(lambda: ms.load(path / "one.npy", dtype=dtype)), error, message)


def test_a_map_is_not_converted(path, raised):
    errors = raised(lambda: ms.load(path / "f.npy", dtype="f4", map=True))
    assert all("cannot be mapped: it is converted" in text for _, text in errors)
