"""The format of checkpoints: files of earlier versions are read, and those of later ones refused and left alone."""

import shutil
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from mpi4py import MPI

import mpishare as ms
from mpishare.checkpoints.contents import FORMAT, HEADER
from tests.arrays import assert_same
from tests.mpi.test_errors import assert_refused

COMM = MPI.COMM_WORLD
SAVED = Path(__file__).parent
"""For each format a file of the version that began it, step 7, by `save_all` on two ranks. It is never replaced."""

TABLE = np.array([(1, 0.5, b"one"), (2, -0.0, b"two")], [("n", "<i4"), ("x", ">f8"), ("name", "S3")])
GRID = np.arange(15.0).reshape(5, 3)
ARRAYS = {"grid": GRID, "table": TABLE, "none": np.ones((0, 2))}
ARRAYS_OF_2 = {"times": np.arange(3).astype("M8[ns]"), "words": np.array(["a", "ä"])}
VALUES = {"time": 0.5, "names": ["ä"]}
VALUES_OF_2 = {
    "loss": np.float32(0.25),
    "shape": (4, 3),
    "when": np.datetime64("2026-01-02"),
    3: b"\0",
    "path": Path("a"),
}
SAVED_IN = {1: (ARRAYS, VALUES), 2: ({**ARRAYS, **ARRAYS_OF_2}, {**VALUES, "more": VALUES_OF_2})}


def save_all(folder):
    """Writes the file: mpishare run -n 2 -m tests.mpi.checkpoints.test_format FOLDER."""
    arrays, values = SAVED_IN[FORMAT]
    ms.Checkpoint(folder).save(7, {**arrays, "grid": GRID[ms.partition(5)]}, distributed=["grid"], values=values)


def copied(number, folder):
    """A folder with a copy of that file."""
    if COMM.rank == 0:
        shutil.copy(SAVED / f"format-{number}.h5", folder / "000000000007.h5")
    COMM.Barrier()
    return folder


@pytest.mark.parametrize("number", SAVED_IN)
def test_files_of_each_format_are_read(shared_folder, number):
    arrays, values = SAVED_IN[number]
    checkpoint = ms.Checkpoint(copied(number, shared_folder))
    snapshot = checkpoint.latest()
    assert (snapshot.step, snapshot.values, snapshot.names) == (7, values, tuple(arrays))
    for name, array in arrays.items():
        assert_same(snapshot.load(name), array)
    rows = ms.partition(5)
    assert np.array_equal(snapshot.load("grid", region=rows), GRID[rows])
    checkpoint.save(8, {"x": GRID})
    assert checkpoint.latest().step == 8
    for step, written in ((7, number), (8, FORMAT)):
        header = HEADER.unpack_from((shared_folder / f"{step:012}.h5").read_bytes())
        assert header[:2] == (b"mpishare", written)


def test_each_format_has_a_file():
    assert list(SAVED_IN) == list(range(1, FORMAT + 1))


def test_a_file_of_a_later_format_is_refused_and_stays(shared_folder, raised):
    """It is not taken for a damaged one, which `latest` would leave out, and `save` would rename."""
    folder = copied(1, shared_folder)
    file = folder / "000000000007.h5"
    if COMM.rank == 0:
        content = bytearray(file.read_bytes())
        magic, _, _, length, nbytes = HEADER.unpack_from(content)
        checksum = crc32(content[HEADER.size : HEADER.size + length], FORMAT)
        content[: HEADER.size] = HEADER.pack(magic, FORMAT + 1, checksum, length, nbytes)
        file.write_bytes(content)
    COMM.Barrier()
    checkpoint = ms.Checkpoint(folder)
    text = f"of checkpoint format {FORMAT + 1}; mpishare {ms.__version__} reads up to {FORMAT}. Install a later version"
    assert_refused(raised(checkpoint.latest), 0, "FileError", text)
    checkpoint.save(8, {"x": GRID})
    assert {path.name for path in folder.iterdir()} == {"000000000007.h5", "000000000008.h5"}


if __name__ == "__main__":
    import sys

    save_all(sys.argv[1])
