"""load(split=True): each node reads and holds its rows of an array, or all ranks raise."""

import h5py
import numpy as np
import pytest

import mpishare as ms
from tests.mpi.test_distribute import assert_split
from tests.mpi.test_errors import assert_refused_alike

LARGE = np.random.default_rng(3).integers(0, 2**40, (700, 1100))


@pytest.fixture
def file(comm, shared_folder):
    """An HDF5 file whose chunks are shared by nodes."""
    path = shared_folder / "large.h5"
    if comm.rank == 0:
        with h5py.File(path, "w") as new:
            new.create_dataset("chunked", data=LARGE, chunks=(300, 500), compression="gzip")
            new["scalar"] = 1.0
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
    n_nodes = ms.topology().n_nodes
    counts = [700, *[0] * (n_nodes - 1)]
    loaded, attributes = ms.load(file, "chunked", split=counts, attributes=True, progress=True)
    assert_split(comm, loaded, LARGE)
    assert attributes == {"unit": "K"}
    segment = ms.report().segments[0]
    assert (segment.made_by, segment.rows_per_node) == ("load", tuple(counts))


def test_what_cannot_be_split(raised, file):
    for message, call in {
        "split is for one array, but a group of": lambda: ms.load(file, split=True),
        "split is for rows, but the array of": lambda: ms.load(file, "scalar", split=True),
        "map=True reads what is needed": lambda: ms.load(file, "chunked", split=True, map=True),
        "counts has 99 numbers": lambda: ms.load(file, "chunked", split=[1] * 99),
        "split is 1.5; expected an integer": lambda: ms.load(file, "chunked", split=[1.5]),  # type: ignore[list-item]
        "split is -1; expected an integer": lambda: ms.load(file, "chunked", split=[-1, 701]),
        "counts has 0 numbers": lambda: ms.load(file, "chunked", split=[]),
        "region (3) selects": lambda: ms.load(file, "chunked", split=True, region=3),
        "region (slice(None, None, -1)) sel": lambda: ms.load(file, "chunked", split=True, region=np.s_[::-1]),
        "region (None) selects": lambda: ms.load(file, "chunked", split=True, region=(None,)),
        "region (int64[2] ": lambda: ms.load(file, "chunked", split=True, region=[3, 4]),
        "region (slice(None, None, None), int64[1] ": (
            lambda: ms.load(file, "chunked", split=True, region=np.s_[:, [1]])
        ),
    }.items():
        assert_refused_alike(raised(call), "ArgumentError", message)


@pytest.mark.parametrize("split", [1, 0, np.int64(1), 2.5, np.float64(0), "1", b""], ids=repr)
def test_what_is_no_split(raised, file, split):
    errors = raised(lambda: ms.load(file, "chunked", split=split))
    assert_refused_alike(errors, "ArgumentError", "expected True, False, or a list")


def test_other_forms_of_split(comm, file):
    counts = [700, *[0] * (ms.topology().n_nodes - 1)]
    for split in (np.True_, np.array(counts), tuple(counts), (count for count in counts)):
        assert_split(comm, ms.load(file, "chunked", split=split), LARGE)  # type: ignore[arg-type]
    assert isinstance(ms.load(file, "chunked", split=np.False_), np.ndarray)  # type: ignore[arg-type]
