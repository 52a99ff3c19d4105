"""`mpishare bench`: how fast arrays are shared on this machine or cluster, and a plain verdict."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from datetime import datetime, timezone
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import mpishare as ms

_SMALL_BYTES = 1 << 10
_MIDDLE_BYTES = 1 << 20
_ROUNDS = 9
_SMALL_REPEATS = 100
_MAX_S = 150.0
"""After so long there is no further round."""

Bytes = NDArray[np.uint8]
Way = Callable[["Bytes | None", int], object]
Rounds = dict[tuple[int, str], list[float]]
"""Seconds of each round by bytes and way."""


def main(argv: list[str]) -> int:
    """Measures on all ranks; rank 0 prints."""
    parser = argparse.ArgumentParser(
        prog="mpishare bench",
        description="Times ms.share beside what MPI and mpi4py have, for three sizes, over all ranks, in three minutes "
        "at most. Start it as the job would be started, e.g. mpiexec -n 4 mpishare bench.",
    )
    parser.add_argument("--mib", type=int, default=64, help="the largest array, MiB (default: %(default)s)")
    parser.add_argument("--output", metavar="FILE", help="write all figures and facts there, as JSON, to be sent")
    options = parser.parse_args(argv)
    if options.mib < 1:
        parser.error("--mib takes 1 or more")
    _check_output(options.output)
    rounds = _measure(sorted({_SMALL_BYTES, _MIDDLE_BYTES, options.mib << 20}))
    info = ms.info()
    if ms.topology().rank == 0:
        medians = {case: statistics.median(taken) for case, taken in rounds.items()}
        print(_table(rounds), _verdict(medians, options.mib << 20), sep="\n")
        if options.output:
            figures = [{"bytes": nbytes, "way": way, "seconds": taken} for (nbytes, way), taken in rounds.items()]
            facts = {"date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"), "version": ms.__version__}
            result = {"facts": facts, "figures": figures, "ground": info.as_dict()}
            Path(options.output).write_text(json.dumps(result, indent=2) + "\n")
    return 0


def _check_output(output: str | None) -> None:
    """Raises on all ranks where rank 0 cannot write the file, before anything is measured."""
    if not output:
        return
    problem: str | None = None
    if ms.topology().rank == 0:
        try:
            os.close(os.open(output, os.O_WRONLY | os.O_CREAT, 0o666))
        except OSError as error:
            problem = error.strerror
    problem = ms.topology().comm.bcast(problem)
    if problem:
        raise ms.FileError(output, None, problem)


def _measure(sizes: list[int]) -> Rounds:
    """Times all ways of all sizes, in an order by chance that all ranks share, after a round that warms up."""
    topology, ways = ms.topology(), _ways()
    sources: dict[int, list[Bytes | None]] = {  # two that take turns
        nbytes: [None if topology.rank else np.full(nbytes, value, np.uint8) for value in (1, 2)] for nbytes in sizes
    }
    cases = [(nbytes, name) for nbytes in sizes for name in ways]
    rounds: Rounds = {case: [] for case in cases}
    start = time.perf_counter()
    for number in range(_ROUNDS + 1):
        for place in np.random.default_rng(number).permutation(len(cases)):
            nbytes, name = cases[place]
            rounds[nbytes, name].append(_time(ways[name], sources[nbytes], nbytes))
        spent_s = topology.comm.bcast(time.perf_counter() - start)
        if number and spent_s * (number + 2) / (number + 1) > _MAX_S:
            break
    return {case: taken[1:] for case, taken in rounds.items()}


_COPY, _SHARE, _PICKLE, _BUFFER, _LEADERS, _LINK = (
    "one copy on rank 0",
    "mpishare.share",
    "comm.bcast, a pickle a rank",
    "comm.Bcast, a copy a rank",
    "comm.Bcast, a rank a node",
    "Send to the last node, Recv",
)


def _ways() -> dict[str, Way]:
    """The calls that are timed, by name: the limits of memory and of a link, ours, and what else a code can call."""
    topology = ms.topology()
    comm = topology.comm
    buffer = cache(lambda nbytes: np.ones(nbytes, np.uint8))
    far = topology.ranks_of(topology.n_nodes - 1)[0]

    def copy(source: Bytes | None, nbytes: int) -> None:
        if source is not None:
            np.copyto(buffer(nbytes), source)

    def by_leaders(source: Bytes | None, nbytes: int) -> None:
        if topology.is_leader:
            topology.leaders.Bcast(buffer(nbytes) if source is None else source)

    def link(source: Bytes | None, nbytes: int) -> None:
        if source is not None:
            comm.Send(source, far)
            comm.recv(None, far)
        elif comm.rank == far:
            comm.Recv(buffer(nbytes), 0)
            comm.send(None, 0)

    ways: dict[str, Way] = {
        _COPY: copy,
        _SHARE: lambda source, _: ms.share(source),
        _PICKLE: lambda source, _: comm.bcast(source),
        _BUFFER: lambda source, nbytes: comm.Bcast(buffer(nbytes) if source is None else source),
    }
    return {**ways, _LEADERS: by_leaders, _LINK: link} if topology.n_nodes > 1 else ways


def _time(way: Way, sources: list[Bytes | None], nbytes: int) -> float:
    """Seconds until the last rank has the array; a barrier over all ends each call."""
    comm = ms.topology().comm
    repeats = _SMALL_REPEATS if nbytes <= _SMALL_BYTES else 2
    comm.Barrier()
    start = time.perf_counter()
    for number in range(repeats):
        way(sources[number % len(sources)], nbytes)
        comm.Barrier()
    return float(max(comm.allgather((time.perf_counter() - start) / repeats)))


def _quartiles(taken: list[float]) -> list[float]:
    return statistics.quantiles(taken, n=4, method="inclusive") if len(taken) > 1 else taken * 3


def _table(rounds: Rounds) -> str:
    """Quartiles and medians, in us."""
    topology, n_rounds = ms.topology(), min(map(len, rounds.values()))
    lines = [
        f"{topology.size} ranks on {topology.n_nodes} nodes; until all have the array; of {n_rounds} rounds, in us:",
        f"    {'':28} {'first quartile':>16} {'median':>16} {'third quartile':>16}",
    ]
    for nbytes in dict.fromkeys(nbytes for nbytes, _ in rounds):
        lines.append(f"  {nbytes:,} bytes")
        for (size, name), taken in rounds.items():
            if size == nbytes:
                lines.append(f"    {name:28} " + " ".join(f"{value * 1e6:16,.1f}" for value in _quartiles(taken)))
    return "\n".join(lines)


def _verdict(medians: dict[tuple[int, str], float], nbytes: int) -> str:
    topology, share = ms.topology(), medians[nbytes, _SHARE]
    copies = share / medians[nbytes, _COPY]
    cost = f"verdict: sharing {nbytes >> 20} MiB costs {copies:.1f} copies of it"
    if topology.size == 1:
        return f"{cost}. There is one rank, so there is nothing to share: measure on as many as the job has."
    saved = (topology.size - topology.n_nodes) * nbytes
    saving = f"saves {saved:,} bytes of memory" if saved else "saves no memory, as each node has one rank"
    rivals = dict.fromkeys(name for _, name in medians if name not in (_COPY, _SHARE, _LINK))
    large, small = (
        ", ".join(f"{medians[size, _SHARE] / medians[size, name]:.2f} of that of `{name}`" for name in rivals)
        for size in (nbytes, _SMALL_BYTES)
    )
    is_fastest = all(share <= medians[nbytes, name] for name in rivals)
    advice = "Share it." if is_fastest or saved else "Another way is faster: there is nothing to gain."
    return f"{cost} and {saving}. Its time is {large}. The time of a small array is {small}. {advice}"
