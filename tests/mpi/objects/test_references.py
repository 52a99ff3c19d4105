"""References: what all ranks hold in node memory is neither sent nor stored again."""

import gc
import pickle
from typing import Any

import astropy.units as u
import numpy as np
import pandas as pd
import pytest
from mpi4py import MPI

import mpishare as ms
from mpishare.memory.segment import segment_at
from tests.arrays import DTYPES, assert_same, filled

N = 100_000
"""Float64 items of an array, 800 kB."""

SKELETON_BYTES = 4096
"""More than an object takes without its arrays."""


def shared(comm, value=0.0, n=N, **options):
    """An array in node memory."""
    return ms.share(np.arange(float(n)) + value if comm.rank == 0 else None, comm=comm, **options)


def again(comm, obj, root=-1):
    """The object of `root`, shared once more; and the bytes that this added to the node."""
    root %= comm.size
    before = ms.report().bytes_shared
    result = ms.share(obj if comm.rank == root else None, root=root, comm=comm)
    return result, ms.report().bytes_shared - before


def is_view(one, other):
    return one.ctypes.data == other.ctypes.data


@pytest.mark.parametrize("name", ["f8", ">c16", "struct", "gaps", "overlap", "titles", "record", "foreign", "M8[25s]"])
def test_views_of_any_layout(comm, name):
    """Also views of views, reversed, broadcast and empty ones. They keep their strides."""
    base = ms.share(filled(DTYPES[name], (4, 6, 5)) if comm.rank == 0 else None)
    fortran = ms.share(filled(DTYPES[name], (5, 3)).T if comm.rank == 0 else None)
    views = {
        "C": base, "Fortran": fortran, "strided": base[::2, 1:, ::3], "reversed": base[::-1, :, ::-1],
        "transposed": base.transpose(1, 2, 0), "broadcast": np.broadcast_to(base[:, :1, :1], (4, 3, 2)),
        "view of a view": base[1:][:, ::-2][0], "0-d": base[1, 2, 3, ...], "no items": base[:0],
        "flat": base.reshape(-1),
    }  # fmt: skip
    result, nbytes = again(comm, views)
    for key, view in views.items():
        assert_same(result[key], view)
        assert not view.nbytes or (is_view(result[key], view) and result[key].strides == view.strides)
        assert not result[key].flags.writeable
    assert nbytes < SKELETON_BYTES


def test_a_column_and_bytes_of_an_array(comm):
    base = ms.share(filled(DTYPES["struct"], (50,)) if comm.rank == 0 else None)
    views = [base["mass"], base["id"][3:], base.view("V15")[::5], np.asarray(base.data)]
    result, nbytes = again(comm, views)
    assert_same(result[0], base["mass"])
    assert all(map(is_view, result, views))
    assert nbytes < SKELETON_BYTES


def made_by_load(comm, folder, **options):
    path = folder / "x.npy"
    if comm.rank == 0:
        np.save(path, np.arange(float(N)))
    comm.Barrier()
    return ms.load(path, **options)


MAKERS = {
    "share": lambda comm, _: shared(comm),
    "share of few bytes": lambda comm, _: shared(comm, n=3),
    "load": lambda comm, folder: made_by_load(comm, folder),
    "load, mapped": lambda comm, folder: made_by_load(comm, folder, map=True),
    "allgather": lambda comm, _: ms.allgather(np.arange(float(N))),
    "allreduce": lambda comm, _: ms.allreduce(np.arange(float(N))),
    "of an object": lambda comm, _: ms.share({"a": np.arange(float(N))} if comm.rank == 0 else None)["a"],
    "private backend": lambda comm, _: shared(comm, backend="private"),
    "nameless file": lambda comm, _: shared(comm, backend="memmap"),
    "window": lambda comm, _: ms.share(call=lambda: np.arange(float(N)), backend="window,memmap"),
}
TRAVEL = {
    "zeros": lambda comm: ms.zeros(N),
    "zeros, seen read-only": lambda comm: np.lib.stride_tricks.as_strided(ms.zeros(N), writeable=False),
    "writable": lambda comm: shared(comm, writable=True),
    "private": lambda comm: ms.private(shared(comm, backend="memmap")),
    "private from the start": lambda comm: shared(comm, writable="private"),
    "of one rank": lambda comm: np.arange(float(N)),
}


@pytest.mark.parametrize("maker", MAKERS)
def test_what_is_in_node_memory_is_referred_to(comm, shared_folder, maker):
    array = MAKERS[maker](comm, shared_folder)
    result, nbytes = again(comm, {"whole": array, "part": array[1::2], "same": array})
    assert result["same"] is result["whole"]
    assert is_view(result["whole"], array)
    assert is_view(result["part"], array[1:])
    assert_same(result["part"], array[1::2])
    assert nbytes < SKELETON_BYTES


@pytest.mark.parametrize("maker", TRAVEL)
def test_what_may_change_travels_as_bytes(comm, maker):
    array = TRAVEL[maker](comm)
    result, nbytes = again(comm, {"array": array})
    assert_same(result["array"], array)
    assert not np.shares_memory(result["array"], array)
    assert nbytes >= array.nbytes


@pytest.mark.ranks(2)
def test_what_another_rank_may_change_travels_as_bytes(comm):
    """The ranks but one have read-only views of memory that this one writes, by its handle."""
    grid = ms.zeros(N, comm=ms.SELF, backend="memmap")
    handle = comm.bcast(ms.handle(grid))
    others = comm.Split(comm.rank > 0)
    result = ms.share({"grid": handle.get()}, comm=others)
    comm.Barrier()
    if comm.rank == 0:
        grid[:] = 1
    comm.Barrier()
    assert handle.get()[0] == 1
    assert result["grid"][0] == 0
    others.Free()


@pytest.mark.parametrize("options", [{"writable": True}, {"writable": "private"}, {"backend": "memmap"}])
def test_who_asks_for_memory_gets_it(comm, options):
    array = shared(comm)
    result = ms.share({"array": array} if comm.rank == 0 else None, **options)
    assert_same(result["array"], array)
    assert not np.shares_memory(result["array"], array)
    assert result["array"].flags.writeable == ("writable" in options)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("root", [0, -1])
def test_a_rank_that_dropped_an_array_gets_its_bytes_and_no_later_ones(comm, root):
    """The others refer to what all have. The slot is taken by another array meanwhile."""
    kept, dropped = shared(comm, 1.0), shared(comm, 2.0)
    small = [shared(comm, number, n=5) for number in range(3)]
    lacks = comm.rank == (1 if root == 0 else 0)
    if lacks:
        del dropped, small[1]
        gc.collect()
    later = [shared(comm, 50.0 + number, n=n) for number, n in enumerate([5] * 40 + [N])]
    mine = None if lacks else {"kept": kept, "dropped": dropped, "small": small}
    result, nbytes = again(comm, mine, root)
    assert is_view(result["kept"], kept)
    assert_same(result["dropped"], np.arange(float(N)) + 2.0)
    for number in range(3):
        assert_same(result["small"][number], np.arange(5.0) + number)
    assert 8 * N <= nbytes < 8 * N + SKELETON_BYTES
    assert lacks or not np.shares_memory(result["dropped"], dropped)
    assert len(later) == 41


@pytest.mark.ranks(2)
def test_a_rank_that_lacks_one_of_a_thousand(comm):
    """More references than there are bits."""
    arrays = [shared(comm, number, n=20) for number in range(1000)]
    if comm.rank == 1:
        arrays[7] = arrays[999] = arrays[0]
    result, _ = again(comm, arrays, 0)
    for number, found in enumerate(result):
        assert_same(found, np.arange(20.0) + number)
    views = sum(is_view(*pair) for pair in zip(result, arrays, strict=True))
    assert views >= 990


@pytest.mark.ranks(2)
def test_a_rank_that_has_it_by_a_handle_only(comm):
    """What a handle maps has no key: ranks may write to it."""
    array = shared(comm, backend="memmap")
    handle = ms.handle(array)
    other = pickle.loads(pickle.dumps(handle))  # the same one
    received = comm.bcast(handle if comm.rank == 0 else None)
    is_near = ms.topology().node == ms.topology().node_of(0)
    mapped = received.get() if is_near and comm.rank != 0 else None
    if comm.rank == 1:
        del array, handle, other
        gc.collect()
    result, nbytes = again(comm, {"array": array} if comm.rank == 0 else None, 0)
    assert_same(result["array"], np.arange(float(N)))
    assert mapped is None or not np.shares_memory(result["array"], mapped)
    assert nbytes >= 8 * N
    comm.Barrier()  # the first rank keeps its handle for the others


@pytest.mark.ranks(2)
def test_other_communicators(comm):
    """It does not matter over which one an array was made, or whether that was freed."""
    duplicate, half = comm.Dup(), comm.Split(comm.rank == 0, comm.rank)
    of_all, of_duplicate, of_half = (shared(one, number) for number, one in enumerate([comm, duplicate, half]))
    for one in (comm, duplicate, half, MPI.COMM_SELF):
        result, nbytes = again(one, [of_all, of_duplicate])
        assert is_view(result[0], of_all)
        assert is_view(result[1], of_duplicate)
        assert nbytes < SKELETON_BYTES
    assert is_view(again(half, [of_half])[0][0], of_half)
    result, nbytes = again(comm, [of_half, of_all])  # the first rank has another one
    assert_same(result[0], np.arange(float(N)) + 2)
    assert is_view(result[1], of_all)
    assert nbytes >= 8 * N
    duplicate.Free()
    half.Free()
    assert is_view(again(comm, [of_duplicate])[0][0], of_duplicate)


def test_each_node_shares_its_own(comm):
    node = ms.topology().node
    own = ms.share(call=lambda: np.full(N, float(node)), scope="node")
    assert is_view(ms.share({"own": own}, scope="node")["own"], own)
    root = comm.size - 1
    result, _ = again(comm, {"own": own}, root)
    assert_same(result["own"], np.full(N, float(ms.topology().node_of(root))))
    rows = ms.distribute(np.arange(12.0) if comm.rank == 0 else None)
    result, _ = again(comm, {"rows": rows.local}, 0)
    assert_same(result["rows"], np.arange(12.0)[: len(result["rows"])])


def test_classes_around_arrays(comm):
    """A subclass with a unit, a frame, a mask, and what another library made of the memory."""
    speeds = ms.share(np.arange(float(N)) * u.km if comm.rank == 0 else None)
    frame = ms.share(pd.DataFrame({"a": np.arange(N), "b": np.ones(N)}) if comm.rank == 0 else None)
    foreign = np.frombuffer(memoryview(shared(comm)).cast("B"), "f8")
    masked = np.ma.array(shared(comm), mask=ms.share(np.zeros(N, bool) if comm.rank == 0 else None))
    given = {"speeds": speeds[::2], "frame": frame, "foreign": foreign, "masked": masked}
    result, nbytes = again(comm, given)
    assert (result["speeds"].unit, result["speeds"].to_value("m")[1]) == (u.km, 2000.0)
    pd.testing.assert_frame_equal(result["frame"], frame)
    assert segment_at(result["frame"]["a"].to_numpy()) is segment_at(frame["a"].to_numpy())
    assert is_view(result["foreign"], foreign)
    assert is_view(result["masked"].data, masked.data)
    assert nbytes < 2 * SKELETON_BYTES


class Nested:
    """Shares an array of its own when it is unpickled, which is a call of all ranks."""

    def __init__(self, array):
        self.array = array

    def __setstate__(self, state):
        self.__dict__.update(state, made=ms.share(np.arange(9.0)))


@pytest.mark.ranks(2)
def test_no_class_is_called_before_all_have_what_it_needs(comm):
    array = shared(comm)
    if comm.rank == 1:
        del array
    result, _ = again(comm, Nested(array) if comm.rank == 0 else None, 0)
    assert_same(result.array, np.arange(float(N)))
    assert result.made[8] == 8.0


def test_a_reference_keeps_the_memory(comm):
    array = shared(comm)
    result, _ = again(comm, [array[7:]])
    address = array.ctypes.data
    del array
    gc.collect()
    assert result[0].ctypes.data == address + 56
    shared(comm, 5.0)
    assert_same(result[0], np.arange(float(N))[7:])
    assert len(ms.report().segments) == 1  # once
    del result
    assert not ms.report().segments


class Items(dict[str, int]):
    """State that is not in its attributes."""


class Slotted:
    """The same."""

    __slots__ = ("__dict__", "__weakref__", "value")


class Guarded:
    """It says itself how it is pickled."""

    def __getstate__(self):
        return {**vars(self), "state": "pickled"}


def test_objects_that_are_always_pickled(comm):
    """Their changes may be anywhere."""
    slotted: Any = Slotted()
    slotted.value = 1
    for made in (Items(a=1), slotted, Guarded(), pd.DataFrame({"a": [1]})):
        given = ms.share(made)
        (result,), _ = again(comm, [given], 0)
        assert type(result) is type(given)
        assert result is not given
