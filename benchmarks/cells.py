"""Compares our time with that of the best rival in each cell of the kept results: each question, place and size."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from benchmarks.collective_ways import GATHER, REDUCE, RIVALS
from benchmarks.files import CHUNKED, COLD, CONTIGUOUS, LIMIT, LOADED, LOADED_AGAIN
from benchmarks.messages import OURS, OURS_OUT, STRIDED
from benchmarks.nodes import best_rival
from benchmarks.rivals import AGAIN, BY_DEFAULT, NEW, SHARE
from benchmarks.rounds import MEDIAN

NEW_WAYS = ("hand-written window", "Bcast, a copy a rank", "bcast, pickled", "pkl5 bcast", "pshmem")
AGAIN_WAYS = (*NEW_WAYS, "window used again", "Bcast, copies used again", "pshmem, used again")
ON_NODE, TO_HOSTS = "an array to the ranks of one node", "an array to every host"
_UNITS = ("B", "KiB", "MiB", "GiB")


class Times(NamedTuple):
    """Quartiles in seconds."""

    first_s: float
    median_s: float
    third_s: float


@dataclass(frozen=True)
class Cell:
    """One comparison."""

    place: str
    size: str
    ours: Times
    rival: str
    rivals: Times

    @property
    def ratio(self) -> float:
        """Our median over the best rival's: below 1 ours takes less time."""
        return self.ours.median_s / self.rivals.median_s


@dataclass(frozen=True)
class Question:
    """What is compared.

    Attributes:
        cells: Of all places, in each by size.
        place: That whose sizes a short table shows, picked by hand; the worst cell may be of any place.
    """

    title: str
    place: str
    cells: tuple[Cell, ...]

    @property
    def shown(self) -> tuple[Cell, Cell, Cell]:
        """The smallest size of the place, the one in the middle, of two the smaller one, and the largest."""
        cells = [cell for cell in self.cells if cell.place == self.place]
        return cells[0], cells[(len(cells) - 1) // 2], cells[-1]

    @property
    def worst(self) -> Cell:
        """Where we are slowest, beside the best rival."""
        return max(self.cells, key=lambda cell: cell.ratio)


def questions(figures: Mapping[str, Any]) -> list[Question]:
    """All of them, from the figures of the kept results by name. The README shows the first ones."""
    return [
        _shares(figures, f"{ON_NODE}, {NEW} (MPISHARE_RECYCLE=0)", NEW, NEW_WAYS),
        _shares(figures, f"{ON_NODE}, {AGAIN} (MPISHARE_RECYCLE=50%)", AGAIN, AGAIN_WAYS),
        _nodes(figures, f"{TO_HOSTS}, links as fast as the machine", "4 hosts of 1, free"),
        _nodes(figures, f"{TO_HOSTS}, slow links", "8 hosts of 1, 400mbit"),
        _messages(figures),
        _collective(figures["collectives"], "the sum of an array of each rank, on all ranks", REDUCE),
        _shares_by_default(figures, f"{ON_NODE}, settings by default (MPISHARE_RECYCLE=5%)"),
        _nodes(figures, f"{TO_HOSTS}, links of some Gbit/s", "4 hosts of 1, 4gbit, 1ms"),
        _files(figures["files"]),
        _tasks(figures["pool"]),
        _collective(figures["collectives"], "the arrays of all ranks, on all ranks", GATHER),
        _records(figures["table"]),
        _processes(figures["ways"]),
    ]


def size_name(nbytes: int) -> str:
    """1024 as "1 KiB"."""
    power = 0
    while nbytes >= 1024 and nbytes % 1024 == 0 and power + 1 < len(_UNITS):
        nbytes, power = nbytes // 1024, power + 1
    return f"{nbytes:,} {_UNITS[power]}"


def size_of(title: str) -> int | None:
    """1024 of "1,024 bytes"; None where the title of a table is no size."""
    sized = re.fullmatch(r"([\d,]+) bytes", title)
    return None if sized is None else int(sized[1].replace(",", ""))


def name_of(title: str) -> str:
    """The name of the size that the title of a table has, "1 KiB" of "1,024 bytes"; any other title as it is."""
    nbytes = size_of(title)
    return title if nbytes is None else size_name(nbytes)


def time_name(seconds: float) -> str:
    """Three digits, with the unit that suits."""
    scales = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
    unit = next((unit for unit, scale in scales.items() if seconds >= scale), "us")
    value = seconds / scales[unit]
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def _cell(place: str, size: str, ways: Mapping[str, Times], ours: str, rivals: Callable[[str], bool]) -> Cell:
    """The cell with the fastest of the rivals among `ways`, which are times by name."""
    best = min((name for name in ways if name != ours and rivals(name)), key=lambda name: ways[name].median_s)
    return Cell(place, size, ways[ours], best, ways[best])


def _times(row: Mapping[str, float], median: str = MEDIAN) -> Times:
    """The quartiles of a row, beside whose median they are named."""
    start, unit = ("there, ", "ms") if median.startswith("there") else ("", "s" if median == "seconds" else "ms")
    scale = 1e3 if unit == "ms" else 1.0
    first, third = (row[f"{start}{which} quartile, {unit}"] / scale for which in ("first", "third"))
    return Times(first, row[median] / scale, third)


def _by_size(figures: Mapping[str, Any]) -> dict[str, dict[str, Times]]:
    """The times of tables whose names are sizes, by name of size and of way."""
    return {
        name_of(title): {way: _times(row) for way, row in figures[title].items() if MEDIAN in row}
        for title in figures
        if size_of(title) is not None
    }


def _shares(figures: Mapping[str, Any], title: str, memory: str, rivals: tuple[str, ...]) -> Question:
    """In windows, which is what a plain job has, and in memmap."""
    cells = [
        _cell(f"{ranks} ranks{place}", size, ways, f"mpishare, {kind}, {memory}", rivals.__contains__)
        for ranks in (2, 4)
        for kind, place in (("window", ""), ("memmap", ", memmap"))
        for size, ways in _by_size(figures[f"share-{ranks}"]).items()
    ]
    return Question(title, "2 ranks", tuple(cells))


def _shares_by_default(figures: Mapping[str, Any], title: str) -> Question:
    """With no variable set; beside rivals that use their memory again."""
    cells = [
        _cell(f"{ranks} ranks", size, ways, BY_DEFAULT, AGAIN_WAYS.__contains__)
        for ranks in (2, 4)
        for size, ways in _by_size(figures[f"share-{ranks}"]).items()
    ]
    return Question(title, "2 ranks", tuple(cells))


def _nodes(figures: Mapping[str, Any], title: str, shown: str) -> Question:
    """Of the places whose links are held to a rate of the same unit as that of `shown`, or to none as there."""
    cells, nodes, links = [], figures["nodes"], figures["nodes-links"]
    for place in dict.fromkeys((*nodes, *links)):
        if _unit_of_rate(place) != _unit_of_rate(shown):
            continue
        tables = {**nodes.get(place, {}), **links.get(place, {})}
        for size, ways in _by_size(tables).items():
            best = best_rival({name: {MEDIAN: times.median_s} for name, times in ways.items()})
            if best is not None and SHARE in ways:
                cells.append(Cell(place, size, ways[SHARE], best, ways[best]))
    return Question(title, shown, tuple(cells))


def _unit_of_rate(place: str) -> str:
    """That of the links of a place; "" where they are as fast as the machine."""
    return next((unit for unit in ("gbit", "mbit") if unit in place), "")


def _messages(figures: Mapping[str, Any]) -> Question:
    places = {"one node": figures["messages"]}
    places |= {f"2 hosts, {link}": figures["messages-hosts"][link] for link in ("free", "400mbit")}
    cells = [
        _cell(place, size, ways, OURS, lambda name: name != OURS_OUT)
        for place, tables in places.items()
        for size, ways in _by_size(tables).items()
    ]
    strided = {way: _times(row) for way, row in figures["messages"][STRIDED].items()}
    cells.append(_cell("one node, every second float64", "8 MiB", strided, OURS, lambda name: True))
    return Question("a message from rank to rank", "one node", tuple(cells))


def _files(figures: Mapping[str, Any]) -> Question:
    cells = [
        _cell(
            name if name in (CHUNKED, COLD) else CONTIGUOUS,
            size_name(nbytes),
            {way: _times(row, "seconds") for way, row in figures[name].items()},
            LOADED,
            lambda name: name not in (LIMIT, LOADED_AGAIN),
        )
        for name, nbytes in figures["bytes"].items()
    ]
    return Question("an array from a file to 4 ranks", cells[0].place, tuple(cells))


def _tasks(figures: Mapping[str, Any]) -> Question:
    tables = figures.get("sizes") or {"": figures["ways"]}
    cells = [
        _cell(
            "2 ranks",
            name or f"{figures['items']:,} tasks",
            {way: _times(row, "seconds") for way, row in ways.items()},
            "mpishare.map, bound method",
            lambda name: not name.startswith("mpishare"),
        )
        for name, ways in tables.items()
    ]
    return Question("tasks through a method of an object", "2 ranks", tuple(cells))


def _collective(figures: Mapping[str, Any], title: str, ours: str) -> Question:
    cells = [
        _cell(place, size, ways, ours, lambda name: name.startswith(RIVALS[ours]))
        for place, tables in figures.items()
        for size, ways in _by_size(tables).items()
    ]
    return Question(title, cells[0].place, tuple(cells))


def _records(figures: Mapping[str, Any]) -> Question:
    ways = {way: _times(row, "seconds") for way, row in figures["ways"].items()}
    size = f"{figures['records, bytes'] // 10**6} MB"
    cell = _cell("4 processes", size, ways, "mpishare.share", lambda name: True)
    return Question("records to the processes of one machine", "4 processes", (cell,))


def _processes(figures: Mapping[str, Any]) -> Question:
    ways = {way: _times(row, "there, ms") for way, row in figures["ways"].items()}
    size = f"{figures['bytes'] // 10**6} MB"
    cells = [
        _cell(ours.partition(", ")[2], size, ways, ours, lambda name: not name.startswith("mpishare"))
        for ours in ("mpishare, share", "mpishare, send and recv")
    ]
    return Question("an array to another process", cells[0].place, tuple(cells))
