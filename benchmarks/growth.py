"""How the cost grows: with the bytes, with the ranks of a node, with the nodes; and what that means at 1,000 nodes.

    python -m benchmarks.growth [--ranks 1,2,4,8] [--hosts 2,3,4,6,8] [--rate 400mbit] [--rounds 5]

Runs our share on one node with each number of ranks, and over clusters of each number of hosts (tests/cluster), and
fits two laws by least squares, in which N is the bytes:

    within a node     t = a + b N                    for each number of ranks
    between p nodes   t = (p - 2 + k) (a + b N / k)  k the number of chunks that plan.py says

Where b is the time of a byte on a raw socket of the same run, as chunks of nearly one size do not tell a from b. The
second is drawn beside the points and carried out to 1,000 nodes of 128 ranks, on paper: no such machine was
measured. Prints tables and keeps them as results/growth.json, with a picture beside it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from benchmarks.keep import keep
from benchmarks.picture import lines
from benchmarks.places import on_cluster
from benchmarks.rivals import SHARE, SOCKET
from mpishare.transfer import plan

POWERS = (22, 23, 24, 25)
NODE_POWERS = (10, 16, 20, 22, 24, 26, 28)
PAPER_NODES, PAPER_RANKS, PAPER_BYTES = 1000, 128, (32 << 20, 1 << 30, 10 << 30)
FRESH, RECYCLED = "mpishare, memmap, fresh", "mpishare, memmap, recycled"


def main() -> None:
    """Measures, fits, prints and keeps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ranks", default="1,2,4,8")
    parser.add_argument("--hosts", default="2,3,4,6,8")
    parser.add_argument("--rate", default="400mbit")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    within = {ranks: one_node(ranks, options.rounds) for ranks in options.ranks.split(",")}
    ground = within[options.ranks.split(",")[0]].pop("ground")
    for result in within.values():
        result.pop("ground", None)
    between = several_nodes(options.hosts.split(","), options.rate, options.rounds)
    keep("growth", {"one node": within, "several nodes": between}, ground)
    show(within, between)
    measured = {int(hosts): points for hosts, points in between["seconds"].items()}
    largest = str(1 << POWERS[-1])
    law = [chain_s(1 << POWERS[-1], hosts, *between["law"]) for hosts in measured]
    series = {"mpishare, measured": [points[largest] for points in measured.values()], "mpishare, fitted law": law}
    title = f"{1 << POWERS[-1]:,} bytes to every host, links of {options.rate}"
    lines("growth", list(measured), series, "hosts", "seconds", title, log=False)


def one_node(ranks: str, rounds: int) -> dict[str, Any]:
    """Times on one node by size, and the fitted law, from `benchmarks.share`."""
    name = f"growth-{ranks}"
    powers = ",".join(map(str, NODE_POWERS))
    args = ["--powers", powers, "--rounds", str(rounds), "--name", name, "--ours"]
    subprocess.run([sys.executable, "-m", "mpishare", "run", "-n", ranks, "-m", "benchmarks.share", *args], check=True)
    from benchmarks.keep import RESULTS

    kept = json.loads((RESULTS / f"{name}.json").read_text())
    for suffix in ("json", "png"):
        (RESULTS / f"{name}.{suffix}").unlink(missing_ok=True)
    matches: dict[str, Any] = {"ground": kept["ground"]}
    for way in (FRESH, RECYCLED):
        points = {1 << power: kept["figures"][f"{1 << power:,} bytes"][way]["median, us"] for power in NODE_POWERS}
        matches[way] = {"us": points, "law: us, us per MiB": fit_line(points)}
    return matches


def fit_line(points: dict[int, float]) -> list[float]:
    """The a and b of t = a + b N, weighted so that each point counts by its relative error."""
    sizes, times = np.array(list(points)) / (1 << 20), np.array(list(points.values()))
    rows = np.stack([np.ones_like(sizes), sizes], axis=1) / times[:, None]
    solution = np.linalg.lstsq(rows, np.ones_like(times), rcond=None)[0]
    return [round(float(item), 3) for item in solution]


def several_nodes(hosts: Iterable[str], rate: str, rounds: int) -> dict[str, Any]:
    """Seconds by hosts and size, and a and b of the chain."""
    seconds: dict[str, dict[str, float]] = {}
    bare: list[float] = []
    args = ["--inside", "--powers", ",".join(map(str, POWERS)), "--rounds", str(rounds)]
    for count in hosts:
        result = on_cluster(int(count), "1", rate, ["benchmarks.nodes", *args, "--rivals", ""])["figures"]
        seconds[count] = {
            str(1 << power): result[f"{1 << power:,} bytes"][SHARE]["median, ms"] / 1e3 for power in POWERS
        }
        largest = 1 << POWERS[-1]
        bare.append(result[f"{largest:,} bytes"][SOCKET]["median, ms"] / 1e3 / largest)
    byte_s = float(np.median(bare))
    rest = []
    for count, points in seconds.items():
        for size, taken in points.items():
            steps, chunk = steps_of(int(size), int(count))
            rest.append(taken / steps - chunk * byte_s)
    return {"rate": rate, "seconds": seconds, "law": [max(float(np.mean(rest)), 0.0), byte_s]}


def steps_of(nbytes: int, hosts: int) -> tuple[int, float]:
    """Chunks in turn until the last host has the last one, and the bytes of each."""
    chunk = min(plan.links(nbytes, hosts, 0).chunk_bytes, nbytes)
    count = -(-nbytes // chunk)
    return hosts - 2 + count, nbytes / count


def chain_s(nbytes: int, hosts: int, each_s: float, byte_s: float) -> float:
    """Seconds that the law says."""
    steps, chunk = steps_of(nbytes, hosts)
    return steps * (each_s + byte_s * chunk)


def show(within: dict[str, Any], between: dict[str, Any]) -> None:
    """Prints the laws, and what they say of a machine that was not measured."""
    for ranks, matches in within.items():
        for way in (FRESH, RECYCLED):
            start, slope = matches[way]["law: us, us per MiB"]
            print(f"one node, {ranks} ranks, {way}: {start:.0f} us + {slope:.0f} us per MiB")
    each_s, byte_s = between["law"]
    print(f"several nodes, {between['rate']}: {each_s * 1e6:.0f} us a chunk + {byte_s * 1e9:.2f} ns a byte")
    for hosts, points in between["seconds"].items():
        for size, taken in points.items():
            law = chain_s(int(size), int(hosts), each_s, byte_s)
            print(f"  {hosts} hosts, {int(size):,} bytes: {taken:.3f} s measured, {law:.3f} s by the law")
    print(f"on paper, {PAPER_NODES} nodes of {PAPER_RANKS} ranks over such links:")
    for nbytes in PAPER_BYTES:
        ours, bare = chain_s(nbytes, PAPER_NODES, each_s, byte_s), nbytes * byte_s
        sends = bare * PAPER_NODES * PAPER_RANKS
        print(
            f"  {nbytes:,} bytes: chain {ours:.1f} s, bytes over bandwidth {bare:.1f} s, one send a rank {sends:.0f} s"
        )


if __name__ == "__main__":
    main()
