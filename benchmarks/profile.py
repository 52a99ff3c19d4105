"""Where the time of a call goes: to MPI, to copies and sums, to Python; with warm caches, and after other data.

    python -m benchmarks.profile [--rounds 200] [--places node,pretend,hosts]

Calls whose times miss their goals, on one node, on two pretend nodes and on two hosts, and MPI's own call between known
buffers beside each. "Warm" is one call after the other. Before a call after "other data" each rank reads 4 MiB of them,
which fill a core's cache, as in any program that does more than to call us. Each call is timed as it is, and again with
a clock around each call of MPI, with its wait for the other rank, and around each copy and sum; what is left is Python,
and what the kernel does to map memory. A clock takes about 0.3 us. Medians of rank 0, which has the array. Prints a
table and keeps it as results/profile.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.cells import size_name
from benchmarks.keep import keep
from benchmarks.places import FREE, ONE_NODE, PRETEND_NODES, on_cluster, on_ranks, title_of
from benchmarks.rounds import Row

WARM, OTHER_DATA = "warm", "after other data"
TOTAL, WITH_CLOCKS, ALONE = "whole call, us", "with clocks, us", "MPI's call alone, us"
AGREEMENT, MPI_CALLS, COPIES, PYTHON = "agreement, us", "MPI, us", "copies and sums, us", "Python, us"
_PARTS = (AGREEMENT, MPI_CALLS, COPIES)
_MPI_CALLS = ("isend", "irecv", "begin_bcast", "begin_barrier", "wait", "sendrecv")
"""Of a `CollectiveComm`, those that the calls below make."""
_PRETEND = "2 pretend nodes of 1"
PLACES: dict[str, tuple[str, Callable[[list[str]], dict[str, Any]]]] = {
    "node": (ONE_NODE, partial(on_ranks, "2", "")),
    "pretend": (_PRETEND, partial(on_ranks, *PRETEND_NODES[_PRETEND])),
    "hosts": (title_of(2, 1, FREE), partial(on_cluster, 2, "1", FREE)),
}
SIZES = {
    "node": {"share": [1 << 10], "a message": [8, 64 << 10, 1 << 20]},
    "pretend": {"share": [1 << 10, 64 << 10, 1 << 20, 16 << 20], "allreduce": [1 << 10, 64 << 10, 1 << 20]},
    "hosts": {"share": [1 << 20, 16 << 20]},
}
"""Bytes by place and call."""
_OTHER_BYTES = 4 << 20
_TAG = 7
_MOST_BYTES = 256 << 20
_ARRAYS = 4
_WARM_UP = 20


def main() -> None:
    """Measures at all places, or inside one of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--rounds", type=int, default=200, help="calls, at least 20, fewer of large arrays (default: %(default)s)"
    )
    parser.add_argument("--places", default=",".join(PLACES), help="which of them (default: %(default)s)")
    parser.add_argument("--inside", choices=list(PLACES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        inside(options.inside, options.rounds)
        return
    figures: dict[str, Any] = {}
    for name in options.places.split(","):
        place, run = PLACES[name]
        result = run(["benchmarks.profile", "--rounds", str(options.rounds), "--inside", name])
        figures[place] = result["figures"]
        for call, rows in figures[place].items():
            for caches, figure in rows.items():
                print(f"{place}, {call}, {caches}: " + ", ".join(f"{field} {value}" for field, value in figure.items()))
    keep("profile", figures, result["ground"])


class Work(NamedTuple):
    """Our call, and MPI's between buffers that are there.

    Attributes:
        ours: By a number, which chooses the array.
        alone: The same.
        times: Operations in each call.
    """

    ours: Callable[[int], object]
    alone: Callable[[int], object]
    times: int = 1


def inside(place: str, rounds: int) -> None:
    """Measures on the ranks of a place; rank 0 tells the figures as JSON."""
    from mpi4py import MPI

    import mpishare as ms

    comm = MPI.COMM_WORLD
    works = {
        f"{name}, {size_name(nbytes)}": (WORKS[name](comm, nbytes), max(_WARM_UP, min(rounds, _MOST_BYTES // nbytes)))
        for name, sizes in SIZES[place].items()
        for nbytes in sizes
    }
    figures: dict[str, dict[str, Row]] = {}
    for name, (work, count) in works.items():
        for number in range(_WARM_UP):
            work.ours(number)
        figures[name] = {}
        for caches in (WARM, OTHER_DATA):
            ours, alone = (timed(comm, call, work.times, count, caches)[TOTAL] for call in (work.ours, work.alone))
            figures[name][caches] = {TOTAL: ours, ALONE: alone}
    clocks = Clocks()
    clocks.install()
    for name, (work, count) in works.items():
        for caches, row in figures[name].items():
            parts = timed(comm, work.ours, work.times, count, caches, clocks)
            row[WITH_CLOCKS] = parts.pop(TOTAL)
            row |= parts
    ground = ms.info().as_dict()
    if comm.rank == 0:
        print(json.dumps({"figures": figures, "ground": ground}))


def timed(
    comm: Any, call: Callable[[int], object], times: int, count: int, caches: str, clocks: Clocks | None = None
) -> Row:
    """Medians of the whole call and of its parts, in microseconds."""
    other = np.ones(_OTHER_BYTES, np.uint8)
    rows = []
    for number in range(count):
        if caches == OTHER_DATA:
            other.sum()
        comm.Barrier()
        if clocks is not None:
            clocks.reset()
        start = time.perf_counter()
        call(number)
        row = {TOTAL: time.perf_counter() - start}
        if clocks is not None:
            row |= {**clocks.parts, PYTHON: row[TOTAL] - sum(clocks.parts.values())}
        rows.append({column: value * 1e6 / times for column, value in row.items()})
    return {column: round(statistics.median(row[column] for row in rows), 2) for column in rows[0]}


def _arrays(nbytes: int) -> list[NDArray[np.float64]]:
    return [np.full(nbytes // 8, float(number)) for number in range(_ARRAYS)]


def share(comm: Any, nbytes: int) -> Work:
    """An array of rank 0 for all."""
    import mpishare as ms

    arrays, room, is_root = _arrays(nbytes), np.ones(nbytes // 8), comm.rank == 0
    return Work(
        lambda number: ms.share(arrays[number % _ARRAYS] if is_root else None),
        lambda number: comm.Bcast(arrays[number % _ARRAYS] if is_root else room),
    )


def allreduce(comm: Any, nbytes: int) -> Work:
    """The sum of an array of each rank."""
    import mpishare as ms

    arrays, room = _arrays(nbytes), np.ones(nbytes // 8)
    return Work(
        lambda number: ms.allreduce(arrays[number % _ARRAYS]),
        lambda number: comm.Allreduce(arrays[number % _ARRAYS], room),
    )


def message(comm: Any, nbytes: int) -> Work:
    """An array to the other rank and back."""
    import mpishare as ms

    arrays, room, is_root, other = _arrays(nbytes), np.ones(nbytes // 8), comm.rank == 0, 1 - comm.rank

    def ours(number: int) -> None:
        if is_root:
            ms.send(arrays[number % _ARRAYS], other)
        array = ms.recv(other)
        if not is_root:
            ms.send(array, other)

    def alone(number: int) -> None:
        if is_root:
            comm.Send(arrays[number % _ARRAYS], other, _TAG)
        comm.Recv(room, other, _TAG)
        if not is_root:
            comm.Send(room, other, _TAG)

    return Work(ours, alone, times=2)


WORKS = {"share": share, "allreduce": allreduce, "a message": message}


class Clocks:
    """Clocks around what mpishare calls on MPI_COMM_WORLD.

    Attributes:
        parts: Seconds since `reset`.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Sets all to zero."""
        self.parts = dict.fromkeys(_PARTS, 0.0)

    def around(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with its time noted."""

        def with_clock(*args: Any, **options: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                self.parts[part] += time.perf_counter() - start

        return with_clock

    def install(self) -> None:
        """Puts them where the library calls MPI, copies and sums."""
        from mpishare import sharing
        from mpishare.comm.context import context_of
        from mpishare.comm.in_flight import InFlight
        from mpishare.transfer import node_fill, operations

        context = context_of()
        for comm in (context.collective_comm, context.node_collective_comm, context.leader_comm):
            for name in (*_MPI_CALLS, "allreduce_or") if comm else ():
                part = AGREEMENT if name == "allreduce_or" else MPI_CALLS
                setattr(comm, name, self.around(part, getattr(comm, name)))
        for name in ("head_comm", "data_comm"):
            setattr(context, name, _Messages(self, getattr(context, name)))
        InFlight.advance = self.around(MPI_CALLS, InFlight.advance)  # type: ignore[method-assign]
        for module, name in ((sharing, "fill"), (node_fill, "_copy"), (operations._Function, "fold")):
            setattr(module, name, self.around(COPIES, getattr(module, name)))


class _Messages:
    """A communicator whose messages are timed."""

    def __init__(self, clocks: Clocks, comm: Any) -> None:
        self._clocks, self._comm = clocks, comm
        self.Send, self.Recv = (clocks.around(MPI_CALLS, call) for call in (comm.Send, comm.Recv))

    def Isend(self, *args: Any) -> _Request:  # noqa: N802 - as in mpi4py
        return _Request(self._clocks, self._clocks.around(MPI_CALLS, self._comm.Isend)(*args))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)


class _Request:
    """A request whose wait is timed."""

    def __init__(self, clocks: Clocks, request: Any) -> None:
        self.Wait = clocks.around(MPI_CALLS, request.Wait)


if __name__ == "__main__":
    main()
