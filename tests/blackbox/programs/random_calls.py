"""Random calls on random communicators, arrays, objects, files and pools, against what NumPy and Python give.

mpiexec -n 3 python -m mpi4py -m tests.blackbox.programs.random_calls SEED SECONDS

All ranks draw the same calls from the same seed. Arrays stay alive for a random time, and are compared again and again:
memory that is used again too early shows as a difference.
"""

import gc
import operator
import os
import shutil
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import mpishare as ms
from tests.arrays import STRUCT, bits, filled

WORLD = MPI.COMM_WORLD
NAMES = "?", "i1", "u2", "i4", "i8", "f2", "f4", "f8", "c16", "S5", "U3", "V7", ">i4", ">f8", "M8[ns]"
DTYPES = [*map(np.dtype, NAMES), STRUCT]
NUMBERS = [np.dtype(name) for name in ["i1", "u2", "i4", "i8", "u8"]]
MOST_LIVE = 60


class Difference(AssertionError):
    """A result that is not the expected one."""


def check(found, expected, what):
    """Compares dtype, shape and bits."""
    if (found.dtype, found.shape, bits(found)) != (expected.dtype, expected.shape, bits(expected)):
        raise Difference(f"{what}: {found!r} instead of {expected!r}")


def double(x):
    """A function that pickle takes by name."""
    return 2 * x


def negated(array):
    """A function of an array."""
    return np.asarray(-array)


def fail_at_three(x):
    """A function that raises for one item."""
    if x == 3:
        raise ValueError("three")
    return -x


class Scale:
    """A callable with a state that changes between calls."""

    def __init__(self, factor):
        """Begins with `factor`."""
        self.factor = factor

    def __call__(self, x):
        """The product."""
        return self.factor * x

    def times(self, x):
        """The same as a bound method."""
        return self.factor * x


class Calls:
    """The calls, and what they left alive."""

    def __init__(self, seed, folder):
        """Draws from `seed`; files go to `folder`, which all ranks see."""
        self.rng = np.random.default_rng(seed)
        self.folder = folder
        self.live = []  # (array, expected bits, what made it)
        self.scale = Scale(3)
        split = WORLD.Split(WORLD.rank % 2, -WORLD.rank)
        self.comms = [WORLD, WORLD.Dup(), split, MPI.COMM_SELF, WORLD.Split(0, -WORLD.rank)]
        self.number = 0

    def step(self):
        """Makes one call, now and then looks at all arrays, and drops some."""
        calls = [name for name in dir(self) if name.startswith("call_")]
        name = calls[self.rng.integers(len(calls))]
        seed = int(self.rng.integers(1 << 62))
        comm = self.comms[self.rng.integers(len(self.comms))]
        self.number += 1
        # Communicators of some ranks draw on, each from the same seed, so that the ranks of one draw alike.
        getattr(self, name)(np.random.default_rng(seed), comm)
        if self.rng.random() < 0.1:
            for array, expected, what in self.live:
                if bits(array) != expected:
                    raise Difference(f"an array of {what} has changed")
        while len(self.live) > MOST_LIVE or (self.live and self.rng.random() < 0.3):
            self.live.pop(self.rng.integers(len(self.live)))
        if self.rng.random() < 0.01:
            gc.collect()

    def keep(self, array, what):
        """Compares this array again later."""
        self.live.append((array, bits(array), f"{what} (call {self.number})"))

    def draw_array(self, rng, dtypes=DTYPES, largest=1 << 21):
        """An array of any dtype, shape, order and strides; small ones most often."""
        size = int(min(largest, 2 ** rng.uniform(0, 21)))
        shape = [(size,), (max(size // 7, 1), 7), (3, max(size // 12, 1), 4), (), (0, 3)][rng.integers(5)]
        dtype = dtypes[rng.integers(len(dtypes))]
        array = filled(dtype, shape)
        if array.ndim and array.size and dtype in NUMBERS:
            array = np.roll(array, int(rng.integers(100)))
        if array.ndim > 1 and rng.random() < 0.3:
            array = np.asfortranarray(array)
        if array.ndim and rng.random() < 0.2:
            array = array[::-2]
        return array

    def call_share(self, rng, comm):
        """An array of one rank."""
        array, root = self.draw_array(rng), int(rng.integers(comm.size))
        backend = [None, None, "memmap", "window"][rng.integers(4)]
        shared = ms.share(array if comm.rank == root else None, root=root, comm=comm, backend=backend)
        check(shared, array, "share")
        self.keep(shared, "share")
        if rng.random() < 0.2:
            part = shared[..., :1] if shared.ndim else shared
            own = ms.private(part)
            check(own, part, "private")

    def call_share_object(self, rng, comm):
        """An object with arrays, some of them twice."""
        a, b, root = self.draw_array(rng), self.draw_array(rng), int(rng.integers(comm.size))
        given = {"a": a, "list": [b, a, 7, "text"], "same": a}
        shared = ms.share(given if comm.rank == root else None, root=root, comm=comm)
        check(shared["a"], a, "share of an object")
        check(shared["list"][0], b, "share of an object")
        if shared["same"] is not shared["a"] or shared["list"][2:] != [7, "text"]:
            raise Difference("share of an object: the skeleton differs")
        self.keep(shared["a"], "share of an object")

    def call_fill(self, rng, comm):
        """A writable array, filled by all ranks of each node, then sent from one node to all."""
        n, dtype = int(rng.integers(1, 5000)), NUMBERS[rng.integers(len(NUMBERS))]
        grid = ms.zeros(n, dtype, comm=comm)
        check(grid, np.zeros(n, dtype), "zeros")
        ms.fence(comm=comm)
        part = ms.partition(n, comm=comm, scope="node")
        values = (np.arange(n) % 100).astype(dtype)
        grid[part] = values[part]
        ms.fence(comm=comm)
        check(grid, values, "fence")
        root = int(rng.integers(comm.size))
        ms.fence(comm=comm, scope="all")
        if comm.rank == root:
            grid[:] = values[::-1]
        ms.bcast(grid, root=root, comm=comm)
        check(grid, values[::-1], "bcast")
        ms.fence(comm=comm, scope="all")
        start = int(rng.integers(n))
        regions = [np.s_[start:], np.s_[::3], np.s_[start], [start, 0, start // 2], np.arange(n) % 5 == 2]
        region = regions[rng.integers(len(regions))]
        data = np.arange(np.arange(n)[region].size).reshape(np.shape(np.arange(n)[region])).astype(dtype)
        expected = values[::-1].copy()
        expected[region] = data
        ms.put(grid, region, data if comm.rank == root else None, root=root, comm=comm)
        ms.fence(comm=comm)
        if not (isinstance(region, list) and len(set(region)) < len(region)):
            check(grid, expected, f"put {region!r}")

    def call_reduce(self, rng, comm):
        """Sums of integers and the largest numbers, which do not depend on the order."""
        local = self.draw_array(rng, NUMBERS, 1 << 18)
        name = ["SUM", "MAX", "MIN", "BXOR"][rng.integers(4)]
        function = {"SUM": np.add, "MAX": np.maximum, "MIN": np.minimum, "BXOR": np.bitwise_xor}[name]
        mine = np.asarray(local + comm.rank).astype(local.dtype)
        expected = local.astype(local.dtype)
        for rank in range(1, comm.size):
            expected = np.asarray(function(expected, np.asarray(local + rank).astype(local.dtype)))
        found = ms.allreduce(mine, getattr(MPI, name), comm=comm)
        check(found, expected, f"allreduce {name}")
        self.keep(found, "allreduce")

    def call_rows(self, rng, comm):
        """Rows of all ranks to all, to one, and back."""
        whole = self.draw_array(rng)
        if not whole.ndim:
            return
        cuts = [0, *sorted(int(cut) for cut in rng.integers(0, len(whole) + 1, comm.size - 1)), len(whole)]
        mine = whole[cuts[comm.rank] : cuts[comm.rank + 1]]
        root = int(rng.integers(comm.size))
        expected = np.ascontiguousarray(whole)
        found = ms.allgather(mine, comm=comm)
        check(found, expected, "allgather")
        self.keep(found, "allgather")
        gathered = ms.gather(mine, root=root, comm=comm)
        if comm.rank == root:
            check(gathered, expected, "gather")
        own = ms.scatter(whole if comm.rank == root else None, root=root, comm=comm)
        check(ms.allgather(own, comm=comm), expected, "scatter and allgather")

    def call_messages(self, rng, comm):
        """Arrays and objects round a ring."""
        array = self.draw_array(rng)
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        sent = {"rank": comm.rank, "array": array} if rng.random() < 0.3 else array
        if rng.random() < 0.5:
            found = ms.sendrecv(sent, dest=right, source=left, comm=comm)
        else:
            request = ms.isend(sent, right, comm=comm)
            found = ms.recv(left, comm=comm)
            request.wait()
        if isinstance(sent, dict):
            if found["rank"] != left:
                raise Difference("sendrecv: another rank's object")
            found = found["array"]
        check(found, array, "messages")

    def call_files(self, rng, comm):
        """An array saved and loaded, whole and in part, as .npy and HDF5."""
        array, suffix = self.draw_array(rng, NUMBERS, 1 << 18), ["npy", "h5"][rng.integers(2)]
        first = comm.bcast(WORLD.rank)
        path = self.folder / f"{self.number}-{first}.{suffix}"
        shared = ms.share(array if comm.rank == 0 else None, comm=comm)
        ms.save(path, shared if suffix == "npy" else {"x": shared}, comm=comm)
        name = None if suffix == "npy" else "x"
        check(ms.load(path, name, comm=comm), shared, "load")
        if array.ndim and len(array):
            n = len(array)
            regions = [np.s_[n // 2 :], np.s_[::2], [n - 1, 0, n // 3], np.arange(n) % 3 == 1, np.s_[n // 2]]
            region = regions[rng.integers(len(regions))]
            check(ms.load(path, name, region=region, comm=comm), np.asarray(array[region]), f"load {region!r}")
        comm.Barrier()
        if comm.rank == 0:
            path.unlink()

    def call_map(self, rng, comm):
        """Tasks of all sorts of functions on one pool, one function after the other."""
        self.scale.factor = int(rng.integers(1, 9))
        offset = int(rng.integers(9))
        functions: list[Any] = [
            double,
            partial(operator.add, offset),
            self.scale,
            self.scale.times,
            lambda x: x - offset,
            abs,
            fail_at_three,
        ]
        picks = [int(pick) for pick in rng.integers(len(functions), size=6)]
        items = range(int(rng.integers(1, 8)))
        with ms.Pool(comm=comm) as pool:
            if pool is None:
                return
            for pick in picks:
                function = functions[pick]
                how = rng.integers(4)
                found: Any
                expected: Any
                try:
                    found = (
                        pool.map(function, items)
                        if how == 0
                        else list(pool.imap(function, items))
                        if how == 1
                        else pool.starmap(function, [(item,) for item in items])
                        if how == 2
                        else [future.result() for future in [pool.submit(function, item) for item in items]]
                    )
                except ValueError:
                    found = "ValueError"
                try:
                    expected = [function(item) for item in items]
                except ValueError:
                    expected = "ValueError"
                if found != expected:
                    raise Difference(f"{function} by way {how}: {found} instead of {expected}")
                self.scale.factor += 1

    def call_map_arrays(self, rng, comm):
        """Tasks whose items and results are arrays."""
        arrays = [self.draw_array(rng, NUMBERS, 1 << 14) for _ in range(5)]
        found: Any = ms.map(negated, arrays, comm=comm, gather="all")
        for one, array in zip(found, arrays, strict=True):
            check(one, negated(array), "map")

    def call_errors(self, rng, comm):
        """An error of one rank is an error of all, and the next call works."""
        bad, how = int(rng.integers(comm.size)), int(rng.integers(4))
        text: Any = "text"
        is_bad = comm.rank == bad
        try:
            if how == 0:
                ms.share(np.array([object()], object) if is_bad else None, root=bad, comm=comm)
            elif how == 1:
                ms.zeros(-1 if is_bad else 3, comm=comm)
            elif how == 2:
                ms.load(self.folder / "nothing.npy", comm=comm)
            else:
                ms.allreduce(text if is_bad else np.ones(3), comm=comm)
        except ms.MpishareError:
            return
        raise Difference(f"no error ({how})")

    def call_fork(self, rng, comm):
        """A child of some of the ranks sees what was there, and changes nothing."""
        forks = rng.random(WORLD.size) < 0.5
        if rng.random() < 0.8 or not forks[WORLD.rank]:
            return
        child = os.fork()
        if child == 0:
            is_right = all(bits(array) == expected for array, expected, _ in self.live)
            os._exit(0 if is_right else 1)
        if os.waitpid(child, 0)[1]:
            raise Difference("a forked child sees other bytes")


def main():
    """Runs for so many seconds; prints the number of calls, or the seed and the number of the call that differs."""
    seed, seconds = int(sys.argv[1]), float(sys.argv[2])
    folder = Path(WORLD.bcast(tempfile.mkdtemp(prefix="tests-") if WORLD.rank == 0 else None))
    calls, deadline = Calls(seed, folder), time.monotonic() + seconds
    is_going = True
    while is_going:
        try:
            calls.step()
        except Exception as error:
            sys.stderr.write(f"rank {WORLD.rank}, seed {seed}, call {calls.number}: {type(error).__name__}: {error}\n")
            raise
        if calls.number % 20 == 0:
            is_going = WORLD.bcast(time.monotonic() < deadline)
    WORLD.Barrier()
    if WORLD.rank == 0:
        shutil.rmtree(folder)
        sys.stdout.write(f"{calls.number} calls agree\n")


if __name__ == "__main__":
    main()
