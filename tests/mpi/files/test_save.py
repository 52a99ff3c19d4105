"""save: NumPy and h5py read from the file the bits that the ranks had, or the file is as it was."""

import errno
import os
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import numpy as np
import pytest
from mpi4py import MPI

import mpishare as ms
from mpishare.files import replace_file
from mpishare.files.atomic_file import AtomicFile
from tests.arrays import DTYPES, REPRESENTATIVES, assert_same, filled
from tests.mpi.test_errors import assert_refused

COMM = MPI.COMM_WORLD
ONES = np.ones(3)
FORMATS = pytest.mark.parametrize(("name", "dataset"), [("a.npy", None), ("a.h5", "deep/er/x")])


def assert_saved(file, dataset, expected):
    """What other programs read, seen by all ranks before any of them goes on."""
    if dataset is None:
        result = np.load(file)
    else:
        with h5py.File(file) as opened:
            result = np.asarray(opened[dataset][()])
    assert_same(result, expected)
    assert result.flags.fnc == (expected.flags.fnc and dataset is None)
    COMM.Barrier()


def own_rows(whole, empty=-1):
    """This rank's part of an array; rank `empty` has none if there are others."""
    if COMM.size == 1:
        return whole
    parts = np.array_split(whole, COMM.size - (empty >= 0))
    parts.insert(empty if empty >= 0 else COMM.size, whole[:0])
    return parts[COMM.rank]


def way_of(several_nodes="streams"):
    """How rows of each rank are written."""
    return several_nodes if ms.topology().n_nodes > 1 else "node"


@FORMATS
def test_an_array_of_all_ranks_is_written_by_the_root(shared_folder, name, dataset):
    shared = ms.share(np.arange(12.0).reshape(3, 4) if COMM.rank == 0 else None)
    assert ms.save(shared_folder / name, shared, dataset) == ms.Saved(shared_folder / name, dataset, (3, 4), 96, "root")
    assert_saved(shared_folder / name, dataset, shared)
    for label, array in REPRESENTATIVES.items():
        if label.startswith("foreign"):
            with pytest.raises((ms.SpecError, ms.PeerError), match="cannot be stored"):
                ms.save(shared_folder / name, array if COMM.rank == 0 else None, dataset)
            continue
        ms.save(shared_folder / name, array if COMM.rank == 0 else None, dataset)
        assert_saved(shared_folder / name, dataset, array)


@pytest.mark.ranks(2)
def test_rows_of_each_rank_without_distributed(shared_folder, recwarn):
    """The array of rank 0 is saved, and a warning says that those of others are not, unless they are None."""
    ms.save(shared_folder / "a.npy", np.ones(3) if COMM.rank == 0 else None)
    assert not recwarn.list
    for save in (
        lambda rows: ms.save(shared_folder / "a.npy", rows),
        lambda rows: ms.Checkpoint(shared_folder).save(1, {"a": rows}),
    ):
        save(np.ones(COMM.rank + 1))
        messages = [str(recwarn.pop(RuntimeWarning).message)] if COMM.rank == 0 else []
        assert not recwarn.list
        assert all("have other shapes and are not saved" in message for message in messages)
        warnings.simplefilter("error")  # then it is every rank's error; `recwarn` restores the filters
        with pytest.raises((RuntimeWarning, ms.PeerError), match="and are not saved"):
            save(np.ones(COMM.rank + 1))
        warnings.simplefilter("always")


def test_dtypes_in_hdf5(shared_folder):
    names = "? f2 >f8 g c16 S5 V7 M8[25s] >M8[us] m8[s] nested aligned subarray gaps"
    for dtype in names.split():
        whole = filled(DTYPES[dtype], (11, 3))
        ms.save(shared_folder / "a.h5", own_rows(whole), dtype, distributed=True)
        assert_saved(shared_folder / "a.h5", dtype, whole)
        assert_same(ms.load(shared_folder / "a.h5", dtype), whole)


@FORMATS
@pytest.mark.parametrize("block_bytes", [5, 1000, 4 << 20])
def test_rows_of_each_rank(shared_folder, name, dataset, block_bytes, monkeypatch):
    monkeypatch.setattr(replace_file, "BLOCK_BYTES", block_bytes)
    for count in (0, 1, 2, 7, 997):
        for empty in (-1, 0, COMM.size - 1):
            whole = filled(np.dtype("f8"), (count, 5))
            rows = own_rows(whole, empty).copy("F" if COMM.rank % 2 else "C")
            saved = ms.save(shared_folder / name, rows, dataset, distributed=True)
            assert (saved.way, saved.shape, saved.nbytes) == (way_of(), whole.shape, whole.nbytes)
            assert_saved(shared_folder / name, dataset, whole)


def test_hosts_that_write_to_one_file(shared_folder, monkeypatch):
    """The type of the file system is that of the file itself, not that of a link to it."""
    if COMM.rank == 0:
        (shared_folder / "lustre").mkdir()
        (shared_folder / "lustre/link.npy").symlink_to(shared_folder / "a.npy")
    COMM.Barrier()
    monkeypatch.setattr("mpishare.files.replace_file.type_of", lambda folder: Path(folder).name)
    whole = filled(np.dtype("f8"), (100, 5))
    for name, way in (("a.npy", "hosts"), ("link.npy", "streams")):
        assert ms.save(shared_folder / "lustre" / name, own_rows(whole), distributed=True).way == way_of(way)
        assert_saved(shared_folder / "lustre" / name, None, whole)
    assert (shared_folder / "lustre/link.npy").is_symlink()


def test_the_other_contents_of_a_file_stay(shared_folder):
    file = shared_folder / "a.h5"
    if COMM.rank == 0:
        with h5py.File(file, "w", userblock_size=512) as made:
            made["group/text"] = "words"
            made["group"].attrs["unit"] = "m"
            made["other"] = made.create_dataset("old", data=np.arange(1000), chunks=(10,), compression="gzip")
            made["link"] = h5py.SoftLink("/other")
    COMM.Barrier()
    ms.save(file, np.ones((COMM.rank, 2)), "group/rows", distributed=True)
    for count in (1000, 1010, 1030, 900, 8):
        ms.save(file, np.arange(count), "old")
    with h5py.File(file) as saved:
        assert saved["group/rows"].shape == (sum(range(COMM.size)), 2)
        assert saved["group/text"][()] == b"words"
        assert saved["group"].attrs["unit"] == "m"
        for name in ("old", "other", "link"):
            assert saved[name][:].tolist() == list(range(8))
    assert file.stat().st_size < 8 * 1030 + 20_000, "what was replaced leaves no gap"


ATTRIBUTES = {
    "units": "K",
    "bytes": np.bytes_(b"ab"),
    "names": np.array(["a", "ä"], h5py.string_dtype()),
    "fixed": np.array([b"a", b"bc"], h5py.string_dtype("utf-8", 4)),
    "range": np.array([1, 2], ">i2"),
    "flag": np.bool_(True),
    "pairs": np.array([(1, 0.5)], [("n", "i4"), ("x", "f8", 2)]),
    "choice": np.array(1, h5py.enum_dtype({"A": 0, "B": 1}, "i1")),
    "lists": np.array([np.arange(3), np.arange(2)], h5py.vlen_dtype("i4")),
    "none": h5py.Empty("f4"),
    "ä": np.zeros((0, 3)),
    "latin": "°C".encode("latin1"),
    "latin names": np.array("°C".encode("latin1"), h5py.string_dtype()),
}
NEW = {
    "refilled": np.full((2, 3), 7.0),
    "another dtype": np.full((2, 3), 7, "f4"),
    "another shape": np.full((5,), 7.0),
    "scalar": np.array(7.0),
}


@pytest.mark.parametrize("storage", [{}, {"chunks": (1, 3), "compression": "gzip"}, {"maxshape": (None, 3)}])
@pytest.mark.parametrize("new", NEW.values(), ids=NEW)
def test_what_belongs_to_a_dataset_stays(shared_folder, storage, new):
    """Its attributes with their types, and all its names. A dataset that is refilled keeps what refers to it, too."""
    file = shared_folder / "a.h5"
    if COMM.rank == 0:
        with h5py.File(file, "w") as made:
            old = made.create_dataset("entry/counts", data=np.zeros((2, 3)), **storage)
            made["data/größe"] = made["again"] = old
            made["reference"] = old.ref
            for name, value in ATTRIBUTES.items():
                old.attrs.create(name, value, dtype=getattr(value, "dtype", None))
            old.attrs["refers"] = made["data"].ref
            old.attrs.create("matrices", np.ones((2, 3)), dtype=np.dtype(("f4", 3)))
            before = attributes_of(old)
    COMM.Barrier()
    ms.save(file, new, "entry/counts")
    assert_saved(file, "entry/counts", new)
    if COMM.rank == 0:
        with h5py.File(file) as saved:
            for name in ("data/größe", "again", *["reference"] * (not storage and new is NEW["refilled"])):
                assert saved[saved["reference"][()] if name == "reference" else name] == saved["entry/counts"]
            assert attributes_of(saved["entry/counts"]) == before
            assert saved[saved["entry/counts"].attrs["refers"]] == saved["data"]


def attributes_of(dataset):
    """The type of each attribute, and its value as h5py reads it."""
    attrs = dataset.attrs
    return {name: (attrs.get_id(name).get_type().encode(), repr(attrs[name])) for name in attrs}


def test_dimension_scales(shared_folder, raised):
    """Both sides refer to the other by its place: they are refilled, or left alone."""
    file = shared_folder / "a.h5"
    if COMM.rank == 0:
        with h5py.File(file, "w") as made:
            made["time"], made["x"] = np.zeros(4), np.zeros(4)
            made["time"].make_scale("time")
            made["x"].dims[0].attach_scale(made["time"])
    COMM.Barrier()
    for name in ("x", "time"):
        outcomes = raised(lambda name=name: ms.save(file, np.ones(5), name))
        assert_refused(outcomes, 0, "ArgumentError", "has dimension scales, or is one")
        ms.save(file, np.full(4, 2.0), name)
    with h5py.File(file) as saved:
        assert saved["x"].dims[0]["time"][:].tolist() == saved["x"][:].tolist() == [2.0] * 4


def test_another_name_of_the_file(shared_folder):
    """A hard link keeps the old file, which may be why it was made; a warning says so."""
    ms.save(shared_folder / "a.npy", ONES)
    if COMM.rank == 0:
        (shared_folder / "b.npy").hardlink_to(shared_folder / "a.npy")
    COMM.Barrier()
    with pytest.raises((RuntimeWarning, ms.PeerError), match=r"has other names \(hard links\), which"):
        ms.save(shared_folder / "a.npy", 2 * ONES)  # warnings are errors here
    assert_saved(shared_folder / "a.npy", None, ONES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ms.save(shared_folder / "a.npy", 2 * ONES)
    assert_saved(shared_folder / "a.npy", None, 2 * ONES)
    assert_saved(shared_folder / "b.npy", None, ONES)


def test_several_datasets(shared_folder):
    """The other contents are copied once, and whoever has an array, its bits are in the file."""
    file, whole = shared_folder / "a.h5", filled(np.dtype("f8"), (997, 5))
    ms.save(file, ONES, "old")
    of_root = {"run/axis": np.asfortranarray(whole[:9]), "/run/time/": np.array(7.5), "none": np.zeros((0, 3))}
    with mock.patch.object(AtomicFile, "copy_old", autospec=True, side_effect=AtomicFile.copy_old) as copy_old:
        arrays = of_root if COMM.rank == 0 else dict.fromkeys(of_root)
        saved = ms.save(file, {"/rows": own_rows(whole), **arrays}, distributed=["/rows"])
    assert copy_old.call_count == (COMM.rank == 0)
    assert list(saved) == ["/rows", *of_root]
    assert saved["/run/time/"] == ms.Saved(file, "run/time", (), 8, way_of())
    for name, array in {"old": ONES, "rows": whole, **of_root}.items():
        assert_saved(file, name.strip("/"), np.ascontiguousarray(array) if array.ndim else array)
    saved = ms.save(file, {"rows": own_rows(whole[:7]), "new": own_rows(whole)}, distributed=True)
    assert list(saved) == ["rows", "new"]
    for name, array in {"old": ONES, "rows": whole[:7], "new": whole}.items():
        assert_saved(file, name, array)
    assert ms.save(file, {}) == {}


REFUSED: list[tuple[Any, Any, str | None, str, str]] = [
    ("a.txt", ONES, None, "ArgumentError", "suffix '.txt'"),
    ("a.h5", ONES, None, "ArgumentError", "name the dataset of each"),
    ("a.npy", ONES, "x", "ArgumentError", "one array without a name"),
    ("old.h5", ONES, "group", "ArgumentError", "'group' is a group"),
    ("old.h5", ONES, "type", "ArgumentError", "'type' is a datatype"),
    ("old.h5", ONES, "far/y", "ArgumentError", "'far' is a link"),
    ("old.h5", ONES, "near", "ArgumentError", "'near' is a link"),
    ("old.h5", ONES, "dangling", "ArgumentError", "'dangling' is a link"),
    ("old.h5", ONES, "x/y", "FileError", "dataset 'x/y' of"),
    ("old.h5", {"y": ONES, "same/z": ONES}, None, "ArgumentError", "lead to one dataset"),
    ("a.npy", np.array([None]), None, "SpecError", "holds Python objects"),
    ("a.h5", np.array(["a"]), "x", "SpecError", "dataset 'x' of"),
    ("a.h5", {"x": ONES}, "group", "ArgumentError", "name the dataset of each"),
    ("a.h5", {"x": ONES, "/x": ONES}, None, "ArgumentError", "has a name twice"),
    ("old.h5", {"group/y": ONES, "same/y": ONES}, None, "ArgumentError", "lead to one dataset"),
    ("no/a.npy", ONES, None, "FileError", "No such file or directory; it was not saved"),
]


@pytest.mark.once
@pytest.mark.parametrize("distributed", [False, True])
def test_what_cannot_be_saved(shared_folder, raised, distributed):
    if COMM.rank == 0:
        h5py.File(shared_folder / "other.h5", "w").close()
        with h5py.File(shared_folder / "old.h5", "w") as made:
            made["x"] = 1
            made.create_group("group")
            made["far"] = h5py.ExternalLink("other.h5", "/")
            made["near"] = h5py.SoftLink("/far")
            made["type"] = np.dtype("f8")
            made["same"] = made["group"]
            made["y"] = made["same/z"] = made.create_dataset("group/x", data=np.zeros(3))
            made["dangling"] = h5py.SoftLink("/nowhere")
    COMM.Barrier()
    before = {file.name: file.read_bytes() for file in shared_folder.iterdir() if file.is_file()}
    for file, array, dataset, error, message in REFUSED:
        outcomes = raised(lambda: ms.save(shared_folder / file, array, dataset, distributed=distributed))  # noqa: B023
        assert outcomes[0][0] == error, outcomes
        assert all(kind.removeprefix("Peer") in (error, "Error") and message in text for kind, text in outcomes)
    outcomes = raised(lambda: ms.save(shared_folder / "a.npy", np.array(1.0), distributed=True))
    assert {error for error, _ in outcomes} == {"SpecError"}, "rows need a dimension"
    assert {file.name: file.read_bytes() for file in shared_folder.iterdir() if file.is_file()} == before


def no_space(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.ranks(2)
@pytest.mark.parametrize("victim", [0, 1])
def test_one_rank_that_cannot_write(shared_folder, raised, victim, monkeypatch):
    monkeypatch.setattr(replace_file, "BLOCK_BYTES", 1000)
    ms.save(shared_folder / "a.npy", np.arange(5))
    if COMM.rank == victim:
        monkeypatch.setattr(os, "pwrite", no_space)
    outcomes = raised(lambda: ms.save(shared_folder / "a.npy", np.ones(5000), distributed=True))
    monkeypatch.undo()
    writes = ms.topology().node_of(victim) == 0
    assert outcomes[victim][0] == ("FileError" if writes else "nothing")
    assert {error for error, _ in outcomes} <= ({"FileError", "PeerFileError"} if writes else {"nothing"})
    assert np.load(shared_folder / "a.npy").size == (5 if writes else 5000 * COMM.size)
