"""What it costs to give every rank of a node the root's array: our share beside what else people use.

    mpishare run -n 2 -m benchmarks.share [--powers 10,13,16,20,24,28,30] [--rounds 9] [--name share-2]

Each round times every way, in an order that changes, so that all see the same weather; a ratio is of medians of one
run. A call gets another array than the call before it, and ends when a barrier after it has ended on the last rank.
Ways that take new memory stand beside ways that use theirs again, ours and those of others, and ours with the settings
that a job has by default. The same for many arrays that live at the same time. Prints a table and keeps it as
results/share-RANKS.json, with a picture beside it.

Goals on 2 ranks of 2 cores, of medians: at 256 MiB new memory 2.0 of one warm memcpy, 0.25 of a hand-written window
and of pshmem, 0.08 of a pickled bcast; memory used again 1.0 of one warm memcpy; a first full read 1.3 of that of
private arrays; empty + fill + fence 1.1 of filling a private warm array. At 1 KiB, memory used again, 12 us, on 4 ranks
30 us, and less than a pickled bcast; 3 of an expert's program, a copy into a window that is used again and a barrier.
"""

from __future__ import annotations

import argparse
import os
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
from benchmarks.rivals import AGAIN, BY_DEFAULT, NEW, Sources
from benchmarks.rounds import MEDIAN, Row, order, row

Source = NDArray[np.uint8] | None
Way = Callable[[Source, int], NDArray[np.uint8]]

comm = MPI.COMM_WORLD
_buffered = pkl5.Intracomm(comm)
_kept: list[Any] = []
"""What a way must not give back while its array is read; given back after each timing, not in it."""

_kept_for_size: list[Any] = []
"""The same for a way that uses its memory again."""


def recycling(size: str | None) -> MPI.Intracomm:
    """The same ranks with another MPISHARE_RECYCLE, which is read when a communicator is first used; None: unset."""
    before = os.environ.pop("MPISHARE_RECYCLE", None)
    if size is not None:
        os.environ["MPISHARE_RECYCLE"] = size
    duplicate = comm.Dup()
    ms.topology(duplicate)
    os.environ.pop("MPISHARE_RECYCLE", None)
    if before is not None:
        os.environ["MPISHARE_RECYCLE"] = before
    return duplicate


def by_share(used: MPI.Intracomm, backend: str | None) -> Way:
    """Our share, over a communicator that uses memory again or does not."""

    def way(source: Source, nbytes: int) -> NDArray[np.uint8]:
        return ms.share(source, comm=used, backend=backend)

    return way


def in_place(used: MPI.Intracomm, backend: str) -> Way:
    """An array that is made shared and filled there by the root, so that nothing is copied."""

    def way(source: Source, nbytes: int) -> NDArray[np.uint8]:
        array = ms.empty(nbytes, np.uint8, comm=used, backend=backend)
        if source is not None:
            array.fill(1)
        ms.fence(comm=used)
        return array

    return way


def by_pickle(source: Source, nbytes: int) -> NDArray[np.uint8]:
    """comm.bcast, a pickle a rank."""
    array: NDArray[np.uint8] = comm.bcast(source)
    return array


def by_pkl5(source: Source, nbytes: int) -> NDArray[np.uint8]:
    """mpi4py.util.pkl5: pickled skeleton, the buffer out of band, a copy a rank."""
    array: NDArray[np.uint8] = _buffered.bcast(source)
    return array


def by_buffer(source: Source, nbytes: int) -> NDArray[np.uint8]:
    """comm.Bcast into a new array a rank."""
    array = np.empty(nbytes, np.uint8) if source is None else source
    comm.Bcast(array)
    return array


def by_buffer_again(room: NDArray[np.uint8]) -> Way:
    """comm.Bcast into an array a rank that is there."""

    def way(source: Source, nbytes: int) -> NDArray[np.uint8]:
        array = room if source is None else source
        comm.Bcast(array)
        return array

    return way


def by_window(source: Source, nbytes: int) -> NDArray[np.uint8]:
    """The thirty lines that everybody writes: MPI_Win_allocate_shared, the root copies, and the barrier."""
    window, array = _window(nbytes)
    _kept.append(window)
    if source is not None:
        np.copyto(array, source)
    return array


def by_window_again(nbytes: int) -> Way:
    """What an expert writes: a window that is made once for a size, into which the root copies, and the barrier."""
    window, array = _window(nbytes)
    _kept_for_size.append(window)

    def way(source: Source, nbytes: int) -> NDArray[np.uint8]:
        if source is not None:
            np.copyto(array, source)
        return array

    return way


def _window(nbytes: int) -> tuple[MPI.Win, NDArray[np.uint8]]:
    window = MPI.Win.Allocate_shared(nbytes if comm.rank == 0 else 0, 1, comm=comm)
    memory: Any = window.Shared_query(0)[0]
    return window, np.frombuffer(memory, np.uint8)


def by_pshmem(source: Source, nbytes: int) -> NDArray[np.uint8]:
    """pshmem.MPIShared, filled by its set."""
    from pshmem import MPIShared

    shared = MPIShared((nbytes,), np.uint8, comm)
    _kept.append(shared)
    shared.set(source, (0,), fromrank=0)
    array: NDArray[np.uint8] = shared[:]
    return array


def by_pshmem_again(nbytes: int) -> Way:
    """The same array of pshmem, set again."""
    from pshmem import MPIShared

    shared = MPIShared((nbytes,), np.uint8, comm)
    _kept_for_size.append(shared)

    def way(source: Source, nbytes: int) -> NDArray[np.uint8]:
        shared.set(source, (0,), fromrank=0)
        array: NDArray[np.uint8] = shared[:]
        return array

    return way


def memcpy(warm: NDArray[np.uint8]) -> Way:
    """The limit: the root copies once, into memory that is there."""

    def way(source: Source, nbytes: int) -> NDArray[np.uint8]:
        if source is not None:
            np.copyto(warm, source)
        return warm

    return way


def fill(warm: NDArray[np.uint8]) -> Way:
    """The limit of building in place: the root fills a private array that is there."""

    def way(source: Source, nbytes: int) -> NDArray[np.uint8]:
        if source is not None:
            warm.fill(1)
        return warm

    return way


_LARGE_BYTES = 1 << 20
MANY = ((100, 8 << 20), (1000, 1 << 10))
"""Numbers of arrays that live at the same time, and the bytes of each."""
MEMCPY, FILL = "one memcpy, warm", "fill of a private warm array"
OF_MEMCPY, FIRST_READ = "of one memcpy", "first read, ms"
DRAWN = (
    f"mpishare, window, {NEW}",
    f"mpishare, window, {AGAIN}",
    "hand-written window",
    "window used again",
    "Bcast, copies used again",
    "Bcast, a copy a rank",
)


def ways(nbytes: int, *, ours: bool) -> dict[str, Way]:
    """All ways, by name. Collective."""
    new, again = recycling("0"), recycling("50%")
    result: dict[str, Way] = {MEMCPY: memcpy(np.ones(nbytes, np.uint8)), FILL: fill(np.ones(nbytes, np.uint8))}
    for backend in ("memmap", "window"):
        result[f"mpishare, {backend}, {NEW}"] = by_share(new, backend)
        result[f"mpishare, {backend}, {AGAIN}"] = by_share(again, backend)
        result[f"mpishare, {backend}, in place"] = in_place(again, backend)
    if ours:
        return result
    result[BY_DEFAULT] = by_share(recycling(None), None)
    result["Bcast, a copy a rank"] = by_buffer
    result["Bcast, copies used again"] = by_buffer_again(np.ones(nbytes, np.uint8))
    result["bcast, pickled"] = by_pickle
    result["pkl5 bcast"] = by_pkl5
    result["hand-written window"] = by_window
    result["window used again"] = by_window_again(nbytes)
    result["pshmem"] = by_pshmem
    result["pshmem, used again"] = by_pshmem_again(nbytes)
    return result


def main() -> None:
    """Measures every size; rank 0 prints and keeps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--powers", default="10,13,16,20,24,28,30", help="sizes, powers of two (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--name", default=f"share-{comm.size}")
    parser.add_argument("--ours", action="store_true", help="leave out what others use")
    options = parser.parse_args()
    sizes = [1 << int(power) for power in options.powers.split(",")]
    figures = {f"{nbytes:,} bytes": measure(nbytes, options.rounds, ours=options.ours) for nbytes in sizes}
    counts = () if options.ours else MANY
    alive = {f"{count:,} of {nbytes:,} bytes": many(count, nbytes, options.rounds) for count, nbytes in counts}
    info = ms.info()
    if comm.rank == 0:
        keep(options.name, {**figures, **alive}, info)
        draw(options.name, sizes, figures)


def draw(name: str, sizes: list[int], figures: dict[str, dict[str, Row]]) -> None:
    """Ours beside what else brings every rank the array, over one memcpy."""
    tables = list(figures.values())
    ways = [way for way in DRAWN if way in tables[0]]
    series = {way.replace(", window", ""): [table[way][OF_MEMCPY] for table in tables] for way in ways}
    title = f"An array for {comm.size} ranks of one node"
    lines(name, sizes, series, "bytes", "time until all ranks have it, over that of one warm memcpy", title)


def measure(nbytes: int, rounds: int, *, ours: bool) -> dict[str, Row]:
    """Each way's time, its ratio to one memcpy, and the time of a first full read."""
    sources, result = Sources(comm.rank, nbytes), ways(nbytes, ours=ours)
    repeats = max(1, min(200, (16 << 20) // nbytes))  # from the ninth on small arrays use memory again
    times: dict[str, list[float]] = {name: [] for name in result}
    reads: dict[str, list[float]] = {name: [] for name in result}
    for number in range(rounds + 1):  # the first round, in which everything is new, is left out
        for name in order(result, number):
            taken, read = timed(name, result[name], sources, nbytes, number * repeats, repeats)
            times[name].append(taken)
            reads[name].append(read)
    _give_back(_kept_for_size)
    table = {name: row(taken[1:]) for name, taken in times.items()}
    for name, figures in table.items():
        figures[OF_MEMCPY] = round(figures[MEDIAN] / table[MEMCPY][MEDIAN], 3)
        figures[FIRST_READ] = row(reads[name][1:])[MEDIAN]
    if comm.rank == 0:
        show(f"{nbytes:,} bytes, {comm.size} ranks, {rounds} rounds of {repeats}", table)
    return table


def many(count: int, nbytes: int, rounds: int) -> dict[str, Row]:
    """The time of each of `count` arrays that live at the same time, in new memory and in that of the arrays before."""
    sources = Sources(comm.rank, nbytes)
    times: dict[str, list[float]] = {}
    for number in range(rounds + 1):  # the first round, in which everything is new, is left out
        for backend in order(("memmap", ""), number):
            used = recycling("50%")
            for first, memory in enumerate((NEW, AGAIN), 2 * number):
                comm.Barrier()
                start = time.perf_counter()
                numbers = range(first, first + count)
                arrays = [ms.share(sources.get(number), comm=used, backend=backend or None) for number in numbers]
                taken = float(comm.allreduce(time.perf_counter() - start, MPI.MAX)) / count
                kind = backend or f"default, {ms.report().segments[0].backend}"
                way = f"mpishare, {kind}, {memory}"
                times.setdefault(way, []).append(taken)
                sources.check(way, arrays[-1], numbers[-1])
                del arrays
            comm.Barrier()
            used.Free()
    table = {name: row(taken[1:]) for name, taken in times.items()}
    if comm.rank == 0:
        show(f"{count:,} arrays of {nbytes:,} bytes, {comm.size} ranks, {rounds} rounds, each array", table)
    return table


def show(title: str, table: dict[str, Row]) -> None:
    """Prints the figures of all ways."""
    print(f"\n{title}")
    for name, figures in table.items():
        print(
            f"  {name:34} "
            + "  ".join(f"{value:11,.4f} {column}" for column, value in figures.items() if "quartile" not in column)
        )


def timed(name: str, way: Way, sources: Sources, nbytes: int, first: int, repeats: int) -> tuple[float, float]:
    """The time until the last rank has the array, and the time of a first full read on all ranks at once."""
    if nbytes >= _LARGE_BYTES:
        np.ones(nbytes, np.uint8)  # a virtual machine's host takes back memory that was free for a while
    comm.Barrier()
    start = time.perf_counter()
    for number in range(first, first + repeats):
        array = way(sources.get(number), nbytes)
        comm.Barrier()
    taken = float(comm.allreduce(time.perf_counter() - start, MPI.MAX)) / repeats
    comm.Barrier()
    start = time.perf_counter()
    array.max()
    read = float(comm.allreduce(time.perf_counter() - start, MPI.MAX))
    if name not in (MEMCPY, FILL) and not name.endswith("in place"):
        sources.check(name, array, first + repeats - 1)
    del array
    _give_back()
    return taken, read


def _give_back(kept: list[Any] = _kept) -> None:
    comm.Barrier()
    for item in kept:
        item.Free() if isinstance(item, MPI.Win) else item.close()
    kept.clear()


if __name__ == "__main__":
    main()
