"""What a share takes where ranks of a host share a kernel, but not all that a plain job has: over a plain job's time.

    python -m benchmarks.situations [--rounds 5] [--shares 5]

4 ranks and 256 MiB, in the situations that `tests/faults/situations.py` launches: user or PID namespaces, other
Pythons, MPIs, /dev/shm and kernels. Each round launches all of them in turn, and a plain job on MPICH, with which those
on MPICH are compared. Medians of the rounds' medians and of their ratios, as a machine changes more between rounds than
within one. Prints a table and keeps it as results/situations.json. Bounds: proportional memory (PSS) 1.02 of the array;
a share in fresh memory 1.1 of the plain job's, and where madvise fails 5 of one memcpy.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from benchmarks.keep import keep
from tests.faults.situations import PLAIN, PLAIN_MPICH, SITUATIONS

MPICH = "plain, MPICH"


def main() -> None:
    """Measures, prints and keeps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shares", type=int, default=5)
    options = parser.parse_args()
    situations = {**SITUATIONS, MPICH: PLAIN_MPICH}
    rounds = []
    for number in range(options.rounds):
        rounds.append({name: situation.run(str(options.shares))[0] for name, situation in situations.items()})
        print(f"round {number + 1} of {options.rounds}", flush=True)
    figures = {name: row(rounds, name, MPICH if kind.is_mpich else PLAIN) for name, kind in situations.items()}
    for name, values in figures.items():
        print(f"{name:40} " + "  ".join(f"{what} {value}" for what, value in values.items()))
    ranks, rounds_of = 4, {"rounds": options.rounds, "shares a round": options.shares}
    keep("situations", {"ranks": ranks, **rounds_of, **figures}, rounds[0][PLAIN]["ground"])


def row(rounds: list[dict[str, Any]], name: str, plain: str) -> dict[str, Any]:
    """The figures of one situation."""
    outcome = rounds[0][name]["outcomes"]["default"]
    times = [{way: statistics.median(taken) for way, taken in turn[name]["ms"].items()} for turn in rounds]
    plains = [{way: statistics.median(taken) for way, taken in turn[plain]["ms"].items()} for turn in rounds]
    figures: dict[str, Any] = {"segment kind": ", ".join(outcome["kinds"])}
    figures["memory over the array"] = max(
        turn[name]["outcomes"]["default"]["memory over the array"] for turn in rounds
    )
    for way in ("fresh", "again"):
        figures[f"{way}, ms"] = statistics.median(turn[way] for turn in times)
        figures[f"{way}, over plain"] = _ratio(times, way, plains, way)
        figures[f"{way}, over one memcpy"] = _ratio(times, way, times, "memcpy")
    return figures


def _ratio(times: list[dict[str, float]], way: str, others: list[dict[str, float]], other: str) -> float:
    ratios = [turn[way] / reference[other] for turn, reference in zip(times, others, strict=True)]
    return round(statistics.median(ratios), 3)


if __name__ == "__main__":
    main()
