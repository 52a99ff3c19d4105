"""save: NumPy and h5py read from the file the bits that the ranks had, or the file is as it was."""

from __future__ import annotations

import errno
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

FORMATS = pytest.mark.parametrize(("name", "dataset"), [("a.npy", None), ("a.h5", "deep/er/x")])
FILE_SYSTEM = "mpishare.files.replace_file.type_of"
"""The one function that asks the kernel for the type of a file system."""


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


def assert_same(result: NDArray[Any], expected: NDArray[Any]) -> None:
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    assert bits(np.asarray(result)) == bits(expected)


def rows_of(whole: NDArray[Any], comm: MPI.Intracomm, *, empty: int | None = None) -> NDArray[Any]:
    """This rank's part of an array; rank `empty` has none."""
    ranks = [rank for rank in range(comm.size) if rank != empty] or [0]
    if comm.rank not in ranks:
        return whole[:0]
    part = ranks.index(comm.rank)
    return whole[len(whole) * part // len(ranks) : len(whole) * (part + 1) // len(ranks)]


def way_of(name: str, several_nodes: str = "streams") -> str:
    """How rows of each rank are written."""
    return "mpio" if HAS_MPIO and name.endswith(".h5") else "node" if ms.topology().n_nodes == 1 else several_nodes


@FORMATS
def test_an_array_of_all_ranks_is_written_by_the_root(
    comm: MPI.Intracomm, folder: Path, name: str, dataset: str | None
) -> None:
    shared = ms.share(np.arange(12.0).reshape(3, 4) if comm.rank == 0 else None)
    assert ms.save(folder / name, shared, dataset) == ms.Saved(folder / name, dataset, (3, 4), 96, "root")
    assert_same(read(folder / name, dataset), shared)
    comm.Barrier()
    ms.save(folder / name, np.arange(5) if comm.rank == 0 else None, dataset)
    assert read(folder / name, dataset).tolist() == [0, 1, 2, 3, 4]


@FORMATS
def test_every_layout(comm: MPI.Intracomm, folder: Path, name: str, dataset: str | None) -> None:
    for array in layouts(DTYPES["nested" if dataset is None else "struct"]).values():
        ms.save(folder / name, array, dataset)
        result = read(folder / name, dataset)
        assert_same(result, array)
        assert result.flags.fnc == (array.flags.fnc and dataset is None)
        comm.Barrier()


def test_dtypes_in_hdf5(comm: MPI.Intracomm, folder: Path) -> None:
    for dtype in ("?", "f2", ">f8", "g", "c16", "S5", "V7", "aligned", "subarray", "gaps"):
        whole = filled(DTYPES[dtype], (11, 3))
        ms.save(folder / "a.h5", rows_of(whole, comm), dtype, distributed=True)
        assert_same(read(folder / "a.h5", dtype), whole)
        comm.Barrier()


@FORMATS
def test_rows_of_each_rank(comm: MPI.Intracomm, folder: Path, name: str, dataset: str | None) -> None:
    for count in (0, 1, 2, 7, 1000):
        for empty in (None, 0, comm.size - 1):
            whole = filled(np.dtype(">i4"), (count, 3))
            rows = rows_of(whole, comm, empty=empty)
            saved = ms.save(
                folder / name, np.asfortranarray(rows) if comm.rank % 2 else rows, dataset, distributed=True
            )
            assert (saved.way, saved.shape) == (way_of(name), whole.shape)
            assert_same(read(folder / name, dataset), whole)
            comm.Barrier()


@FORMATS
@pytest.mark.parametrize("order", ["C", "F"])
def test_many_runs(
    comm: MPI.Intracomm, folder: Path, name: str, dataset: str | None, order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_blocks, "BLOCK_BYTES", 1000)
    whole = filled(np.dtype("f8"), (997, 5))
    saved = ms.save(folder / name, rows_of(whole, comm, empty=1).copy(order), dataset, distributed=True)
    assert saved.nbytes == whole.nbytes
    assert_same(read(folder / name, dataset), whole)


def test_hosts_that_write_to_one_file(comm: MPI.Intracomm, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The type of the file system is that of the file itself, not that of a link to it."""
    if comm.rank == 0:
        for name in ("lustre", "nfs"):
            (folder / name).mkdir()
        (folder / "lustre/link.npy").symlink_to(folder / "nfs/a.npy")
    comm.Barrier()
    monkeypatch.setattr(FILE_SYSTEM, lambda folder: Path(folder).name)
    whole = filled(np.dtype("f8"), (100, 5))
    for name, way in (("a.npy", "hosts"), ("link.npy", "streams")):
        assert ms.save(folder / "lustre" / name, rows_of(whole, comm), distributed=True).way == way_of(name, way)
        assert_same(read(folder / "lustre" / name), whole)
    assert (folder / "lustre/link.npy").is_symlink()


def test_the_other_contents_of_a_file_stay(comm: MPI.Intracomm, folder: Path) -> None:
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
    with h5py.File(file) as saved:
        assert saved["group/rows"].shape == (sum(range(comm.size)), 2)
        assert saved["group/text"][()] == b"words"
        assert saved["group"].attrs["unit"] == "m"
        assert saved["link"][:].tolist() == list(range(1000))
        assert saved["old"][:].tolist() == list(range(8))


def test_a_dataset_that_is_saved_again_and_again_does_not_grow_the_file(folder: Path) -> None:
    for count in (1000, 1010, 1020, 1030, 900, 1000):
        ms.save(folder / "a.h5", np.ones(count), "x")
    assert (folder / "a.h5").stat().st_size < 8 * 1030 + 10_000


def test_an_open_file_and_a_mapped_array_are_as_before(comm: MPI.Intracomm, folder: Path) -> None:
    ms.save(folder / "a.npy", np.arange(100_000))
    mapped = np.load(folder / "a.npy", mmap_mode="r")
    with (folder / "a.npy").open("rb") as opened:
        comm.Barrier()
        ms.save(folder / "a.npy", mapped[::-1])
        assert np.load(opened).tolist() == mapped.tolist() == list(range(100_000))
    assert np.load(folder / "a.npy").tolist() == list(range(99_999, -1, -1))


ONES = np.ones(3)
REFUSED: list[tuple[Any, Any, str | None, str, str]] = [
    ("a.txt", ONES, None, "ArgumentError", "suffix '.txt'"),
    (".", ONES, None, "ArgumentError", "suffix"),
    ("a\0.npy", ONES, None, "ArgumentError", "has a null byte"),
    (3, ONES, None, "ArgumentError", "path 3 is not a path"),
    ("a.h5", ONES, None, "ArgumentError", "name the dataset"),
    ("a.npy", ONES, "x", "ArgumentError", "one array without a name"),
    ("a.h5", ONES, "a//b", "ArgumentError", "dataset 'a//b' is not a name"),
    ("old.h5", ONES, "group", "ArgumentError", "'group' is a group"),
    ("old.h5", ONES, "far/y", "ArgumentError", "'far' leads to another file"),
    ("old.h5", ONES, "near/deep/y", "ArgumentError", "'near' leads to another file"),
    ("old.h5", ONES, "x/y", "FileError", "dataset 'x/y' of"),
    ("text.h5", ONES, "x", "FileError", "dataset 'x' of"),
    ("a.npy", np.array([None]), None, "SpecError", "holds Python objects"),
    ("a.npy", [1, 2], None, "SpecError", "numpy.asarray"),
    ("a.h5", np.array(["a"]), "x", "SpecError", "dataset 'x' of"),
    ("a.h5", np.zeros(3, "M8[s]"), "x", "SpecError", ".view('i8')"),
    ("no/a.npy", ONES, None, "FileError", "No such file or directory; it was not saved"),
    ("sub.npy", ONES, None, "FileError", "Is a directory; it was not saved"),
]


@pytest.mark.two_launches
@pytest.mark.parametrize("distributed", [False, True])
def test_what_cannot_be_saved(comm: MPI.Intracomm, folder: Path, raised: Raised, distributed: bool) -> None:
    if comm.rank == 0:
        (folder / "sub.npy").mkdir()
        (folder / "text.h5").write_text("not HDF5")
        with h5py.File(folder / "old.h5", "w") as made:
            made["x"] = 1
            made.create_group("group")
            made["far"] = h5py.ExternalLink("other.h5", "/")
            made["near"] = h5py.SoftLink("/far")
        h5py.File(folder / "other.h5", "w").close()
    comm.Barrier()
    before = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    for file, array, dataset, error, message in REFUSED:
        path = folder / file if isinstance(file, str) else file
        outcomes = raised(lambda: ms.save(path, array, dataset, distributed=distributed))  # noqa: B023
        assert outcomes[0][0] == error, outcomes
        assert all(kind in (error, "PeerError") and message in text for kind, text in outcomes), outcomes
    outcomes = raised(lambda: ms.save(folder / "a.npy", np.array(1.0), distributed=True))
    assert {error for error, _ in outcomes} == {"SpecError"}, "rows need a dimension"
    assert {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()} == before


@pytest.mark.ranks(2)
def test_calls_that_differ(comm: MPI.Intracomm, folder: Path, raised: Raised) -> None:
    last, rows = comm.rank == comm.size - 1, np.ones((2, 3))
    calls: list[Callable[[], object]] = [
        lambda: ms.save(folder / ("b.npy" if last else "a.npy"), ONES),
        lambda: ms.save(folder / "a.npy", ONES, distributed=last),
        lambda: ms.save(folder / "a.h5", ONES, "a" if last else "b"),
    ]
    for other in (rows.astype("f4"), rows.astype(">f8"), np.ones((2, 4)), np.ones((2, 3, 1))):
        calls.append(lambda other=other: ms.save(folder / "a.npy", other if last else rows, distributed=True))  # type: ignore[misc]
    for call in calls:
        assert {error for error, _ in raised(call)} == {"MismatchError"}
    assert not list(folder.iterdir())


@FORMATS
def test_a_limit_on_the_size_of_files(folder: Path, raised: Raised, name: str, dataset: str | None) -> None:
    ms.save(folder / name, np.arange(5), dataset)
    before, rows = (folder / name).read_bytes(), filled(np.dtype("f8"), (30_000,))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        outcomes = raised(lambda: ms.save(folder / name, rows, dataset, distributed=True))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "FileError" in {error for error, _ in outcomes} <= {"FileError", "PeerError"}
    assert all(str(folder / name) in text for _, text in outcomes)
    assert (folder / name).read_bytes() == before
    ms.save(folder / name, rows, dataset, distributed=True)


class FullAtClose(io.FileIO):
    """A file of which close(2) reports a full disk, as on NFS."""

    def close(self) -> None:
        is_open = not self.closed
        super().close()
        if is_open:
            no_space()


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.ranks(2)
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("call", ["pwrite", "close"])
def test_one_rank_that_cannot_write(
    comm: MPI.Intracomm, folder: Path, raised: Raised, victim: int, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_blocks, "BLOCK_BYTES", 1000)
    ms.save(folder / "a.npy", np.arange(5))
    with monkeypatch.context() as patched:
        if comm.rank == victim and call == "pwrite":
            patched.setattr(os, "pwrite", no_space)
        elif comm.rank == victim:
            patched.setattr(Path, "open", lambda path, *_, **__: FullAtClose(path, "rb+"))
        outcomes = raised(lambda: ms.save(folder / "a.npy", np.ones(5000), distributed=True))
    writes = ms.topology().node_of(victim) == 0
    assert outcomes[victim][0] == ("FileError" if writes else "nothing")
    assert {error for error, _ in outcomes} <= ({"FileError", "PeerError"} if writes else {"nothing"})
    assert np.load(folder / "a.npy").size == (5 if writes else 5000 * comm.size)


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_bar(comm: MPI.Intracomm, folder: Path, is_closed: bool, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """It is quiet without a terminal, and a stream that cannot show it keeps nobody waiting."""
    if is_closed:
        monkeypatch.setattr(sys, "stderr", io.StringIO())
        sys.stderr.close()
    ms.save(folder / "a.npy", np.ones(1000), distributed=True, progress=True)
    monkeypatch.undo()
    assert capfd.readouterr().err == ""
    assert np.load(folder / "a.npy").size == 1000 * comm.size
