"""The conformance suite: what every segment kind must do, whatever it is made of."""

from __future__ import annotations

import errno
import gc
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
import pytest
from mpi4py import MPI

import mpishare as ms
from mpishare.comm.context import context_of
from mpishare.memory import allocation, selection
from mpishare.memory.kinds import Kind
from mpishare.memory.memmap import MemmapInFolder
from mpishare.memory.segment import Segment, live_segments, segment_of
from mpishare.memory.window import KeptWindow, Window
from tests.arrays import bits, filled

pytestmark = pytest.mark.mpi


# Where MPI is told to make no windows, all other kinds must serve.
MAKES_WINDOWS = dict(os.environ).get("OMPI_MCA_osc") != "^ucx,sm"
HERE = [one for one in selection.KINDS if one.name != "window" or MAKES_WINDOWS]


@pytest.fixture(params=HERE, ids=lambda kind: kind.title)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Kind:
    """Each kind in turn, as the only one that there is, with fresh memory for each array."""
    found: Kind = request.param
    use(monkeypatch, recycle="0", directory=None)
    monkeypatch.setattr(selection, "KINDS", (found,))
    return found


def use(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
    """Other settings for COMM_WORLD, and no memory from before."""
    here, context = ms.topology(), context_of()
    monkeypatch.setattr(here, "channel", context.collective_comm)  # a new pool may make boards for these
    monkeypatch.setattr(here, "node_channel", context.node_collective_comm)
    monkeypatch.setattr(here, "config", replace(context.config, backend=None, **settings))
    monkeypatch.setattr(here, "pool", None)


def allocate(nbytes: int) -> Segment:
    """A segment of the kind that there is."""
    return allocation.allocate(ms.topology(), nbytes, backend=None, label="test", writable=False)


def test_it_fits_here(kind: Kind) -> None:
    kind.check(ms.topology(), 1 << 20)
    assert selection.probe(ms.topology())[kind.title].startswith("fits")


@pytest.mark.parametrize("nbytes", [1, 4095, 4097, 5 << 20])
def test_ranks_of_a_node_see_one_copy_or_each_its_own(kind: Kind, nbytes: int) -> None:
    here, context = ms.topology(), context_of()
    block = allocate(nbytes).block()
    assert block.shape == (nbytes,)
    if here.is_leader or not kind.is_shared:
        block[:] = 1 + (here.node if kind.is_shared else here.rank)
    ms.fence()
    assert (block == 1 + (here.node if kind.is_shared else here.rank)).all()


def test_writing_is_refused_where_the_others_would_not_see_it(kind: Kind) -> None:
    here, context = ms.topology(), context_of()
    if kind.is_shared or max(map(len, here.placement.nodes)) == 1:
        assert ms.zeros(3).tolist() == [0, 0, 0]
    else:
        with pytest.raises((ms.BackendError, ms.PeerError), match="write to a copy of its own"):
            ms.zeros(3)


@pytest.mark.parametrize("order", ["C", "F"])
def test_shared_bits_from_every_root(kind: Kind, comm: MPI.Intracomm, order: Literal["C", "F"]) -> None:
    source = np.asarray(filled(np.dtype(">f4"), (300, 7, 50)), order=order)
    for root in range(comm.size):
        shared = ms.share(source if comm.rank == root else None, root=root)
        assert bits(shared) == bits(source)
        assert not shared.flags.writeable


def test_sealed_pages_are_read_only(kind: Kind) -> None:
    segment = allocate(10_000)
    segment.seal()
    block = segment.block()
    assert not block.flags.writeable
    if context_of().config.second_map:
        assert permissions(segment.address).startswith("r--")


def test_memory_goes_with_the_last_view(kind: Kind) -> None:
    count = len(live_segments())
    block = allocate(10_000).block()
    view = block[::7].reshape(-1, 1)
    del block
    gc.collect()
    assert len(live_segments()) == count + 1
    address = segment_of(view).address  # type: ignore[union-attr]
    assert permissions(address)
    del view
    gc.collect()
    assert len(live_segments()) == count
    if context_of().config.second_map:
        assert not permissions(address)


def test_keys_are_agreed_and_differ(kind: Kind, comm: MPI.Intracomm) -> None:
    segments = [allocate(10) for _ in range(5)]
    keys = [segment.key for segment in segments]
    assert len(set(keys)) == 5
    assert comm.allgather(keys) == [keys] * comm.size


def test_it_refuses_what_cannot_fit(kind: Kind) -> None:
    with pytest.raises(ms.CapacityError, match="bytes do not fit") as caught:
        allocate(1 << 55)
    wanted = {(1 << 55) * (1 if kind.is_shared else len(ranks)) for ranks in ms.topology().placement.nodes}
    assert caught.value.wanted in wanted


def test_it_is_told_in_the_report(kind: Kind) -> None:
    array = ms.share(np.arange(1000))
    here, context = ms.topology(), context_of()
    one = next(one for one in ms.report().segments if one.nbytes == array.nbytes)
    assert (one.backend, one.refusals) == (kind.title, {})
    assert one.copies == (1 if kind.is_shared else here.node_size)
    assert one.bytes_saved == array.nbytes * (here.node_size - one.copies)


class Refusing:
    """A kind that fails late on one rank of each node, as where others took the room meanwhile. It satisfies `Kind`."""

    name = title = "refusing"
    together = True

    def check(self, topology: ms.Topology, nbytes: int) -> None: ...

    def allocate(self, topology: ms.Topology, nbytes: int) -> NoReturn:
        topology.node_comm.Barrier()
        raise OSError(errno.EIO, "the disk is broken") if topology.is_leader else MemoryError("no pages")


def test_the_next_kind_serves_where_one_fails(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, recycle="0")
    monkeypatch.setattr(selection, "KINDS", (Refusing(), *selection.KINDS))
    shared = ms.share(np.arange(1000) if comm.rank == 0 else None)
    assert shared.tolist() == list(range(1000))
    one = next(one for one in ms.report().segments if one.nbytes == 8000)
    assert next(iter(one.refusals)) == "refusing"
    assert "the disk is broken" in str(ms.report()) or "no pages" in str(ms.report())


def test_where_no_kind_fits_all_ranks_are_told_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    here, context = ms.topology(), context_of()
    monkeypatch.setattr(here, "config", replace(context.config, backend=None))
    with pytest.raises(ms.CapacityError) as caught:
        ms.share(np.broadcast_to(np.zeros(1), 1 << 57))
    assert caught.value.wanted == 1 << 60
    assert 0 < caught.value.free < 1 << 60
    assert caught.value.host in here.hosts
    unnamed = [kind for kind in selection.KINDS if f"{kind.title}: " not in str(caught.value)]
    assert len(unnamed) == 1  # the words of this one are those of the error itself


@pytest.mark.parametrize(
    ("folder", "words"),
    [("/no/such/folder", "there is no folder"), ("/proc", "/proc is on proc"), ("/sys", "/sys is on sysfs")],
)
def test_folders_that_do_not_do(folder: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    here, context = ms.topology(), context_of()
    monkeypatch.setattr(here, "config", replace(context.config, directory=folder))
    monkeypatch.setattr(selection, "KINDS", (MemmapInFolder(),))
    with pytest.raises((ms.BackendError, ms.PeerError), match=words):
        allocate(1000)


def test_all_ranks_of_a_node_keep_a_window_that_one_cannot_map_again(monkeypatch: pytest.MonkeyPatch) -> None:
    here, context = ms.topology(), context_of()
    if here.node_rank == here.node_size - 1:
        monkeypatch.setattr("mpishare.memory.window._second_map", lambda address, nbytes: None)
    if not MAKES_WINDOWS and here.node_size > 1:
        with pytest.raises(ms.BackendError, match="this MPI makes no shared-memory windows"):
            Window().allocate(here, 10_000)
        return
    memory = Window().allocate(here, 10_000)
    kept = here.node_size > 1
    assert memory.lifetime == ("stays until MPI_Finalize" if kept else "goes with its last view")
    if kept:
        KeptWindow._kept.pop().Free()  # so that the test itself leaves nothing


def test_an_ordinary_array_has_no_segment() -> None:
    assert segment_of(np.arange(3)) is None


def permissions(address: int) -> str:
    """The permissions of the map that holds `address`, "" where nothing is mapped."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(end, 16) for end in line.split()[0].split("-"))
        if low <= address < high:
            return line.split()[1]
    return ""


class Broken:
    """A kind that raises on the last rank of each node what nobody expects. It satisfies `Kind`."""

    name = title = "broken"
    together = True

    def check(self, topology: ms.Topology, nbytes: int) -> None: ...

    def allocate(self, topology: ms.Topology, nbytes: int) -> NoReturn:
        raise ZeroDivisionError if topology.node_rank == topology.node_size - 1 else ms.BackendError("only refused")


@pytest.mark.parametrize("count", [10, 1 << 20])
@pytest.mark.parametrize("recycle", ["0", "64M"])
def test_what_nobody_expects_ends_the_call_on_all_ranks(
    count: int, recycle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, recycle=recycle)
    here, context = ms.topology(), context_of()
    monkeypatch.setattr(selection, "KINDS", (Broken(), *selection.KINDS))
    is_culprit = here.node_rank == here.node_size - 1
    with pytest.raises(ZeroDivisionError if is_culprit else ms.MpishareError):
        ms.zeros(count)
    monkeypatch.undo()
    assert not ms.zeros(count).any()
