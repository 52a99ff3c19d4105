"""Checkpoint: what was saved comes back to the bit on whatever ranks there are, or is refused."""

import errno
import os
import sys
import warnings
from pathlib import Path
from typing import Any, cast
from unittest import mock

import h5py
import numpy as np
import pytest
from mpi4py import MPI

import mpishare as ms
from mpishare.arrays.spec import MAX_DIMS
from mpishare.files import replace_file
from tests.arrays import DTYPES, assert_same, filled
from tests.mpi.test_errors import assert_refused, assert_refused_alike, assert_refused_by_some

COMM = MPI.COMM_WORLD
FOREIGN = DTYPES["foreign"].type.__module__
SECOND = "000000000002.h5"


def names_in(folder):
    """The steps and other names in a folder, seen by all ranks before any of them goes on."""
    names = {file.stem.lstrip("0") for file in folder.iterdir()}
    COMM.Barrier()
    return names


def flip(file, place):
    """Alters one byte of a file, or restores it."""
    COMM.Barrier()
    if COMM.rank == 0:
        content = bytearray(file.read_bytes())
        content[place] ^= 1
        file.write_bytes(content)
    COMM.Barrier()


def offset_of_x(file):
    with h5py.File(file) as opened:
        return int(opened["arrays/x"].id.get_offset())


@pytest.fixture
def checkpoint(shared_folder, monkeypatch):
    """A folder with steps 1 and 2, of whose array "x" each rank verifies one run."""
    monkeypatch.setattr(replace_file, "BLOCK_BYTES", 64)
    checkpoint = ms.Checkpoint(shared_folder / "run")
    for step in (1, 2):
        checkpoint.save(step, {"x": np.full((1, 8), step)}, distributed=["x"])
    return checkpoint


def test_the_first_save_makes_the_folder(shared_folder):
    """And waits until its parent is on the disk."""
    synced: list[int] = []
    checkpoint = ms.Checkpoint(shared_folder / "run")
    assert checkpoint.latest() is None
    assert not names_in(shared_folder)
    with mock.patch.object(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_ino)):
        checkpoint.save(1, {})
    assert (shared_folder.stat().st_ino in synced) == (COMM.rank == 0)


def test_arrays_of_any_dtype_come_back(shared_folder):
    """Whatever can be shared, whole and in rows, whether HDF5 has a type for it or not; so does a later save of it.

    Other programs read them, too. Whole arrays are those of the first rank alone.
    """
    whole = {f"{name} {len(shape)}": filled(dtype, shape) for name, dtype in DTYPES.items() for shape in ((), (7, 3))}
    whole |= {"deep": filled(np.dtype("M8[ns]"), (1,) * 40)} if MAX_DIMS > 40 else {}
    whole |= {"none": np.ones((0, 3)), "fortran": np.asfortranarray(filled(DTYPES["struct"], (5, 2)))}
    rows = {f"{name} rows": filled(dtype, (7, 3))[ms.partition(7)] for name, dtype in DTYPES.items()}
    checkpoint, values = ms.Checkpoint(shared_folder), {"time": np.float32(0.1), "deep": {2**70: None}}
    names: Any = (name for name in rows)  # which can be iterated once
    arrays = whole if COMM.rank == 0 else dict.fromkeys(whole)
    checkpoint.save(3, {**arrays, **rows}, distributed=names, values=values)
    snapshot = checkpoint.latest()
    assert (snapshot.step, snapshot.values, snapshot.names) == (3, values, (*whole, *rows))
    for name in snapshot.names:
        expected = whole[name.replace("rows", "2")]
        shared = snapshot.load(name)
        assert_same(shared, expected)
        assert (snapshot.shape(name), shared.flags.writeable) == (expected.shape, False)
        if expected.ndim:
            assert_same(snapshot.load(name, region=slice(2, 6)), expected[2:6])
    with h5py.File(snapshot.path) as file:
        assert file["step"][()] == 3
        for name in ("f8 rows", "f8 2", "struct rows", "fortran", "none", "M8[ns] 2"):
            assert_same(file[f"arrays/{name}"][()], np.ascontiguousarray(whole[name.replace("rows", "2")]))
        assert file["arrays/U3 2"][()].tobytes() == whole["U3 2"].tobytes()


def test_a_file_imports_no_module(shared_folder, raised, monkeypatch):
    """Nor is it taken for a damaged one."""
    checkpoint = ms.Checkpoint(shared_folder)
    checkpoint.save(3, {"x": filled(DTYPES["foreign column"], (3,))})
    with monkeypatch.context() as patched:
        patched.delitem(sys.modules, FOREIGN)
        outcomes = raised(checkpoint.latest)
    assert_refused_by_some(outcomes, "FileError", f"it has items of module {FOREIGN}. Import it on all")
    assert checkpoint.latest().step == 3


@pytest.mark.parametrize("block_bytes", [1, 64, 1000, 1 << 20])
def test_rows_for_another_number_of_ranks(shared_folder, block_bytes, monkeypatch):
    monkeypatch.setattr(replace_file, "BLOCK_BYTES", block_bytes)
    grid = filled(np.dtype(">f4"), (47, 3))
    ms.Checkpoint(shared_folder).save(0, {"grid": grid[ms.partition(47)]}, distributed=["grid"])
    for ranks in range(1, COMM.size + 1):
        some = cast("MPI.Intracomm", COMM.Split(COMM.rank < ranks, COMM.rank))
        snapshot = ms.Checkpoint(shared_folder, comm=some).latest()
        rows = ms.partition(47, comm=some)
        for region in (rows, slice(40, 3), slice(-5, None)):
            assert_same(snapshot.load("grid", region=region), grid[region])
        out = np.empty((rows.stop - rows.start, 3), ">f4")
        assert snapshot.load("grid", region=rows, out=out) is out
        assert_same(out, grid[rows])
        assert_same(snapshot.load("grid"), grid)
        some.Free()


def test_each_byte_is_read_once_a_job(shared_folder, monkeypatch):
    """By all ranks for `latest`, by the first node's for `load`."""
    monkeypatch.setattr(replace_file, "BLOCK_BYTES", 1000)
    grid = filled(np.dtype("f8"), (997, 5))
    checkpoint = ms.Checkpoint(shared_folder)
    checkpoint.save(1, {"grid": grid[ms.partition(997)]}, distributed=["grid"])
    with mock.patch.object(os, "preadv", wraps=os.preadv) as preadv:
        snapshot = checkpoint.latest()
        size = snapshot.path.stat().st_size
        assert grid.nbytes < size <= COMM.allreduce(bytes_read(preadv)) < 1.01 * size
        preadv.reset_mock()
        assert_same(snapshot.load("grid"), grid)
    assert COMM.allreduce(bytes_read(preadv)) == grid.nbytes
    assert not preadv.called or ms.topology().node == 0


def bytes_read(preadv):
    return sum(buffers[0].nbytes for (_, buffers, _), _ in preadv.call_args_list)


def test_the_last_ones_stay(shared_folder):
    """What is not ours stays."""
    if COMM.rank == 0:
        (shared_folder / "notes.txt").write_text("mine")
    COMM.Barrier()
    checkpoint = ms.Checkpoint(shared_folder, keep=2)
    assert checkpoint.latest() is None
    for step, kept in ((1, {"1"}), (2, {"1", "2"}), (10, {"2", "10"})):
        checkpoint.save(step, {"x": np.full(3, step)})
        assert names_in(shared_folder) == kept | {"notes"}
    checkpoint.save(10, {"y": np.full(3, 6)})
    snapshot = checkpoint.latest()
    assert (snapshot.step, snapshot.names, snapshot.load("y").tolist()) == (10, ("y",), [6, 6, 6])


def test_later_ones_are_not_removed(checkpoint, raised):
    """Neither by a restart that forgets `latest` or its result, nor by one that begins again on purpose."""
    restart: Any = ms.Checkpoint(checkpoint.path, keep=1)
    for refused in (restart, checkpoint, restart):
        text = "has a checkpoint of step 2, and latest() of this Checkpoint has not returned an earlier"
        assert_refused(raised(lambda refused=refused: refused.save(1, {})), 0, "ArgumentError", text)
        assert names_in(checkpoint.path) == {"1", "2"}
        assert (restart.latest().step, restart.latest().load("x").sum()) == (2, COMM.size * 16)
    restart.save(0, {}, overwrite=True)
    assert names_in(checkpoint.path) == {"", "superseded-000000000001", "superseded-000000000002"}
    assert restart.latest().step == 0


def test_later_ones_that_another_job_saves_stay(checkpoint, shared_folder):
    """And the save is not refused, also where the folder was empty."""
    others: list[Any] = [ms.Checkpoint(checkpoint.path), ms.Checkpoint(shared_folder / "new")]
    assert [other.latest() and other.latest().step for other in others] == [2, None]
    for other in others:
        ms.Checkpoint(other.path).save(9, {})
        for step in (3, 4):
            other.save(step, {})
        assert names_in(other.path) == {"3", "4", "9"}
        assert other.latest().step == 9


def test_a_damaged_one_is_left_out(checkpoint):
    """Damage in the manifest, in what HDF5 wrote, and in the last run of an array, which one rank alone reads."""
    file = checkpoint.path / SECOND
    end = offset_of_x(file) + COMM.size * 64
    for place in (20, end + 1, end - 1):
        flip(file, place)
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            snapshot = checkpoint.latest()
        assert (snapshot.step, snapshot.load("x").sum()) == (1, COMM.size * 8)
        assert ["the checkpoint of step 2 in" in str(warning.message) for warning in given] == [True] * (COMM.rank == 0)
        with pytest.raises((RuntimeWarning, ms.PeerError), match="the checkpoint of step 2 in"):
            checkpoint.latest()  # where a warning is an error, it is one on all ranks
        flip(file, place)
    assert checkpoint.latest().step == 2


def test_one_that_is_altered_after_it_was_read(checkpoint, raised):
    snapshot = checkpoint.latest()
    first = offset_of_x(snapshot.path)
    for rank in range(COMM.size):
        flip(snapshot.path, first + 64 * rank)
    outcomes = raised(lambda: snapshot.load("x"))
    assert {error for error, _ in outcomes} <= {"FileError", "PeerFileError"}
    assert any("dataset 'x' of" in text and "differ from the saved ones" in text for _, text in outcomes)
    outcomes = raised(lambda: snapshot.load("x", region=slice(COMM.rank, COMM.rank + 1)))
    assert {error for error, _ in outcomes} == {"FileError"}


@pytest.mark.parametrize("step", [2, 4])
def test_one_that_another_job_removes_or_replaces_after_it_was_found(checkpoint, raised, step):
    """An error that says so, and `latest` finds the next one; a load that has begun goes on."""
    found, other = checkpoint.latest(), ms.Checkpoint(checkpoint.path, keep=1)
    with mock.patch.object(os, "preadv", wraps=os.preadv) as preadv:
        if COMM.rank == 0:
            preadv.side_effect = lambda *_: found.path.unlink(missing_ok=True) or mock.DEFAULT
        assert found.load("x").sum() == COMM.size * 16
    other.save(step, {"x": np.full(3, step)})
    for region in (None, slice(0, 1)):
        outcomes = raised(lambda region=region: found.load("x", region=region))
        assert_refused_by_some(outcomes, "FileError", "removed or replaced it since latest() found it")
    assert checkpoint.latest().load("x").tolist() == [step] * 3


@pytest.mark.filterwarnings("ignore:the checkpoint of step")
def test_a_damaged_one_neither_counts_nor_goes(checkpoint, raised):
    flip(checkpoint.path / SECOND, 20)
    assert checkpoint.latest().step == 1
    set_aside = f"damaged-{SECOND.removesuffix('.h5')}"
    checkpoint.save(1, {})
    assert names_in(checkpoint.path) == {"1", set_aside}
    for step, kept in ((3, {"1", "3"}), (4, {"3", "4"})):  # by a job that has not looked at it
        restart = ms.Checkpoint(checkpoint.path)
        assert restart.latest().step in (1, 3)
        restart.save(step, {})
        assert names_in(checkpoint.path) == {*kept, set_aside}
    checkpoint.save(2, {}, overwrite=True)
    assert checkpoint.latest().step == 2
    flip(checkpoint.path / SECOND, 20)
    assert_refused_alike(raised(checkpoint.latest), "FileError", "all 1 checkpoints are damaged")


@pytest.mark.parametrize("victim", [0, -1])
@pytest.mark.parametrize(
    ("call", "code"), [("stat", errno.EIO), ("open", errno.EACCES), ("preadv", errno.EIO), ("preadv", errno.ESTALE)]
)
def test_one_that_cannot_be_read_is_not_taken_for_a_damaged_one(checkpoint, raised, victim, call, code):
    def refuse(file, *_, **__):
        if COMM.rank == victim % COMM.size and (call == "preadv" or str(file).endswith(SECOND)):
            raise OSError(code, os.strerror(code))
        return mock.DEFAULT

    with mock.patch.object(os, call, wraps=getattr(os, call), side_effect=refuse):
        outcomes = raised(checkpoint.latest)
    assert_refused_by_some(outcomes, "FileError", f"{checkpoint.path}")
    assert all(f": {os.strerror(code)}" in text for _, text in outcomes)
    assert checkpoint.latest().step == 2


@pytest.mark.parametrize("opening", [1, 2])
@pytest.mark.parametrize("step", [2, 3])
def test_one_that_another_job_replaces(checkpoint, opening, step):
    """The other job saves the same step, or a later one and removes this one: before it is opened, or between looks."""
    second, other = str(checkpoint.path / SECOND), checkpoint.path.parent / "other"
    ms.Checkpoint(other).save(step, {"x": np.full(40, 3)})
    opened = []

    def replace(path, *_):
        opened.append(str(path))
        if COMM.rank == 0 and str(path) == second and opened.count(second) == opening:
            Path(second).unlink()
            (other / f"{step:012}.h5").rename(checkpoint.path / f"{step:012}.h5")
        return mock.DEFAULT

    with mock.patch.object(os, "open", wraps=os.open, side_effect=replace):
        snapshot = checkpoint.latest()
    assert (snapshot.step, snapshot.load("x").tolist()) == (step, [3] * 40)


def test_a_listing_that_misses_the_only_one(checkpoint, monkeypatch):
    """As readdir(3) may when one name comes and another goes."""
    usual, misses = Path.iterdir, [1, 2, 3]
    monkeypatch.setattr(Path, "iterdir", lambda path: iter(()) if misses and misses.pop() else usual(path))
    assert checkpoint.latest().step == 2
    assert bool(misses) == (COMM.rank > 0)
