"""load(split=True): each node reads and holds its rows of an array, or all ranks raise."""

import h5py
import numpy as np
import pytest

import mpishare as ms
from tests.mpi.files.test_formats import LARGE
from tests.mpi.test_distribute import assert_split


@pytest.fixture
def file(comm, shared_folder):
    """An HDF5 file whose chunks are shared by nodes."""
    path = shared_folder / "large.h5"
    if comm.rank == 0:
        with h5py.File(path, "w") as new:
            new.create_dataset("chunked", data=LARGE, chunks=(300, 500), compression="gzip")
            new.attrs["unit"] = new["chunked"].attrs["unit"] = "K"
    comm.Barrier()
    return path


def test_an_array_that_a_function_opens(comm, shared_folder):
    file = shared_folder / "large.npy"
    if comm.rank == 0:
        np.save(file, LARGE)
    comm.Barrier()
    assert_split(comm, ms.load(call=lambda: np.load(file, mmap_mode="r"), split=True), LARGE)
    assert_split(comm, ms.load(file, read="node", split=True), LARGE)


@pytest.mark.parametrize("region", [np.s_[:], np.s_[5:600:7], np.s_[100:, 3], np.s_[:2, 1:999:5], np.s_[:0]], ids=str)
def test_parts(comm, file, region):
    loaded = ms.load(file, "chunked", region=region, split=True)
    assert_split(comm, loaded, LARGE[region])


def test_counts_attributes_and_report(comm, file):
    counts = [700, *[0] * (ms.topology().n_nodes - 1)]
    for split in (counts, np.array(counts), tuple(counts), (count for count in counts), np.True_):
        loaded, attributes = ms.load(file, "chunked", split=split, attributes=True, progress=True)  # type: ignore[arg-type]
        assert_split(comm, loaded, LARGE)
        assert attributes == {"unit": "K"}
        segment = ms.report().segments[0]
        assert segment.made_by == "load"
        assert split is np.True_ or segment.rows_per_node == tuple(counts)
        del loaded
    assert isinstance(ms.load(file, "chunked", split=np.False_), np.ndarray)  # type: ignore[arg-type]
