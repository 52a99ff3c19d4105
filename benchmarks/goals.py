"""What was measured beside the goals that the authors set, from the kept results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.cells import name_of, size_of
from benchmarks.collective_ways import GATHER, MPI_GATHER, MPI_REDUCE, REDUCE
from benchmarks.collectives import HELD, LEAST, OF_THE_BEST, PRETENDED
from benchmarks.files import CHUNKED, CONTIGUOUS, LOADED, LOADED_AGAIN, STORED
from benchmarks.growth import FABRIC, GOAL, GOAL_NODES, OF_MEASURED, OTHER_LINKS, OVER_BOUND, TOLERANCE
from benchmarks.messages import AUTO, KNOWN, OF_PLAIN, OURS, OURS_OUT, PICKLED
from benchmarks.nodes import OF_THE_BEST as OF_THE_BEST_BCAST
from benchmarks.nodes import OF_THE_EXPERT, OF_THE_SOCKET
from benchmarks.rivals import AGAIN, BCAST, NEW, SHARE, SOCKETS
from benchmarks.rounds import MEDIAN

Figures = Mapping[str, Any]
_LARGE, _MIDDLE, _SMALL = "268,435,456 bytes", "1,048,576 bytes", "1,024 bytes"
_64_KIB = "65,536 bytes"
_WINDOW, _WINDOW_AGAIN = "hand-written window", "window used again"


@dataclass(frozen=True)
class Row:
    """One figure with its goal.

    Attributes:
        values: All of them have to reach the goal.
        goal: The most that a value may be, or the least.
        remark: What else was measured.
    """

    measure: str
    values: tuple[float, ...]
    goal: float
    unit: str = ""
    remark: str = ""
    is_least: bool = False

    @property
    def is_met(self) -> bool:
        """Whether all values reach the goal."""
        return all(value >= self.goal if self.is_least else value <= self.goal for value in self.values)

    @property
    def shown(self) -> tuple[str, str, str, str]:
        """What, measured, goal, and whether it is met."""
        unit = f" {self.unit}" if self.unit else ""
        measured = ", ".join(f"{value:,.3g}" for value in self.values) + unit
        goal = f"{'at least ' if self.is_least else ''}{self.goal:g}{unit}"
        remark = f"; {self.remark}" if self.remark else ""
        return self.measure, measured + remark, goal, "met" if self.is_met else "**missed**"


def rows(figures: Figures) -> list[Row]:
    """All goals, from the figures of the kept results by name."""
    return [
        *_within(figures["share-2"], figures["share-4"]),
        *_between(figures["nodes"]),
        *_links(figures["nodes-links"]),
        *_growth(figures["growth"]),
        *_collectives(figures["collectives"]),
        *_messages(figures["messages"], figures["messages-hosts"]["compression"]),
        *_files(figures["files"]),
        *_tables(figures["table"]),
        *_tasks(figures["pool"]),
        *_additions(figures["kernels"]),
        *_ground(figures["ground"]),
    ]


def _within(two: Figures, four: Figures) -> Iterator[Row]:
    """On one node; in memmap, then in windows."""

    def over(size: str, way: str, reference: str, column: str = MEDIAN) -> tuple[float, ...]:
        figures = two[size]
        return tuple(figures[f"mpishare, {kind}, {way}"][column] / figures[reference][column] for kind in _KINDS)

    memcpy, private = "one memcpy, warm", "Bcast, a copy a rank"
    yield Row("256 MiB to 2 ranks, new memory, over one warm memcpy", over(_LARGE, NEW, memcpy), 2.0)
    yield Row("the same over a new hand-written window", over(_LARGE, NEW, _WINDOW), 0.25)
    yield Row("the same over pshmem", over(_LARGE, NEW, "pshmem"), 0.25)
    yield Row("the same over a pickled bcast", over(_LARGE, NEW, "bcast, pickled"), 0.08)
    yield Row("256 MiB to 2 ranks, memory used again, over one warm memcpy", over(_LARGE, AGAIN, memcpy), 1.0)
    new = {size: over(size, NEW, _WINDOW)[-1] for size, ways in two.items() if _WINDOW in ways}
    measure = f"{_listed(new)} to 2 ranks, new memory by a window, over a new hand-written window"
    yield Row(measure, tuple(new.values()), 1.0)
    reads = {size: over(size, NEW, private, "first read, ms") for size in (_LARGE, _SMALL, _64_KIB, _MIDDLE)}
    small = ", ".join(f"of {name_of(size)} {values[-1]:.3g}" for size, values in reads.items() if size != _LARGE)
    yield Row("first full read of 256 MiB of new memory, over that of private arrays", reads[_LARGE], 1.3, remark=small)
    fill = over(_LARGE, "in place", "fill of a private warm array")
    yield Row("`empty`, fill, `fence`, memory used again, over filling a private array", fill, 1.1)
    yield Row(f"1 KiB to 2 ranks, memory used again, over a {_WINDOW_AGAIN}", over(_SMALL, AGAIN, _WINDOW_AGAIN), 3.0)
    for ranks, figures, goal_us in ((2, two, 12.0), (4, four, 30.0)):
        taken = tuple(figures[_SMALL][f"mpishare, {kind}, {AGAIN}"][MEDIAN] * 1e3 for kind in _KINDS)
        pickle_us = figures[_SMALL]["bcast, pickled"][MEDIAN] * 1e3
        yield Row(f"1 KiB to {ranks} ranks, memory used again", taken, goal_us, "us")
        yield Row("the same over a pickled bcast", tuple(taken_us / pickle_us for taken_us in taken), 1.0)


_KINDS = ("memmap", "window")


def _between(figures: Figures) -> Iterator[Row]:
    """Over several hosts."""
    alone = {hosts: _last(figures[f"{hosts} hosts of 1, 400mbit"]) for hosts in (4, 8)}
    for hosts, goal in ((4, 1.10), (8, 1.15)):
        size, ways = alone[hosts]
        bare_ms = int(size.split()[0].replace(",", "")) * 8 / 400e6 * 1e3
        best = _best(ways, BCAST)[MEDIAN] / bare_ms
        remark = f"MPI_Bcast by default {ways[BCAST][MEDIAN] / bare_ms:.3g}, by its best algorithm {best:.3g}"
        yield Row(
            f"{name_of(size)} to {hosts} hosts, over bytes / 400 Mbit/s",
            (ways[SHARE][MEDIAN] / bare_ms,),
            goal,
            "",
            remark,
        )
    for hosts in alone:
        tables = figures[f"{hosts} hosts of 1, 400mbit"].values()
        worst = max(ways[SHARE][MEDIAN] / _best(ways, BCAST)[MEDIAN] for ways in tables)
        yield Row(f"{hosts} hosts, 400 Mbit/s, the size that is worst, over MPI_Bcast's best algorithm", (worst,), 1.0)
    for hosts, (size, ways) in alone.items():
        several = figures.get(f"{hosts} hosts of 4, 400mbit", {})
        if size in several:
            ratio = several[size][SHARE][MEDIAN] / ways[SHARE][MEDIAN]
            yield Row(f"{name_of(size)} to {hosts} hosts of 4 ranks, over 1 rank in another run", (ratio,), 1.05)
    near = figures["2 pretend nodes of 1"]
    for size, goal in ((_SMALL, 4.0), (_64_KIB, 2.0), (_MIDDLE, 1.1), (_last(near)[0], 0.7)):
        measure = f"{name_of(size)} to 2 pretend nodes of 1, over an expert's window and MPI_Bcast"
        remark = f"over the best rival {near[size][SHARE][OF_THE_BEST_BCAST]:.3g}"
        yield Row(measure, (near[size][SHARE][OF_THE_EXPERT],), goal, remark=remark)
    for hosts in (2, 4):
        free = figures[f"{hosts} hosts of 1, free"]
        large = {size: free[size][SHARE][OF_THE_BEST_BCAST] for size in free if (size_of(size) or 0) >= 1 << 20}
        measure = f"{_listed(large)} to {hosts} hosts of 1, links as fast as the machine, over the best rival"
        yield Row(measure, tuple(large.values()), 1.0)
    for title, tables in figures.items():
        size, ways = _last(tables)
        if OF_THE_SOCKET in ways.get(SHARE, {}):
            remark = f"MPI_Bcast's best algorithm {_best(ways, BCAST)[OF_THE_SOCKET]:.3g}"
            remark += f", sockets from host to host {ways[SOCKETS][OF_THE_SOCKET]:.3g}" if SOCKETS in ways else ""
            yield Row(
                f"{name_of(size)}, {title}, over one raw socket", (ways[SHARE][OF_THE_SOCKET],), 1.10, remark=remark
            )


def _listed(sizes: Iterable[str]) -> str:
    """The sizes that titles of tables have."""
    return ", ".join(map(name_of, sizes))


def _best(ways: Figures, start: str) -> Any:
    """The row of the fastest way whose name begins so."""
    return min((row for name, row in ways.items() if name.startswith(start)), key=lambda row: row[MEDIAN])


def _last(tables: Figures) -> tuple[str, Figures]:
    """The largest size of a place."""
    return [*tables.items()][-1]


def _links(figures: Figures) -> Iterator[Row]:
    """Over 2, 4 and 8 hosts, on links of each rate and delay."""
    kinds = dict.fromkeys(title.partition(", ")[2] for title in figures)
    for kind in kinds:
        size, _ = _last(figures[f"2 hosts of 1, {kind}"])
        places = [figures[f"{hosts} hosts of 1, {kind}"][size] for hosts in (2, 4, 8)]
        sockets = ", ".join(f"{place[SOCKETS][OF_THE_SOCKET]:.3g}" for place in places[1:])
        values = tuple(place[SHARE][OF_THE_SOCKET] for place in places)
        measure = f"{name_of(size)} to 2, 4, 8 hosts, {kind}, over one raw socket"
        yield Row(measure, values, 1.10, remark=f"raw sockets from host to host, 4 and 8 hosts: {sockets}")


def _growth(figures: Figures) -> Iterator[Row]:
    """More hosts than this machine can be, simulated, and how far the simulation is from what was measured."""
    for row in figures["several nodes"].get("hosts", []):
        measure = f"simulated time of {row['bytes'] >> 20} MiB to {row['hosts']} hosts, over the measured one: off by"
        yield Row(measure, (abs(row[OF_MEASURED] - 1),), TOLERANCE)
    for kind, rows in figures[OTHER_LINKS].items():
        ratios = ", ".join(f"{row[OF_MEASURED]:.3g}" for row in rows)
        hosts, off = ", ".join(str(row["hosts"]) for row in rows), tuple(abs(row[OF_MEASURED] - 1) for row in rows)
        measure = f"simulated time of 32 MiB to {hosts} hosts, {kind}, over that in the row of such links above: off by"
        yield Row(measure, off, TOLERANCE, remark=f"the ratios are {ratios}")
    if FABRIC in figures:
        ratio = figures[FABRIC][OVER_BOUND][str(GOAL_NODES)]
        measure = f"simulated, not measured: 32 MiB to {GOAL_NODES} nodes of 200 Gbit/s, over the least time possible"
        yield Row(measure, (ratio,), GOAL)


def _collectives(figures: Figures) -> Iterator[Row]:
    """Results of all ranks, one a node."""
    two = figures["2 pretend nodes of 1"]
    for size, goal in ((_SMALL, 3.0), (_64_KIB, 1.5), (_MIDDLE, 1.0)):
        ours, default = two[size][REDUCE][MEDIAN], two[size][MPI_REDUCE][MEDIAN]
        best = f"over the best rival {two[size][REDUCE][OF_THE_BEST]:.3g}"
        measure = f"allreduce of {name_of(size)}, 2 pretend nodes of 1, over MPI's default"
        yield Row(measure, (ours / default,), goal, remark=best)
    for ours, theirs, goal in ((REDUCE, MPI_REDUCE, 1.15), (GATHER, MPI_GATHER, 1.1)):
        call = ours.partition(".")[2]
        near, far = (_last(figures[place]) for place in (PRETENDED, "4 hosts of 2, 400mbit"))
        size, ways = near
        over = ways[ours][MEDIAN] / ways[theirs][MEDIAN]
        best = f"over the best rival {ways[ours][OF_THE_BEST]:.3g}"
        yield Row(f"{call} of {name_of(size)}, 4 ranks on {PRETENDED}, over MPI's default", (over,), 1.0, "", best)
        held = f"MPI's {ways[theirs][HELD]:.3g}"
        yield Row("the same, results that all ranks hold", (ways[ours][HELD],), 2.0, remark=held)
        size, ways = far
        best = f"the best rival {ways[ours][LEAST] / ways[ours][OF_THE_BEST]:.3g}"
        least = f"MPI's default {ways[theirs][LEAST]:.3g}, {best}"
        measure = f"{call} of {name_of(size)} over 4 hosts, over the least that 400 Mbit/s allow"
        yield Row(measure, (ways[ours][LEAST],), goal, remark=least)


def _messages(figures: Figures, compressed: Figures) -> Iterator[Row]:
    """From one rank to another of the same node, and over a link of 400 Mbit/s."""
    for size, goal in (("8 bytes", 0.25), (_SMALL, 0.3)):
        ways = figures[size]
        yield Row(f"a message of {name_of(size)}", (ways[OURS][MEDIAN] * 1e3,), 2.5, "us")
        yield Row("the same over a pickled one", (ways[OURS][MEDIAN] / ways[PICKLED][MEDIAN],), goal)
    large = (_MIDDLE, "4,194,304 bytes", "16,777,216 bytes", _LARGE)
    for size, goal in ((_64_KIB, 1.25), *((size, 1.05) for size in large)):
        ways = figures[size]
        over = tuple(ways[way][MEDIAN] / ways[KNOWN][MEDIAN] for way in (OURS, OURS_OUT))
        yield Row(
            f"a message of {name_of(size)}, and with `out=`, over `Send` and `Recv` into known buffers", over, goal
        )
    memory = figures["memory of a recv of 1 GiB"][OURS]["over the array, MiB"]
    yield Row("what a `recv` of 1 GiB takes besides the array", (memory,), 8.0, "MiB")
    shrinks, stays = (compressed[f"32 MiB, {kind}"][AUTO] for kind in ("compressible", "incompressible"))
    measure = '32 MiB between 2 hosts, 400mbit, with `compress="auto"`, over without'
    by_lz4 = shrinks["lz4's ratio"]
    yield Row(
        f"{measure}: integers of which each stands eight times in turn",
        (shrinks[OF_PLAIN],),
        0.15,
        remark=f"lz4 makes {by_lz4:.3g} of the bytes",
    )
    yield Row(f"{measure}: random numbers", (stays[OF_PLAIN],), 1.03)


def _files(figures: Figures) -> Iterator[Row]:
    """From a file in the page cache, on one node and over hosts."""
    for name, goal in ((CONTIGUOUS, 1.3), (CHUNKED, 1.3)):
        ways, mib = figures[name], figures["bytes"][name] >> 20
        again = f"{ways[LOADED_AGAIN]['of the limit']:.3g} in memory used again"
        again += f"; stored in {figures[STORED]:.1%} of the bytes" if name == CHUNKED else ""
        measure = f"{mib} MiB of HDF5, {name}, to {figures['ranks']} ranks, over one process with h5py and a warm array"
        yield Row(measure, (ways[LOADED]["of the limit"],), goal, remark=again)
    ways = figures[CONTIGUOUS]
    yield Row("most memory held, over the bytes of a contiguous dataset", (ways[LOADED]["peak, of the bytes"],), 1.05)
    hosts = figures["over hosts"]
    links = tuple(hosts[f"{LOADED}, {name}"]["over bytes over bandwidth"] for name in (CONTIGUOUS, CHUNKED))
    mib = hosts["bytes"] >> 20
    measure = f"{mib} MiB from a file to {hosts['hosts']} hosts, contiguous and chunked, over bytes / {hosts['rate']}"
    yield Row(measure, links, 1.15)


def _tables(figures: Figures) -> Iterator[Row]:
    """A table of real records."""
    over = figures["flights"]["flights, texts in Arrow"]["gained less objects, over zero-copy"]
    yield Row("memory of 4 ranks for a table of flights with strings in Arrow, over its bytes", (over,), 1.1)


def _tasks(figures: Figures) -> Iterator[Row]:
    """A map on two ranks."""
    seconds = {name: row["seconds"] for name, row in figures["ways"].items()}
    ours, pool, own = (
        seconds[name]
        for name in (
            "mpishare.map, bound method",
            "multiprocessing.Pool, bound method",
            "multiprocessing.Pool, initializer",
        )
    )
    measure = f"times as fast as multiprocessing.Pool with a bound method, {figures['items']:,} tasks, 2 ranks"
    yield Row(measure, (pool / ours,), 10.0, remark=f"with an initializer {own / ours:.3g}", is_least=True)
    overhead = figures["overhead"]
    for name, goal_us in (("one at a time", 15.0), ("by chunks", 1.0)):
        measure = f"what a task without work takes longer than in a loop, shared by 2 ranks, {name}"
        yield Row(measure, (overhead[f"{name}, us"],), goal_us, "us")
    gain = figures["work"]["over a loop"]
    yield Row("times as fast as a loop, 2 ranks on 2 cores, 20 us a task", (gain,), 1.6, is_least=True)
    apart = figures["uneven"]["apart, longest tasks"]
    yield Row("how far apart ranks end, over the longest task, where tasks are uneven", (apart,), 1.0)


def _additions(figures: Figures) -> Iterator[Row]:
    """Of all ranks of a node into one histogram."""
    ways = figures["ways"]
    ours, own = ways["kernels.atomic_add"], ways["a histogram a rank, += and Reduce"]
    measure = f"additions lost of {ours['additions']:,} atomic ones by {figures['ranks']} ranks"
    yield Row(measure, (ours["lost"],), 0.0, remark=f"by plain `+=` {ways['plain +=']['lost']:,}")
    rate, best = ours["millions a second"], own["millions a second"]
    measure = f"atomic additions a second over those into a histogram a rank, {figures['bins']:,} bins"
    remark = f"{rate:,.3g} million a second; by `MPI_Fetch_and_op` from Python "
    remark += f"{ways['MPI_Fetch_and_op, from Python']['millions a second']:.3g}"
    yield Row(measure, (rate / best,), 1.0, remark=remark, is_least=True)


def _ground(figures: Figures) -> Iterator[Row]:
    """What it costs before it does anything fast."""
    memory = figures["memory over the array"]
    measure = "memory of a node for 256 MiB that 4 ranks see, after the root dropped its source, over the array (PSS)"
    yield Row(measure, (memory,), 1.05)
    shares = figures["live shares"]
    measure = f"descriptors and communicators that {shares['count']:,} live shares add"
    yield Row(measure, (shares["descriptors grown"], shares["communicators grown"]), 0.0)
    refused = max(figures["refusals until the last rank has raised, ms"].values())
    yield Row("bad input on any rank, until the last of 4 ranks has raised, at most", (refused,), 1000.0, "ms")
    names = "mpishare", "NumPy", "mpishare and the modules of share"
    own, numpy, used = (figures["import"][name]["median, ms"] for name in names)
    remark = f"with what the first share imports, NumPy among it, {used / numpy:.3g}"
    yield Row("`import mpishare` over `import numpy`", (own / numpy,), 0.3, remark=remark)
