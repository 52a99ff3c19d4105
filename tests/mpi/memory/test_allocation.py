"""Memory that arrays use in turn: never two at a time, never more than allowed, and released when it is needed."""

import gc
import os
import random
from pathlib import Path

import numpy as np
import pytest

import mpishare as ms
from mpishare.comm.lookup import context_of
from mpishare.memory import cache
from tests.mpi.memory.conftest import KINDS, permissions, settings_of

LARGE = 3 << 17
"""Items of an array that is too large for a slot: 3 MiB."""
ROUNDS = {100: 150, LARGE: 8}
"""How many arrays of so many items are made, so that their memory must be used again. A slab has fewer slots."""

SHARED = {title: kind for title, kind in KINDS.items() if kind.is_shared}


@pytest.fixture
def keeping(configured):
    """The ranks of the launch, with enough cached memory for these tests, which can be mapped twice."""
    return configured(recycle="64M", second_map="1")


def shared(comm, number, count=100):
    return ms.share(np.full(count, number) if comm.rank == 0 else None, comm=comm)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_live_arrays_keep_their_bits_whichever_are_deleted(kind, configured):
    """Garbage collection in different orders on different ranks.

    Outcome: nothing: to release is local.
    """
    comm = configured(**settings_of(kind), recycle="64M")
    common, own = random.Random(comm.size), random.Random(comm.rank)
    live = []
    for number in range(120):
        count, root = common.choice([0, 1, 7, 100, 1000, 30_000, 100_000, 400_000]), common.randrange(comm.size)
        array = ms.share(np.full(count, number) if comm.rank == root else None, root=root, comm=comm)
        live.append((number, array[: count // 2 + 1] if own.random() < 0.2 else array))
        del array
        while live and own.random() < 0.5:
            live.pop(own.randrange(len(live)))
        if number % 10 == 0:
            assert all((array == number).all() for number, array in live)
    assert all((array == number).all() and not array.flags.writeable for number, array in live)


@pytest.mark.parametrize("count", ROUNDS)
@pytest.mark.parametrize("kind", SHARED.values(), ids=SHARED)
def test_dropped_memory_is_used_again_writable_or_not_as_needed(kind, configured, count):
    comm = configured(**settings_of(kind), recycle="64M")
    addresses = set()
    for number in range(ROUNDS[count]):
        array, grid = shared(comm, number, count), ms.zeros(count, comm=comm)
        if number < 4 and context_of(comm).config.second_map:  # reading the maps takes long
            assert permissions(array.ctypes.data).startswith("r--")
            assert permissions(grid.ctypes.data).startswith("rw-")
        assert (array == number).all()
        assert not grid.any()
        ms.fence(comm=comm)
        grid[:] = 7.0
        ms.fence(comm=comm)
        addresses |= {array.ctypes.data, grid.ctypes.data}
        del array, grid
    assert len(addresses) < 2 * ROUNDS[count]
    assert any(map(permissions, addresses))


@pytest.mark.filterwarnings("ignore:private")
@pytest.mark.parametrize("count", ROUNDS)
def test_memory_that_a_child_or_a_private_view_shows_is_not_used_again(keeping, count):
    array = shared(keeping, -1, count)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os._exit(0 if os.read(reader, 1) and (array == -1).all() else 1)
    del array
    view = ms.private(shared(keeping, -2, count))
    view[0] = 5
    for number in range(ROUNDS[count]):
        shared(keeping, number, count)
    os.write(writer, b"g")
    assert os.waitpid(child, 0)[1] == 0
    os.close(reader)
    os.close(writer)
    assert view[0] == 5
    assert (view[1:] == -2).all()


def test_no_more_is_cached_than_allowed(configured):
    comm = configured(recycle="12M", second_map="1")  # half of it for slabs
    arrays = [shared(comm, number, LARGE) for number in range(5)]
    addresses = [array.ctypes.data for array in arrays]
    while arrays:
        del arrays[0]
    assert [bool(permissions(address)) for address in addresses] == [False, False, False, True, True]
    too_large = shared(comm, 1, 3 * LARGE)
    addresses.append(too_large.ctypes.data)
    del too_large
    assert not permissions(addresses[-1])
    cache.clear()
    assert not any(map(permissions, addresses))
    array = shared(comm, 3, LARGE)
    assert (array == 3).all()  # the ranks know what others have released
    address = array.ctypes.data
    del array
    assert permissions(address)
    comm.Free()  # which caches nothing any more
    gc.collect()
    assert not permissions(address)


def test_many_live_small_arrays_take_few_maps(keeping):
    before = len(Path("/proc/self/maps").read_text().splitlines())
    arrays = [shared(keeping, number) for number in range(500)]
    assert len(Path("/proc/self/maps").read_text().splitlines()) - before < 100
    assert all((array == number).all() for number, array in enumerate(arrays))


def test_free_slabs_are_released_where_there_is_no_room(keeping):
    """No room but that of segments kept for arrays to come (MPISHARE_RECYCLE).

    Outcome: they are given back, and the array fits.
    """
    live, arrays = shared(keeping, 1), [shared(keeping, number, 100_000) for number in range(5)]
    addresses = [array.ctypes.data for array in arrays]
    arrays.clear()
    assert all(map(permissions, addresses))
    with pytest.raises(ms.CapacityError):
        ms.zeros(1 << 50, comm=keeping)
    assert not any(map(permissions, addresses))
    assert (live == 1).all()
    arrays = [shared(keeping, number, 100_000) for number in range(5)]
    assert all((array == number).all() for number, array in enumerate(arrays))
