"""Zarr folders and zips are read as zarr-python reads them; what is damaged, missing or changed is refused."""

import shutil
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr

from mpishare.errors import FileError
from mpishare.files.listing import stored
from tests.arrays import assert_same
from tests.formats import ZARR_VERSIONS, write_zarr, write_zip
from tests.unit.files.reading import inspected, loaded, peak_of_read

ARRAY = np.arange(35.0).reshape(5, 7)


def write_zip_of_folder(path, arrays, version):
    """As zip makes of a folder."""
    write_zarr(path.with_name("a.zarr"), arrays, version)
    Path(shutil.make_archive(str(path), "zip", path.parent, "a.zarr")).rename(path)


WRITE = {"folder": write_zarr, "zip": write_zip, "zip of a folder": write_zip_of_folder}


@pytest.fixture(params=[(kind, version) for kind in WRITE for version in ZARR_VERSIONS], ids=str)
def path(request, tmp_path):
    """A group with two arrays, in one version of the format, under a name that says something else."""
    kind, version = request.param
    WRITE[kind](tmp_path / "a.h5", {"x": ARRAY, "deep/y": ARRAY}, version)
    return tmp_path / "a.h5"


def test_arrays_and_groups(path):
    assert list(stored(path)) == ["/deep/y", "/x"]
    assert stored(path, "deep")["/deep/y"].chunks == (2, 3)
    everything = loaded(path)
    assert_same(everything["x"], ARRAY)
    assert_same(everything["deep"]["y"], ARRAY)
    assert_same(loaded(path, "deep")["y"], ARRAY)
    assert_same(loaded(path, "/deep/y"), ARRAY)
    for name in ("z", "a.zarr/x"):
        with pytest.raises(FileError, match="there is no such array or group; the file has 'deep', 'x'"):
            inspected(path, name)


@pytest.mark.parametrize("version", ZARR_VERSIONS)
def test_one_array_and_attributes(tmp_path, version):
    write_zarr(tmp_path, {"x": ARRAY}, version)
    zarr.open(str(tmp_path))["x"].attrs["unit"] = "K"
    assert_same(loaded(tmp_path / "x"), ARRAY)
    assert inspected(tmp_path / "x", attributes=True).attributes == {"": {"unit": "K"}}
    assert inspected(tmp_path, attributes=True).attributes == {"": {}, "x": {"unit": "K"}}
    with pytest.raises(FileError, match=r"'y' of .* has one array and no groups"):
        inspected(tmp_path / "x", "y")


TEXT = np.array([["a", "größer"], ["", "four"], ["x", ""]], object)


@pytest.mark.parametrize("version", ZARR_VERSIONS)
def test_strings_of_variable_length(tmp_path, version):
    """They become bytes as wide as the longest, as those of HDF5 do; also where a chunk is not there."""
    options: dict[str, Any] = {"object_codec": numcodecs.VLenUTF8()} if len(ZARR_VERSIONS) == 1 else {}
    options |= {"zarr_format": version} if len(ZARR_VERSIONS) > 1 else {}
    zarr.open_group(str(tmp_path), mode="w", **options)
    for name, shape in {"text": (3, 2), "longer": (5, 2), "none": (2,), "empty": (0,), "one": ()}.items():
        chunks = (1,) * len(shape)
        array = zarr.open_array(str(tmp_path), path=name, mode="w", shape=shape, dtype=str, chunks=chunks, **options)
        if name in ("text", "longer"):
            array[:3] = TEXT
    zarr.open(str(tmp_path))["one"][...] = "größer"
    arrays = loaded(tmp_path)
    widths = {"text": 8, "longer": 8, "none": 1, "empty": 1, "one": 8}
    assert {name: array.dtype.itemsize for name, array in arrays.items()} == widths
    assert (np.char.decode(arrays["text"], "utf-8") == TEXT).all()
    assert arrays["longer"][3:].tolist() == [[b"", b""]] * 2
    assert_same(loaded(tmp_path, "text", np.s_[::-1, 0]), np.array([b"x", b"", b"a"], "S1"))
    assert_same(arrays["one"], np.array("größer".encode()))
    assert stored(tmp_path, "text")["/text"].is_text
    assert stored(tmp_path, "text")["/text"].chunks == (1, 1)


def test_a_rank_holds_a_chunk_once(tmp_path):
    """The items are equal, so that the compressed chunk is small."""
    zarr.open(str(tmp_path / "a"), mode="w", shape=(1 << 20,), chunks=(1 << 20,), dtype="f8")[:] = 1
    out = np.empty(1 << 20, "V8")
    assert peak_of_read(tmp_path / "a", None, 0, out) < 1.5 * out.nbytes


def test_shards(tmp_path):
    """A small shard is a tile; of a large one, which a rank should not hold, its chunks are."""
    if len(ZARR_VERSIONS) == 1:
        return  # zarr 2 has none
    numbers = np.arange(2100 * 1050, dtype="f8").reshape(2100, 1050)
    for shard, expected in (((400, 200), (400, 200)), ((2100, 1050), (100, 50))):
        options = {"shards": shard, "chunks": (100, 50), "dtype": "f8"}
        zarr.create_array(tmp_path / "a", shape=numbers.shape, overwrite=True, **options)[...] = numbers
        assert stored(tmp_path / "a")["/"].chunks == expected
        assert_same(loaded(tmp_path / "a", tile_bytes=4 << 20), numbers)
        assert_same(loaded(tmp_path / "a", None, np.s_[90:1000:3, -7:], tile_bytes=4 << 20), numbers[90:1000:3, -7:])
