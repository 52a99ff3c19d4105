"""What it costs to gather and to reduce for all: one result per node beside MPI's calls into an array of each rank.

    python -m benchmarks.collectives [--hosts 2,4] [--ranks 2] [--powers 10,16,20,24] [--rate 400mbit] [--rounds 9]

First 2 and 4 ranks of this machine as 2 pretend nodes, then clusters of hosts on this machine (tests/cluster; root, or
a user allowed user namespaces) whose links are held to a rate. For each way the median time until the last rank is
done; for the largest size also what all ranks together hold of the result, over its bytes (PSS), and what the busiest
link received meanwhile. Between hosts, times are over the least that the rate allows: 2 (M - 1) / M times the bytes for
a reduction over M hosts, (M - 1) / M times the bytes for gathering.

The rivals are MPI's calls into an array of each rank, by default, by HAN between hosts, and with each of Open MPI's
algorithms forced; and an expert's, with one result a node: the ranks of a node reduce or write into a window that is
used again, whose leaders make MPI's call, with each algorithm, too. Of those that are forced the three fastest of the
first round go on. What is reduced is another array in each call, and the order of the ways changes. Prints a table and
keeps it as results/collectives.json, with a picture of each call beside it.

Goals: for the largest size on pretend nodes no slower than MPI's call, one result a node; over 4 hosts 1.15 of the
least for allreduce, 1.1 for allgather. On 2 pretend nodes of 1, allreduce of 1 KiB, 64 KiB and 1 MiB over MPI's: 3,
1.5, 1.0.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.collective_ways import RIVALS, ways_of
from benchmarks.keep import keep, pss_bytes
from benchmarks.picture import lines
from benchmarks.places import FREE, PRETEND_NODES, on_cluster, on_pretend_nodes, title_of
from benchmarks.rounds import MEDIAN, Call, measure, repeats_of, row

Figures = dict[str, dict[str, float]]

PRETENDED = "2 pretend nodes of 2"
HELD, LEAST = "held, results", "of the least"
OF_THE_BEST = "over the best of MPI's"
_RATES = {"400mbit": 400e6, "1gbit": 1e9, "4gbit": 4e9, "10gbit": 10e9, FREE: 0.0}


def main() -> None:
    """Has `inside` run in each place, prints and keeps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--hosts", default="2,4", help="none where it is empty (default: %(default)s)")
    parser.add_argument("--ranks", default="2", help="ranks a host (default: %(default)s)")
    parser.add_argument("--powers", default="10,16,20,24", help="sizes of the result, as powers of two")
    parser.add_argument("--rate", default="400mbit", choices=_RATES)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = [1 << int(power) for power in options.powers.split(",")]
    if options.inside:
        inside(sizes, options.rounds)
        return
    args = ["benchmarks.collectives", "--inside", "--powers", options.powers, "--rounds", str(options.rounds)]
    figures, ground = dict[str, dict[str, Figures]](), {}
    for title in PRETEND_NODES:
        result = on_pretend_nodes(title, args)
        figures[title], ground = result["figures"], result["ground"]
        show(title, figures[title])
    for hosts in map(int, filter(None, options.hosts.split(","))):
        result = on_cluster(hosts, options.ranks, options.rate, args)
        title = title_of(hosts, options.ranks, options.rate)
        for size, ways in zip(sizes, result["figures"].values(), strict=True):
            compare(ways, size, hosts, _RATES[options.rate])
        figures[title], ground = result["figures"], result["ground"]
        show(title, figures[title])
    keep("collectives", figures, ground)
    draw(figures, sizes)


def compare(ways: Figures, nbytes: int, hosts: int, rate: float) -> None:
    """Adds the ratio to the least time that the links allow."""
    if not rate:
        return
    crossing = nbytes * 8 / rate * (hosts - 1) / hosts * 1e3
    for way, figure in ways.items():
        least = 2 * crossing if "reduce" in way else crossing
        figure[LEAST] = round(figure[MEDIAN] / least, 3)


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


def _measure(comm: Any, nbytes: int, rounds: int, *, is_last: bool) -> Figures:
    """Each way's median; with the largest size its memory, and what a link received."""
    ways = ways_of(comm, nbytes)
    plain = [name for name in ways if ":" not in name]
    memory: Figures = {}
    if is_last:
        kept: list[NDArray[np.float64]] = []  # so that no way has memory from the one before
        memory = {name: _once(comm, ways[name], nbytes, kept) for name in plain}
        del kept
    figures: Figures = {}
    for ours, theirs in RIVALS.items():
        calls = {name: ways[name] for name in ways if name == ours or name.startswith(theirs)}
        forced = [name for name in calls if name not in plain]
        times = measure(comm, calls, repeats_of(nbytes), rounds, forced)
        _check(comm, {name: calls[name] for name in calls if len(times[name]) > 1})
        rows = {name: row(taken[1:]) for name, taken in times.items() if len(taken) > 1}
        best = min(figure[MEDIAN] for name, figure in rows.items() if name != ours)
        rows[ours][OF_THE_BEST] = round(rows[ours][MEDIAN] / best, 3)
        figures |= {name: {**figure, **memory.get(name, {})} for name, figure in rows.items()}
    return figures


def _check(comm: Any, calls: dict[str, Call]) -> None:
    """Ends the job where two ways differ: sums of such numbers are exact."""
    expected = None
    for name, call in calls.items():
        result = np.array(call(1))
        expected = result if expected is None else expected
        if not np.array_equal(result, expected):
            raise SystemExit(f"rank {comm.rank}: {name} has another result than the first way")


def _once(comm: Any, way: Call, nbytes: int, kept: list[NDArray[np.float64]]) -> dict[str, float]:
    """What all ranks have gained by a first result, and what the busiest link received for it."""
    before, received = _held(comm), _received()
    comm.Barrier()
    kept.append(way(0))
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
        for way, figure in ways.items():
            result = (f"{value:,.3f} {column}" for column, value in figure.items() if "quartile" not in column)
            print(f"    {way:52} " + "  ".join(result), flush=True)


def draw(figures: dict[str, dict[str, Figures]], sizes: list[int]) -> None:
    """Time against bytes on the pretend nodes, a picture for each call; of forced algorithms the best at each size."""
    tables = list(figures[PRETENDED].values())
    for ours, theirs in RIVALS.items():
        ways = [way for way in tables[0] if way == ours or (way.startswith(theirs) and ":" not in way)]
        series = {way: [table[way][MEDIAN] for table in tables] for way in ways}
        forced = [[table[way][MEDIAN] for way in table if way.startswith(theirs) and ":" in way] for table in tables]
        if all(forced):
            series[f"{theirs}: the best forced algorithm"] = [min(times) for times in forced]
        call = ours.partition(".")[2]
        title = f"{call} by 4 ranks on {PRETENDED}"
        lines(call, sizes, series, "bytes of the result", "time of one call, ms", title)


if __name__ == "__main__":
    main()
