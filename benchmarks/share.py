"""What it costs to give every rank of a node the root's array: our share beside what else people use.

    mpishare run -n 2 -m benchmarks.share [--sizes 10,16,20,24,28] [--rounds 7]

Each round times every way once, one after the other, so that all see the same weather; a ratio is of medians of one
run. Prints a table and keeps it as results/share.json, with a picture beside it where matplotlib is installed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI
from mpi4py.util import pkl5
from numpy.typing import NDArray

import mpishare as ms
from benchmarks.keep import keep
from benchmarks.picture import lines

Source = NDArray[np.uint8] | None
Way = Callable[[Source, int], NDArray[np.uint8]]

comm = MPI.COMM_WORLD
_buffered = pkl5.Intracomm(comm)
_kept: list[Any] = []
"""What a way must not give back while its array is read; given back after each timing, not in it."""


def by_share(source: Source, nbytes: int) -> NDArray[np.uint8]:
    """mpishare, fresh memory each time."""
    return ms.share(source)


def by_memmap(source: Source, nbytes: int) -> NDArray[np.uint8]:
    """The same in a nameless file."""
    return ms.share(source, backend="memmap")


def by_pickle(source: Source, nbytes: int) -> NDArray[np.uint8]:
    """comm.bcast, a pickle a rank."""
    array: NDArray[np.uint8] = comm.bcast(source)
    return array


def by_pkl5(source: Source, nbytes: int) -> NDArray[np.uint8]:
    """mpi4py.util.pkl5: pickled skeleton, the buffer out of band, a copy a rank."""
    array: NDArray[np.uint8] = _buffered.bcast(source)
    return array


def by_buffer(source: Source, nbytes: int) -> NDArray[np.uint8]:
    """comm.Bcast into a fresh array a rank."""
    array = np.empty(nbytes, np.uint8) if source is None else source
    comm.Bcast(array)
    return array


def by_window(source: Source, nbytes: int) -> NDArray[np.uint8]:
    """The thirty lines that everybody writes: MPI_Win_allocate_shared, the root copies."""
    window = MPI.Win.Allocate_shared(nbytes if comm.rank == 0 else 0, 1, comm=comm)
    _kept.append(window)
    memory: Any = window.Shared_query(0)[0]
    array: NDArray[np.uint8] = np.frombuffer(memory, np.uint8)
    if source is not None:
        array[:] = source
    comm.Barrier()
    return array


def by_pshmem(source: Source, nbytes: int) -> NDArray[np.uint8]:
    """pshmem.MPIShared, filled by its set."""
    from pshmem import MPIShared

    shared = MPIShared((nbytes,), np.uint8, comm)
    _kept.append(shared)
    shared.set(source, (0,), fromrank=0)
    array: NDArray[np.uint8] = shared[:]
    return array


WAYS: dict[str, Way] = {
    "mpishare": by_share,
    "mpishare, memmap": by_memmap,
    "Bcast, a copy a rank": by_buffer,
    "bcast, pickled": by_pickle,
    "pkl5 bcast": by_pkl5,
    "hand-written window": by_window,
    "pshmem": by_pshmem,
}
MEMCPY = "one memcpy, warm"


def main() -> None:
    """Measures every size; rank 0 prints and keeps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sizes", default="10,13,16,20,24,28", help="powers of two, bytes (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    ways = dict(WAYS)
    if comm.allreduce(not _has_pshmem(), MPI.LOR):
        del ways["pshmem"]
    sizes = [1 << int(power) for power in options.sizes.split(",")]
    figures = {f"{nbytes:,} bytes": measure(ways, nbytes, options.rounds) for nbytes in sizes}
    info = ms.info()
    if comm.rank == 0:
        keep("share", figures, info)
        times = {way: [figures[size][way]["median, us"] for size in figures] for way in [MEMCPY, *ways]}
        lines("share", sizes, times, "bytes", "time until all ranks have it, us", f"{comm.size} ranks of one node")


def measure(ways: dict[str, Way], nbytes: int, rounds: int) -> dict[str, dict[str, float]]:
    """Median, least and most of each way's time, its ratio to one memcpy, and the time of a first full read."""
    source = np.random.default_rng(1).integers(0, 255, nbytes, np.uint8) if comm.rank == 0 else None
    warm = np.ones(nbytes, np.uint8)
    times: dict[str, list[float]] = {name: [] for name in [MEMCPY, *ways]}
    reads: dict[str, list[float]] = {name: [] for name in [MEMCPY, *ways]}
    for _ in range(rounds + 1):
        for name, way in ways.items():
            taken, read = timed(way, source, nbytes)
            times[name].append(taken)
            reads[name].append(read)
        start = time.perf_counter()
        if source is not None:
            np.copyto(warm, source)
        times[MEMCPY].append(comm.allreduce(time.perf_counter() - start if comm.rank == 0 else 0.0, MPI.MAX))
        reads[MEMCPY].append(timed_read(warm))
    reference = statistics.median(times[MEMCPY][1:])
    table = {name: row(times[name][1:], reads[name][1:], reference) for name in times}
    if comm.rank == 0:
        print(f"\n{nbytes:,} bytes, {comm.size} ranks, {rounds} rounds")
        for name, figures in table.items():
            print(f"  {name:22} " + "  ".join(f"{value:12,.2f} {what}" for what, value in figures.items()))
    return table


def row(times: list[float], reads: list[float], reference: float) -> dict[str, float]:
    """The figures of one way; the first round, in which everything is new, is left out."""
    figures = {
        "median, us": statistics.median(times) * 1e6,
        "least, us": min(times) * 1e6,
        "most, us": max(times) * 1e6,
        "of one memcpy": statistics.median(times) / reference,
        "first read, us": statistics.median(reads) * 1e6,
    }
    return {what: round(value, 3) for what, value in figures.items()}


def timed(way: Way, source: Source, nbytes: int) -> tuple[float, float]:
    """The time until the last rank has the array, and the time of a first full read on all ranks at once."""
    comm.Barrier()
    start = time.perf_counter()
    array = way(source, nbytes)
    taken = float(comm.allreduce(time.perf_counter() - start, MPI.MAX))
    read = timed_read(array)
    del array
    comm.Barrier()
    for one in _kept:
        one.Free() if isinstance(one, MPI.Win) else one.close()
    _kept.clear()
    return taken, read


def timed_read(array: NDArray[np.uint8]) -> float:
    """The time of a full read, of the slowest rank."""
    comm.Barrier()
    start = time.perf_counter()
    array.max()
    return float(comm.allreduce(time.perf_counter() - start, MPI.MAX))


def _has_pshmem() -> bool:
    try:
        import pshmem  # noqa: F401
    except ImportError:
        return False
    return True


if __name__ == "__main__":
    main()
