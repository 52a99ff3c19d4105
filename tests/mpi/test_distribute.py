"""Rows split over the nodes, and taken from any of them: bit for bit, each node's rows once, errors before any row."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import mpishare as ms
from mpishare.host.memory import memory_room
from mpishare.transfer import exchange, rows
from tests.arrays import REPRESENTATIVES, bits, filled
from tests.mpi.test_errors import LAST, assert_refused, assert_refused_by_some


def items(array):
    """The items as bytes, which NumPy copies whole: of a dtype with gaps it would leave some out."""
    return array.view(np.dtype((np.void, array.dtype.itemsize))) if array.nbytes else array


def assert_takes(distributed, array, indices, **out):
    """This rank takes the rows that NumPy takes."""
    result, expected = distributed.take(indices, **out), items(array)[np.asarray(indices, np.int64)]
    assert (result.shape, result.dtype, type(result)) == (expected.shape, array.dtype, np.ndarray)
    assert bits(result) == bits(expected)
    assert result.flags.c_contiguous
    assert result.flags.writeable


def some_rows(comm, array, count):
    """Indices of any sign, which differ between ranks."""
    rng = np.random.default_rng([comm.rank, count])
    return rng.integers(-len(array), len(array), count if len(array) else 0)


def in_order_of_nodes(array, topology):
    """What `local=array[ms.partition(n)]` of all ranks makes."""
    ranks = [rank for ranks in topology.placement.nodes for rank in ranks]
    order = np.concatenate([np.arange(len(array))[ms.partition(len(array), rank=rank)] for rank in ranks])
    return items(array)[order].view(array.dtype)


def assert_split(comm, distributed, array):
    """The array is split over the nodes, and each rank takes any rows."""
    topology = ms.topology(comm)
    assert (distributed.shape, distributed.dtype, distributed.nbytes) == (array.shape, array.dtype, array.nbytes)
    ranges = comm.allgather(distributed.rows)
    all_rows = [row for ranks in topology.placement.nodes for row in ranges[ranks[0]]]
    assert all_rows == [*range(len(array))]
    own = slice(distributed.rows.start, distributed.rows.stop)
    assert bits(distributed.local) == bits(array[own])
    assert not distributed.local.flags.writeable
    assert distributed.node_of([*distributed.rows]).tolist() == [topology.node] * len(distributed.rows)
    for count in (0, 1, 7, 2000):
        assert_takes(distributed, array, some_rows(comm, array, count if comm.rank else 3))


@pytest.mark.parametrize("backend", ["", "private"])
def test_representatives_keep_their_bits(configured, backend):
    duplicate = configured(backend=backend)
    for array in [each for each in REPRESENTATIVES.values() if each.ndim] + [filled(np.dtype("f4"), (3, 1, 2, 1, 2))]:
        for root in {0, duplicate.size - 1}:
            source = array if duplicate.rank == root else None
            assert_split(duplicate, ms.distribute(source, root=root, comm=duplicate), array)
        expected = in_order_of_nodes(array, ms.topology(duplicate))
        part = array[ms.partition(len(array))]
        assert_split(duplicate, ms.distribute(local=part, comm=duplicate), expected)


@pytest.mark.parametrize("row_bytes", [1, 8, 3000, 20_000, 700_000])
def test_rows_of_any_size(comm, monkeypatch, row_bytes):
    """Small rows in a stage, large ones one by one, and those that take several messages."""
    monkeypatch.setattr(rows, "LARGEST_MESSAGE_BYTES", 300_000)  # as if it were 2**31
    array = np.frombuffer(np.random.default_rng(1).bytes(50 * row_bytes), np.uint8).reshape(50, row_bytes)
    distributed = ms.distribute(array if comm.rank == 0 else None)
    for count in (0, 5, 100 if row_bytes > 9999 else 5000):
        assert_takes(distributed, array, some_rows(comm, array, count * (comm.rank % 2)))
        assert_takes(distributed, array, some_rows(comm, array, count))


def test_many_rounds(comm, monkeypatch):
    """Also as many rows of a node as just fill one round or two, with 170 each."""
    monkeypatch.setattr(exchange, "_LOTS_BYTES", 4096)
    monkeypatch.setattr(exchange, "_LARGE_ROW_BYTES", 4096)
    array = np.arange(30_000.0).reshape(-1, 3)
    distributed = ms.distribute(array if comm.rank == 0 else None)
    for count in (10, 7000):
        assert_takes(distributed, array, some_rows(comm, array, count))
    for count in (169, 170, 340):
        assert_takes(distributed, array, np.arange(len(array) - count, len(array)))


def test_rows_of_this_node(comm):
    array = np.arange(40).reshape(20, 2)
    distributed = ms.distribute(array if comm.rank == 0 else None)
    first, stop = distributed.rows.start, distributed.rows.stop
    if stop - first > 2:
        assert distributed[first].tolist() == array[first].tolist()
        assert distributed[stop - 20 - 1].tolist() == array[stop - 1].tolist()
        for region in (np.s_[first:stop], np.s_[first + 1 : stop : 2], np.s_[stop - 1 : first : -1], np.s_[5:5]):
            assert distributed[region].tolist() == array[region].tolist()
            assert distributed[region].base is not None
    if stop - first < 20:
        other = stop % 20
        for index in (other, other - 20, np.s_[:], np.s_[::-1]):
            with pytest.raises(ms.ArgumentError, match=r"is on node \d.*take\(\) brings rows of all nodes"):
                distributed[index]
    wrong: tuple[Any, ...] = [0], (0, 0), None, 1.0
    for key in wrong:
        with pytest.raises(ms.ArgumentError, match="is not an integer or a slice"):
            distributed[key]
    with pytest.raises(ms.ArgumentError, match="index 20 is not one of 20 rows"):
        distributed[20]


def test_each_node_holds_its_rows_once(comm):
    topology = ms.topology()
    distributed = ms.distribute(local=np.full((100_000 * (comm.rank + 1), 2), comm.rank, "f4"))
    counts = [100_000 * sum(rank + 1 for rank in ranks) for ranks in topology.placement.nodes]
    segment = ms.report().segments[0]
    assert (segment.made_by, segment.nbytes, segment.copies) == ("distribute", 8 * counts[topology.node], 1)
    assert (segment.rows_per_node, segment.bytes_per_node) == (tuple(counts), tuple(8 * count for count in counts))
    assert all(f"node {node}: {count:,} rows, {8 * count:,} bytes" in str(segment) for node, count in enumerate(counts))
    assert np.unique(distributed.local).tolist() == sorted(topology.ranks_of(topology.node))


def test_nodes_with_little_memory_take_less(comm, monkeypatch):
    """The last node has memory for a row, the others for as many as they like."""
    topology = ms.topology()
    room = memory_room()
    is_last = topology.node == topology.n_nodes - 1
    free = 8 if is_last else 8 * 9999
    monkeypatch.setattr("mpishare.objects.distributed.memory_room", lambda: replace(room, free=free))
    array = np.arange(3000)
    distributed = ms.distribute(array if comm.rank == 0 else None)
    if topology.n_nodes > 1:
        assert len(distributed.rows) <= 1 if is_last else len(distributed.rows) >= 2999 // (topology.n_nodes - 1)
    assert_split(comm, distributed, array)


def test_more_than_all_nodes_have(comm, raised):
    huge = np.broadcast_to(np.uint8(1), (1 << 45,))
    for call in (lambda: ms.distribute(huge), lambda: ms.distribute(local=huge)):
        errors = raised(call)
        assert_refused_by_some(errors, "CapacityError", " bytes each would hold all ")
        assert all(" nodes with " in text for _, text in errors)
    assert ms.distribute(np.arange(3)).shape == (3,)


BAD_INDICES: dict[str, tuple[Any, str]] = {
    "too large": ([0, 10], "index 10 is not one of 10 rows; expected -10 to 9"),
    "past int64": (np.array([2**64 - 1], "u8"), "index 18446744073709551615 is not one of"),
    "a mask": (np.ones(10, "?"), "indices have dtype bool; expected integers. For a mask, pass numpy.flatnonzero"),
    "floats": ([1.0], "indices have dtype float64; expected integers"),
    "not an array": ([[1], [2, 3]], "indices are not an array"),
}


def test_bad_indices_on_one_rank(comm, raised):
    distributed = ms.distribute(np.arange(10) if comm.rank == 0 else None)
    for indices, message in BAD_INDICES.values():
        errors = raised(lambda indices=indices: distributed.take(indices if comm.rank == LAST else [1]))
        assert_refused(errors, LAST, "ArgumentError", message)
    assert_takes(distributed, np.arange(10), [9, 0])


@pytest.mark.ranks(2)
def test_ranks_that_differ(comm, raised):
    """With MPISHARE_CHECK, the ranks of a node that differ hear of it first, and the other nodes of their error."""
    one, other = ms.distribute(local=np.ones(3)), ms.distribute(local=np.ones(3))
    nodes = ms.topology()
    for call in (
        lambda is_last: (one if is_last else other).take([0]),
        lambda is_last: one.take([0]) if is_last else ms.allgather(np.ones(1)),
        lambda is_last: ms.distribute(local=np.ones(2)) if is_last else ms.distribute(np.ones(2)),
        lambda is_last: ms.distribute(local=np.ones((2, 1 + is_last))),
    ):
        errors = raised(lambda call=call: call(comm.rank == LAST))
        assert {errors[rank][0] for rank in nodes.ranks_of(nodes.node_of(LAST))} == {"MismatchError"}
        assert {error for error, _ in errors} <= {"MismatchError", "PeerError"}
        assert all(f"rank {LAST}: " in text for _, text in errors)
