"""`mpishare bench`: how fast arrays are shared on this machine or cluster, and a plain verdict."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable

import numpy as np

import mpishare as ms
from mpishare.cli import Parser
from mpishare.config import counted, format_bytes

_SHARE, _PICKLED, _BUFFER = "ms.share", "comm.bcast", "comm.Bcast"
_SMALL_BYTES = 1 << 10
_SMALL_REPEATS = 100
"""A small array takes microseconds, which a clock measures by many calls alone."""


def main(argv: list[str]) -> int:
    """Measures on all ranks; rank 0 prints."""
    parser = Parser(
        prog="mpishare bench",
        description="Times ms.share beside comm.bcast and comm.Bcast, for three sizes, over all ranks. Start it as the "
        "job would be started, e.g. mpiexec -n 4 mpishare bench.",
    )
    parser.add_argument("--mib", type=int, default=64, help="the largest array, MiB (default: %(default)s)")
    options = parser.parse_args(argv)
    if options.mib < 1:
        parser.error("--mib takes 1 or more")
    sizes = sorted({_SMALL_BYTES, 1 << 20, options.mib << 20})
    medians = {nbytes: _medians(nbytes) for nbytes in sizes}
    nodes = ms.topology()
    table = ms.share(np.ones(options.mib << 20, np.uint8) if nodes.rank == 0 else None)
    saved = nodes.comm.allreduce(ms.report().bytes_saved if nodes.is_leader else 0)
    del table
    if nodes.rank == 0:
        print(_table(medians), _verdict(medians, saved), sep="\n")
    return 0


def _medians(nbytes: int) -> dict[str, float]:
    """The median milliseconds of each call. A first round warms up; then each order of the calls comes once."""
    comm = ms.topology().comm
    buffer = np.ones(nbytes, np.uint8)
    source = buffer if comm.rank == 0 else None
    calls: dict[str, Callable[[], object]] = {
        _SHARE: lambda: ms.share(source),
        _PICKLED: lambda: comm.bcast(source),
        _BUFFER: lambda: comm.Bcast(buffer),
    }
    orders = [tuple(calls), *itertools.permutations(calls)]
    rounds = [{name: _milliseconds(calls[name], nbytes) for name in order} for order in orders]
    return {name: statistics.median(times[name] for times in rounds[1:]) for name in calls}


def _milliseconds(call: Callable[[], object], nbytes: int) -> float:
    """The time until the last rank has the array."""
    comm, repeats = ms.topology().comm, _SMALL_REPEATS if nbytes == _SMALL_BYTES else 2
    comm.Barrier()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
        comm.Barrier()
    return float(max(comm.allgather(time.perf_counter() - start))) / repeats * 1e3


def _table(medians: dict[int, dict[str, float]]) -> str:
    """One line for each size."""
    nodes, names = ms.topology(), (_SHARE, _PICKLED, _BUFFER)
    job = f"{counted(nodes.size, 'rank')} on {counted(nodes.n_nodes, 'node')}"
    lines = [f"{job}; medians of the time until all ranks have the array, in ms:"]
    lines.append(" " * 10 + "".join(f" {name:>12}" for name in names))
    for nbytes, times in medians.items():
        lines.append(f"{format_bytes(nbytes):>10}" + "".join(f" {value:12,.3f}" for value in times.values()))
    return "\n".join(lines)


def _verdict(medians: dict[int, dict[str, float]], saved: int) -> str:
    """What sharing the largest array has saved in bytes, and how fast it is beside the other calls, as one sentence."""
    nodes, largest = ms.topology(), max(medians)
    if nodes.size == 1:
        return "There is one rank, so there is nothing to share: start as many as the job has."
    is_alone = nodes.size == nodes.n_nodes
    reason = "each node has one rank" if is_alone else "each rank holds a copy; mpishare info --verbose says why"
    saves = f"saves {format_bytes(saved)} of memory" if saved else f"saves no memory: {reason}"
    return f"Sharing {format_bytes(largest)} {saves}; it is {_speed(medians[largest])}."


def _speed(times: dict[str, float]) -> str:
    """Words such as "17.1 times as fast as comm.bcast and 7.0 times as slow as comm.Bcast"."""
    ratios = {name: times[name] / times[_SHARE] for name in (_PICKLED, _BUFFER)}
    return " and ".join(
        f"{ratio:.1f} times as fast as {name}" if ratio >= 1 else f"{1 / ratio:.1f} times as slow as {name}"
        for name, ratio in ratios.items()
    )
