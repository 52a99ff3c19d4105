"""load of each format: the bits that its own library wrote, each byte read once, in node memory of all ranks."""

import os
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import mpishare as ms
from mpishare.files import load, parallel_read
from mpishare.memory.segment import segment_of
from tests.arrays import assert_same
from tests.formats import WRITTEN
from tests.mpi.test_errors import assert_refused_by_some
from tests.processes import read_bytes

COMM = MPI.COMM_WORLD
LARGE = np.random.default_rng(3).integers(0, 2**40, (700, 1100))
SMALL = np.arange(100.0)
ON_EVERY_MPI = "npy", "hdf5, chunked", "zarr 3"
"""Formats that run in every launch; the others in two. Only how a part is read differs between formats."""
FORMATS = [pytest.param(name, marks=[] if name in ON_EVERY_MPI else [pytest.mark.once], id=name) for name in WRITTEN]


@pytest.fixture(scope="module", params=FORMATS)
def written(request, build_folder):
    """A file of each format, the names of its arrays, and what they are."""
    form, path = WRITTEN[request.param], build_folder / f"format of {request.param}"
    arrays = {"": np.asfortranarray(LARGE)} if request.param == "npy" else {"LARGE": LARGE, "SMALL": SMALL}
    if request.param.startswith("FITS"):
        arrays = {name: array.astype(">i8") for name, array in arrays.items()}
    if request.param == "netCDF 3":
        arrays = {name: array.astype(">i4") for name, array in arrays.items()}
    if request.param == "FITS, compressed":
        arrays = {"LARGE": LARGE.astype("i4")}
    if COMM.rank == 0:
        path.mkdir()
        form.write(path / "data", arrays)
    COMM.Barrier()
    return path / "data", {name or None: array for name, array in arrays.items()}


def assert_loaded(result, expected):
    """The bits are those expected, read-only, in node memory."""
    assert_same(result, expected)
    assert (type(result), result.flags.writeable) == (np.ndarray, False)
    assert segment_of(result) is not None


@pytest.mark.parametrize(
    ("read", "backend", "chunk"), [("job", None, "100K"), ("job", "private", "1M"), ("node", "private", "1M")]
)
def test_every_format(written, configured, read, backend, chunk):
    path, arrays = written
    comm, mask = configured(chunk=chunk), np.arange(1100) % 7 == 3
    for name, array in arrays.items():
        indices = [None, np.s_[::-3], np.s_[5:90, None], [9, 3, -1, 3]]
        for index in indices if array.ndim < 2 else [*indices, np.s_[:, 77], np.s_[5:, mask]]:
            result = ms.load(path, name, region=index, read=read, backend=backend, comm=comm)
            assert_loaded(result, array if index is None else array[index])
            assert index is not None or result.flags.fnc == array.flags.fnc
    everything = ms.load(path, read=read, backend=backend, comm=comm)
    for name, array in arrays.items():
        assert_loaded(everything if name is None else everything[name], array)


def test_into_arrays_that_are_there(written, configured):
    """Parts of a grid, in the order of the file or the other, converted or not; arrays to be written; several names."""
    path, arrays = written
    comm = configured(chunk="100K")
    cases: list[tuple[Any, Any, Any]] = [
        ("C", None, None), ("F", np.s_[5:90, None], None), ("C", [9, 3], "f8"), ("F", None, "f8"),
    ]  # fmt: skip
    for name, array in arrays.items():
        for order, region, dtype in cases:
            expected = (array if region is None else array[region]).astype(dtype or array.dtype)
            sides, others = (1, 2), [(0, 0)] * (expected.ndim - 1)
            expected = np.pad(expected, [sides, *others] if order == "C" else [*others, sides])
            grid = ms.zeros(expected.shape, expected.dtype, order=order, comm=comm)
            out = grid[1:-2] if order == "C" else grid[..., 1:-2]
            assert ms.load(path, name, region=region, out=out, dtype=dtype, comm=comm) is out
            assert_same(grid, expected)
        table, expected = ms.load(path, name, writable=True, comm=comm), array.copy(order="K")
        assert_same(table, expected)
        ms.fence(scope="all", comm=comm)
        table[comm.rank] = 7
        ms.fence(comm=comm)
        expected[list(ms.topology(comm).placement.nodes[ms.topology(comm).node])] = 7
        assert_same(table, expected)
    if None not in arrays:
        found = ms.load(path, [*arrays, *arrays][1:], comm=comm)
        assert sorted(found) == sorted(arrays)
        for name, array in arrays.items():
            assert_loaded(found[name], array)


@pytest.mark.parametrize("read", ["job", "node"])
def test_each_byte_is_read_once(written, read):
    path, arrays = written
    ms.load(path, read=read)  # imports what reads the format
    stored_bytes = sum(file.stat().st_size for file in path.parent.rglob("*") if file.is_file())
    before = read_bytes()
    ms.load(path, next(iter(arrays)), read=read)
    counts = COMM.allgather(read_bytes() - before)
    if len(set(COMM.allgather(MPI.Get_processor_name()))) > 1:
        return  # messages by sockets count as read
    for node, ranks in enumerate(ms.topology().placement.nodes):
        expected = stored_bytes if read == "node" or node == 0 else 0
        total = sum(counts[rank] for rank in ranks)
        assert path.parent.name.endswith("compressed") or 0.9 * expected < total  # astropy maps the file
        assert total < expected + len(ranks) * 250_000  # headers, and what /proc says
        if path.parent.name.endswith((" npy", " hdf5")):  # cut into tiles for all ranks
            streams = read == "job" and ms.topology().n_nodes > 1 and len(ranks) > 1
            readers = list(ranks[1:] if streams else ranks) if expected else []  # the leader sends
            assert [rank for rank in ranks if counts[rank] > 250_000] == readers


def test_a_map_shows_the_file(written):
    """Where the bytes lie as in memory."""
    path, arrays = written
    described = ms.stored(path)
    if any(array.offset is None for array in described.values()):
        with pytest.raises((ms.FileError, ms.PeerError), match="cannot be mapped"):
            ms.load(path, map=True)
        return
    everything = ms.load(path, map=True)
    for name, array in arrays.items():
        assert_loaded(everything if name is None else everything[name], array)
        assert_loaded(ms.load(path, name, map=True, region=np.s_[::-2]), array[::-2])


def test_a_file_that_changes(written, raised, monkeypatch):
    """Between its inspection and its reading."""
    path, _ = written
    changed = sorted(path.parent.iterdir() if path.is_file() else path.rglob("*zarr*"))[-1]  # of an index a shard
    before = changed.stat()

    def changing(*args, **options):
        COMM.Barrier()
        if COMM.rank == 0:
            os.utime(changed, ns=(1, 1))
        COMM.Barrier()
        return parallel_read.read_parts(*args, **options)

    monkeypatch.setattr(load, "read_parts", changing)
    errors = raised(lambda: ms.load(path))
    if COMM.rank == 0:
        os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert_refused_by_some(errors, "FileError", "was changed while it was read")
