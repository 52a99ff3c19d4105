"""Additions of all ranks of a node into one histogram: how many a second, and how many are lost.

    mpishare run -n 4 -m benchmarks.kernels [--adds 20000000] [--bins 1000] [--rounds 9]

Each rank adds 1 to bins chosen at random, its part of the additions, in a compiled loop where it is not said otherwise.
The ways through MPI's windows take as long for one addition as others for thousands, so they make fewer. In a table
that is SPARSER times as large, most bins stay empty, and fewer additions are made, too. Lost is what is missing in the
sum of all bins; wrong is the number of bins that differ from numpy.bincount's. The order of the ways
changes from round to round. Prints a table and keeps it as results/kernels.json.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI
from mpi4py.util.sync import Mutex
from numba import njit
from numpy.typing import NDArray

import mpishare as ms
from benchmarks.keep import keep
from benchmarks.rounds import order
from mpishare import kernels

Array = NDArray[Any]

CYCLE = 1 << 20  # numbers that a rank goes through again and again: 8 MiB, whatever the number of additions
FEWER = 1000  # how many times fewer additions go through windows
SPARSER = 1 << 14  # times as many bins: 131 MB for 1000


def main() -> None:
    """Measures all; rank 0 prints and keeps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--adds", type=int, default=20_000_000)
    parser.add_argument("--bins", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    comm = MPI.COMM_WORLD
    parts: dict[str, list[dict[str, Any]]] = {name: [] for name in WAYS}
    for number in range(options.rounds + 1):  # the first, in which everything is new, is left out
        for name in order(WAYS, number):
            add, divisor, factor = WAYS[name]
            count = options.adds // divisor // comm.size
            parts[name].append(measured(comm, add, count, max(options.bins * factor, 1)))
    rows = {name: combined(results[1:]) for name, results in parts.items()}
    info = ms.info()
    if comm.rank == 0:
        for name, figures in rows.items():
            print(f"{name:38} " + "  ".join(f"{column} {value:,}" for column, value in figures.items()), flush=True)
        keep("kernels", {"ranks": comm.size, "bins": options.bins, "ways": rows}, info)


def combined(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The median and the quartiles of all rounds, and all that was lost in them."""
    rates = sorted(result["millions a second"] for result in results)
    low, median, high = np.percentile(rates, (25, 50, 75))
    return {
        "additions": sum(result["additions"] for result in results),
        "millions a second": round(float(median), 3),
        "first quartile": round(float(low), 3),
        "third quartile": round(float(high), 3),
        "rounds": len(results),
        "lost": sum(result["lost"] for result in results),
        "wrong": max(result["wrong"] for result in results),
    }


def measured(comm: MPI.Intracomm, add: Callable[[Array, int, Array], None], count: int, bins: int) -> dict[str, Any]:
    """How fast `count` additions of each rank are by one way, and what came of them."""
    numbers = np.random.default_rng(comm.rank).integers(0, bins, min(count, CYCLE))
    counts = ms.zeros(bins, "i8")
    add(numbers, 0, counts)  # compiles, and makes what is made once
    comm.Barrier()
    start = time.perf_counter()
    add(numbers, count, counts)
    comm.Barrier()
    seconds = time.perf_counter() - start
    ms.fence()
    expected = comm.allreduce(expected_counts(numbers, count, bins))
    return {
        "additions": count * comm.size,
        "millions a second": round(count * comm.size / seconds / 1e6, 3),
        "lost": int((expected - counts).sum()),
        "wrong": int((expected != counts).sum()),
    }


def expected_counts(numbers: Array, count: int, bins: int) -> Array:
    """What `count` numbers, taken again and again from the first on, come to."""
    times, rest = divmod(count, len(numbers))
    return times * np.bincount(numbers, minlength=bins) + np.bincount(numbers[:rest], minlength=bins)


@njit
def atomic(numbers: Array, count: int, counts: Array) -> None:
    """Ours."""
    for number in range(count):
        kernels.atomic_add(counts, numbers[number % CYCLE], 1)


@njit
def plain(numbers: Array, count: int, counts: Array) -> None:
    """As many would write it."""
    for number in range(count):
        counts[numbers[number % CYCLE]] += 1


def at(numbers: Array, count: int, counts: Array) -> None:
    """Ours, from Python, with the indices as arrays."""
    for start in range(0, count, CYCLE):
        kernels.add_at(counts, numbers[: min(CYCLE, count - start)])


def own(numbers: Array, count: int, counts: Array) -> None:
    """A histogram for each rank, all of them summed up by MPI."""
    own_part = np.zeros_like(counts)
    plain(numbers, count, own_part)
    total = np.zeros_like(counts)
    MPI.COMM_WORLD.Reduce(own_part, total)
    if MPI.COMM_WORLD.rank == 0:
        counts += total


def by_bincount(numbers: Array, count: int, counts: Array) -> None:
    """The same by NumPy alone."""
    own_part = np.zeros_like(counts)
    for start in range(0, count, CYCLE):
        own_part += np.bincount(numbers[: min(CYCLE, count - start)], minlength=len(counts))
    total = np.zeros_like(counts)
    MPI.COMM_WORLD.Reduce(own_part, total)
    if MPI.COMM_WORLD.rank == 0:
        counts += total


def by_fetch(numbers: Array, count: int, counts: Array) -> None:
    """MPI_Fetch_and_op on a window of rank 0."""
    item, before = np.ones(1, "i8"), np.zeros(1, "i8")
    _in_window(numbers, count, counts, lambda window, bin_: window.Fetch_and_op(item, before, 0, bin_, MPI.SUM))


def by_accumulate(numbers: Array, count: int, counts: Array) -> None:
    """MPI_Accumulate on such a window."""
    item = np.ones(1, "i8")
    _in_window(numbers, count, counts, lambda window, bin_: window.Accumulate(item, 0, bin_, MPI.SUM))


def _in_window(numbers: Array, count: int, counts: Array, add: Callable[[MPI.Win, int], None]) -> None:
    comm = MPI.COMM_WORLD
    window = MPI.Win.Allocate(counts.nbytes if comm.rank == 0 else 0, counts.itemsize, comm=comm)
    there = np.asarray(window.tomemory()).view("i8")
    there[:] = 0
    comm.Barrier()
    window.Lock_all()
    for number in numbers[:count].tolist():
        add(window, number)
        window.Flush(0)
    window.Unlock_all()
    comm.Barrier()
    if comm.rank == 0:
        counts += there
    window.Free()


def by_mutex(numbers: Array, count: int, counts: Array) -> None:
    """Under mpi4py's lock."""
    mutex = Mutex(comm=MPI.COMM_WORLD)
    for number in numbers[:count].tolist():
        with mutex:
            counts[number] += 1
    MPI.COMM_WORLD.Barrier()
    mutex.free()


WAYS: dict[str, tuple[Callable[[Array, int, Array], None], int, int]] = {
    "kernels.atomic_add": (atomic, 1, 1),
    "kernels.atomic_add, all in one bin": (atomic, 10, 0),
    "kernels.add_at": (at, 1, 1),
    "plain +=": (plain, 1, 1),
    "a histogram a rank, += and Reduce": (own, 1, 1),
    "numpy.bincount a rank and Reduce": (by_bincount, 1, 1),
    "MPI_Fetch_and_op, from Python": (by_fetch, FEWER, 1),
    "MPI_Accumulate, from Python": (by_accumulate, FEWER, 1),
    "mpi4py's Mutex, from Python": (by_mutex, 10 * FEWER, 1),
    "kernels.atomic_add, sparse": (atomic, 100, SPARSER),
    "a histogram a rank, sparse": (own, 100, SPARSER),
}
"""What adds, how many times fewer additions it makes, and how many times more bins it has; 0 for a single one."""


if __name__ == "__main__":
    main()
