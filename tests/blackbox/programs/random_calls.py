"""Random calls on random communicators, arrays, objects, files and pools, against what NumPy and Python give.

mpiexec -n 3 python -m mpi4py -m tests.blackbox.programs.random_calls SEED SECONDS

All ranks draw the same calls from the same seed. Arrays stay alive for a random time, and are compared again and again:
memory that is used again too early shows as a difference.
"""

import operator
import shutil
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import mpishare as ms
from tests.arrays import STRUCT, assert_same, bits, filled
from tests.processes import in_child

WORLD = MPI.COMM_WORLD
NAMES = "?", "i1", "u2", "i4", "i8", "f2", "f4", "f8", "c16", "S5", "U3", "V7", ">i4", ">f8", "M8[ns]"
DTYPES = [*map(np.dtype, NAMES), STRUCT]
NUMBERS = [np.dtype(name) for name in ["i1", "u2", "i4", "i8", "u8"]]
MOST_LIVE = 60
FOLDER = Path(WORLD.bcast(tempfile.mkdtemp(prefix="tests-") if WORLD.rank == 0 else None))
live: list[Any] = []
"""Arrays that are still viewed, each with the bits that it must have."""


def keep(array):
    """Compares this array again later."""
    live.append((array, bits(array)))


def draw_array(rng, dtypes=DTYPES, most_items=1 << 21):
    """An array of any dtype, shape, order and strides; small ones most often."""
    size = int(min(most_items, 2 ** rng.uniform(0, 21)))
    shape = [(size,), (max(size // 7, 1), 7), (3, max(size // 12, 1), 4), (), (0, 3)][rng.integers(5)]
    array = filled(dtypes[rng.integers(len(dtypes))], shape, int(rng.integers(1 << 32)))
    layout = rng.integers(4)
    return np.asfortranarray(array) if layout == 0 else array[::-2] if layout == 1 and array.ndim else array


def draw_region(rng, n):
    """An index of a sequence, without an item that comes twice."""
    return [np.s_[n // 2 :], np.s_[::2], [n - 1, *range(n // 3)], np.arange(n) % 3 == 1, np.s_[n // 2]][rng.integers(5)]


def share(rng, comm):
    """An array of one rank, alone or twice in an object, and a private view of it."""
    array, root, is_object = draw_array(rng), int(rng.integers(comm.size)), rng.random() < 0.5
    given = [array, {"same": array, "text": 7}] if is_object else array
    backend = None if is_object else [None, "memmap", "window"][rng.integers(3)]
    found = ms.share(given if comm.rank == root else None, root=root, comm=comm, backend=backend)
    if is_object:
        assert found[0] is found[1]["same"]
        assert found[1]["text"] == 7
    shared = found[0] if is_object else found
    assert_same(shared, array)
    keep(shared)
    assert_same(ms.private(shared[..., :1] if shared.ndim else shared), array[..., :1] if array.ndim else array)


def fill(rng, comm):
    """A writable array that all ranks of a node fill, then one rank, whole and in part."""
    n, dtype, root = int(rng.integers(4, 5000)), NUMBERS[rng.integers(len(NUMBERS))], int(rng.integers(comm.size))
    values, grid = (np.arange(n) % 100).astype(dtype), ms.zeros(n, dtype, comm=comm)
    part = ms.partition(n, comm=comm, scope="node")
    grid[part] = values[part]
    ms.fence(comm=comm, scope="all")
    assert_same(grid, values)
    ms.fence(comm=comm, scope="all")
    expected = values[::-1].copy()
    if comm.rank == root:
        grid[:] = expected
    ms.bcast(grid, root=root, comm=comm)
    region = draw_region(rng, n)
    expected[region] = data = np.arange(values[region].size).reshape(values[region].shape).astype(dtype)
    ms.put(grid, region, data if comm.rank == root else None, root=root, comm=comm)
    ms.fence(comm=comm)
    assert_same(grid, expected)


def reduce(rng, comm):
    """Sums of integers and the largest numbers, which do not depend on the order."""
    local = draw_array(rng, NUMBERS, 1 << 18)
    name, function = [("SUM", np.add), ("MAX", np.maximum), ("BXOR", np.bitwise_xor)][rng.integers(3)]
    every = [np.asarray(local + rank).astype(local.dtype) for rank in range(comm.size)]
    expected = every[0].copy()
    for other in every[1:]:
        expected = np.asarray(function(expected, other))
    found = ms.allreduce(every[comm.rank], getattr(MPI, name), comm=comm)
    assert_same(found, expected)
    keep(found)


def rows(rng, comm):
    """Rows of all ranks to all, to one, and back."""
    whole, root = np.atleast_1d(draw_array(rng)), int(rng.integers(comm.size))
    cuts = [0, *sorted(map(int, rng.integers(0, len(whole) + 1, comm.size - 1))), len(whole)]
    mine = whole[cuts[comm.rank] : cuts[comm.rank + 1]]
    found = ms.allgather(mine, comm=comm)
    assert_same(found, whole)
    keep(found)
    gathered = ms.gather(mine, root=root, comm=comm)
    own = ms.scatter(gathered, root=root, comm=comm)
    again = np.empty_like(own)
    for _ in range(2):
        ms.scatter(gathered, root=root, out=again, comm=comm)
    assert_same(again, own)
    assert_same(ms.allgather(own, comm=comm), whole)


def messages(rng, comm):
    """Arrays and objects round a ring."""
    array, right, left = draw_array(rng), (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    request = ms.isend({"rank": comm.rank, "array": array}, right, comm=comm)
    found = ms.recv(left, comm=comm)
    request.wait()
    assert found["rank"] == left
    assert_same(found["array"], array)
    assert_same(ms.sendrecv(array, dest=right, source=left, comm=comm), array)


def files(rng, comm):
    """An array saved and loaded, whole and in part, as .npy and HDF5."""
    array, name = np.atleast_1d(draw_array(rng, NUMBERS, 1 << 18)), [None, "x"][rng.integers(2)]
    path = FOLDER / f"{comm.bcast(WORLD.rank)}.{'h5' if name else 'npy'}"
    shared = ms.share(array if comm.rank == 0 else None, comm=comm)
    ms.save(path, {"x": shared} if name else shared, comm=comm)
    assert_same(ms.load(path, name, comm=comm), shared)
    region = draw_region(rng, len(array)) if len(array) else np.s_[:]
    assert_same(ms.load(path, name, region=region, comm=comm), np.asarray(array[region]))


class Scale:
    """A callable whose state changes between calls."""

    factor = 3

    def __call__(self, x):
        return self.factor * x


def reciprocal(x):
    """A function that raises for one item."""
    return 1 // (3 - x)


def tasks(rng, comm):
    """Tasks of all sorts of functions on one pool, one function after the other."""
    scale, offset, items = Scale(), int(rng.integers(9)), range(int(rng.integers(1, 8)))
    functions = [scale, partial(operator.add, offset), lambda x: np.full(x, offset), abs, reciprocal]
    picks = rng.integers(len(functions), size=6)
    with ms.Pool(comm=comm) as pool:
        for function in [functions[pick] for pick in picks] if pool is not None else []:
            ways = [pool.map, lambda f, x: list(pool.imap(f, x)), lambda f, x: [pool.submit(f, i).result() for i in x]]
            found, expected = (outcome(way, function, items) for way in (ways[rng.integers(3)], map))
            assert str(found) == str(expected), (function, found, expected)
            scale.factor += 1


def outcome(way, function, items):
    """The results, or the error of a task."""
    try:
        return list(way(function, items))
    except ZeroDivisionError:
        return "error"


def errors(rng, comm):
    """An error of one rank is an error of all, and the next call works."""
    bad = int(rng.integers(comm.size))
    is_bad, wrong = comm.rank == bad, np.array([object()], object)
    calls = (
        lambda: ms.share(wrong if is_bad else None, root=bad, comm=comm),
        lambda: ms.zeros(-1 if is_bad else 3, comm=comm),
        lambda: ms.allreduce(wrong if is_bad else np.ones(3), comm=comm),
    )
    with pytest.raises(ms.MpishareError):
        calls[rng.integers(3)]()


def fork(rng, comm):
    """A child of some of the ranks sees what was there, and changes nothing."""
    if rng.random() < 0.2 and rng.random(WORLD.size)[WORLD.rank] < 0.5:
        assert in_child(lambda: any(bits(array) != expected for array, expected in live)) == 0


CALLS = [share, fill, reduce, rows, messages, files, tasks, errors, fork]


def settle(rng):
    """Compares what is alive now and then, and drops some of it."""
    assert rng.random() > 0.1 or all(bits(array) == expected for array, expected in live), "it has changed"
    while len(live) > MOST_LIVE or (live and rng.random() < 0.3):
        live.pop(rng.integers(len(live)))


def run(calls, settle):
    """Runs for a number of seconds; a rank with a difference prints the seed and the number of the call."""
    seed, deadline, number = int(sys.argv[1]), time.monotonic() + float(sys.argv[2]), 0
    while WORLD.bcast(time.monotonic() < deadline):
        halves, turned = (WORLD.Split(color, -WORLD.rank) for color in (WORLD.rank % 2, 0))
        comms = [WORLD, MPI.COMM_SELF, WORLD.Dup(), halves, turned]
        for _ in range(20):
            number += 1
            # The ranks of a communicator draw alike, each from a generator of its own.
            rng, plan = (np.random.default_rng([seed, number, of]) for of in range(2))
            call, comm = calls[plan.integers(len(calls))], comms[plan.integers(len(comms))]
            try:
                call(rng, comm)
                settle(plan)
            except Exception:
                sys.stderr.write(f"rank {WORLD.rank}, seed {seed}, call {number}: {call.__name__}\n")
                raise
        for comm in comms[2:]:
            comm.Free()
    WORLD.Barrier()  # others may still use the files
    if WORLD.rank == 0:
        shutil.rmtree(FOLDER)
        sys.stdout.write(f"{number} calls agree\n")


if __name__ == "__main__":
    run(CALLS, settle)
