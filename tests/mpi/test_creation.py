"""empty, zeros, full and so on make one array per node; bcast, fence, partition on arrays that exist; info, report."""

import inspect
import json
import os
import time
from typing import Any

import numpy as np
import pytest

import mpishare as ms
from mpishare.memory.backends import BACKENDS
from mpishare.memory.pages import huge_areas, huge_bytes
from tests.arrays import DTYPES, REPRESENTATIVES

SHAPES = [(shape, order, "f8") for shape in [(), 5, (0,), (2, 0, 3), (3, 4), (7, 1, 5)] for order in "CF"]
SHAPES += [((2, 3), "C", dtype) for dtype in [">i2", "?", "c8", "S3"]]


@pytest.mark.parametrize(("shape", "order", "dtype"), SHAPES)
def test_shape_and_order(shape, order, dtype):
    for name, value in (("empty", ()), ("zeros", ()), ("ones", ()), ("full", (2.5,))):
        array, twin = (getattr(library, name)(shape, *value, dtype, order=order) for library in (ms, np))
        assert (array.shape, array.dtype, array.flags.fnc) == (twin.shape, twin.dtype, twin.flags.fnc)
        assert array.flags.writeable
        assert type(array) is np.ndarray
        assert name == "empty" or array.tobytes() == twin.tobytes()


def test_zeros_are_zero_in_every_byte():
    for source in REPRESENTATIVES.values():
        array = ms.zeros(source.shape, source.dtype)
        assert (array.shape, array.dtype) == (source.shape, source.dtype)
        assert array.tobytes() == bytes(source.nbytes)


UNTYPED = [7, 2.5, True, 3 + 4j, "naïve", np.datetime64("2013-01-01", "s")]
TYPED = [(b"bytes", "S3"), (-1, ">i4"), (0.1, "g"), (float("nan"), "f4"), ((1, 2.0, b"ab"), DTYPES["struct"])]


@pytest.mark.parametrize(("value", "dtype"), [*((value, None) for value in UNTYPED), *TYPED])
def test_full_is_numpys_full(value, dtype):
    array = ms.full((4, 3), value, dtype)
    twin = np.empty((4, 3), array.dtype)
    twin[...] = value
    assert array.dtype == (np.array(value).dtype if dtype is None else dtype)
    assert array.tolist() == twin.tolist() or array.tobytes() == twin.tobytes()


PROTOTYPES = [
    np.arange(6.0).reshape(2, 3),
    np.ones((3, 2), ">i4", order="F")[:, :1],
    np.array(3, "f4"),
    np.ones((2, 2), order="F"),
]
LIKE: list[dict[str, Any]] = [
    {},
    {"dtype": "i2"},
    {"shape": (4, 5)},
    {"order": "F"},
    {"order": "A"},
    {"dtype": "U2", "shape": 3},
]


@pytest.mark.parametrize("options", LIKE, ids=str)
def test_arrays_like_an_array_are_numpys(options):
    for array in PROTOTYPES:
        for name, values in (("zeros_like", ()), ("full_like", (7.5,)), ("empty_like", ())):
            made = getattr(ms, name)(array, *values, **options)
            twin = getattr(np, name)(array, *values, **options)
            assert (made.shape, made.dtype, made.flags.fnc) == (twin.shape, twin.dtype, twin.flags.fnc)
            assert made.flags.writeable
            assert name == "empty_like" or made.tobytes() == twin.tobytes()


def test_bcast_refreshes_in_place_from_every_root(comm):
    array = ms.zeros((300, 1000), "i8")  # several chunks
    for root in range(comm.size):
        if comm.rank == root:
            array[:] = np.arange(300_000).reshape(300, 1000) + root
        assert ms.bcast(array, root=root) is array
        assert (array.ravel() == np.arange(300_000) + root).all()
        comm.Barrier()


def test_bcast_of_a_part_sends_what_any_rank_of_the_node_wrote(comm):
    nodes, root = ms.topology(), comm.size - 1
    array = ms.zeros((3, comm.size), "f4")
    array[:, comm.rank] = comm.rank + 1
    ms.bcast(array[1:2], root=root)
    for row, node in enumerate((nodes.node, nodes.node_of(root), nodes.node)):
        assert array[row].tolist() == [rank + 1 if rank in nodes.ranks_of(node) else 0 for rank in range(comm.size)]


@pytest.mark.parametrize("scope", ["node", "nodes", "all"])
def test_no_rank_leaves_a_fence_before_the_last_has_come(comm, scope):
    nodes = ms.topology()
    ranks = comm if scope == "all" else nodes.node_comm
    array = ms.zeros(comm.size, "i8")
    for late in range(ranks.size):
        ranks.Barrier()
        if ranks.rank == late:
            time.sleep(0.02)  # the others are in the fence by now, and must stay there
            array[late] = 1
        came = time.monotonic()
        ms.fence(scope=scope)
        left = time.monotonic()
        assert min(ranks.allgather(left)) >= max(ranks.allgather(came))
        assert array[late] == (scope != "all" or nodes.node_of(late) == nodes.node)
    comm.Barrier()


def test_one_rank_asks_for_the_facts(comm):
    """And no other."""
    topology = ms.topology()
    if comm.rank == comm.size - 1:
        facts = ms.info()
        placed = zip(topology.hosts, topology.placement.nodes, strict=True)
        assert [(node.host, node.ranks) for node in facts.nodes] == list(placed)
        assert [number for number, node in enumerate(facts.nodes) if node.machine] == [topology.node]
        assert f"node {topology.node}: {topology.host}, rank" in facts.summary
        assert "finds out" in facts.summary.splitlines()[0]
        assert json.loads(json.dumps(facts.as_dict()))["size"] == comm.size


def test_report_tells_arrays_apart():
    """By the line that made them, dtype and shape. A view is its array; the arrays of an object are one entry."""
    before = len(ms.report().segments)
    kept = [ms.zeros((1000, 10)), ms.zeros(10_000), ms.share(np.ones((1000, 10), "i8", order="F"))]
    line = inspect.currentframe().f_lineno - 1
    model, small = ms.share({"weights": np.ones(8192)}), ms.share(np.ones(3))
    views = [array[5:] for array in kept]
    segments = [segment for segment in ms.report().segments if segment.where.startswith(__file__)]
    assert len(ms.report().segments) == len(segments) + 1 + before == 5 + before
    specs: list[Any] = [(array.dtype, array.shape, f"{__file__}:{line}") for array in kept]
    specs.append((None, None, f"{__file__}:{line + 2}"))
    assert [(each.dtype, each.shape, each.where) for each in segments] == specs
    assert len({str(segment) for segment in segments}) == 4
    assert f", int64 (1000, 10), {__file__}:{line}" in str(ms.report())
    assert ", float64 (3,)\n" in f"{ms.report()}\n"
    del kept, views, model, small


def test_report_counts_live_segments():
    before = ms.report()
    large, small = ms.zeros(4_000_000), ms.share(np.arange(10))
    report = ms.report()
    assert report.bytes_shared - before.bytes_shared == 32_000_080
    assert report.bytes_saved - before.bytes_saved == 32_000_080 * (ms.topology().node_size - 1)
    assert (report.segments[0].made_by, report.segments[0].nbytes) == ("zeros", large.nbytes)
    assert report.segments[0].backend in {backend.title for backend in BACKENDS}
    assert "32,000,000 bytes" in str(report)
    if not before.segments:
        copies = ms.topology().node_size * 32
        assert report.summary == f"32.0 MB per node instead of {copies}.0 MB with one copy per rank"
    pages = {segment.nbytes: segment.page_bytes for segment in report.segments}
    assert pages[small.nbytes] == os.sysconf("SC_PAGE_SIZE")
    is_huge = any(large.ctypes.data + large.nbytes // 2 in area for area in huge_areas())
    assert pages[large.nbytes] == (huge_bytes() if is_huge else pages[small.nbytes])
    del large, small
    assert ms.report().bytes_shared == before.bytes_shared
