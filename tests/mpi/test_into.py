"""Results that go into arrays which are there, arrays that all ranks of a node write, and what counts once per node."""

import os
import pickle
from functools import partial
from itertools import product

import numpy as np
import pytest
from mpi4py import MPI

import mpishare as ms
from tests.arrays import bits, filled
from tests.mpi.test_errors import assert_refused, assert_refused_alike


def own_rows(comm, dtype="f8", columns=3):
    """The rank's rows, a number of which differs between ranks, and all of them as MPI gathers them by pickle."""
    local = (np.arange((comm.rank + 2) * columns) * (comm.rank + 1)).reshape(-1, columns).astype(dtype)
    return local, np.concatenate(comm.allgather(local)).astype(dtype)


def refill(grid, numbers):
    """All ranks see the numbers in the grid."""
    if ms.topology().is_leader:
        grid[:] = numbers
    ms.fence(scope="all")


@pytest.mark.parametrize("columns", [3, 30_000])
def test_each_rank_computes_its_rows_of_the_grid_in_each_iteration(comm, columns):
    """The rows may be those of the grid, where they lie."""
    rows, n = ms.rows(comm.rank + 1)
    grid, expected = ms.zeros((n, columns)), np.zeros((n, columns))
    for _ in range(3):
        grid[rows] += comm.rank + 1
        ms.allgather(grid[rows], out=grid)
        expected += np.repeat(np.arange(comm.size) + 1.0, np.arange(comm.size) + 1)[:, np.newaxis]
        assert (grid == expected).all()
        ms.fence(scope="all")


def test_rows_that_do_not_fit_the_grid(comm, raised):
    local, expected = own_rows(comm)
    grid, shared = ms.zeros(expected.shape), ms.share(expected)
    cases = {
        "the rows of all ranks are float64": (local, ms.zeros((len(expected) + 1, 3))),
        "the rows of all ranks are int64": (local.astype("i8"), grid),
        "in C order": (local, ms.zeros(expected.shape, order="F")),
        "cannot be traced to node-shared memory": (local, expected.copy()),
        "out is read-only": (local, shared),
        "out is float64 of shape ()": ((item := ms.zeros(())).reshape(1), item),
        "out is a part that is not contiguous": (local, ms.zeros((len(expected), 6))[:, ::2]),
    }
    for text, (given, out) in cases.items():
        assert_refused_alike(raised(partial(ms.allgather, given, out=out)), "SpecError", text)
    assert not grid.any()


@pytest.mark.parametrize("dtype", [pickle.loads(pickle.dumps(np.dtype("f8"))), np.dtype("f8", metadata={"unit": "m"})])
def test_rows_whose_dtype_equals_that_of_numpy_and_is_another_object(comm, dtype):
    """On some ranks, such as one that has received its rows from a process of its own."""
    of_numpy, expected = own_rows(comm)
    out = ms.zeros(expected.shape)
    for first in (0, 1):
        local = of_numpy if comm.rank % 2 == first else of_numpy.view(dtype)
        assert bits(ms.allgather(local, out=out)) == bits(expected)
        assert bits(ms.allgather(local)) == bits(expected)
        ms.fence(scope="all")


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", ["allgather", "allreduce", "bcast", "put"])
def test_what_differs_from_the_last_call_is_checked(comm, raised, name):
    """Another array on one rank, and one that has become read-only."""
    ones, shape, last = np.ones((1 if name == "allgather" else comm.size, 3)), (comm.size, 3), comm.size - 1
    kept, other = ms.zeros(shape), ms.zeros(shape)

    def call(array):
        if name == "put":
            return ms.put(array, 0, 1.0)
        return ms.bcast(array) if name == "bcast" else getattr(ms, name)(ones, out=array)

    call(kept)
    assert_refused_alike(raised(lambda: call(other if comm.rank == last else kept)), "MismatchError", f"rank {last}: ")
    call(kept)
    kept.flags.writeable = False
    assert_refused_alike(raised(lambda: call(kept)), "SpecError", "is read-only")


@pytest.mark.parametrize("n_more", [0, 1], ids=["as many on each rank", "different numbers"])
@pytest.mark.parametrize("columns", [3, 30_000])
def test_rows_that_lie_where_those_of_other_ranks_go(comm, columns, n_more):
    """Also those that begin before the grid, end behind it, or are in the reverse order."""
    counts = [2 + n_more * rank for rank in range(comm.size)]
    n_own, n_all, are_equal = counts[comm.rank], sum(counts), []
    for first, step in ((-1, 1), (1, 1), (0, 1), (0, -1)):
        whole = ms.zeros((n_all + 4, columns))
        grid = whole[2:-2]
        refill(whole, np.arange(n_all + 4)[:, np.newaxis])
        turned = [counts[rank] for rank in range(comm.size - 1, -1, -1)]  # rank 0 has the last rows
        start = 2 + first + sum(turned[: comm.size - 1 - comm.rank])
        local = whole[start : start + n_own][::step]
        expected = np.concatenate(comm.allgather(local))
        comm.Barrier()
        are_equal.append(np.array_equal(ms.allgather(local, out=grid), expected))
        ms.fence(scope="all")
    assert all(are_equal)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("n", [4, 100_000])
def test_a_sum_into_an_array(comm, n, order):
    local = np.arange(3.0 * n).reshape(3, n) * (comm.rank + 1)
    total = ms.zeros((3, n), order=order)
    for given in (local, np.asfortranarray(local), np.asfortranarray(local) if comm.rank else local):
        assert ms.allreduce(given, out=total) is total
        assert bits(np.array(total, order="C")) == bits(np.array(ms.allreduce(local), order="C"))
        ms.fence(scope="all")
    assert ms.allreduce(local, MPI.MAX, out=total).max() == local.max() // (comm.rank + 1) * comm.size


@pytest.mark.parametrize("n", [5, 200_000])
def test_a_tally_of_each_node_counts_once(comm, n, raised):
    nodes = ms.topology()
    tally = ms.zeros(n)
    tally[ms.partition(n, scope="node")] = nodes.node + 1
    expected = sum(range(1, nodes.n_nodes + 1))
    assert all((ms.allreduce(tally, scope=scope) == expected).all() for scope in ("node", "nodes"))
    assert (tally == nodes.node + 1).all()
    errors = raised(lambda: ms.allreduce(tally))
    if nodes.size > nodes.n_nodes:
        sizes = [len(nodes.ranks_of(nodes.node_of(rank))) for rank in range(nodes.size)]
        assert [error for error, _ in errors] == ["SpecError" if size > 1 else "PeerError" for size in sizes]
        assert "would count twice" in errors[0][1]
    assert ms.allreduce(tally, scope="nodes", out=tally) is tally
    assert (tally == expected).all()


def test_gathered_and_scattered_rows_into_own_arrays(comm, raised):
    counts = list(range(comm.size))
    table = np.arange(2.0 * sum(counts)).reshape(-1, 2)
    part = np.empty((comm.rank, 2))
    source = np.asfortranarray(table) if comm.rank == 0 else None
    assert ms.scatter(source, counts=counts, out=part) is part
    assert (part == table[ms.partition(len(table), counts=counts)]).all()
    whole = np.empty_like(table) if comm.rank == 0 else None
    assert ms.gather(part, out=whole) is whole
    assert whole is None or (whole == table).all()
    assert_refused(raised(lambda: ms.gather(part, out=np.empty(1))), 0, "SpecError", "out")
    assert_refused(raised(lambda: ms.scatter(source, counts=[1, *counts[1:]])), 0, "ArgumentError", "counts has")


COLUMNS = [("temperature", "f8"), ("humidity", "f8")]
"""Too many for the header of an array. In the other order they have an extension of the same length."""


def test_small_arrays_are_scattered_and_gathered_one_after_the_other(comm):
    """Each several times, so that calls find what the one before has checked, with what differs from it."""
    n = 3 * comm.size
    numbers, counts = np.arange(2.0 * n).reshape(n, 2), [3 + comm.size - 1, *[2] * (comm.size - 1)]
    arrays = [numbers, numbers.astype("i8"), numbers[::-1, ::-1], np.asfortranarray(numbers), numbers[:0], numbers[:1]]
    arrays += [numbers.view(columns)[:, 0] for columns in (COLUMNS, COLUMNS[::-1])]
    arrays += [filled(np.dtype("S3"), (n,)), np.arange(n).astype("M8[s]"), np.arange(n, dtype=">i4"), numbers]
    for root, are_equal in product({0, comm.size - 1}, [True, False]):
        for array in arrays if are_equal else [array for array in arrays if len(array) == n]:
            own = array[ms.partition(len(array), counts=None if are_equal else counts)]
            part = np.empty_like(own, order="C")
            for out in (None, part, part, None):
                part.fill(0)
                given = array if comm.rank == root else None
                result = ms.scatter(given, counts=None if are_equal else counts, root=root, out=out)
                assert (bits(result), result.dtype, result.shape) == (bits(own), own.dtype, own.shape)
                assert (result is part) == (out is part)
                whole = None if out is None else np.empty_like(array, order="C")
                gathered = ms.gather(own, root=root, out=whole)
                assert (gathered is None) == (comm.rank != root)
                assert gathered is None or (bits(gathered), gathered.dtype) == (bits(array), array.dtype)


@pytest.mark.ranks(2)
def test_what_differs_from_the_last_small_scatter_or_gather_is_checked(comm, raised):
    array, last = np.arange(2.0 * comm.size) if comm.rank == 0 else None, comm.size - 1
    part, whole = np.empty(2), np.empty(2 * comm.size)

    def reshaped():
        part.shape = (1, 2)
        return part

    def read_only():
        part.flags.writeable = False
        return part

    cases = {
        "out is float32 of shape (2,)": lambda: np.empty(2, "f4"),
        "out is float64 of shape (4,)": lambda: np.empty(8)[:8:2],
        "out is float64 of shape (1, 2)": reshaped,
        "to be written": read_only,
    }
    for text, change in cases.items():
        for _ in range(2):
            assert ms.scatter(array, out=part) is part
        errors = raised(lambda: ms.scatter(array, out=change() if comm.rank == last else part))  # noqa: B023
        assert_refused(errors, last, "SpecError", text)
        part.flags.writeable = True
        part.shape = (2,)
    assert_refused_alike(
        raised(lambda: ms.scatter(None if array is None else array.astype("i8"), out=part)),
        "SpecError",
        "out is float64",
    )
    for _ in range(2):
        ms.gather(part, out=whole)
    assert_refused(raised(lambda: ms.gather(part, out=whole[1:])), 0, "SpecError", "out is float64 of shape")
    whole.flags.writeable = False
    assert_refused(raised(lambda: ms.gather(part, out=whole)), 0, "SpecError", "to be written")
    assert_refused(raised(partial(ms.gather, part, out=[1])), 0, "SpecError", "list was given")  # type: ignore[arg-type]


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", ["gather", "scatter"])
def test_a_root_without_memory_for_few_rows(comm, raised, monkeypatch, name):
    """Also where the ranks have made the same call before."""
    rows = np.ones((comm.size, 2))

    def no_memory(*_):
        raise ms.CapacityError("here", "the memory of this process", 1, 0, "")

    for _ in range(2):
        getattr(ms, name)(rows)
    with monkeypatch.context() as patched:
        if comm.rank == 0:
            patched.setattr("mpishare.collectives.gather.allocate", no_memory)
        assert_refused(raised(lambda: getattr(ms, name)(rows)), 0, "CapacityError", "the memory of this process")
    result = getattr(ms, name)(rows)
    assert result is None or (result == 1).all()


@pytest.mark.parametrize("n", [0, 3, 10, 101])
def test_items_are_cut_as_numpy_cuts_them(comm, n):
    for scope, size in (("all", comm.size), *((name, ms.topology().node_size) for name in ("node", "nodes"))):
        parts = [ms.partition(n, rank=rank, scope=scope) for rank in range(size)]
        expected = [part.tolist() for part in np.array_split(np.arange(n), size)]
        assert [np.arange(n)[part].tolist() for part in parts] == expected
    assert ms.partition(n) == ms.partition(n, rank=comm.rank)


@pytest.mark.parametrize("n", [3, 300_000])
def test_an_array_that_the_ranks_of_a_node_write(comm, n):
    nodes = ms.topology()
    array = ms.share(np.asfortranarray(np.ones((2, n))) if comm.rank == 0 else None, writable=True)
    assert array.flags.f_contiguous
    part = ms.partition(n, scope="node")
    array[:, part] = nodes.node + 5
    ms.fence()
    assert (array == nodes.node + 5).all()
    first, [second] = ms.share((np.zeros(n), [np.zeros(2, "i4")]), writable=True)
    first[part], second[:] = 1, 2
    ms.fence()
    assert first.all()
    assert ms.bcast(array, root=comm.size - 1)[0, 0] == nodes.node_of(comm.size - 1) + 5
    assert not ms.share(np.zeros(3)).flags.writeable


@pytest.mark.parametrize("n", [3, 300_000])
def test_an_array_that_each_rank_writes_for_itself(comm, n, raised, recwarn):
    array = ms.share(np.ones((2, n)) if comm.rank == 0 else None, writable="private")
    array[:, ms.partition(n, scope="node")] = comm.rank + 5
    comm.Barrier()
    assert set(np.unique(array)) <= {1, comm.rank + 5}
    name, weights = ms.share(("x", np.arange(1.0 * n)), writable="private")
    weights[1:] += comm.rank
    comm.Barrier()
    assert (weights[1:] == np.arange(1, n) + comm.rank).all()
    assert name == "x"
    assert ms.share("no array", writable="private") == "no array"
    warned = comm.allreduce(len(recwarn.list), MPI.MAX)  # the leaders warn, and all ranks must fail alike
    assert not warned or os.environ.get("MPISHARE_BACKEND", "memmap") != "memmap"
    errors = raised(lambda: ms.share(np.ones(n), writable="shared"))  # type: ignore[arg-type]
    assert_refused_alike(errors, "ArgumentError", "Use True, False or 'private'")


@pytest.mark.filterwarnings("ignore:.*bytes were copied")
@pytest.mark.parametrize("backend", ["window", "memmap"])
def test_private_views_of_one_array_stay_views_of_one_array(comm, backend):
    array = np.asfortranarray(np.arange(12.0).reshape(3, 4))
    whole, part, other = ms.private(ms.share((array, array[:, 1:], np.ones(2)), backend=f"{backend},memmap"))
    whole[:, 1] = comm.rank
    assert part[:, 0].tolist() == [comm.rank] * 3
    assert (whole.flags.f_contiguous, other.tolist()) == (True, [1, 1])


def test_each_node_computes_its_own(comm, raised):
    nodes = ms.topology()
    calls = []

    def compute():
        calls.append(comm.rank)
        return np.full(4, nodes.node)

    assert ms.share(call=lambda: nodes.node, scope="nodes") == nodes.node
    array = ms.share(call=compute, scope="node")
    assert (array == nodes.node).all()
    assert len(calls) == nodes.is_leader
    if nodes.node == 0:
        assert ms.share(nodes.node_rank, root=nodes.node_size - 1, scope="node") == nodes.node_size - 1
    assert all(error == "ArgumentError" for error, _ in raised(lambda: ms.share(1, scope="job")))


@pytest.mark.parametrize("n", [2, 1000])
def test_parts_that_go_where_those_of_other_ranks_are(comm, n):
    """As if they were copied first, on the ranks of the root's node, which see the root's array."""
    nodes, numbers, are_equal = ms.topology(), np.arange(float(comm.size * n)), []
    for root in {0, comm.size - 1}:
        in_node = nodes.ranks_of(nodes.node_of(root))
        is_with_root = comm.rank in in_node
        for other in (comm.rank, in_node[(in_node.index(comm.rank) + 1) % len(in_node)] if is_with_root else comm.rank):
            for step in (1, -1):
                grid = ms.zeros((comm.size * n, 4))
                refill(grid, numbers[:, np.newaxis])
                part = grid[ms.partition(len(grid), rank=other)][::step]
                expected = np.concatenate(comm.allgather(part[:, 0].copy()))
                comm.Barrier()
                ms.gather(part, out=grid, root=root)
                ms.fence(scope="all")
                are_equal.append(comm.rank != root or (grid == expected[:, np.newaxis]).all())
                ms.fence(scope="all")
                refill(grid, numbers[:, np.newaxis])
                part = grid[ms.partition(len(grid), rank=other)]
                ms.scatter(grid, out=part, root=root)
                are_equal.append((part[:, 0] == numbers[ms.partition(len(grid))]).all())
                ms.fence(scope="all")
    assert all(are_equal)


@pytest.mark.parametrize("step", [1, 2], ids=["in one run", "strided"])
def test_parts_in_memory_that_numpy_does_not_know(comm, step):
    """As where another library gives mpishare's memory out again; on the root also with other strides than `out`."""
    n = 1000 * comm.size
    grid = ms.zeros((2 * n + 2,))
    refill(grid, np.arange(len(grid)))
    other = np.from_dlpack(grid)[1 : 1 + n * step : step][ms.partition(n)]
    expected = np.concatenate(comm.allgather(other))
    comm.Barrier()
    ms.gather(other, out=grid[:n])
    is_right = comm.rank != 0 or np.array_equal(grid[:n], expected)
    ms.fence(scope="all")
    refill(grid, np.arange(len(grid)))
    part = np.from_dlpack(grid)[ms.partition(n)]
    ms.scatter(grid[1 : 1 + n * step : step], out=part)
    assert is_right
    assert np.array_equal(part, expected[ms.partition(n)])
