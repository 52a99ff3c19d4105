"""load: the bytes of a file on every rank, read once, one copy per node; or an error on all."""

from __future__ import annotations

import errno
import gc
import io
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from mpi4py import MPI
from numpy.typing import NDArray

import mpishare as ms
from mpishare.comm.context import context_of
from mpishare.files import load as loading
from mpishare.files import parts as flat
from mpishare.files import pieces
from mpishare.memory.segment import segment_of
from tests.arrays import bits, filled
from tests.unit.files.reading import INDICES

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(30)]

Raised = Callable[[Callable[[], object]], list[tuple[str, str]]]
LARGE = np.random.default_rng(3).integers(0, 2**40, (700, 1100))


@pytest.fixture(scope="module")
def writes() -> bool:
    """Whether this rank writes the files of its host: hosts have no folder in common."""
    host = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
    found = host.rank == 0
    host.Free()
    return found


@contextmanager
def common(mine: Path, *, writes: bool) -> Iterator[Path]:
    """A folder of one name on all hosts, that of rank 0."""
    found = Path(MPI.COMM_WORLD.bcast(str(mine)))
    made = next((parent for parent in reversed(found.parents) if not parent.exists()), found)
    if writes:
        found.mkdir(parents=True, exist_ok=True)
    yield found
    MPI.COMM_WORLD.Barrier()
    if writes:
        shutil.rmtree(made)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, writes: bool) -> Iterator[Path]:
    """One folder for all ranks, with files that no test changes."""
    with common(tmp_path_factory.mktemp("files"), writes=writes) as made:
        if writes:
            np.save(made / "large.npy", LARGE)
            np.save(made / "fortran.npy", np.asfortranarray(LARGE))
            np.save(made / "small.npy", LARGE[:3, :4])
            with h5py.File(made / "a.h5", "w") as file:
                file["flat"] = LARGE
                file.create_dataset("chunked", data=LARGE, chunks=(50, 500), shuffle=True, compression="lzf")
                file["group/small"] = LARGE[0]
                file["group/inner/text"] = ["a", "größer", ""]
                file["group/inner/nothing"] = np.empty((0, 3), "f4")
                file["group/cube"] = filled(np.dtype("f8"), (7, 6, 4))
                file["group"].attrs["title"] = "both"
        MPI.COMM_WORLD.Barrier()
        yield made


@pytest.fixture
def own_folder(tmp_path: Path, writes: bool) -> Iterator[Path]:
    """One folder for all ranks."""
    with common(tmp_path, writes=writes) as made:
        yield made


def assert_loaded(found: NDArray[Any], expected: NDArray[Any]) -> None:
    """The bits are those expected, read-only, in node memory."""
    assert (found.dtype, found.shape, bits(found)) == (expected.dtype, expected.shape, bits(expected))
    assert type(found) is np.ndarray
    assert not found.flags.writeable
    assert segment_of(found) is not None


SOURCES = {"npy": ("large.npy", None), "contiguous": ("a.h5", "flat"), "chunked": ("a.h5", "chunked")}
WAYS = {
    "once": {},
    "once a node": {"read": "node"},
    "a copy a rank": {"backend": "private"},
    "a copy a rank, once a node": {"backend": "private", "read": "node"},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SOURCES)
def test_every_source_in_every_way(folder: Path, name: str, way: str) -> None:
    file, dataset = SOURCES[name]
    options: dict[str, Any] = WAYS[way]
    assert_loaded(ms.load(folder / file, dataset, **options), LARGE)


def test_fortran_order(folder: Path) -> None:
    found = ms.load(folder / "fortran.npy")
    assert_loaded(found, LARGE)
    assert found.flags.fnc


@pytest.mark.parametrize("chunk_bytes", [None, 100_000])
def test_other_ways_between_nodes(folder: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int | None) -> None:
    context = context_of()
    monkeypatch.setattr(context, "config", replace(context.config, chunk_bytes=chunk_bytes))
    assert_loaded(ms.load(folder / "large.npy"), LARGE)
    assert_loaded(ms.load(folder / "a.h5", "chunked", backend="private"), LARGE)


def read_bytes() -> int:
    """What this process has read by system calls."""
    words = Path("/proc/self/io").read_text().split()
    return int(words[words.index("rchar:") + 1])


@pytest.mark.parametrize("read", ["job", "node"])
@pytest.mark.parametrize("name", SOURCES)
def test_each_byte_is_read_once(comm: MPI.Intracomm, folder: Path, name: str, read: str) -> None:
    here = ms.topology()
    file, dataset = SOURCES[name]
    ms.load(folder / file, dataset, read=read)  # h5py is imported now
    comm.Barrier()
    before = read_bytes()
    ms.load(folder / file, dataset, read=read)
    mine = read_bytes() - before
    read_here = here.node_comm.allreduce(mine)
    stored_bytes = LARGE.nbytes if name != "chunked" else chunked_bytes(comm, folder)
    expected = stored_bytes if read == "node" or here.node == 0 else 0
    assert read_here >= expected
    on_one_host = len(set(comm.allgather(MPI.Get_processor_name()))) == 1
    if on_one_host or here.node == 0:  # elsewhere what comes by sockets counts as read; tests/cluster takes that off
        assert read_here < expected + here.node_size * 250_000  # headers, and what /proc and maps say


def chunked_bytes(comm: MPI.Intracomm, folder: Path) -> int:
    """What the chunks take in the file."""
    if comm.rank:
        return int(comm.bcast(0))
    with h5py.File(folder / "a.h5") as file:
        return int(comm.bcast(file["chunked"].id.get_storage_size()))


@pytest.mark.parametrize("name", ["cube", "fortran"])
def test_regions(folder: Path, name: str) -> None:
    whole = filled(np.dtype("f8"), (7, 6, 4)) if name == "cube" else LARGE.reshape(700, 1100, 1)
    for index in INDICES.values():
        if name == "cube":
            assert_loaded(ms.load(folder / "a.h5", "group/cube", region=index), np.asarray(whole[index]))
    for index in (np.s_[::-3, 5:900:7], np.s_[:, 77], np.s_[100:600]):
        for file, dataset in (*SOURCES.values(), ("fortran.npy", None)):
            assert_loaded(ms.load(folder / file, dataset, region=index), LARGE[index])


def test_a_group_is_a_dict_of_arrays_in_one_segment(folder: Path) -> None:
    found = ms.load(folder / "a.h5", "group")
    assert list(found) == ["cube", "inner", "small"]
    assert_loaded(found["small"], LARGE[0])
    assert_loaded(found["inner"]["text"], np.array([b"a", "größer".encode(), b""]))
    assert_loaded(found["inner"]["nothing"], np.empty((0, 3), "f4"))
    assert_loaded(found["cube"], filled(np.dtype("f8"), (7, 6, 4)))
    assert segment_of(found["small"]) is segment_of(found["inner"]["text"])
    everything = ms.load(folder / "a.h5", read="node")
    assert_loaded(everything["chunked"], LARGE)
    assert_loaded(everything["group"]["small"], LARGE[0])


def test_attributes(folder: Path) -> None:
    found, attributes = ms.load(folder / "a.h5", "group", attributes=True)
    assert_loaded(found["small"], LARGE[0])
    assert attributes == {"": {"title": "both"}, "cube": {}, "inner": {}, "inner/nothing": {}, "inner/text": {}} | {
        "small": {}
    }
    assert ms.load(folder / "small.npy", attributes=True)[1] == {}


def test_an_empty_group(comm: MPI.Intracomm, own_folder: Path, writes: bool) -> None:
    if writes:
        h5py.File(own_folder / "empty.h5", "w").close()
    assert ms.load(own_folder / "empty.h5") == {}


def test_small_arrays_take_slots(folder: Path) -> None:
    kept = [ms.load(folder / "small.npy") for _ in range(20)]
    for found in kept:
        assert_loaded(found, LARGE[:3, :4])
    assert {segment.made_by for segment in ms.report().segments} == {"load"}


def test_subcommunicators_load_apart(comm: MPI.Intracomm, folder: Path) -> None:
    half = comm.Split(comm.rank % 2, -comm.rank)
    found = ms.load(folder / ("large.npy" if comm.rank % 2 else "small.npy"), comm=half)
    assert_loaded(found, LARGE if comm.rank % 2 else LARGE[:3, :4])
    half.Free()


def test_relative_names_are_those_of_rank_0(
    comm: MPI.Intracomm, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder if comm.rank == 0 else tmp_path)
    assert_loaded(ms.load("large.npy"), LARGE)


def test_a_bar_is_quiet_where_there_is_no_terminal(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert_loaded(ms.load(folder / "large.npy", progress=True), LARGE)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("is_there", [False, True])
def test_a_bar_that_cannot_be_shown_keeps_nobody_waiting(
    folder: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed if is_there else None)
    found = ms.load(folder / "large.npy", progress=True)
    monkeypatch.undo()
    assert_loaded(found, LARGE)


@pytest.mark.parametrize(("read", "way"), [("job", {}), ("node", {})])
def test_the_bar_reaches_the_end(
    comm: MPI.Intracomm, folder: Path, monkeypatch: pytest.MonkeyPatch, read: str, way: dict[str, Any]
) -> None:
    seen: list[int] = []
    monkeypatch.setattr("mpishare.progress_bar.Bar.show", lambda bar, done: seen.append(done))
    ms.load(folder / "large.npy", progress=True, read=read)
    assert seen == sorted(seen)
    assert (seen[-1:] == [LARGE.nbytes]) == (comm.rank == 0)


# Without reading.


def test_a_map_shows_the_file(comm: MPI.Intracomm, folder: Path) -> None:
    for name, dataset in (("large.npy", None), ("a.h5", "flat"), ("fortran.npy", None)):
        assert_loaded(ms.load(folder / name, dataset, map=True), LARGE)
        assert_loaded(ms.load(folder / name, dataset, map=True, region=np.s_[::-2, 3]), LARGE[::-2, 3])
    assert_loaded(ms.load(folder / "small.npy", map=True, region=np.s_[None, 1]), LARGE[None, 1, :4])


def test_a_map_of_nothing_and_of_a_group(comm: MPI.Intracomm, own_folder: Path, folder: Path, writes: bool) -> None:
    if writes:
        with h5py.File(own_folder / "two.h5", "w") as file:
            file["a"], file["b"] = np.arange(5), np.arange(7.0)
    comm.Barrier()
    found = ms.load(own_folder / "two.h5", map=True)
    assert_loaded(found["a"], np.arange(5))
    assert_loaded(found["b"], np.arange(7.0))
    nothing = ms.load(folder / "large.npy", map=True, region=np.s_[:0])
    assert (nothing.shape, nothing.flags.writeable) == ((0, 1100), False)


def test_a_map_reads_nothing_and_holds_no_descriptor(folder: Path) -> None:
    ms.load(folder / "large.npy", map=True)
    before, held = read_bytes(), len(list(Path("/proc/self/fd").iterdir()))
    found = ms.load(folder / "large.npy", map=True)
    assert read_bytes() - before < 100_000
    assert len(list(Path("/proc/self/fd").iterdir())) == held
    row = found[5]
    del found
    gc.collect()
    assert row.tolist() == LARGE[5].tolist()
    assert ms.report().segments[0].backend == "mapped file"


def test_a_private_view_of_a_map_leaves_the_file(comm: MPI.Intracomm, folder: Path) -> None:
    mine = ms.private(ms.load(folder / "small.npy", map=True))
    mine[:] = comm.rank
    comm.Barrier()
    assert (mine == comm.rank).all()
    assert_loaded(ms.load(folder / "small.npy"), LARGE[:3, :4])


# What goes wrong.


@pytest.fixture
def _next_call_works(folder: Path) -> Iterator[None]:
    """A refusal leaves the communicator usable."""
    yield
    assert_loaded(ms.load(folder / "small.npy"), LARGE[:3, :4])


def assert_refused(told: list[tuple[str, str]], error: str, *words: str) -> None:
    """Rank 0 raised `error` with all of `words`, and the others a `PeerError` with the same."""
    assert told[0][0] == error
    for word in words:
        assert word in told[0][1]
    for other in told[1:]:
        assert other[0] == "PeerError"
        assert f"{error}: {told[0][1]}" in other[1]


MISSING: dict[str, tuple[tuple[Any, ...], dict[str, Any], str, tuple[str, ...]]] = {
    "file": (("none.npy",), {}, "FileError", ("none.npy: No such file",)),
    "file of each node": (("none.npy",), {"read": "node"}, "FileError", ("none.npy: No such file",)),
    "folder": ((".",), {}, "FileError", ("is a folder",)),
    "dataset": (("a.h5", "no"), {}, "FileError", ("dataset 'no' of ", "a.h5: there is no such dataset or group")),
    "dataset of a .npy": (("small.npy", "x"), {}, "FileError", ("dataset 'x' of ", "small.npy: is a .npy file")),
    "region": (("small.npy",), {"region": 3}, "ArgumentError", ("index 3 is outside of axis 0",)),
    "region of a group": (("a.h5",), {"region": 3}, "ArgumentError", ("is a group",)),
    "map of chunks": (("a.h5", "chunked"), {"map": True}, "FileError", ("'/chunked' of ", "cannot be mapped")),
}


@pytest.mark.parametrize("name", MISSING)
@pytest.mark.usefixtures("_next_call_works")
def test_what_is_not_there(raised: Raised, folder: Path, name: str) -> None:
    (file, *more), options, error, words = MISSING[name]
    told = raised(lambda: ms.load(folder / file, *more, **options))
    leaders = {ranks[0] for ranks in ms.topology().placement.nodes} if "read" in options or "map" in options else {0}
    assert {rank for rank, (kind, _) in enumerate(told) if kind == error} == leaders
    assert_refused([told[0], *(one for rank, one in enumerate(told) if rank not in leaders)], error, *words)


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("path 3 is not a path", {"path": 3}),
        ("dataset 3 is not a name", {"dataset": 3}),
        ("read 'all' is unknown", {"read": "all"}),
        ("read [] is unknown", {"read": []}),
        ("backend 'no' is unknown", {"backend": "no"}),
    ],
)
@pytest.mark.usefixtures("_next_call_works")
def test_arguments_that_are_none(raised: Raised, folder: Path, words: str, options: dict[str, Any]) -> None:
    told = raised(lambda: ms.load(**{"path": folder / "small.npy", **options}))
    assert {error for error, _ in told} == {"ArgumentError"}
    assert words in told[0][1]


@pytest.mark.ranks(2)
@pytest.mark.usefixtures("_next_call_works")
@pytest.mark.parametrize("options", [{"region": 1}, {"read": "node"}, {"map": True}, {"attributes": True}])
def test_arguments_that_differ(comm: MPI.Intracomm, raised: Raised, folder: Path, options: dict[str, Any]) -> None:
    told = raised(lambda: ms.load(folder / "small.npy", **(options if comm.rank == comm.size - 1 else {})))
    assert {error for error, _ in told} == {"MismatchError"}


@pytest.mark.usefixtures("_next_call_works")
def test_a_broken_chunk(comm: MPI.Intracomm, raised: Raised, own_folder: Path, writes: bool) -> None:
    """The rank that reads it says so, and no other waits."""
    path = own_folder / "broken.h5"
    if writes:
        with h5py.File(path, "w") as file:
            made = file.create_dataset("a", data=LARGE[:200], chunks=(50, 500), compression="gzip")
            where = made.id.get_chunk_info(7)
        content = bytearray(path.read_bytes())
        content[where.byte_offset + 100 : where.byte_offset + 2000] = bytes(1900)
        path.write_bytes(content)
    comm.Barrier()
    told = raised(lambda: ms.load(path, "a"))
    errors = [error for error, _ in told]
    assert errors.count("FileError") == 1
    assert errors.count("PeerError") == comm.size - 1
    assert all("dataset '/a' of " in words and "broken.h5" in words for _, words in told)


@pytest.mark.usefixtures("_next_call_works")
@pytest.mark.parametrize("what", ["longer", "written", "replaced", "shorter"])
def test_a_file_that_is_changed_while_it_is_read(
    comm: MPI.Intracomm, raised: Raised, own_folder: Path, writes: bool, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    path = own_folder / "a.npy"
    if writes:
        np.save(path, LARGE)
    comm.Barrier()
    looked = comm.Dup()
    told_before = loading._contents

    def change(*words: Any, **options: Any) -> Any:
        """Once all ranks know what is in the file, it is another."""
        found = told_before(*words, **options)
        if comm.rank == 0:
            if what == "longer":
                with path.open("ab") as file:
                    file.write(b"!")
            elif what == "written":
                os.utime(path, ns=(1, 1))
            elif what == "shorter":
                os.truncate(path, 1000)
            else:
                np.save(own_folder / "b.npy", LARGE)
                (own_folder / "b.npy").rename(path)
        looked.Barrier()
        return found

    monkeypatch.setattr(loading, "_contents", change)
    told = raised(lambda: ms.load(path))
    monkeypatch.undo()
    looked.Free()
    if what == "replaced" and {error for error, _ in told} == {"nothing"}:
        return  # one rank reads, and has the old file open
    assert {error for error, _ in told} <= {"FileError", "PeerError"}
    assert all(str(path) in words for _, words in told)


@pytest.mark.usefixtures("_next_call_works")
def test_a_file_that_fits_on_no_node(comm: MPI.Intracomm, raised: Raised, own_folder: Path, writes: bool) -> None:
    path = own_folder / "huge.npy"
    if writes:
        head = b"{'descr': '|u1', 'fortran_order': False, 'shape': (%d,), }" % (1 << 42)
        path.write_bytes(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head)
        os.truncate(path, (1 << 42) + 10 + len(head))
    comm.Barrier()
    before = read_bytes()
    told = raised(lambda: ms.load(path))
    assert {error for error, _ in told} <= {"CapacityError", "PeerCapacityError"}
    assert read_bytes() - before < 1 << 20


@pytest.mark.ranks(2)
@pytest.mark.usefixtures("_next_call_works")
def test_nodes_whose_files_differ(
    comm: MPI.Intracomm, raised: Raised, own_folder: Path, writes: bool, monkeypatch: Any
) -> None:
    here = ms.topology()
    path = own_folder / f"{'first' if here.node == 0 else 'other'}.npy"
    if writes:
        np.save(own_folder / "first.npy", np.zeros(3))
        np.save(own_folder / "other.npy", np.zeros(4))
    comm.Barrier()
    monkeypatch.setattr(loading, "checked_path", lambda _: str(path))
    monkeypatch.setattr(loading._Request, "checked", lambda _: "load")
    told = raised(lambda: ms.load("a.npy", read="node"))
    if here.n_nodes == 1:
        assert {error for error, _ in told} == {"nothing"}
    else:
        assert {error for error, _ in told} == {"FileError", "PeerError"}
        assert all("has array: shape=(4,)" in words and "but on host" in words for _, words in told)


def test_pieces_are_shared_among_the_readers(
    comm: MPI.Intracomm, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank that reads has its part, and over several nodes the leader leaves it to the others."""
    here = ms.topology()
    seen: list[Any] = []
    read = flat.ContiguousPart.read

    def seen_read(*words: Any) -> None:
        seen.append(words[2])
        read(*words)

    monkeypatch.setattr(flat.ContiguousPart, "read", seen_read)
    monkeypatch.setattr(pieces, "_LARGEST_PIECE_BYTES", 256 << 10)
    assert_loaded(ms.load(folder / "large.npy"), LARGE)
    counts = comm.allgather(len(seen))
    readers = [rank for rank in here.ranks_of(0) if here.n_nodes == 1 or rank or len(here.ranks_of(0)) == 1]
    assert sum(counts) == -(-LARGE.nbytes // (256 << 10))
    assert all((count > 0) == (rank in readers) for rank, count in enumerate(counts))
    assert max(counts) - min(counts[rank] for rank in readers) <= 1


@pytest.mark.usefixtures("_next_call_works")
def test_a_read_that_fails(comm: MPI.Intracomm, raised: Raised, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank's disk has an error in the midst of the file; all others go on to the end, and know."""
    victim = max(ms.topology().ranks_of(0))
    calls: list[int] = []
    preadv = os.preadv

    def failing(*words: Any) -> int:
        calls.append(1)
        if comm.rank == victim and len(calls) > 5:
            raise OSError(errno.EIO, "Input/output error")
        return preadv(*words)

    monkeypatch.setattr(pieces, "_LARGEST_PIECE_BYTES", 100_000)
    monkeypatch.setattr(pieces, "_SMALLEST_PIECE_BYTES", 100_000)
    monkeypatch.setattr(os, "preadv", failing)
    told = raised(lambda: ms.load(folder / "large.npy"))
    monkeypatch.undo()
    assert {rank for rank, (kind, _) in enumerate(told) if kind == "FileError"} == {victim}
    assert all("large.npy: Input/output error" in words for _, words in told)
