"""load(call=…): what a function opens on each rank that reads, in slices, each byte once; or an error on all ranks."""

import gc
import re
from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import h5py
import netCDF4
import numpy as np
import pytest
import zarr
from mpi4py import MPI

import mpishare as ms
from mpishare.memory.segment import segment_of
from tests.arrays import assert_same

COMM = MPI.COMM_WORLD
LARGE = np.random.default_rng(3).integers(0, 2**30, (700, 1100), "i4")
CHUNKS = (64, 500)
zarr.zeros(1)[:]  # starts its thread, before descriptors are counted


class Own:
    """An array of the user's own, which notes what is done with it."""

    dtype = LARGE.dtype
    shape: Any = LARGE.shape
    chunks: Any = CHUNKS

    def __init__(self):
        self.read: list[Any] = []
        self.is_closed = False

    def __getitem__(self, index):
        assert not self.is_closed
        self.read.append(index)
        return LARGE[index]

    def close(self):
        self.is_closed = True


def write_netcdf(path):
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("y", 700)
        file.createDimension("x", 1100)
        file.createVariable("a", "i4", ("y", "x"), zlib=True, chunksizes=CHUNKS)[:] = LARGE


@pytest.fixture(scope="module")
def folder(build_folder):
    """Files that no test changes."""
    if COMM.rank == 0:
        with h5py.File(build_folder / "call.h5", "w") as file:
            file.create_dataset("a", data=LARGE, chunks=CHUNKS, compression="gzip")
        write_netcdf(build_folder / "call.nc")
        made = zarr.open(build_folder / "call.zarr", mode="w", shape=LARGE.shape, chunks=CHUNKS, dtype="i4")
        made[...] = LARGE
        LARGE.tofile(build_folder / "call.raw")
    COMM.Barrier()
    return build_folder


def open_tensorstore(folder):
    store = {"driver": "file", "path": f"{folder}/call.zarr/"}
    driver = "zarr3" if (folder / "call.zarr/zarr.json").exists() else "zarr"
    return import_module("tensorstore").open({"driver": driver, "kvstore": store}).result()


OPENED: dict[str, Callable[[Any], Any]] = {
    "class": lambda folder: Own(),
    "numpy": lambda folder: LARGE,
    "memmap": lambda folder: np.memmap(folder / "call.raw", "i4", "r", shape=LARGE.shape),
    "h5py": lambda folder: h5py.File(folder / "call.h5")["a"],
    "netCDF4": lambda folder: netCDF4.Dataset(folder / "call.nc")["a"],
    "xarray": lambda folder: import_module("xarray").open_dataset(folder / "call.nc", engine="h5netcdf")["a"],
    "dask": lambda folder: import_module("dask.array").from_array(LARGE, chunks=CHUNKS) + 0,
    "zarr": lambda folder: zarr.open_array(folder / "call.zarr", mode="r"),
    "tensorstore": open_tensorstore,
}
ON_EVERY_MPI = "class", "numpy", "h5py", "zarr"
"""What is opened in every launch; the others in two."""
NAMES = [name if name in ON_EVERY_MPI else pytest.param(name, marks=pytest.mark.once) for name in OPENED]
IMPORTED = {"xarray": "xarray", "dask": "dask.array", "tensorstore": "tensorstore"}
"""What only the launches import that run these: it takes a second on each rank."""


@pytest.fixture(scope="module", params=NAMES)
def name(request):
    """A way to open, whose module is imported before a test counts what it leaves."""
    if request.param in IMPORTED:
        import_module(IMPORTED[request.param])
    return request.param


@pytest.mark.parametrize("read", ["job", "node"])
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_whatever_can_be_sliced(folder, name, read):
    for index in (None, np.s_[::-3, 5:900:7], np.s_[:, 77], [699, 3, -1, 3, 100]):
        result = ms.load(call=lambda: OPENED[name](folder), region=index, read=read)
        assert_same(result, LARGE if index is None else LARGE[index])
        assert (type(result), result.flags.writeable) == (np.ndarray, False)
        assert segment_of(result) is not None
    del result
    gc.collect()


class Uneven(Own):
    """Its chunks differ in length."""

    chunks = (100, 300, 0, 250, 50), (200, 900)


@pytest.mark.parametrize("read", ["job", "node"])
@pytest.mark.parametrize("backend", [None, "private"])
@pytest.mark.parametrize(
    ("kind", "starts"), [(Own, (range(0, 700, 64), range(0, 1100, 500))), (Uneven, ((0, 100, 400, 650), (0, 200)))]
)
def test_each_chunk_is_read_once(read, backend, kind, starts):
    """By ranks of the root's node, or of each node; each opens one array, and closes it."""
    opened = []

    def call():
        opened.append(kind())
        return opened[-1]

    assert_same(ms.load(call=call, read=read, backend=backend), LARGE)
    topology = ms.topology()
    is_reading = read == "node" or topology.node == topology.node_of(0)
    assert [array.is_closed for array in opened] == [True] * is_reading
    everything = topology.node_comm.allgather([index for array in opened for index in array.read])
    counts = np.zeros(LARGE.shape, int)
    for index in (index for of_rank in everything for index in of_rank):
        assert all(axis.start in along for axis, along in zip(index, starts, strict=True))
        counts[index] += 1
    assert (counts == is_reading).all()
    streams = read == "job" and topology.n_nodes > 1 and topology.node_size > 1
    readers = [rank for rank, of_rank in enumerate(everything) if of_rank]
    if is_reading and backend is None and kind is Own:
        assert readers == list(range(1 if streams else 0, topology.node_size))


@pytest.mark.once
@pytest.mark.parametrize("index", [np.s_[:], np.s_[3:600:7, 5], [5, 3, 699]], ids=str)
def test_a_view_of_tensorstore(index):
    """Its indices do not begin at 0."""
    tensorstore = import_module("tensorstore")
    padded = tensorstore.array(np.pad(LARGE, ((50, 0), (100, 0))))
    assert_same(ms.load(call=lambda: padded[50:, 100:], region=index), LARGE[index])


def test_small_arrays():
    for array in (np.array(7.5), np.float32(3), np.empty((0, 3), "f4"), np.array(b"ab"), np.ones((2, 2), ">M8[s]")):
        assert_same(ms.load(call=lambda: array), np.asarray(array))  # noqa: B023
    assert ms.load(call=lambda: LARGE, region=np.s_[3, 4]) == LARGE[3, 4]


def changed(change):
    """A class of arrays whose slices are changed."""

    class Changed(Own):
        def __getitem__(self, index):
            return change(super().__getitem__(index))

    return Changed


BAD: dict[str, tuple[Any, str, str]] = {
    "None": (lambda: None, "ArgumentError", "an object of type NoneType is no array: .* use share\\(call=…\\)"),
    "objects": (lambda: np.array([None]), "SpecError", "call=<lambda>: dtype object cannot be shared"),
    "no dtype": (lambda: SimpleNamespace(shape=(3,), dtype=None), "SpecError", "its dtype is None"),
    "str": (lambda: SimpleNamespace(shape=(3,), dtype=str), "FileError", "tile .* cannot be read"),
    "negative": (lambda: SimpleNamespace(shape=(-1, 3), dtype="i4"), "SpecError", r"shape \(-1, 3\) is negative"),
    "short": (changed(lambda tile: tile[:-1]), "FileError", r"tile \[\d+:.* has shape=\(.*, dtype=int32; expected"),
    "wide": (changed(lambda tile: tile.astype("i8")), "FileError", r"dtype=int64; expected .* and int32\. Slices"),
    "masked": (
        changed(lambda tile: np.ma.masked_less(tile, 100_000_000)),
        "FileError",
        r"tile \[\d+:\d+, \d+:\d+\] has masked items.*set_auto_mask\(False\)",
    ),
    "failing": (changed(lambda tile: locals()["chunk"]), "FileError", r"tile .* cannot be read: KeyError: chunk"),
}


@pytest.mark.once
@pytest.mark.parametrize("name", BAD)
def test_bad_arrays(raised, name):
    call, error, message = BAD[name]
    errors = raised(lambda: ms.load(call=call))
    assert {kind for kind, _ in errors} <= {error, "PeerError", "PeerFileError"}
    assert error in {kind for kind, _ in errors}
    for _, text in errors:
        assert re.search(message, text), text


@pytest.mark.ranks(2)
@pytest.mark.once
def test_arrays_that_differ(raised):
    last = ms.topology().ranks_of(0)[-1]
    errors = raised(lambda: ms.load(call=lambda: LARGE[: 500 if COMM.rank == last else 700]))
    others = "PeerFileError" if last else "nothing"
    assert [kind for kind, _ in errors] == ["FileError" if rank == last > 0 else others for rank in range(COMM.size)]
    assert all("returned an array of shape=(500, 1100)" in text for kind, text in errors if last)
