"""`mpishare bench`: how fast arrays are shared on this machine or cluster, and a plain verdict."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

import mpishare as ms

_SMALL_BYTES = 1 << 10
_ROUNDS = 5
_SMALL_REPEATS = 100

Way = Callable[["NDArray[np.uint8] | None", int], object]


def main(argv: list[str]) -> int:
    """Measures on all ranks; rank 0 prints."""
    parser = argparse.ArgumentParser(
        prog="mpishare bench",
        description="Times ms.share beside comm.bcast and comm.Bcast, for a small array and a large one, over all "
        "ranks. Start it as the job would be started, e.g. mpiexec -n 4 mpishare bench.",
    )
    parser.add_argument("--mib", type=int, default=64, help="the large array, MiB (default: %(default)s)")
    options = parser.parse_args(argv)
    if options.mib < 1:
        parser.error("--mib takes 1 or more")
    is_root, ways = ms.topology().rank == 0, _ways()
    sources = {nbytes: np.ones(nbytes, np.uint8) if is_root else None for nbytes in (_SMALL_BYTES, options.mib << 20)}
    seconds: dict[tuple[int, str], list[float]] = {(nbytes, name): [] for nbytes in sources for name in ways}
    for _ in range(_ROUNDS + 1):
        for (nbytes, name), rounds in seconds.items():
            rounds.append(_time(ways[name], sources[nbytes], nbytes))
    if is_root:
        medians = {case: statistics.median(rounds[1:]) for case, rounds in seconds.items()}  # the first is a warm-up
        print(_table(medians, list(ways)), _verdict(medians, options.mib << 20), sep="\n")
    return 0


_COPY, _SHARE, _PICKLE, _BUFFER = "one copy on rank 0", "mpishare.share", "comm.bcast, a pickle a rank", "comm.Bcast"


def _ways() -> dict[str, Way]:
    """The calls that are timed, by name: the limit, ours, and what else a code can call."""
    comm = ms.topology().comm
    buffer = cache(lambda nbytes: np.ones(nbytes, np.uint8))

    def copy(source: NDArray[np.uint8] | None, nbytes: int) -> None:
        if source is not None:
            np.copyto(buffer(nbytes), source)

    return {
        _COPY: copy,
        _SHARE: lambda source, _: ms.share(source),
        _PICKLE: lambda source, _: comm.bcast(source),
        _BUFFER: lambda source, nbytes: comm.Bcast(buffer(nbytes) if source is None else source),
    }


def _time(way: Way, source: NDArray[np.uint8] | None, nbytes: int) -> float:
    """Seconds until the last rank has the array."""
    comm = ms.topology().comm
    repeats = _SMALL_REPEATS if nbytes <= _SMALL_BYTES else 1
    comm.Barrier()
    start = time.perf_counter()
    for _ in range(repeats):
        way(source, nbytes)
    return float(max(comm.allgather((time.perf_counter() - start) / repeats)))


def _table(medians: dict[tuple[int, str], float], names: list[str]) -> str:
    topology = ms.topology()
    lines = [f"{topology.size} ranks on {topology.n_nodes} nodes; median of {_ROUNDS} rounds, until all have the array"]
    for nbytes in dict.fromkeys(nbytes for nbytes, _ in medians):
        lines.append(f"  {nbytes:,} bytes")
        lines += [f"    {name:28} {medians[nbytes, name] * 1e6:14,.1f} us" for name in names]
    return "\n".join(lines)


def _verdict(medians: dict[tuple[int, str], float], nbytes: int) -> str:
    topology, share = ms.topology(), medians[nbytes, _SHARE]
    copies, pickles = share / medians[nbytes, _COPY], medians[nbytes, _PICKLE] / share
    cost = f"verdict: sharing {nbytes >> 20} MiB costs {copies:.1f} copies of it"
    if topology.size == 1:
        return f"{cost}. There is one rank, so there is nothing to share: measure on as many as the job has."
    saved = (topology.size - topology.n_nodes) * nbytes
    faster = f"{pickles:.1f} times as fast as" if pickles >= 1 else f"{1 / pickles:.1f} times as slow as"
    small = medians[_SMALL_BYTES, _SHARE] / medians[_SMALL_BYTES, _PICKLE]
    saving = f"saves {saved:,} bytes of memory" if saved else "saves no memory, as each node has one rank"
    advice = "Share it." if pickles >= 1 or saved else "A pickle is faster: there is nothing to gain."
    return (
        f"{cost}, is {faster} a pickle a rank, and {saving}. A small array takes {small:.1f} times as long as a "
        f"pickle. {advice}"
    )
