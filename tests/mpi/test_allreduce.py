"""allreduce: the same bits on all ranks, in the order that is promised, one copy per node."""

import functools
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import mpishare as ms
from mpishare.collectives.allreduce import CALLS_WITHOUT_MEMORY
from mpishare.comm.context import context_of
from mpishare.memory.segment import Segment
from mpishare.transfer.reduce import FewMemory, Operation
from tests.mpi.test_errors import assert_refused_alike

FUNCTIONS = {
    "SUM": ("iufc", np.add),
    "PROD": ("iufc", np.multiply),
    "MIN": ("iuf", np.minimum),
    "MAX": ("iuf", np.maximum),
    **{f"L{name}": ("biu", getattr(np, f"logical_{name.lower()}")) for name in ("AND", "OR", "XOR")},
    **{f"B{name}": ("biu", getattr(np, f"bitwise_{name.lower()}")) for name in ("AND", "OR", "XOR")},
}
"""For each operation of MPI the kinds of dtypes that it takes, and NumPy's function."""

DTYPES = ["?", "i1", "u1", "i2", "u4", "i8", "u8", "f2", "f4", "f8", "g", "c8", "c16", "G", ">i4", ">f8", ">c16"]


def numbers(dtype, rank, count):
    """Numbers that differ between ranks and whose sums are rounded, some of them 0."""
    values = np.random.default_rng(rank).normal(size=count) * 3
    return (np.abs(values) if np.dtype(dtype).kind in "bu" else values).astype(dtype)


def expected(inputs, function):
    """NumPy's results in the order that the docstring of `allreduce` promises."""

    def fold(arrays):
        with np.errstate(all="ignore"):
            return functools.reduce(lambda lower, upper: function(lower, upper).astype(lower.dtype), arrays)

    nodes = [fold([inputs[rank] for rank in ranks]) for ranks in ms.topology().placement.nodes]
    return fold(nodes).astype(inputs[0].dtype)  # in the byte order of the inputs


def assert_reduced(result, wanted, comm):
    """The right values on all ranks, bit for bit except for the padding of long doubles; and read-only."""
    assert (result.dtype, result.shape) == (wanted.dtype, wanted.shape)
    assert type(result) is np.ndarray
    assert not result.flags.writeable
    np.testing.assert_array_equal(result, wanted)
    if result.dtype.char not in "gG":  # their padding is arbitrary
        assert len(set(comm.allgather(result.tobytes()))) == 1


@pytest.mark.parametrize("count", [7, 3000])
def test_every_operation_and_dtype_in_the_promised_order(comm, count):
    for dtype in DTYPES:
        inputs = [numbers(dtype, rank, count) for rank in range(comm.size)]
        for name, (kinds, function) in FUNCTIONS.items():
            if np.dtype(dtype).kind in kinds and (count < 100 or name in ("SUM", "LXOR")):
                assert_reduced(ms.allreduce(inputs[comm.rank], getattr(MPI, name)), expected(inputs, function), comm)


@pytest.mark.parametrize("count", [1, 2, 3, 1000])
def test_products_of_any_size_have_the_bits_of_the_promised_order(comm, count):
    """NumPy multiplies one complex item in place in another order of the operands, which FMA rounds otherwise."""
    for dtype in ("c8", "c16", "f8"):
        for turn in range(10):
            inputs = [numbers(dtype, 1000 * turn + rank, 2 * count) for rank in range(comm.size)]
            inputs = [array + 1j * array[::-1] if dtype != "f8" else array for array in inputs]
            for part in (slice(0, count), slice(None, None, 2)):
                wanted = expected([array[part].copy() for array in inputs], np.multiply)
                assert ms.allreduce(inputs[comm.rank][part], MPI.PROD).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("backend", ["", "private"])
def test_every_size_in_every_way(configured, backend):
    """The same bits in each run, also where leaders reduce in several pieces."""
    duplicate = configured(backend=backend)
    for count in (1, 127, 1500, 20_001, 70_000, 300_001, 3 << 18):
        inputs = [numbers("f8", rank, count) for rank in range(duplicate.size)]
        local = inputs[duplicate.rank]
        for _ in range(2):
            result = ms.allreduce(copy := local.copy(), comm=duplicate)
            copy[:] = -1  # which no rank reads any more
            assert_reduced(result, expected(inputs, np.add), duplicate)
        assert (ms.allreduce(local, "max", comm=duplicate) == np.max(inputs, 0)).all()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_operation_by_its_name_and_by_the_function_of_numpy(name, comm):
    local, function = np.arange(5) * (comm.rank - 1), FUNCTIONS[name][1]
    wanted = ms.allreduce(local, getattr(MPI, name)).tobytes()
    for op in (name, name.lower(), function, function.__name__):
        assert ms.allreduce(local, op).tobytes() == wanted


NUMBERS = [3, -0.5, 2 - 1j, np.float32(1.5), np.int8(3), np.float64(0.1), np.longdouble(2), np.int64(4), np.longlong(4)]


@pytest.mark.parametrize("number", NUMBERS, ids=repr)
def test_a_number_gives_a_number_of_its_type(comm, number):
    kind = type(number)
    of_ranks = [kind(number * (rank + 1)) for rank in range(comm.size)]
    for op, function in ((None, np.add), ("prod", np.multiply), (np.add, np.add)):
        result = ms.allreduce(of_ranks[comm.rank], op)
        assert type(result) is kind
        assert result == expected([np.array(one) for one in of_ranks], function)
    if kind is not complex:
        assert ms.allreduce(of_ranks[comm.rank], "min") == min(of_ranks)
    assert [ms.allreduce(comm.rank == 0, op) for op in ("lor", np.logical_and)] == [True, comm.size == 1]


@pytest.mark.ranks(2)
def test_a_number_and_an_array_without_dimensions_differ(comm, raised):
    errors = raised(lambda: ms.allreduce(1.0 if comm.rank else np.array(1.0)))
    assert_refused_alike(errors, "MismatchError", "a number")
    errors = raised(lambda: ms.allreduce(1.0, out=ms.zeros(())))
    assert_refused_alike(errors, "SpecError", "builtins.float was given; expected a numpy.ndarray")
    if ms.topology().n_nodes == 1:
        errors = raised(lambda: ms.allreduce(np.ones(3), scope="nodes"))  # each rank's own
        assert_refused_alike(errors, "SpecError", "scope 'nodes' is for an array that the ranks of a node share")
    errors = raised(lambda: ms.allreduce(1.0, scope="nodes"))
    assert_refused_alike(errors, "ArgumentError", "scope 'nodes' is for an array that the ranks of a node share")


@pytest.mark.parametrize("is_large", [True, False])
def test_strides_and_orders(comm, is_large):
    def layouts(array):
        column, item = np.broadcast_to(array[:, :1], array.shape), array[0, 3:4].reshape(())
        return [array, np.asfortranarray(array), array[::-2, 1::3], column, array[:0], item]

    ramp = np.arange(60_000.0).reshape(200, 300) if is_large else np.arange(63.0).reshape(7, 9)
    table, total = ramp * (comm.rank + 1), ramp * (comm.size * (comm.size + 1) // 2)
    mixed = np.asfortranarray(table) if comm.rank else table
    for local, wanted in zip([*layouts(table), mixed], [*layouts(total), total], strict=True):
        result = ms.allreduce(local)
        assert_reduced(result, wanted, comm)
        assert result.flags.fnc == (local.flags.fnc and local is not mixed)


@pytest.mark.parametrize("count", [7, 5000, 200_000])
def test_nans_have_the_same_bits_on_all_ranks(comm, count):
    local = np.full(count, 0x7FF8_0000_0000_0001 + comm.rank, "u8").view("f8")  # a sum has the bits of its first one
    assert_reduced(ms.allreduce(local), np.full(count, np.nan), comm)
    local.flags.writeable = False
    assert len(set(comm.allgather(ms.allreduce(local, MPI.MAX).tobytes()))) == 1


@pytest.mark.once
def test_operations_that_no_function_of_numpy_does(raised):
    created = MPI.Op.Create(lambda _lower, _upper, _datatype: None, commute=True)
    for op in (created, MPI.MAXLOC, MPI.OP_NULL):
        errors = raised(functools.partial(ms.allreduce, np.ones(3), op))
        assert all(error == "ArgumentError" and "comm.Allreduce takes one of" in text for error, text in errors)
    created.Free()


def test_a_rank_in_the_next_call_does_not_write_what_others_still_read(comm):
    for turn in range(3000):
        results = [ms.allreduce(1000 * turn + comm.rank, op) for op in ("min", "max")]
        assert results == [1000 * turn, 1000 * turn + comm.size - 1]
        if turn % comm.size == comm.rank:
            os.sched_yield()  # so that each rank is the last one now and then


def test_the_memory_for_few_bytes_is_freed_with_its_communicator(comm):
    def maps():
        return len(Path("/proc/self/maps").read_text().splitlines())

    counts = []
    for _ in range(20):
        duplicate = comm.Dup()
        assert all(ms.allreduce(1, comm=duplicate) == comm.size for _ in range(CALLS_WITHOUT_MEMORY + 2))
        duplicate.Free()
        counts.append(maps())
    assert counts[-1] <= counts[9]


@pytest.mark.ranks(2)
def test_an_error_of_one_rank_that_all_know_leaves_the_next_calls_right(comm, monkeypatch):
    def is_right(number):
        return (ms.allreduce(np.arange(number, number + 3)) == comm.size * np.arange(number, number + 3)).all()

    def failing(*_):
        raise MemoryError

    assert all(map(is_right, range(CALLS_WITHOUT_MEMORY + 1)))
    if ms.topology().n_nodes > 1 or not context_of().cached(FewMemory).blocks:  # else the others are in a collective
        return
    with monkeypatch.context() as patched:
        if comm.rank == 0:
            patched.setattr(Segment, "view", failing)
        with pytest.raises(ms.PeerError if comm.rank else MemoryError):
            ms.allreduce(np.arange(3))
    assert all(map(is_right, range(4, 8)))


@pytest.mark.once
@pytest.mark.ranks(2)
def test_an_exception_before_the_leaders_meet_cuts_its_rank_off(configured, comm, monkeypatch):
    """The leaders of other nodes may be in their collective, and come to no agreement."""
    ours = configured(timeout="0.5")
    context = context_of(ours)
    for _ in range(CALLS_WITHOUT_MEMORY):
        ms.allreduce(np.ones(3), comm=ours)

    def interrupted(*_):
        raise KeyboardInterrupt

    if context.topology.n_nodes > 1 and comm.rank == 0:
        monkeypatch.setattr(Operation, "fold", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ms.allreduce(np.ones(3), comm=ours)
        assert context.is_cut_off
    else:
        with suppress(ms.StallError):
            ms.allreduce(np.ones(3), comm=ours)
