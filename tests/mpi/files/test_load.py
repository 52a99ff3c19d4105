"""load: the bytes of a file on every rank, read once, one copy per node; or an error on all."""

import errno
import gc
import io
import os
import sys
from functools import partial
from typing import Any

import h5py
import numpy as np
import pytest
from mpi4py import MPI

import mpishare as ms
from mpishare.memory.segment import segment_of
from tests.arrays import assert_same
from tests.formats import ARRAYS, IMAGES, write_fits
from tests.mpi.files.test_formats import LARGE, assert_loaded
from tests.mpi.test_errors import assert_refused, assert_refused_alike, assert_refused_by_some
from tests.processes import open_files, read_bytes

COMM = MPI.COMM_WORLD


FORTRAN = ARRAYS["fortran"]


def make_hdf5(path):
    with h5py.File(path, "w") as file:
        file["flat"] = LARGE
        file.create_dataset("chunked", data=LARGE, chunks=(50, 500), shuffle=True, compression="gzip")
        file["group/small"] = LARGE[0]
        file["group/inner/text"] = ["a", "größer", ""]
        file["group/inner/nothing"] = np.empty((0, 3), "f4")
        file["group"].attrs["title"] = "both"
        file["plain/a"], file["plain/b"] = np.arange(5), np.arange(7.0)
        file.create_group("empty")


@pytest.fixture(scope="module")
def folder(build_folder):
    """Files that no test changes."""
    if COMM.rank == 0:
        np.save(build_folder / "large.npy", LARGE)
        np.save(build_folder / "small.npy", LARGE[:3, :4])
        np.lib.format.open_memmap(build_folder / "huge.npy", "w+", np.uint8, (1 << 42,))  # a sparse file
        make_hdf5(build_folder / "a.h5")
        with h5py.File(build_folder / "partly.h5", "w") as file:
            file["a"], file["empty"] = np.arange(5), h5py.Empty("f4")
        write_fits(build_folder / "a.fits", IMAGES)
        np.save(build_folder / "f.npy", FORTRAN)
        np.save(build_folder / "one.npy", np.array(2.5))
        with h5py.File(build_folder / "big.h5", "w") as file:
            file["chunks"] = np.arange(24, dtype=">i4").reshape(4, 2, 3)
            file.create_dataset("of arrays", (4,), np.dtype((">f4", (2, 3))))[...] = np.arange(24).reshape(4, 2, 3)
    COMM.Barrier()
    return build_folder


def test_a_group_is_a_dict_of_arrays_in_one_segment(folder):
    group, attributes = ms.load(folder / "a.h5", "group", attributes=True)
    assert list(group) == ["inner", "small"]
    assert_loaded(group["small"], LARGE[0])
    assert_loaded(group["inner"]["text"], np.array([b"a", "größer".encode(), b""]))
    assert_loaded(group["inner"]["nothing"], np.empty((0, 3), "f4"))
    assert segment_of(group["small"]) is segment_of(group["inner"]["text"])
    members = ["", "inner", "inner/nothing", "inner/text", "small"]
    assert attributes == {name: {} if name else {"title": "both"} for name in members}
    everything = ms.load(folder / "a.h5", read="node")
    assert_loaded(everything["chunked"], LARGE)
    assert_loaded(everything["group"]["small"], LARGE[0])
    assert ms.load(folder / "a.h5", "empty") == everything["empty"] == {}
    assert ms.load(folder / "small.npy", attributes=True)[1] == {}


def make_linked(folder):
    with h5py.File(folder / "far.h5", "w") as file:
        file["large"] = LARGE
    with h5py.File(folder / "linked.h5", "w") as file:
        file["entry/far"] = h5py.ExternalLink("far.h5", "large")
        file["entry/again"] = h5py.SoftLink("/entry/far")
        file["entry/gone"] = h5py.ExternalLink("none.h5", "x")
        file["same"] = file["entry"]
        file.create_dataset("table", data=[("Sun", 1.0)], dtype=[("name", h5py.string_dtype()), ("mass", "f8")])


@pytest.mark.parametrize("read", ["job", "node"])
def test_links_are_followed_and_read_once(folder, shared_folder, read, monkeypatch, recwarn):
    """Also where the other ranks work in another folder."""
    if COMM.rank == 0:
        make_linked(shared_folder)
    COMM.Barrier()
    if COMM.rank == 0 or (read == "node" and ms.topology().is_leader):
        monkeypatch.chdir(shared_folder)
    data = ms.load("linked.h5", read=read)
    assert len(recwarn) == (COMM.rank == 0)
    assert all("link '/entry/gone': it leads to dataset 'x' of none.h5" in str(each.message) for each in recwarn)
    assert_loaded(data["entry"]["far"], LARGE)
    assert data["entry"]["far"] is data["entry"]["again"] is data["same"]["far"]
    assert data["table"].tolist() == [(b"Sun", 1.0)]
    segment = segment_of(data["entry"]["far"])
    assert segment is segment_of(data["table"])
    assert segment.nbytes < LARGE.nbytes + 1000
    COMM.Barrier()


@pytest.mark.parametrize("dataset", [None, "empty"])
def test_what_cannot_be_loaded_is_left_out_of_a_group(folder, raised, dataset, recwarn):
    """Rank 0 warns once; alone it is refused."""
    errors = raised(lambda: assert_loaded(ms.load(folder / "partly.h5", dataset)["a"], np.arange(5)))
    expected = ["nothing"] * COMM.size if dataset is None else ["SpecError"] + ["PeerError"] * (COMM.size - 1)
    assert [error for error, _ in errors] == expected
    messages = [str(warning.message) for warning in recwarn]
    assert len(messages) == (dataset is None and COMM.rank == 0)
    assert all("partly.h5: dataset '/empty': it is an HDF5 null dataspace" in message for message in messages)


@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.parametrize("read", ["job", "node", ""])
def test_the_bar(folder, shared_folder, monkeypatch, read, is_terminal):
    """It counts all bytes that are loaded, or saved, on the terminal of rank 0."""
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    if read:
        ms.load(folder / "large.npy", progress=True, read=read)
    else:
        ms.save(shared_folder / "a.npy", LARGE, progress=True)
    monkeypatch.undo()
    assert ("5.87M/5.87M" in stream.getvalue()) == (is_terminal and COMM.rank == 0)


# Other dtypes.


def test_native_byte_order(folder):
    for name, array in ms.load(folder / "a.fits", dtype="native").items():
        assert_same(array, IMAGES[name].astype(IMAGES[name].dtype.newbyteorder("=")))
    found = ms.load(folder / "big.h5", dtype="native")
    assert_same(found["chunks"], np.arange(24, dtype="i4").reshape(4, 2, 3))
    assert_same(found["of arrays"], np.arange(24, dtype="f4").reshape(4, 2, 3))


def test_other_dtypes(folder, raised):
    part = ms.load(folder / "a.fits", "HEAT", dtype="f4", region=np.s_[::-1, [3, 1]])
    assert_same(part, IMAGES["HEAT"][::-1, [3, 1]].astype("f4"))
    for dtype in (np.float32, str, bytes, "U40"):
        assert_same(ms.load(folder / "f.npy", dtype=dtype), FORTRAN.astype(dtype))
    assert_same(ms.load(folder / "one.npy", dtype=complex), np.array(2.5 + 0j))
    days = np.arange("2000-01-01", "2000-01-09", dtype="M8[D]")
    assert_same(ms.load(call=lambda: days, dtype=np.datetime64), days)
    split = ms.load(folder / "f.npy", dtype="f4", split=True)
    assert_same(split.take(np.arange(5)), np.ascontiguousarray(FORTRAN, "f4"))
    assert_refused_alike(raised(lambda: ms.load(folder / "one.npy", dtype=object)), "SpecError", "cannot be shared")
    errors = raised(lambda: ms.load(folder / "f.npy", dtype="f4", map=True))
    assert all("cannot be mapped: it is converted" in text for _, text in errors)


# Mapped files.


def test_a_map_reads_nothing_and_holds_one_descriptor(folder):
    ms.load(folder / "large.npy", map=True)
    before, held = read_bytes(), open_files()
    result = ms.load(folder / "large.npy", map=True)
    assert read_bytes() - before < 100_000
    assert open_files() == held + 1
    row = result[5]
    del result
    gc.collect()
    assert row.tolist() == LARGE[5].tolist()
    assert ms.report().segments[0].backend == "mapped file"


def test_a_private_view_of_a_map_leaves_the_file(folder):
    view = ms.private(ms.load(folder / "small.npy", map=True))
    view[:] = COMM.rank
    COMM.Barrier()
    assert (view == COMM.rank).all()
    assert_loaded(ms.load(folder / "small.npy"), LARGE[:3, :4])


# Errors.


BAD: list[tuple[str, dict[str, Any]]] = [
    ("3 is not within axis 0, of length 3", {"region": 3}),
    ("but a group of", {"path": "a.h5", "region": [0]}),
    ("map=True cannot pick items", {"region": [0], "map": True}),
    ("read 'all' is unknown", {"read": "all"}),
    ("backend 'no' is unknown", {"backend": "no"}),
    ("['flat', None] is no list of", {"path": "a.h5", "dataset": ["flat", None]}),
    ("a group of", {"path": "a.h5", "dataset": ["flat"], "region": 0}),
    ("writable is 'private'. Use True or False", {"writable": "private"}),
    ("map=True and split take no out", {"writable": True, "map": True}),
    ("does not cast to int32 as same_kind", {"path": "one.npy", "dtype": "i4"}),
    ("Give the dtype of their items, float32", {"dtype": "(2,)f4"}),
    ("path is None", {"path": None}),
    ("call 3 is not a function", {"path": None, "call": 3}),
    ("both call and a path", {"call": list}),
    ("both call and a path", {"path": None, "call": list, "dataset": "a"}),
    ("are for a file", {"path": None, "call": list, "map": True}),
    ("are for a file", {"path": None, "call": list, "attributes": True}),
    ("700 is not within axis 0", {"path": None, "call": lambda: LARGE, "region": 700}),
    ("split is for one array, but a group of", {"path": "a.h5", "split": True}),
    ("split is for rows, but the array of", {"path": "one.npy", "split": True}),
    ("map=True reads what is needed", {"split": True, "map": True}),
    ("counts has 99 numbers", {"split": [1] * 99}),
    ("counts has 0 numbers", {"split": []}),
    ("split is 1.5; expected an integer", {"split": [1.5]}),
    ("split is -1; expected an integer", {"split": [-1, 701]}),
    ("region (2) selects", {"split": True, "region": 2}),
    ("region (slice(None, None, -1)) sel", {"split": True, "region": np.s_[::-1]}),
    ("region (None) selects", {"split": True, "region": (None,)}),
    ("region (int64[2] ", {"split": True, "region": [0, 2]}),
    ("region (slice(None, None, None), int64[1] ", {"split": True, "region": np.s_[:, [1]]}),
    *(("expected True, False, or a list", {"split": one}) for one in (1, 0, np.int64(1), 2.5, np.float64(0), "1", b"")),
]


@pytest.mark.once
def test_bad_arguments(raised, folder, monkeypatch):
    monkeypatch.chdir(folder)
    for message, options in BAD:
        errors = raised(partial(ms.load, **{"path": "small.npy", **options}))
        assert_refused_alike(errors, "ArgumentError", message)


@pytest.mark.once
def test_what_is_not_there(raised, folder):
    assert_refused(raised(lambda: ms.load(folder / "none.npy")), 0, "FileError", "none.npy: No such file")
    assert_refused(raised(lambda: ms.load(folder / "a.h5", ["flat", "no"])), 0, "FileError", "dataset 'no' of")
    errors = raised(lambda: ms.load(folder / "none.npy", read="node"))
    leaders = [ranks[0] for ranks in ms.topology().placement.nodes]
    assert [rank for rank, (error, _) in enumerate(errors) if error == "FileError"] == leaders
    assert_refused_by_some(errors, "FileError", "none.npy: No such file")


def test_arrays_that_a_file_does_not_fit(raised, folder):
    grid = ms.zeros((3, 4), "i8")
    cases: list[tuple[Any, dict[str, Any], str, str]] = [
        (ms.zeros((3, 4)), {}, "SpecError", "out is float64 of shape (3, 4), but the file has int64 of (3, 4). Pass"),
        (grid, {"region": np.s_[:2]}, "SpecError", "out is int64 of shape (3, 4), but the file has int64 of (2, 4)"),
        (grid, {"dtype": "f8"}, "SpecError", "but the file has float64 of (3, 4)"),
        (grid, {"region": np.s_[::-1]}, "ArgumentError", "region has a negative step, which out cannot have"),
        (grid, {"path": folder / "a.h5"}, "ArgumentError", "out is for one array, but a group of"),
        (grid, {"map": True}, "ArgumentError", "map=True and split take no out"),
        (grid, {"split": True}, "ArgumentError", "map=True and split take no out"),
        (np.zeros((3, 4), "i8"), {}, "SpecError", "out is an array of shape (3, 4), which cannot be traced"),
    ]
    for out, options, error, text in cases:
        errors = raised(partial(ms.load, **{"path": folder / "small.npy", "out": out, **options}))
        assert_refused_alike(errors, error, text)
    assert not grid.any()


def test_a_read_that_fails(raised, folder, monkeypatch):
    """One rank's disk has an error in the midst of the file; all others go on to the end, and know."""
    victim, preadv = max(ms.topology().ranks_of(0)), os.preadv

    def failing(fd, buffers, offset):
        if COMM.rank == victim and offset > LARGE.nbytes // 2:
            raise OSError(errno.EIO, "Input/output error")
        return preadv(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", failing)
    errors = raised(lambda: ms.load(folder / "large.npy"))
    monkeypatch.undo()
    assert {rank for rank, (error, _) in enumerate(errors) if error == "FileError"} == {victim}
    assert all("large.npy: Input/output error" in text for _, text in errors)


@pytest.mark.parametrize("split", [False, True])
def test_a_file_that_fits_on_no_node_or_not_on_all(raised, folder, split):
    before = read_bytes()
    errors = raised(lambda: ms.load(folder / "huge.npy", split=split))
    assert_refused_by_some(errors, "CapacityError", "bytes each would hold all 4,398,046,511,104" if split else "")
    assert read_bytes() - before < 1 << 20


@pytest.mark.ranks(2)
def test_nodes_whose_files_differ(raised, tmp_path, monkeypatch):
    topology = ms.topology()
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", np.zeros(3 if topology.node == 0 else 4))
    errors = raised(lambda: ms.load("a.npy", read="node"))
    assert {error for error, _ in errors} == {"MismatchError" if topology.n_nodes > 1 else "nothing"}
    if topology.n_nodes > 1:
        assert all("which has array: shape=(4,)" in text and "shape=(3,)" in text for _, text in errors)
