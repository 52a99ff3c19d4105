"""share: the same bits on every rank, one copy per node, read-only, alive as long as a view. private: own changes."""

import gc
import signal
import time
import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest

import mpishare as ms
from mpishare.collectives import share
from mpishare.transfer import between_nodes
from tests.arrays import DTYPES, REPRESENTATIVES, bits, filled
from tests.processes import anonymous_bytes

SOURCES = {
    **REPRESENTATIVES,
    **{name: filled(DTYPES[name], (3, 5)) for name in ("record", "aligned", "many columns")},
    # around a page and a chunk
    **{f"{n}": filled(DTYPES["u1"], (n,)) for n in (1, 4095, 4096, 4097, 131_071, 131_072, 131_073, 3_000_001)},
}


@pytest.mark.parametrize("name", SOURCES)
def test_every_root_layout_and_size(comm, name):
    source = SOURCES[name]
    for root in range(comm.size):
        shared: Any = ms.share(source if comm.rank == root else object(), root=root)
        expected = comm.bcast((bits(source), source.shape, source.flags.fnc) if comm.rank == root else None, root)
        assert (bits(shared), shared.shape, shared.flags.fnc) == expected
        assert (shared.dtype, shared.dtype.type) == (source.dtype, source.dtype.type)
        assert shared.dtype.isalignedstruct == source.dtype.isalignedstruct
        assert type(shared) is np.ndarray
        assert not shared.flags.writeable


@pytest.mark.parametrize("nbytes", [16 << 10, (16 << 10) + 8, 200_000])
def test_again_and_again_from_arrays_that_change_afterwards(comm, nbytes):
    for number in range(6):
        source = np.asfortranarray(filled(DTYPES["u1"], (nbytes // 8, 8)) + np.uint8(number))
        expected = bits(source)
        source.flags.writeable = number % 2 == 0
        root = number % comm.size
        shared = ms.share(source if comm.rank == root else None, root=root)
        source.flags.writeable = True
        source[...] = 0
        comm.Barrier()
        assert bits(shared) == expected


def test_a_neighbour_of_the_root_may_change_a_source_that_is_shared_once_it_has_returned(comm, monkeypatch):
    """The other node's leader is late with its part of the broadcast: the neighbour has changed the source by then.

    Where the call took the last free slot, the neighbour waits for all ranks. It takes two nodes, of which the first
    has ranks 0 and 1, as in the launch mpi-3-block:2.
    """
    topology = ms.topology()
    if topology.n_nodes != 2 or topology.node_of(1) != topology.node_of(0):
        return
    late, waits = topology.ranks_of(1)[0], []

    def broadcast(*args, **options):
        end = time.monotonic() + 0.1
        while comm.rank == late and time.monotonic() < end:
            if comm.iprobe(source=1):
                waits.append(comm.recv(source=1))
                break
        between_nodes.broadcast(*args, **options)

    monkeypatch.setattr(share, "broadcast", broadcast)
    source = ms.zeros(64 << 10, "u1")
    for number in range(8):
        shared = ms.share(source if comm.rank == 0 else None)
        if comm.rank == 1:
            source += 1
            comm.send(number, late)
        if comm.rank == late and waits[-1:] != [number]:
            comm.recv(source=1)
        comm.Barrier()
        assert (shared == number).all()
    assert comm.rank != late or waits


@pytest.mark.parametrize("name", REPRESENTATIVES)
def test_the_root_calls_a_function_for_what_it_shares(comm, name):
    calls = []

    def read():
        calls.append(name)
        return REPRESENTATIVES[name]

    for root in range(comm.size):
        assert bits(ms.share(call=read, root=root)) == bits(REPRESENTATIVES[name])
    assert calls == [name]
    assert ms.share(call=(lambda: {"name": [1]}) if comm.rank == 0 else None) == {"name": [1]}


def test_an_error_of_the_function_is_every_ranks_error(comm):
    last = comm.size - 1
    with pytest.raises(KeyError if comm.rank == last else ms.PeerError, match="no table"):
        ms.share(call=lambda: dict[str, int]()["no table"], root=last)
    refused = "zeros was called (within the function of|while this rank is in) share"
    with pytest.raises(ms.MpishareError, match=refused):
        ms.share(call=lambda: ms.zeros(3), root=last)
    with pytest.raises(ms.SpecError if comm.rank == last else ms.PeerError, match=f"root {last} gave None"):
        ms.share(call=lambda: None, root=last)
    assert ms.share(call=lambda: 7, root=last) == 7


def slept(seconds):
    time.sleep(seconds)
    return seconds


@pytest.mark.once
@pytest.mark.ranks(2)
def test_a_handler_that_raises_on_a_rank_that_waits_for_the_function(comm, monkeypatch):
    last, sleep = comm.size - 1, time.sleep

    def read():
        comm.send(None, last)
        comm.recv(source=last)

    def interrupted(seconds):
        sleep(seconds)
        if comm.Iprobe(source=0):
            comm.recv(source=0)
            comm.send(None, 0)
            signal.raise_signal(signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    if comm.rank == last:
        monkeypatch.setattr(time, "sleep", interrupted)
    with pytest.raises(KeyboardInterrupt if comm.rank == last else ms.MpishareError):
        ms.share(call=read)
    signal.signal(signal.SIGALRM, before)
    assert ms.share(call=lambda: 7) == 7


@pytest.mark.once
@pytest.mark.ranks(2)
def test_ranks_sleep_while_the_function_runs_and_do_not_take_it_for_a_stall(comm, configured):
    watched = configured(timeout="2")
    for own, seconds in ((comm, 1), (watched, 2.5)):
        start = time.process_time()
        assert ms.share(call=partial(slept, seconds), comm=own) == seconds
        assert time.process_time() - start < seconds / 2
    ms.fence(comm=watched)


def test_writing_is_refused_and_cannot_be_switched_on():
    shared = ms.share(np.arange(3.0))
    with pytest.raises(ValueError, match="read-only"):
        shared[0] = 1
    for view in (shared, shared[1:], shared.view("i8")):
        with pytest.raises(ValueError, match="WRITEABLE"):
            view.flags.writeable = True


def test_a_view_on_one_rank_outlives_all_else(comm):
    """The caller's communicator freed while views live.

    Outcome: nothing: the views stay.
    """
    half = comm.Split(comm.rank % 2, -comm.rank)
    arrays = [ms.share(np.full(100_000, number) if half.rank == 0 else None, comm=half) for number in range(5)]
    views = [array.reshape(100, 1000)[7, ::3] for array in arrays if half.rank == half.size - 1]
    del arrays
    gc.collect()
    half.Free()
    others = [ms.zeros(100_000) for _ in range(5)]
    assert all((view == number).all() for number, view in enumerate(views))
    del others


def test_a_function_that_is_shared_itself(comm, recwarn):
    """Where its result was meant, `call` was forgotten. A function of arguments has no result."""

    def read_table(rows=3, *, start=0.0):
        return np.arange(start, rows)

    functions: list[Any] = [read_table, np.ones, partial(read_table, 2), lambda x, *, y: x + y]
    got = [ms.share(function) for function in functions]
    texts = [str(warning.message) for warning in recwarn.list]
    assert all("Use share(call=read_table) for its result" in text for text in texts)
    assert len(texts) == (comm.rank == 0)
    assert got[0]().tolist() == ms.share(call=read_table).tolist() == [0, 1, 2]


def private(array):
    """The private array, and whether it is copy-on-write, else the lowest rank of the node warns. On all ranks."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        view = ms.private(array)
    assert all("bytes were copied" in str(warning.message) for warning in caught)
    node_comm = ms.topology().node_comm
    assert not (caught and node_comm.rank)
    return view, node_comm.bcast(not caught)


@pytest.mark.parametrize("part", [np.s_[...], np.s_[3:50:7, ::-2], np.s_[4], np.s_[5, 6, ...], np.s_[:0]])
def test_a_private_view_has_the_same_bits_and_own_changes(comm, part):
    source = filled(np.dtype(">u4"), (60, 1000))
    shared = ms.share(source if comm.rank == 0 else None)
    view = private(shared[part])[0][...]  # a view, which outlives the private view
    assert (view.shape, bits(view)) == (source[part].shape, bits(source[part]))
    view[...] = comm.rank
    comm.Barrier()
    assert (view == comm.rank).all()
    assert bits(shared) == bits(source)


def test_a_private_view_takes_memory_for_changed_pages_only(comm):
    nbytes = 64 << 20
    shared = ms.share(np.ones(nbytes, "u1") if comm.rank == 0 else None)
    kind = ms.report().segments[0].backend
    before = anonymous_bytes()
    view, is_copy_on_write = private(shared)
    assert is_copy_on_write == kind.startswith("memmap")
    view[: 1 << 20] = 2
    comm.Barrier()
    assert anonymous_bytes() - before < (2 << 20) + (0 if is_copy_on_write else nbytes)
    assert (view[: 1 << 20] == 2).all()
    assert (view[1 << 20 :: 4096] == 1).all()
    assert (shared[::4096] == 1).all()
