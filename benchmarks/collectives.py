"""What it costs to gather and to reduce for all: one result per node beside MPI's calls into an array of each rank.

    python -m benchmarks.collectives [--hosts 2,4] [--ranks 2] [--powers 10,16,20,26] [--rate 400mbit] [--rounds 5]

First 4 ranks of this machine as 2 pretend nodes, then clusters of hosts on this machine (tests/cluster; root, or a user
allowed user namespaces) whose links are held to a rate. For each way the median time until the last rank is done; for
the largest size also what all ranks together hold of the result, over its bytes (PSS), and what the busiest link
received meanwhile. Between hosts, times are over the least that the rate allows: 2 (M - 1) / M times the bytes for a
reduction over M hosts, (M - 1) / M times the bytes for gathering. Prints a table and keeps it as
results/collectives.json, with a picture beside it.

Bounds: at 64 MiB on pretend nodes no slower than MPI's call, one result a node; over 4 hosts 1.15 of the least for
allreduce, 1.1 for allgather.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.keep import keep, pss_bytes
from benchmarks.nodes import on_cluster
from benchmarks.picture import lines

Figures = dict[str, dict[str, float]]
Way = Callable[[], NDArray[np.float64]]

REDUCE, MPI_REDUCE = "mpishare.allreduce", "MPI_Allreduce, an array a rank"
GATHER, MPI_GATHER = "mpishare.allgather", "MPI_Allgather, an array a rank"
PRETENDED = "2 pretend nodes of 2"
HELD, LEAST = "held, results", "of the least"
_RATES = {"400mbit": 400e6, "1gbit": 1e9}


def main() -> None:
    """Has `inside` run in each place, prints and keeps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--hosts", default="2,4", help="none where it is empty (default: %(default)s)")
    parser.add_argument("--ranks", default="2", help="ranks a host (default: %(default)s)")
    parser.add_argument("--powers", default="10,16,20,26", help="sizes of the result, as powers of two")
    parser.add_argument("--rate", default="400mbit", choices=_RATES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = [1 << int(power) for power in options.powers.split(",")]
    if options.inside:
        inside(sizes, options.rounds)
        return
    args = ["-m", "benchmarks.collectives", "--inside", "--powers", options.powers, "--rounds", str(options.rounds)]
    result = on_pretend_nodes(args)
    figures: dict[str, dict[str, Figures]] = {PRETENDED: result["figures"]}
    ground = result["ground"]
    show(PRETENDED, result["figures"])
    for hosts in map(int, filter(None, options.hosts.split(","))):
        result = on_cluster(hosts, options.ranks, options.rate, args[1:])
        title = f"{hosts} hosts of {options.ranks}, {options.rate}"
        for size, ways in zip(sizes, result["figures"].values(), strict=True):
            compare(ways, size, hosts, _RATES[options.rate])
        figures[title], ground = result["figures"], result["ground"]
        show(title, result["figures"])
    keep("collectives", figures, ground)
    draw(figures, sizes)


def on_pretend_nodes(args: list[str]) -> dict[str, Any]:
    """What the program told on 4 ranks of this machine."""
    command = [sys.executable, "-m", "mpishare", "run", "-n", "4", *args]
    environ = {**os.environ, "MPISHARE_NODES": "block:2"}
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(ended.stderr)
    result: dict[str, Any] = json.loads(ended.stdout)
    return result


def compare(ways: Figures, nbytes: int, hosts: int, rate: float) -> None:
    """Adds the ratio to the least time that the links allow."""
    crossing = nbytes * 8 / rate * (hosts - 1) / hosts * 1e3
    for way, row in ways.items():
        least = 2 * crossing if "reduce" in way else crossing
        row[LEAST] = round(row["median, ms"] / least, 3)


def inside(sizes: list[int], rounds: int) -> None:
    """Measures on all ranks; rank 0 tells the figures as JSON."""
    from mpi4py import MPI

    import mpishare as ms

    comm = MPI.COMM_WORLD
    ms.allreduce(np.ones(3))  # what is made once is there now
    figures = {f"{nbytes:,} bytes": _measure(comm, nbytes, rounds, is_last=nbytes == sizes[-1]) for nbytes in sizes}
    ground = ms.info().as_dict()
    if comm.rank == 0:
        print(json.dumps({"figures": figures, "ground": ground}))


def _ways(comm: Any, nbytes: int) -> dict[str, Way]:
    """Each gives a result of `nbytes`; MPI's calls write to arrays that are there and warm."""
    import mpishare as ms

    whole = np.arange(nbytes // 8, dtype=float)
    part = whole[: whole.size // comm.size].copy()
    rooms: dict[str, NDArray[np.float64]] = {}

    def allreduce() -> NDArray[np.float64]:
        comm.Allreduce(whole, rooms.setdefault(MPI_REDUCE, np.empty_like(whole)))
        return rooms[MPI_REDUCE]

    def allgather() -> NDArray[np.float64]:
        comm.Allgather(part, rooms.setdefault(MPI_GATHER, np.empty(part.size * comm.size)))
        return rooms[MPI_GATHER]

    return {
        REDUCE: lambda: ms.allreduce(whole),
        MPI_REDUCE: allreduce,
        GATHER: lambda: ms.allgather(part),
        MPI_GATHER: allgather,
    }


def _measure(comm: Any, nbytes: int, rounds: int, *, is_last: bool) -> Figures:
    """Each way's median; with the largest size its memory, and what a link received."""
    ways = _ways(comm, nbytes)
    figures: Figures = {name: {} for name in ways}
    if is_last:
        kept: list[NDArray[np.float64]] = []  # so that no way has memory from the one before
        for name, way in ways.items():
            figures[name] = _once(comm, way, nbytes, kept)
        del kept
    times: dict[str, list[float]] = {name: [] for name in ways}
    repeats = max(1, min(50, (1 << 18) // nbytes))
    for _ in range(rounds + 1):  # the first round, in which everything is new, is left out
        for name, way in ways.items():
            comm.Barrier()
            start = time.perf_counter()
            for _ in range(repeats):
                way()
            times[name].append(max(comm.allgather(time.perf_counter() - start)) / repeats)
    for name, taken in times.items():
        figures[name] = {"median, ms": round(statistics.median(taken[1:]) * 1e3, 4), **figures[name]}
    return figures


def _once(comm: Any, way: Way, nbytes: int, kept: list[NDArray[np.float64]]) -> dict[str, float]:
    """What all ranks have gained by a first result, and what the busiest link received for it."""
    before, received = _held(comm), _received()
    comm.Barrier()
    kept.append(way())
    comm.Barrier()
    received = max(comm.allgather(_received() - received))
    kept[-1].sum()
    held = _held(comm) - before
    matches = {HELD: round(held / nbytes, 3)}
    return {**matches, "received by a link, results": round(received / nbytes, 3)} if received else matches


def _held(comm: Any) -> float:
    """Proportional set size of all ranks, bytes."""
    gc.collect()
    comm.Barrier()
    return float(comm.allreduce(pss_bytes()))


def _received() -> int:
    """Bytes that this host's link has received; 0 where there is none."""
    lines_of = Path("/proc/self/net/dev").read_text().splitlines()
    matches = [line for line in lines_of if line.strip().startswith("eth0:")]
    return int(matches[0].partition(":")[2].split()[0]) if matches and "MPISHARE_NODES" not in os.environ else 0


def show(title: str, figures: dict[str, Figures]) -> None:
    """Prints the table of one place."""
    print(f"\n{title}")
    for size, ways in figures.items():
        print(f"  {size}")
        for way, row in ways.items():
            print(f"    {way:32} " + "  ".join(f"{what} {value:,.3f}" for what, value in row.items()), flush=True)


def draw(figures: dict[str, dict[str, Figures]], sizes: list[int]) -> None:
    """Time against bytes on the pretend nodes."""
    columns = list(figures[PRETENDED].values())
    series = {way: [column[way]["median, ms"] for column in columns] for way in columns[0]}
    lines("collectives", sizes, series, "bytes of the result", "ms", "one result per node, 4 ranks on 2 pretend nodes")


if __name__ == "__main__":
    main()
