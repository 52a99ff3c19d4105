"""`mpishare bench`: how fast arrays are shared on this machine or cluster, and a plain verdict."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator

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
    here = ms.topology()
    ways = _ways()
    work = [(nbytes, name) for _ in range(_ROUNDS + 1) for nbytes in (_SMALL_BYTES, options.mib << 20) for name in ways]
    times: dict[tuple[int, str], list[float]] = {case: [] for case in work}
    sources = {nbytes: np.ones(nbytes, np.uint8) if here.rank == 0 else None for nbytes, _ in work}
    try:
        for nbytes, name in _shown(work, here.rank == 0):
            times[nbytes, name].append(_timed(ways[name], sources[nbytes], nbytes))
    except ms.MpishareError as error:
        if here.rank == 0:
            print(f"mpishare bench: {error}", file=sys.stderr)
        return 1
    if here.rank == 0:
        medians = {case: statistics.median(taken[1:]) for case, taken in times.items()}
        print(_table(medians, list(ways), here))
        print(_verdict(medians, options.mib << 20, here))
    return 0


_COPY, _SHARE, _PICKLE, _BUFFER = "one copy on rank 0", "mpishare.share", "comm.bcast, a pickle a rank", "comm.Bcast"


def _ways() -> dict[str, Way]:
    """What is timed, by name: the limit, ours, and what else a code can call."""
    comm = ms.topology().comm
    warm: dict[int, NDArray[np.uint8]] = {}

    def room(nbytes: int) -> NDArray[np.uint8]:
        if nbytes not in warm:
            warm[nbytes] = np.ones(nbytes, np.uint8)
        return warm[nbytes]

    def copy(source: NDArray[np.uint8] | None, nbytes: int) -> None:
        if source is not None:
            np.copyto(room(nbytes), source)

    def buffer(source: NDArray[np.uint8] | None, nbytes: int) -> None:
        comm.Bcast(room(nbytes) if source is None else source)

    return {
        _COPY: copy,
        _SHARE: lambda source, _: ms.share(source),
        _PICKLE: lambda source, _: comm.bcast(source),
        _BUFFER: buffer,
    }


def _timed(way: Way, source: NDArray[np.uint8] | None, nbytes: int) -> float:
    """Seconds until the last rank has the array."""
    here = ms.topology()
    repeats = _SMALL_REPEATS if nbytes <= _SMALL_BYTES else 1
    here.comm.Barrier()
    start = time.perf_counter()
    for _ in range(repeats):
        way(source, nbytes)
    taken: float = max(here.comm.allgather((time.perf_counter() - start) / repeats))
    return taken


def _shown(work: list[tuple[int, str]], is_shown: bool) -> Iterator[tuple[int, str]]:
    """The work with a bar on stderr, by tqdm where that is installed."""
    if is_shown and sys.stderr.isatty():
        try:
            from tqdm import tqdm
        except ImportError:
            yield from _plain_bar(work)
        else:
            yield from tqdm(work, leave=False)
    else:
        yield from work


def _plain_bar(work: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    items = list(work)
    for done, item in enumerate(items):
        bar = "#" * (40 * done // len(items))
        print(f"\r[{bar:40}] {100 * done // len(items):3}%", end="", file=sys.stderr, flush=True)
        yield item
    print("\r" + " " * 50 + "\r", end="", file=sys.stderr, flush=True)


def _table(medians: dict[tuple[int, str], float], names: list[str], here: ms.Topology) -> str:
    lines = [
        f"{here.size} ranks on {here.n_nodes} nodes; medians of {_ROUNDS} rounds, until the last rank has the array"
    ]
    for nbytes in dict.fromkeys(nbytes for nbytes, _ in medians):
        lines.append(f"  {nbytes:,} bytes")
        lines += [f"    {name:28} {medians[nbytes, name] * 1e6:14,.1f} us" for name in names]
    return "\n".join(lines)


def _verdict(medians: dict[tuple[int, str], float], nbytes: int, here: ms.Topology) -> str:
    share = medians[nbytes, _SHARE]
    copies, pickles = share / medians[nbytes, _COPY], medians[nbytes, _PICKLE] / share
    saved = sum(len(here.ranks_of(node)) - 1 for node in range(here.n_nodes)) * nbytes
    faster = f"{pickles:.1f} times as fast as" if pickles >= 1 else f"{1 / pickles:.1f} times as slow as"
    small = medians[_SMALL_BYTES, _SHARE] / medians[_SMALL_BYTES, _PICKLE]
    advice = (
        "Share it." if pickles >= 1 or saved else "One rank a node, and a pickle is faster: there is nothing to gain."
    )
    return (
        f"verdict: sharing {nbytes >> 20} MiB costs {copies:.1f} copies of it, is {faster} a pickle a rank, and saves "
        f"{saved:,} bytes of memory. A small array takes {small:.1f} times as long as a pickle. {advice}"
    )
