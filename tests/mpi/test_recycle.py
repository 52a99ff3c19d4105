"""Memory that arrays use in turn: never two at a time, never more than allowed, and given back when it is needed."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from numpy.typing import NDArray

import mpishare as ms
from mpishare.comm.context import context_of
from mpishare.memory import selection
from mpishare.memory.kinds import Kind
from mpishare.memory.segment import segment_of
from tests.mpi.test_segments import HERE, permissions, use

pytestmark = pytest.mark.mpi

LARGE = 3 << 20
ROUNDS = {100: 150, LARGE // 8: 8}
"""How often arrays of so many items are made, so that their memory must be used again. A slab has fewer slots."""


@pytest.fixture(params=HERE, ids=lambda kind: kind.title)
def kind(request: pytest.FixtureRequest, keeping: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> Kind:
    """Each kind in turn, as the only one that there is."""
    keeping("64M")
    found: Kind = request.param
    monkeypatch.setattr(selection, "KINDS", (found,))
    return found


@pytest.fixture
def keeping(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Sets MPISHARE_RECYCLE for COMM_WORLD, with no memory from before."""

    def keep(recycled: str) -> None:
        recycle.give_back()
        use(monkeypatch, directory=None, recycle=recycled)

    yield keep
    gc.collect()
    recycle.give_back()


def address(array: NDArray[Any]) -> int:
    segment = segment_of(array)
    assert segment is not None
    return segment.address


def shared(number: int, count: int = 100) -> NDArray[Any]:
    return ms.share(np.full(count, number) if MPI.COMM_WORLD.rank == 0 else None)


def recycles() -> bool:
    """Whether the kind in force is one that several arrays can use in turn, on all nodes."""
    return all(kind.is_shared for kind in selection.KINDS) or max(map(len, ms.topology().placement.nodes)) == 1


def test_live_arrays_keep_their_bits_whoever_drops_what_when(kind: Kind, comm: MPI.Intracomm) -> None:
    common, own = random.Random(comm.size), random.Random(comm.rank)
    live: list[tuple[int, NDArray[Any]]] = []
    for number in range(120):
        count, root = common.choice([0, 1, 7, 100, 1000, 30_000, 100_000, 400_000]), common.randrange(comm.size)
        made = ms.share(np.full(count, number) if comm.rank == root else None, root=root)
        live.append((number, made[: count // 2 + 1] if own.random() < 0.2 else made))
        del made
        while live and own.random() < 0.5:
            live.pop(own.randrange(len(live)))
        if number % 10 == 0:
            assert all((array == number).all() for number, array in live)
    assert all((array == number).all() and not array.flags.writeable for number, array in live)


@pytest.mark.parametrize("count", [100, LARGE // 8])
def test_memory_is_used_again_once_all_ranks_have_dropped_it(kind: Kind, comm: MPI.Intracomm, count: int) -> None:
    seen = []
    for number in range(ROUNDS[count]):
        array = shared(number, count)
        seen.append(address(array))
        assert (array == number).all()
        del array
    if recycles():
        assert len(set(seen)) < len(seen)


def test_memory_is_not_used_again_while_one_rank_reads_it(kind: Kind, comm: MPI.Intracomm) -> None:
    kept = None
    for number in range(ROUNDS[LARGE // 8]):
        array = shared(number, LARGE // 8)
        if number == 0 and comm.rank == comm.size - 1:
            kept = array[5:]
        del array
    assert kept is None or (kept == 0).all()


def test_zeros_are_zero_in_used_memory(keeping: Callable[[str], None]) -> None:
    keeping("64M")
    for count, rounds in ROUNDS.items():
        for _ in range(rounds):
            grid = ms.zeros(count)
            assert not grid.any()
            ms.fence()
            grid[:] = 7.0
            ms.fence()


@pytest.mark.parametrize("count", [100, LARGE // 8])
def test_pages_of_share_are_read_only_and_those_of_zeros_writable(kind: Kind, count: int) -> None:
    for _ in range(2):
        array = shared(1, count)
        if context_of().config.second_map:
            assert permissions(address(array)).startswith("r--")
        del array
        if recycles():
            grid = ms.zeros(count)
            assert permissions(address(grid)).startswith("rw-")
            grid[0] = 1.0
            del grid


def test_no_more_is_kept_than_allowed(keeping: Callable[[str], None]) -> None:
    if not context_of().config.second_map:
        return  # a window of MPI stays
    keeping("12M")
    arrays = [shared(number, LARGE // 8) for number in range(5)]
    addresses = [address(array) for array in arrays]
    while arrays:
        del arrays[0]
    assert [bool(permissions(one)) for one in addresses] == [False, False, False, True, True]
    huge = shared(1, 3 * LARGE // 8)
    where = address(huge)
    del huge
    assert not permissions(where)
    recycle.give_back()
    assert not any(map(permissions, addresses))
    assert (shared(3, LARGE // 8) == 3).all()  # the others hear that it is gone


@pytest.mark.parametrize("count", [100, LARGE // 8])
def test_what_a_forked_child_may_read_is_left_alone(keeping: Callable[[str], None], count: int) -> None:
    keeping("64M")
    array = shared(-1, count)
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(told, 1)
        os._exit(0 if (array == -1).all() else 1)
    del array
    for number in range(ROUNDS[count]):
        shared(number, count)
    os.write(tell, b"g")
    assert os.waitpid(child, 0)[1] == 0
    os.close(told)
    os.close(tell)


@pytest.mark.filterwarnings("ignore:private")
@pytest.mark.parametrize("count", [100, LARGE // 8])
def test_a_private_view_keeps_what_it_shows(keeping: Callable[[str], None], count: int) -> None:
    keeping("64M")
    mine = ms.private(shared(-1, count))
    mine[0] = 5
    for number in range(ROUNDS[count]):
        shared(number, count)
    assert mine[0] == 5
    assert (mine[1:] == -1).all()


def test_freed_communicators_keep_nothing(comm: MPI.Intracomm, keeping: Callable[[str], None]) -> None:
    if not context_of().config.second_map:
        return
    keeping("64M")
    duplicate = comm.Dup()
    here, context = ms.topology(duplicate), context_of(duplicate)
    context.config = replace(context.config, recycle="64M", backend=None)
    array = ms.share(np.arange(LARGE) if comm.rank == 0 else None, comm=duplicate)
    where = address(array)
    del array, here
    assert permissions(where)
    duplicate.Free()
    gc.collect()
    assert not permissions(where)


def test_many_live_small_arrays_take_few_maps(keeping: Callable[[str], None]) -> None:
    keeping("64M")

    def maps() -> int:
        return len(Path("/proc/self/maps").read_text().splitlines())

    before = maps()
    kept = [shared(number) for number in range(500)]
    assert maps() - before < 100
    assert all((array == number).all() for number, array in enumerate(kept))


def test_free_slots_are_given_back_where_there_is_no_room(
    keeping: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not context_of().config.second_map:
        return
    keeping("64M")
    kept, dropped = shared(1), [shared(number, 100_000) for number in range(5)]
    addresses = [address(array) for array in dropped]
    dropped.clear()
    assert all(map(permissions, addresses))
    with pytest.raises(ms.CapacityError):
        ms.zeros(1 << 50)
    assert not any(map(permissions, addresses))
    assert (kept == 1).all()
    again = [shared(number, 100_000) for number in range(5)]
    assert all((array == number).all() for number, array in enumerate(again))


@pytest.mark.ranks(2)
def test_a_call_that_a_signal_ended_on_one_rank_is_the_last(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a signal handler raises can come anywhere. Here it comes once the ranks have agreed, on the last of them."""
    duplicate = comm.Dup()
    here, context = ms.topology(duplicate), context_of(duplicate)
    if here.n_nodes > 1 or context.config.recycle == "0":  # the others would wait for the rank, as MPI does
        duplicate.Free()
        return
    live = [ms.share(np.full(100, 7) if comm.rank == 0 else None, comm=duplicate) for _ in range(2)]

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    if comm.rank == comm.size - 1:
        monkeypatch.setattr("mpishare.sharing.broadcast_spec", interrupt)
        with pytest.raises(KeyboardInterrupt):
            ms.share(None, comm=duplicate)
        monkeypatch.undo()
    else:
        live.append(ms.share(np.full(100, 7) if comm.rank == 0 else None, comm=duplicate))
    for _ in range(2):
        with pytest.raises(ms.MpishareError, match="out of step"):
            ms.share(np.full(100, 9), root=comm.size - 1, comm=duplicate)
    assert all((array == 7).all() for array in live)
    live.clear()
    duplicate.Free()
