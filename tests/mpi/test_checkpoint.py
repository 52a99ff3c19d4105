"""Checkpoint: what was saved comes back to the bit on whatever ranks there are, or is refused."""

from __future__ import annotations

import errno
import json
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast
from zlib import crc32

import h5py
import numpy as np
import pytest
from mpi4py import MPI

import mpishare as ms
from mpishare.checkpoints import manifest
from mpishare.files import row_blocks
from tests.arrays import DTYPES, bits, filled

pytestmark = pytest.mark.mpi

Raised = Callable[[Callable[[], object]], list[tuple[str, str]]]


@pytest.fixture
def folder(comm: MPI.Intracomm, shared_folder: Path) -> Iterator[Path]:
    """One for checkpoints."""
    yield shared_folder / "run"
    comm.Barrier()
    assert not [file for file in shared_folder.rglob("*") if ".tmp." in file.name]


def part(count: int, ranks: int, rank: int) -> slice:
    return slice(count * rank // ranks, count * (rank + 1) // ranks)


def test_there_is_none_at_first(folder: Path) -> None:
    assert ms.Checkpoint(folder).latest() is None
    assert not folder.exists()


def test_arrays_and_values_come_back(comm: MPI.Intracomm, folder: Path) -> None:
    table = filled(DTYPES["struct"], (5, 2))
    grid = filled(np.dtype("f8"), (101, 7))
    mine = grid[part(101, comm.size, comm.rank)]
    values = {"time": 0.1, "names": ["a", "ä"], "deep": {"n": 2**70, "none": None}, "flag": True}
    arrays = {"grid": mine, "table": np.asfortranarray(table) if comm.rank == 0 else None, "none": grid[:0, :0]}
    checkpoint = ms.Checkpoint(folder)
    checkpoint.save(3, arrays, distributed=["grid"], values=values)
    found = checkpoint.latest()
    assert found is not None
    assert (found.step, found.values, found.names) == (3, values, ("grid", "table", "none"))
    assert found.shape("grid") == (101, 7)
    for name, whole in (("grid", grid), ("table", table), ("none", grid[:0, :0])):
        shared = found.load(name)
        assert (bits(shared), shared.shape, shared.dtype) == (bits(whole), whole.shape, whole.dtype)
        assert not shared.flags.writeable
    comm.Barrier()
    with h5py.File(found.path) as file:  # as any program reads it
        assert bits(file["arrays/grid"][:]) == bits(grid)
        assert bits(file["arrays/table"][:]) == bits(table)
        assert file["step"][()] == 3


@pytest.mark.parametrize("block_bytes", [1, 64, 1000, 1 << 20])
def test_rows_for_another_number_of_ranks(
    comm: MPI.Intracomm, folder: Path, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_blocks, "BLOCK_BYTES", block_bytes)
    grid = filled(np.dtype(">f4"), (47, 3))
    ms.Checkpoint(folder).save(0, {"grid": grid[part(47, comm.size, comm.rank)]}, distributed=["grid"])
    for ranks in range(1, comm.size + 1):
        some = cast("MPI.Intracomm", comm.Split(comm.rank < ranks, comm.rank))
        found = ms.Checkpoint(folder, comm=some).latest()
        assert found is not None
        rows = part(47, some.size, some.rank)
        assert bits(found.load("grid", region=rows)) == bits(grid[rows])
        place = np.empty((rows.stop - rows.start, 3), ">f4")
        assert found.load("grid", region=rows, out=place) is place
        assert bits(place) == bits(grid[rows])
        assert bits(found.load("grid", region=slice(40, 3))) == b""
        assert bits(found.load("grid", region=slice(-5, None))) == bits(grid[-5:])
        assert bits(found.load("grid")) == bits(grid)
        some.Free()


def test_names_that_can_be_told_only_once(comm: MPI.Intracomm, folder: Path) -> None:
    names: Any = (name for name in ["x"])
    ms.Checkpoint(folder).save(1, {"x": np.ones((2, 3))}, distributed=names)
    found = ms.Checkpoint(folder).latest()
    assert found is not None
    assert found.shape("x") == (2 * comm.size, 3)


def test_the_last_ones_stay(comm: MPI.Intracomm, folder: Path) -> None:
    checkpoint = ms.Checkpoint(folder, keep=2)
    for step in (1, 2, 10):
        checkpoint.save(step, {"x": np.full(3, step)})
    assert sorted(file.name for file in folder.iterdir()) == ["000000000002.h5", "000000000010.h5"]
    comm.Barrier()
    checkpoint.save(5, {"x": np.full(3, 5)})  # goes on from before 10, which is of no use any more
    assert sorted(file.name for file in folder.iterdir()) == ["000000000002.h5", "000000000005.h5"]
    comm.Barrier()
    checkpoint.save(5, {"y": np.full(3, 6)})
    found = checkpoint.latest()
    assert found is not None
    assert (found.step, found.names, found.load("y").tolist()) == (5, ("y",), [6, 6, 6])


def damaged(comm: MPI.Intracomm, file: Path, change: Callable[[bytearray], object]) -> None:
    """Changes the bytes of a file."""
    comm.Barrier()
    if comm.rank == 0:
        content = bytearray(file.read_bytes())
        change(content)
        file.write_bytes(content)
    comm.Barrier()


def flipped(at: int) -> Callable[[bytearray], object]:
    def change(content: bytearray) -> None:
        content[at % len(content)] ^= 1 << at % 8

    return change


def test_any_byte_that_is_altered_is_found(comm: MPI.Intracomm, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_blocks, "BLOCK_BYTES", 64)
    checkpoint = ms.Checkpoint(folder)
    checkpoint.save(1, {"grid": np.ones((9, 4)), "more": np.ones(3)}, values={"a": 1})
    checkpoint.save(2, {"grid": np.zeros((9, 4)), "more": np.ones(3)}, values={"a": 2})
    file = folder / "000000000002.h5"
    size, good = file.stat().st_size, file.read_bytes()
    changes = [flipped(at) for at in comm.bcast(np.random.default_rng().integers(0, size, 40).tolist())]
    changes += [flipped(0), flipped(size - 1), lambda content: content.pop(), lambda content: content.append(0)]
    changes += [lambda content: content.clear(), lambda content: content.__delitem__(slice(700, None))]
    changes.append(lambda content: content.__setitem__(content.index(b'"step": 2') + 8, ord("3")))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for change in changes:
            damaged(comm, file, change)
            found = checkpoint.latest()
            assert found is not None
            assert found.step == 1
            assert found.load("grid").sum() == 36
            damaged(comm, file, lambda content: content.__setitem__(slice(None), good))
    assert len(told) == (len(changes) if comm.rank == 0 else 0)
    assert all("the checkpoint of step 2 in" in str(one.message) for one in told)
    found = checkpoint.latest()
    assert found is not None
    assert found.step == 2


def test_one_that_is_altered_after_it_was_found(comm: MPI.Intracomm, folder: Path, raised: Raised) -> None:
    checkpoint = ms.Checkpoint(folder)
    checkpoint.save(1, {"x": np.full((comm.size, 1000), 7)})
    found = checkpoint.latest()
    assert found is not None
    damaged(comm, found.path, lambda content: content.reverse())
    told = raised(lambda: found.load("x"))
    assert {error for error, _ in told} <= {"FileError", "PeerError"}
    assert any("dataset 'x' of" in text and "not those that were saved" in text for _, text in told)
    told = raised(lambda: found.load("x", region=slice(comm.rank, comm.rank + 1)))
    assert {error for error, _ in told} == {"FileError"}


@pytest.mark.filterwarnings("ignore:the checkpoint of step")
def test_a_refused_one_does_not_take_the_place_of_a_good_one(comm: MPI.Intracomm, folder: Path) -> None:
    checkpoint = ms.Checkpoint(folder, keep=2)
    for step in (1, 2):
        checkpoint.save(step, {"x": np.full(3, step)})
    damaged(comm, folder / "000000000002.h5", flipped(20))
    found = checkpoint.latest()
    assert found is not None
    assert found.step == 1
    checkpoint.save(3, {"x": np.full(3, 3)})
    assert sorted(file.name for file in folder.iterdir()) == ["000000000001.h5", "000000000003.h5"]


@pytest.mark.filterwarnings("error")
def test_a_warning_that_is_an_error_is_one_on_all(comm: MPI.Intracomm, folder: Path) -> None:
    checkpoint = ms.Checkpoint(folder)
    for step in (1, 2):
        checkpoint.save(step, {"x": np.full(3, step)})
    damaged(comm, folder / "000000000002.h5", flipped(20))
    with pytest.raises((RuntimeWarning, ms.PeerError), match="the checkpoint of step 2 in"):
        checkpoint.latest()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = checkpoint.latest()
    assert found is not None
    assert found.step == 1


@pytest.mark.parametrize("victim", [0, -1])
def test_one_that_cannot_be_read_is_not_taken_for_a_bad_one(
    comm: MPI.Intracomm, folder: Path, raised: Raised, victim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = ms.Checkpoint(folder)
    for step in (1, 2):
        checkpoint.save(step, {"x": np.full(3, step)})
    opens = os.open

    def refuses(path: Any, *words: Any, **options: Any) -> int:
        if str(path).endswith("2.h5"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return opens(path, *words, **options)

    with monkeypatch.context() as patched:
        if comm.rank == victim % comm.size:
            patched.setattr(os, "open", refuses)
        told = raised(checkpoint.latest)
    assert sorted({error for error, _ in told}) == ["FileError", "PeerError"][: comm.size]
    assert all("000000000002.h5: Permission denied; it was not read" in text for _, text in told)
    found = checkpoint.latest()
    assert found is not None
    assert found.step == 2


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "no gaps": lambda told: told.update(gaps=[]),
    "a list of arrays": lambda told: told.update(arrays=[]),
    "a gap beyond the end": lambda told: told["gaps"][0].__setitem__(1, 1 << 61),
    "a place that is no number": lambda told: told["arrays"]["x"].update(checks_at=1 << 70),
    "deep": lambda told: told["arrays"]["x"].update(dtype=["f8", *[[1]] * 3]),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.filterwarnings("ignore:the checkpoint of step")
def test_a_front_that_another_program_wrote(comm: MPI.Intracomm, folder: Path, name: str) -> None:
    """Its checksum is right, and what it tells is not."""

    def change(content: bytearray) -> None:
        magic, version, _, length, user_bytes = manifest._HEAD.unpack_from(content)
        told = json.loads(content[manifest._HEAD.size : manifest._HEAD.size + length])
        CHANGES[name](told)
        text = json.dumps(told).encode()
        front = manifest._HEAD.pack(magic, version, crc32(text), len(text), user_bytes) + text
        content[:user_bytes] = front.ljust(user_bytes, b"\0")

    checkpoint = ms.Checkpoint(folder)
    for step in (1, 2):
        checkpoint.save(step, {"x": np.full(3, step)})
    damaged(comm, folder / "000000000002.h5", change)
    found = checkpoint.latest()
    assert found is not None
    assert found.step == 1


def test_a_folder_with_the_name_of_a_checkpoint(comm: MPI.Intracomm, folder: Path) -> None:
    if comm.rank == 0:
        (folder / "000000000009.h5").mkdir(parents=True)
    comm.Barrier()
    checkpoint = ms.Checkpoint(folder, keep=1)
    for step in (1, 2):
        checkpoint.save(step, {"x": np.full(3, step)})
    found = checkpoint.latest()
    assert found is not None
    assert found.step == 2


@pytest.mark.filterwarnings("ignore:the checkpoint of step")
def test_none_that_is_good(comm: MPI.Intracomm, folder: Path, raised: Raised) -> None:
    checkpoint = ms.Checkpoint(folder)
    checkpoint.save(1, {"x": np.ones(3)})
    damaged(comm, folder / "000000000001.h5", flipped(20))
    told = raised(checkpoint.latest)
    assert {error for error, _ in told} == {"FileError"}
    assert all("of 1 checkpoints none is as it was saved" in text for _, text in told)


def test_leftovers_of_any_step_go(comm: MPI.Intracomm, folder: Path) -> None:
    checkpoint = ms.Checkpoint(folder)
    checkpoint.save(1, {"x": np.ones(3)})
    if comm.rank == 0:
        (folder / "000000000007.h5.tmp.0123456789abcdef").write_text("of a killed save")
        (folder / "notes.txt").write_text("mine")
    comm.Barrier()
    found = checkpoint.latest()
    assert found is not None
    assert found.step == 1
    comm.Barrier()
    checkpoint.save(2, {"x": np.ones(3)})
    assert sorted(file.name for file in folder.iterdir()) == ["000000000001.h5", "000000000002.h5", "notes.txt"]


ONES = np.ones(3)
BAD: dict[str, tuple[Callable[[ms.Checkpoint], object], str, str]] = {
    "step": (lambda one: one.save(-1, {"x": ONES}), "ArgumentError", "step is -1"),
    "step of another type": (lambda one: one.save(1.5, {"x": ONES}), "ArgumentError", "step is 1.5"),  # type: ignore[arg-type]
    "name": (lambda one: one.save(1, {"a/b": ONES}), "ArgumentError", "'a/b' is no name"),
    "empty name": (lambda one: one.save(1, {"": ONES}), "ArgumentError", "'' is no name"),
    "distributed": (lambda one: one.save(1, {"x": ONES}, distributed=["y"]), "ArgumentError", "distributed is ['y']"),
    "distributed text": (lambda one: one.save(1, {"x": ONES}, distributed="x"), "ArgumentError", "distributed is 'x'"),
    "objects": (lambda one: one.save(1, {"x": np.array([None])}), "SpecError", "dataset 'x' of"),
    "dates": (lambda one: one.save(1, {"x": ONES.astype("M8[s]")}), "SpecError", ".view('i8')"),
    "values": (lambda one: one.save(1, {"x": ONES}, values={"a": ONES}), "SpecError", "values cannot be saved"),
    "names of values": (lambda one: one.save(1, {}, values={1: 2}), "SpecError", "the name 1 is no text"),  # type: ignore[dict-item]
    "names within values": (lambda one: one.save(1, {}, values={"a": [{1: 2}]}), "SpecError", "the name 1 is no text"),
    "arrays without names": (lambda one: one.save(1, [ONES]), "ArgumentError", "arrays is of list"),  # type: ignore[arg-type]
    "no arrays": (lambda one: one.save(1, None), "ArgumentError", "arrays is of NoneType"),  # type: ignore[arg-type]
    "distributed number": (
        lambda one: one.save(1, {"x": ONES}, distributed=3),  # type: ignore[arg-type]
        "ArgumentError",
        "distributed is 3",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_saved(comm: MPI.Intracomm, folder: Path, raised: Raised, name: str) -> None:
    call, error, words = BAD[name]
    checkpoint = ms.Checkpoint(folder)
    told = raised(lambda: call(checkpoint))
    assert told[0][0] == error, told
    assert {kind for kind, _ in told} <= {error, "PeerError"}
    assert all(words in text for _, text in told)
    checkpoint.save(1, {})
    found = checkpoint.latest()
    assert found is not None
    assert found.names == ()


def test_arguments_of_the_rest(comm: MPI.Intracomm, folder: Path, raised: Raised) -> None:
    assert {error for error, _ in raised(lambda: ms.Checkpoint(folder, keep=0))} == {"ArgumentError"}
    assert {error for error, _ in raised(lambda: ms.Checkpoint(3))} == {"ArgumentError"}  # type: ignore[arg-type]
    checkpoint = ms.Checkpoint(folder)
    checkpoint.save(1, {"x": np.ones((4, 2)), "scalar": np.array(2.5)})
    found = checkpoint.latest()
    assert found is not None
    assert found.load("scalar")[()] == 2.5
    calls: list[Callable[[], Any]] = [
        lambda: found.load("y"),
        lambda: found.load("x", region=3),  # type: ignore[arg-type]
        lambda: found.load("x", region=slice(0, 4, 2)),
        lambda: found.load("scalar", region=slice(0, 1)),
        lambda: found.load("x", region=slice(0, 2), out=np.empty((2, 3))),
        lambda: found.load("x", region=slice(0, 2), out=np.empty((2, 2), "f4")),
        lambda: found.load("x", out=np.empty((4, 2))),
    ]
    for call in calls:
        assert {error for error, _ in raised(call)} == {"ArgumentError"}


@pytest.mark.ranks(2)
def test_calls_that_differ(comm: MPI.Intracomm, folder: Path, raised: Raised) -> None:
    checkpoint, last = ms.Checkpoint(folder), comm.rank == comm.size - 1
    for call in (
        lambda: checkpoint.save(1 if last else 2, {"x": ONES}),
        lambda: checkpoint.save(1, {"x" if last else "y": ONES}),
        lambda: checkpoint.save(1, {"x": ONES}, distributed=["x"] if last else []),
        lambda: checkpoint.save(1, {"x": np.ones(3, "f4" if last else "f8")}, distributed=["x"]),
        lambda: checkpoint.latest() if last else checkpoint.save(1, {"x": ONES}),
    ):
        assert {error for error, _ in raised(call)} == {"MismatchError"}
