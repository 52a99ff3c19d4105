"""The conformance suite: what every segment kind must do, whatever it is made of."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import mpishare as ms
from mpishare.segments.protocol import Kind
from mpishare.segments.registry import KINDS, allocate, probe
from mpishare.segments.segment import live_segments, segment_of
from mpishare.segments.window import KeptWindow, Window

pytestmark = pytest.mark.mpi

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


@every_kind
def test_it_fits_here(kind: Kind) -> None:
    assert kind.refusal(ms.topology(), 1 << 20) is None
    assert probe(ms.topology())[kind.name].startswith("fits")


@every_kind
@pytest.mark.parametrize("nbytes", [1, 4095, 4097, 5 << 20])
def test_ranks_of_a_node_share_bytes_and_nodes_do_not(kind: Kind, nbytes: int) -> None:
    here = ms.topology()
    segment = allocate(here, nbytes, backend=kind.name, label="test")
    block = segment.block()
    assert block.shape == (nbytes,)
    if here.is_leader:
        block[:] = here.node + 1
    ms.fence()
    assert (block == here.node + 1).all()


@every_kind
def test_sealed_pages_are_read_only(kind: Kind) -> None:
    segment = allocate(ms.topology(), 10_000, backend=kind.name, label="test")
    segment.seal()
    block = segment.block()
    assert not block.flags.writeable
    if ms.topology().config.second_map:
        assert permissions(segment.address).startswith("r--")


@every_kind
def test_memory_goes_with_the_last_view(kind: Kind) -> None:
    count = len(live_segments())
    block = allocate(ms.topology(), 10_000, backend=kind.name, label="test").block()
    view = block[::7].reshape(-1, 1)
    del block
    gc.collect()
    assert len(live_segments()) == count + 1
    address = segment_of(view).address  # type: ignore[union-attr]
    assert permissions(address)
    del view
    gc.collect()
    assert len(live_segments()) == count
    if ms.topology().config.second_map:
        assert not permissions(address)


@every_kind
def test_keys_are_agreed_and_differ(kind: Kind, comm: MPI.Intracomm) -> None:
    segments = [allocate(ms.topology(), 10, backend=kind.name, label="test") for _ in range(5)]
    keys = [segment.key for segment in segments]
    assert len(set(keys)) == 5
    assert comm.allgather(keys) == [keys] * comm.size


@every_kind
def test_it_refuses_what_cannot_fit(kind: Kind) -> None:
    with pytest.raises((ms.CapacityError, ms.PeerError)):
        allocate(ms.topology(), 1 << 60, backend=kind.name, label="test")


def test_all_ranks_of_a_node_keep_a_window_that_one_cannot_map_again(monkeypatch: pytest.MonkeyPatch) -> None:
    here = ms.topology()
    if here.node_rank == here.node_size - 1:
        monkeypatch.setattr("mpishare.segments.window._second_map", lambda address, nbytes: None)
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
