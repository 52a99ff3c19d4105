"""save: what NumPy and h5py read from the file are the bits that the ranks had, or the file is as it was."""

from __future__ import annotations

import io
import os
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from mpi4py import MPI
from numpy.typing import NDArray

import mpishare as ms
from mpishare.arrays.spec import Order
from mpishare.files import row_blocks
from tests.arrays import DTYPES, bits, filled, layouts

pytestmark = pytest.mark.mpi

Raised = Callable[[Callable[[], object]], list[tuple[str, str]]]
HAS_MPIO = h5py.get_config().mpi


@pytest.fixture
def folder(comm: MPI.Intracomm, shared_folder: Path) -> Iterator[Path]:
    """One that must hold nothing in the end but what was saved."""
    yield shared_folder
    comm.Barrier()
    assert not [file for file in shared_folder.iterdir() if ".tmp." in file.name]


def read(file: Path, dataset: str | None = None) -> NDArray[Any]:
    """What other programs read."""
    if dataset is None:
        return np.load(file)  # type: ignore[no-any-return]
    with h5py.File(file) as opened:
        return opened[dataset][()]  # type: ignore[no-any-return]


def assert_same(found: NDArray[Any], expected: NDArray[Any]) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert bits(np.asarray(found)) == bits(expected)


def rows_of(whole: NDArray[Any], comm: MPI.Intracomm, *, empty: int | None = None) -> NDArray[Any]:
    """This rank's part of an array; rank `empty` has none."""
    ranks = [rank for rank in range(comm.size) if rank != empty] or [0]
    if comm.rank not in ranks:
        return whole[:0]
    place = ranks.index(comm.rank)
    return whole[len(whole) * place // len(ranks) : len(whole) * (place + 1) // len(ranks)]


def way_of(name: str) -> str:
    """That of rows of each rank."""
    return "mpio" if HAS_MPIO and name.endswith(".h5") else "node" if ms.topology().n_nodes == 1 else "streams"


@pytest.mark.parametrize("name", ["a.npy", "a.h5"])
def test_what_all_ranks_have_is_written_by_the_root(comm: MPI.Intracomm, folder: Path, name: str) -> None:
    shared = ms.share(np.arange(12.0).reshape(3, 4) if comm.rank == 0 else None)
    dataset = "grid" if name.endswith(".h5") else None
    saved = ms.save(folder / name, shared, dataset)
    assert saved == ms.Saved(folder / name, dataset, (3, 4), 96, "root")
    assert_same(read(folder / name, dataset), shared)


@pytest.mark.parametrize("name", ["a.npy", "a.h5"])
def test_other_ranks_argument_is_ignored(comm: MPI.Intracomm, folder: Path, name: str) -> None:
    dataset = "x" if name.endswith(".h5") else None
    ms.save(folder / name, np.arange(5) if comm.rank == 0 else None, dataset)
    assert read(folder / name, dataset).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", ["a.npy", "a.h5"])
def test_every_layout(comm: MPI.Intracomm, folder: Path, name: str) -> None:
    dataset = "x" if name.endswith(".h5") else None
    for array in layouts(DTYPES["nested" if dataset is None else "struct"]).values():
        ms.save(folder / name, array, dataset)
        found = read(folder / name, dataset)
        assert_same(found, array)
        assert found.flags.fnc == (array.flags.fnc and dataset is None)
        comm.Barrier()


STORED = [
    "?",
    "i1",
    "u8",
    "f2",
    ">f8",
    "g",
    "c16",
    "S5",
    "V7",
    "struct",
    "aligned",
    "subarray",
    "gaps",
    "unicode names",
]


@pytest.mark.parametrize("dtype", STORED)
def test_dtypes_in_hdf5(comm: MPI.Intracomm, folder: Path, dtype: str) -> None:
    whole = filled(DTYPES[dtype], (11, 3))
    ms.save(folder / "a.h5", rows_of(whole, comm), "x", distributed=True)
    assert_same(read(folder / "a.h5", "x"), whole)


@pytest.mark.parametrize("name", ["a.npy", "a.h5"])
def test_rows_of_each_rank(comm: MPI.Intracomm, folder: Path, name: str) -> None:
    dataset = "deep/er/rows" if name.endswith(".h5") else None
    for count in (0, 1, 2, 7, 1000):
        for empty in (None, 0, comm.size - 1):
            whole = filled(np.dtype(">i4"), (count, 3))
            mine = rows_of(whole, comm, empty=empty)
            held = np.asfortranarray(mine) if comm.rank % 2 else mine
            saved = ms.save(folder / name, held, dataset, distributed=True)
            assert saved.way == way_of(name)
            assert saved.shape == whole.shape
            assert_same(read(folder / name, dataset), whole)
            comm.Barrier()


@pytest.mark.parametrize("name", ["a.npy", "a.h5"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_many_runs(comm: MPI.Intracomm, folder: Path, name: str, order: Order, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_blocks, "BLOCK_BYTES", 1000)
    whole = filled(np.dtype("f8"), (997, 5))
    dataset = "x" if name.endswith(".h5") else None
    saved = ms.save(folder / name, rows_of(whole, comm, empty=1).copy(order), dataset, distributed=True)
    assert saved.nbytes == whole.nbytes
    assert_same(read(folder / name, dataset), whole)


def test_hosts_that_write_to_one_file(comm: MPI.Intracomm, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpishare.files.replace_file.type_of", lambda folder: "lustre")
    whole = filled(np.dtype("f8"), (100, 5))
    saved = ms.save(folder / "a.npy", rows_of(whole, comm), distributed=True)
    assert saved.way == ("node" if ms.topology().n_nodes == 1 else "hosts")
    assert_same(read(folder / "a.npy"), whole)


def test_the_file_system_is_that_of_the_file_itself(
    comm: MPI.Intracomm, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if comm.rank == 0:
        (folder / "lustre").mkdir()
        (folder / "lustre/a.npy").symlink_to(folder / "a.npy")
    comm.Barrier()
    monkeypatch.setattr("mpishare.files.replace_file.type_of", lambda folder: Path(folder).name)
    saved = ms.save(folder / "lustre/a.npy", np.ones(3), distributed=True)
    assert saved.way == ("node" if ms.topology().n_nodes == 1 else "streams")
    assert np.load(folder / "a.npy").size == 3 * comm.size


def test_what_else_is_in_the_file_stays(comm: MPI.Intracomm, folder: Path) -> None:
    file = folder / "a.h5"
    if comm.rank == 0:
        with h5py.File(file, "w", userblock_size=512) as made:
            made["group/text"] = "words"
            made["group"].attrs["unit"] = "m"
            made["chunked"] = made.create_dataset("old", data=np.arange(1000), chunks=(10,), compression="gzip")
            made["link"] = h5py.SoftLink("/chunked")
    comm.Barrier()
    ms.save(file, np.ones((comm.rank, 2)), "group/rows", distributed=True)
    ms.save(file, np.arange(7), "old")
    ms.save(file, np.arange(8.0), "old")
    with h5py.File(file) as found:
        assert found["group/rows"].shape == (sum(range(comm.size)), 2)
        assert found["group/text"][()] == b"words"
        assert found["group"].attrs["unit"] == "m"
        assert found["link"][:].tolist() == list(range(1000))
        assert found["old"][:].tolist() == list(range(8))


def test_a_dataset_that_is_saved_again_and_again_does_not_grow_the_file(comm: MPI.Intracomm, folder: Path) -> None:
    for count in (1000, 1010, 1020, 1030, 900, 1000):
        ms.save(folder / "a.h5", np.ones(count), "x")
    assert (folder / "a.h5").stat().st_size < 8 * 1030 + 10_000


def test_saved_files_are_those_of_before_or_whole(comm: MPI.Intracomm, folder: Path) -> None:
    ms.save(folder / "a.npy", np.arange(3))
    with (folder / "a.npy").open("rb") as held:
        comm.Barrier()
        ms.save(folder / "a.npy", np.arange(4))
        assert np.load(held).tolist() == [0, 1, 2]
    assert np.load(folder / "a.npy").tolist() == [0, 1, 2, 3]


REFUSED: dict[str, tuple[Any, Any, str | None, str, str]] = {
    "suffix": ("a.txt", np.ones(3), None, "ArgumentError", "suffix '.txt'"),
    "no dataset": ("a.h5", np.ones(3), None, "ArgumentError", "name the dataset"),
    "dataset of npy": ("a.npy", np.ones(3), "x", "ArgumentError", "one array without a name"),
    "empty name": ("a.h5", np.ones(3), "a//b", "ArgumentError", "dataset 'a//b' is no name"),
    "group": ("old.h5", np.ones(3), "group", "ArgumentError", "'group' is a group"),
    "link to another file": ("old.h5", np.ones(3), "far/y", "ArgumentError", "'far' leads to another file"),
    "link to such a link": ("old.h5", np.ones(3), "near/deep/y", "ArgumentError", "'near' leads to another file"),
    "within a dataset": ("old.h5", np.ones(3), "x/y", "FileError", "dataset 'x/y' of"),
    "objects": ("a.npy", np.array([None]), None, "SpecError", "holds Python objects"),
    "text": ("a.h5", np.array(["a"]), "x", "SpecError", "dataset 'x' of"),
    "dates": ("a.h5", np.zeros(3, "M8[s]"), "x", "SpecError", ".view('i8')"),
    "list": ("a.npy", [1, 2], None, "SpecError", "numpy.asarray"),
    "folder": (".", np.ones(3), None, "ArgumentError", "suffix"),
    "no folder": ("no/a.npy", np.ones(3), None, "FileError", "No such file or directory; it was not saved"),
    "folder in its place": ("sub.npy", np.ones(3), None, "FileError", "Is a directory; it was not saved"),
    "no HDF5": ("text.h5", np.ones(3), "x", "FileError", "dataset 'x' of"),
    "path": (3, np.ones(3), None, "ArgumentError", "is no path"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("distributed", [False, True])
def test_what_cannot_be_saved(comm: MPI.Intracomm, folder: Path, raised: Raised, name: str, distributed: bool) -> None:
    file, array, dataset, error, words = REFUSED[name]
    if comm.rank == 0:
        (folder / "sub.npy").mkdir()
        (folder / "text.h5").write_text("no HDF5")
        with h5py.File(folder / "old.h5", "w") as made:
            made["x"] = 1
            made.create_group("group")
            made["far"] = h5py.ExternalLink("other.h5", "/")
            made["near"] = h5py.SoftLink("/far")
        h5py.File(folder / "other.h5", "w").close()
    comm.Barrier()
    before = {one.name: one.read_bytes() for one in folder.iterdir() if one.is_file()}
    path = folder / file if isinstance(file, str) else file
    told = raised(lambda: ms.save(path, array, dataset, distributed=distributed))
    assert told[0][0] == error, told
    assert words in told[0][1]
    assert all(kind in (error, "PeerError") for kind, _ in told)
    assert all(words in text for _, text in told)
    assert {one.name: one.read_bytes() for one in folder.iterdir() if one.is_file()} == before


@pytest.mark.ranks(2)
@pytest.mark.parametrize(("dtype", "shape"), [("f4", (2, 3)), ("f8", (2, 4)), (">f8", (2, 3)), ("f8", (2, 3, 1))])
def test_rows_that_do_not_fit_together(
    comm: MPI.Intracomm, folder: Path, raised: Raised, dtype: str, shape: tuple[int, ...]
) -> None:
    mine = np.ones(shape, dtype) if comm.rank == comm.size - 1 else np.ones((2, 3))
    told = raised(lambda: ms.save(folder / "a.npy", mine, distributed=True))
    assert {error for error, _ in told} == {"MismatchError"}
    assert not (folder / "a.npy").exists()


def test_rows_need_an_axis(folder: Path, raised: Raised) -> None:
    told = raised(lambda: ms.save(folder / "a.npy", np.array(1.0), distributed=True))
    assert {error for error, _ in told} == {"SpecError"}


@pytest.mark.parametrize("name", ["a.npy", "a.h5"])
def test_a_limit_on_the_size_of_files(comm: MPI.Intracomm, folder: Path, raised: Raised, name: str) -> None:
    dataset = "x" if name.endswith(".h5") else None
    ms.save(folder / name, np.arange(5), dataset)
    before, mine = (folder / name).read_bytes(), filled(np.dtype("f8"), (30_000,))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        told = raised(lambda: ms.save(folder / name, mine, dataset, distributed=True))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {error for error, _ in told} <= {"FileError", "PeerError"}
    assert "FileError" in {error for error, _ in told}
    assert all(str(folder / name) in text for _, text in told)
    assert (folder / name).read_bytes() == before
    ms.save(folder / name, mine, dataset, distributed=True)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("victim", [0, 1])
def test_one_rank_that_cannot_write(
    comm: MPI.Intracomm, folder: Path, raised: Raised, victim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(fd: int, piece: object, at: int) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(row_blocks, "BLOCK_BYTES", 1000)
    ms.save(folder / "a.npy", np.arange(5))
    with monkeypatch.context() as patched:
        if comm.rank == victim % comm.size:
            patched.setattr(os, "pwrite", fails)
        told = raised(lambda: ms.save(folder / "a.npy", np.ones(5000), distributed=True))
    near = ms.topology().node_of(victim) == 0
    assert told[0][0] == ("nothing" if not near else "FileError" if victim == 0 else "PeerError")
    assert np.load(folder / "a.npy").size == (5 if near else 5000 * comm.size)


@pytest.mark.ranks(2)
def test_calls_that_differ(comm: MPI.Intracomm, folder: Path, raised: Raised) -> None:
    last = comm.rank == comm.size - 1
    for call in (
        lambda: ms.save(folder / ("b.npy" if last else "a.npy"), np.ones(3)),
        lambda: ms.save(folder / "a.npy", np.ones(3), distributed=last),
        lambda: ms.save(folder / "a.h5", np.ones(3), "a" if last else "b"),
    ):
        assert {error for error, _ in raised(call)} == {"MismatchError"}


def test_a_bar_is_quiet_without_a_terminal(comm: MPI.Intracomm, folder: Path, capfd: Any) -> None:
    ms.save(folder / "a.npy", np.ones(1000), distributed=True, progress=True)
    assert capfd.readouterr().err == ""


def test_a_bar_that_cannot_be_shown_keeps_nobody_waiting(
    comm: MPI.Intracomm, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    ms.save(folder / "a.npy", np.ones(1000), distributed=True, progress=True)
    monkeypatch.undo()
    assert np.load(folder / "a.npy").size == 1000 * comm.size


def test_an_array_mapped_from_the_file_that_is_replaced(comm: MPI.Intracomm, folder: Path) -> None:
    ms.save(folder / "a.npy", np.arange(100_000))
    mapped = np.load(folder / "a.npy", mmap_mode="r")
    comm.Barrier()
    ms.save(folder / "a.npy", mapped[::-1])
    assert np.load(folder / "a.npy").tolist() == list(range(99_999, -1, -1))
