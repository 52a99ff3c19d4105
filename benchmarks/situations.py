"""What a share takes where ranks of a host share a kernel, but not all that a plain job has: over a plain job's time.

    python -m benchmarks.situations [--rounds 9] [--shares 5]

4 ranks and 256 MiB, in the situations that `tests/faults/situations.py` launches: user or PID namespaces, other
Pythons, MPIs, /dev/shm and kernels. Each round launches all of them, and a plain job on MPICH, with which those on
MPICH are compared, in an order that changes. Medians of the rounds' medians and of their ratios, as a machine changes
more between rounds than within one. Prints a table and keeps it as results/situations.json. Goals: proportional memory
(PSS) 1.02 of the array; a share in fresh memory 1.1 of the plain job's, and where madvise fails 5 of one memcpy;
`private` of 1 GiB in a nameless file, also in a user namespace, where it may not open its maps again, 1 ms and 1 MiB.
"""

from __future__ import annotations

import argparse
import os
import statistics
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.keep import keep
from benchmarks.rounds import order
from tests.faults.situations import PLAIN, PLAIN_MPICH, SITUATIONS

MPICH = "plain, MPICH"


def main() -> None:
    """Measures, prints and keeps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--shares", type=int, default=5)
    options = parser.parse_args()
    situations = {**SITUATIONS, MPICH: PLAIN_MPICH}
    rounds = []
    # Open MPI does not start where a killed launcher that had the same process number has left its folder.
    with TemporaryDirectory(prefix="situations-") as folder:
        os.environ["TMPDIR"] = folder
        for number in range(options.rounds):
            rounds.append({name: situations[name].run(str(options.shares))[0] for name in order(situations, number)})
            print(f"round {number + 1} of {options.rounds}", flush=True)
    figures = {name: row(rounds, name, MPICH if kind.is_mpich else PLAIN) for name, kind in situations.items()}
    for name, values in figures.items():
        print(f"{name:40} " + "  ".join(f"{column} {value}" for column, value in values.items()))
    keep("situations", {"rounds": options.rounds, "shares": options.shares, **figures}, rounds[0][PLAIN]["ground"])


def row(rounds: list[dict[str, Any]], name: str, plain: str) -> dict[str, Any]:
    """The figures of one situation."""
    outcomes = [turn[name]["outcomes"]["default"] for turn in rounds]
    figures: dict[str, Any] = {
        "segment kind": ", ".join(outcomes[0]["kinds"]),
        "memory over the array": max(outcome["memory over the array"] for outcome in outcomes),
    }
    for way in ("fresh", "again"):
        figures[f"{way}, median, ms"] = round(statistics.median(medians(rounds, name, way)), 3)
        figures[f"{way}, least, ms"] = min(time for turn in rounds for time in turn[name]["ms"][way])
        figures[f"{way}, over plain"] = ratio(medians(rounds, name, way), medians(rounds, plain, way))
        figures[f"{way}, over one memcpy"] = ratio(medians(rounds, name, way), medians(rounds, name, "memcpy"))
    times, gains = zip(*(turn[name]["private"] for turn in rounds), strict=True)
    figures["private() of 1 GiB, ms"] = statistics.median(times)
    figures["private() of 1 GiB, MiB"] = max(gains)
    return figures


def medians(rounds: list[dict[str, Any]], name: str, way: str) -> list[float]:
    """The median time of a way in each round, in milliseconds."""
    return [statistics.median(turn[name]["ms"][way]) for turn in rounds]


def ratio(times: list[float], references: list[float]) -> float:
    """The median of the rounds' ratios."""
    return round(statistics.median(time / other for time, other in zip(times, references, strict=True)), 3)


if __name__ == "__main__":
    main()
