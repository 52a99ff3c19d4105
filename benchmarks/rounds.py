"""Rounds in which each way is timed once, in an order that changes, and what is told of them."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

Call = Callable[[int], Any]
"""One operation; the number, which differs from call to call, chooses the contents. What it returns is dropped."""

Row = dict[str, float]
MEDIAN = "median, ms"
MAX_FINALISTS = 3
_MAX_RATIO = 2
_BLOCKS = 3


def finalists(medians: dict[str, float], contestants: Collection[str]) -> list[str]:
    """The ways that go on after the first round: all but the contestants that are not among the fastest of these."""
    best = sorted(set(contestants) & set(medians), key=lambda name: medians[name])[:MAX_FINALISTS]
    return [name for name in medians if name not in contestants or name in best]


def hopeless(medians: dict[str, float], contestants: Collection[str]) -> set[str]:
    """The contestants that took over twice as long as the fastest of them."""
    times = {name: medians[name] for name in contestants if name in medians}
    return {name for name, taken in times.items() if taken > _MAX_RATIO * min(times.values())}


def in_blocks(rounds: int) -> list[int]:
    """Rounds of each of three programs of a way, started in an order that changes, besides a first that is left out."""
    return [(rounds + number) // _BLOCKS for number in range(_BLOCKS) if rounds + number >= _BLOCKS]


def order(names: Iterable[str], number: int) -> list[str]:
    """The names in the order of a round. What one way leaves behind, the next one meets."""
    names = list(names)
    return random.Random(number).sample(names, len(names))


def row(times: Sequence[float]) -> Row:
    """Median and quartiles of seconds, in ms."""
    quartiles = statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else [times[0]] * 3
    names = ("first quartile, ms", MEDIAN, "third quartile, ms")
    return {**{name: round(value * 1e3, 5) for name, value in zip(names, quartiles, strict=True)}, "rounds": len(times)}


def seconds_row(times: Sequence[float]) -> Row:
    """Median and quartiles of seconds, in seconds."""
    quartiles = statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else [times[0]] * 3
    names = ("first quartile, s", "seconds", "third quartile, s")
    return {**{name: round(value, 6) for name, value in zip(names, quartiles, strict=True)}, "rounds": len(times)}


def repeats_of(nbytes: int) -> int:
    """Calls that are timed as one, so that clocks and barriers count little."""
    return max(1, min(50, (1 << 18) // nbytes))


def measure(
    comm: Any, calls: dict[str, Call], repeats: int, rounds: int, contestants: Collection[str] = (), warm_up: int = 0
) -> dict[str, list[float]]:
    """Seconds of a call until the last rank is done, by way and round.

    The first round, in which everything is new, chooses the contestants that go on, and is left out. Each way that goes
    on is then called `warm_up` times more.

    Collective:
        Over `comm`.
    """
    names, times = list(calls), {name: list[float]() for name in calls}
    for number in range(rounds + 1):
        for name in order(names, number):
            times[name].append(_timed(comm, calls[name], number * repeats, repeats))
        if number == 0:
            names = finalists({name: taken[0] for name, taken in times.items()}, contestants)
            for name in names:
                _timed(comm, calls[name], 0, warm_up)
    return times


def _timed(comm: Any, call: Call, first: int, repeats: int) -> float:
    comm.Barrier()
    start = time.perf_counter()
    for number in range(first, first + repeats):
        call(number)  # what it returns goes before the next, so ours has its memory back, as a rival has its buffer
    taken = time.perf_counter() - start
    return float(max(comm.allgather(taken))) / max(1, repeats)
