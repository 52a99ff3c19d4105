"""Writes what the kept results say into README.md and the manual, between their markers.

    python -m benchmarks.readme

`tests/unit/test_documents.py` compares both with it, so that nothing is quoted that was not measured and kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.collectives import GATHER, HELD, LEAST, MPI_GATHER, MPI_REDUCE, PRETENDED, REDUCE
from benchmarks.files import CHUNKED, CONTIGUOUS, EACH, FRESH, MPIO_PARTS, RECYCLED
from benchmarks.growth import FABRIC, GOAL, GOAL_NODES, OVER_BOUND
from benchmarks.keep import RESULTS
from benchmarks.messages import AUTO, KNOWN, OURS, OURS_OUT, PICKLED
from benchmarks.nodes import OF_THE_BEST, OF_THE_EXPERT, OF_THE_SOCKET, best_rival
from benchmarks.rivals import SHARE
from benchmarks.rounds import MEDIAN

ROOT = Path(__file__).parent.parent
_BLOCK = re.compile(r"(?<=<!-- results -->\n).*(?=<!-- end of results -->)", re.DOTALL)
_LARGE, _SMALL, _LINK = "268,435,456 bytes", "1,024 bytes", "33,554,432 bytes"
_MEMCPY, _FILL = "one memcpy, warm", "fill of a private warm array"
_FIRST_READ = "first read, ms"
_LINKS = {
    "2 pretend nodes of 1": {
        _SMALL: "-; 4",
        "1,048,576 bytes": "-; 1.1",
        _LINK: "-; 0.7",
    },
    "4 hosts of 1, free": {"1,048,576 bytes": "1.0; -", _LINK: "1.0; -"},
    "4 hosts of 1, 1gbit, 50us": {_LINK: ""},
    "8 hosts of 1, 400mbit, 1ms": {_LINK: ""},
}
"""What is quoted of each link, with its bound."""


def main() -> None:
    """Rewrites the blocks."""
    for page, block in BLOCKS.items():
        page.write_text(_BLOCK.sub(block().replace("\\", r"\\"), page.read_text()))


def shown(page: Path) -> str:
    """What a page has now."""
    figure = _BLOCK.search(page.read_text())
    return "" if figure is None else figure[0]


def front() -> str:
    """What README.md should have: six rows, of which two are lost."""
    share, nodes, files = (_kept(name)["figures"] for name in ("share-2", "nodes", "files"))
    messages, tasks = _kept("messages")["figures"]["65,536 bytes"], _kept("pool")["figures"]["ways"]
    large, link = share[_LARGE], nodes["8 hosts of 1, 400mbit"][_LINK]
    small = nodes["2 pretend nodes of 1"][_SMALL]

    def ms(way: str) -> str:
        return f"{large[way][MEDIAN]:.0f} ms"

    def s(way: str) -> str:
        return f"{link[way]['median, ms'] / 1e3:.2f} s"

    def us(figure: float) -> str:
        return f"{figure:.1f} us"

    windows = f"a hand-written window {ms('hand-written window')}, `comm.bcast` {ms('bcast, pickled')}"
    read = {way: f"{files[CONTIGUOUS][way]['seconds'] * 1e3:.0f} ms" for way in (FRESH, EACH)}
    task = {way: f"{tasks[way]['seconds']:.1f} s" for way in tasks}
    broadcast = "MPI_Bcast, a rank a host"
    rows = [
        ("256 MiB to 2 ranks of one node", ms("mpishare, window, fresh"), windows),
        ("32 MiB to 8 hosts, links of 400 Mbit/s", s(SHARE), f"`MPI_Bcast` to one rank per host {s(broadcast)}"),
        ("1 GiB of HDF5, in the page cache, to 4 ranks", read[FRESH], f"every rank reads by h5py {read[EACH]}"),
        (
            "a million calls of a method with a cache of a million strings, 2 ranks",
            task["mpishare.map, bound method"],
            f"`multiprocessing.Pool` {task['multiprocessing.Pool, bound method']}",
        ),
        (
            "a message of 64 KiB within a node",
            us(messages[OURS][MEDIAN] * 1e3),
            f"`Send` and `Recv` into known buffers {us(messages[KNOWN][MEDIAN] * 1e3)}",
        ),
        (
            "1 KiB to 2 nodes, link as fast as memory",
            us(small[SHARE]["median, ms"] * 1e3),
            f"`MPI_Bcast` {us(small[broadcast]['median, ms'] * 1e3)}",
        ),
    ]
    table = ["| what | mpishare | others, in the same run |", "|---|---|---|"]
    return "\n".join([*table, *(f"| {what} | {ours} | {others} |" for what, ours, others in rows)]) + "\n"


def written() -> str:
    """What the page of the manual should have."""
    rows = ["| what | measured | bound |", "|---|---|---|"]
    parts = [*within(), *between(), *results(), *messages(), *files(), *tables(), *tasks(), *additions()]
    rows += [f"| {what} | {measured} | {bound} |" for what, measured, bound in parts]
    return "\n".join([f"{ground()}\n", *rows]) + "\n"


def ground() -> str:
    """The machine and the versions."""
    machine = _kept("nodes")["ground"]["nodes"][0]["machine"]  # whose ranks are not bound to a core each
    versions = _kept("share-2")["ground"]["versions"]
    library = versions["MPI library"].split(",")[0]
    return (
        f"Medians, ratios of one run; {machine['cores']} cores, Linux {machine['kernel']}, {library}, mpi4py "
        f"{versions['mpi4py']}, NumPy {versions['NumPy']}, Python {versions['Python']}. Of two figures the first is of "
        "`memmap`, the second of `window`."
    )


def within() -> list[tuple[str, str, str]]:
    """On one node, 2 ranks but where it says 4."""
    two, four = (_kept(f"share-{ranks}")["figures"] for ranks in (2, 4))
    large = two[_LARGE]

    def ratio(way: str, reference: str, what: str = MEDIAN) -> str:
        figure = [large[f"mpishare, {kind}, {way}"][what] / large[reference][what] for kind in ("memmap", "window")]
        return _listed(figure)

    def small(figures: Any) -> str:
        ours = [figures[_SMALL][f"mpishare, {kind}, recycled"][MEDIAN] * 1e3 for kind in ("memmap", "window")]
        pickle = figures[_SMALL]["bcast, pickled"][MEDIAN] * 1e3
        return f"{ours[0]:.1f}, {ours[1]:.1f} us; a pickle {pickle:.1f} us"

    private = "Bcast, a copy a rank"
    rows = [
        ("256 MiB, fresh memory, over one warm memcpy", ratio("fresh", _MEMCPY), "2.0"),
        ("the same over a hand-written window", ratio("fresh", "hand-written window"), "0.25"),
        ("the same over a pickled bcast", ratio("fresh", "bcast, pickled"), "0.08"),
        ("256 MiB, memory used again, over one warm memcpy", ratio("recycled", _MEMCPY), "1.0"),
        ("first full read, over that of private arrays", ratio("fresh", private, _FIRST_READ), "1.3"),
        ("`empty`, fill, `fence`, over filling a private array", ratio("in place", _FILL), "1.1"),
        ("1 KiB, 2 ranks", small(two), "12 us"),
        ("1 KiB, 4 ranks on 2 cores", small(four), "30 us"),
    ]
    again = "window used again"
    if again in two[_SMALL]:
        ratios = [
            two[_SMALL][f"mpishare, {kind}, recycled"][MEDIAN] / two[_SMALL][again][MEDIAN]
            for kind in ("memmap", "window")
        ]
        rows.insert(7, (f"the same over a copy into a {again} and a barrier", _listed(ratios), "3"))
    if "pshmem" in large:
        rows.insert(2, ("the same over pshmem's set", ratio("fresh", "pshmem"), "0.25"))
    return rows


def between() -> list[tuple[str, str, str]]:
    """Over several hosts, links of 400 Mbit/s."""
    figures = _kept("nodes")["figures"]

    def at(hosts: int, ranks: int, way: str = "mpishare.share") -> float:
        figure: float = figures[f"{hosts} hosts of {ranks}, 400mbit"][_LINK][way]["median, ms"]
        return figure

    bare = (32 << 20) * 8 / 400e6 * 1e3
    rows = []
    for hosts, bound in ((4, "1.10"), (8, "1.15")):
        broadcast = at(hosts, 1, "MPI_Bcast, a rank a host") / bare
        measured = f"{at(hosts, 1) / bare:.3f}; MPI_Bcast {broadcast:.2f}"
        rows.append((f"32 MiB to {hosts} hosts, over bytes / 400 Mbit/s", measured, bound))
    grown = [at(hosts, 4) / at(hosts, 1) for hosts in (4, 8)]
    rows.append(
        ("the same with 4 ranks a host over 1, 4 and 8 hosts", ", ".join(f"{item:.3f}" for item in grown), "1.05")
    )
    return rows + links(figures) + growth()


def growth() -> list[tuple[str, str, str]]:
    """More nodes than this machine can be, played on paper."""
    fabric = _kept("growth")["figures"].get(FABRIC)
    if fabric is None:
        return []
    ratio = fabric[OVER_BOUND][str(GOAL_NODES)]
    what = f"32 MiB to {GOAL_NODES} nodes of 200 Gbit/s, on paper: over bytes / bandwidth + log2 of the nodes x latency"
    return [(what, f"{ratio:.2f}", str(GOAL))]


def links(figures: Any) -> list[tuple[str, str, str]]:
    """The fastest link, one in the middle and the slowest, with the best rival of each, where they were measured."""
    rows = []
    for title, bounds in _LINKS.items():
        for size, bound in bounds.items():
            ways = figures.get(title, {}).get(size, {})
            best = best_rival(ways)
            if best is None or OF_THE_BEST not in ways.get(SHARE, {}):
                continue
            measured = f"{ways[SHARE][OF_THE_BEST]:.2f}, {best}; {ways[SHARE][OF_THE_EXPERT]:.2f}"
            rows.append((f"{size}, {title}: over the best rival; over an expert's program", measured, bound))
            if OF_THE_SOCKET in ways[SHARE] and "free" not in title:
                rows.append(("the same over one raw socket", f"{ways[SHARE][OF_THE_SOCKET]:.2f}", "1.10"))
    return rows


def results() -> list[tuple[str, str, str]]:
    """Results of all ranks, one a node."""
    figures = _kept("collectives")["figures"]
    size = "67,108,864 bytes"
    near, far = figures[PRETENDED][size], figures["4 hosts of 2, 400mbit"][size]
    rows = []
    for ours, theirs, bound in ((REDUCE, MPI_REDUCE, "1.15"), (GATHER, MPI_GATHER, "1.1")):
        call = ours.partition(".")[2]
        over = near[ours]["median, ms"] / near[theirs]["median, ms"]
        held = f"{near[ours][HELD]:.2f} results; MPI's {near[theirs][HELD]:.2f}"
        least = f"{far[ours][LEAST]:.3f}; MPI's {far[theirs][LEAST]:.2f}"
        rows += [
            (f"{call} of 64 MiB, 4 ranks on 2 pretend nodes, over MPI's", f"{over:.2f}", "1.0"),
            ("the same, what all ranks hold", held, "2"),
            (f"{call} of 64 MiB over 4 hosts, over the least that links of 400 Mbit/s allow", least, bound),
        ]
    return rows


def messages() -> list[tuple[str, str, str]]:
    """From one rank to another of the same node, and over a link of 400 Mbit/s."""
    figures, links = _kept("messages")["figures"], _kept("messages-hosts")["figures"]["compression"]

    def us(size: str, way: str) -> float:
        figure: float = figures[size][way][MEDIAN] * 1e3
        return figure

    def over(size: str) -> str:
        return f"{us(size, OURS) / us(size, KNOWN):.2f}; {us(size, OURS_OUT) / us(size, KNOWN):.2f} with `out=`"

    small = [(us(size, OURS), us(size, OURS) / us(size, PICKLED)) for size in ("8 bytes", _SMALL)]
    result = ", ".join(f"{time:.1f} us, {ratio:.2f} of a pickled one" for time, ratio in small)
    compressed = [
        f"{links[f'32 MiB, {kind}'][AUTO]['of as they are']:.2f}" for kind in ("compressible", "incompressible")
    ]
    shrunk = links["32 MiB, compressible"][AUTO]["lz4's ratio"]
    sizes = (("64 KiB", "65,536 bytes", "1.25"), ("1 MiB", "1,048,576 bytes", "1.05"), ("256 MiB", _LARGE, "1.05"))
    return [
        ("a message of 8 B, of 1 KiB", result, "2.5 us, 0.3"),
        *((f"a message of {name} over Send and Recv", over(size), bound) for name, size, bound in sizes),
        (
            "what a `recv` of 1 GiB takes besides the array",
            f"{figures['memory of a recv of 1 GiB'][OURS]['over the array, MiB']:.2f} MiB",
            "8 MiB",
        ),
        (
            '32 MiB between hosts with `compress="auto"`, over without: what shrinks, what does not',
            f"{compressed[0]} (lz4 makes {shrunk:.2f} of it), {compressed[1]}",
            "nearly lz4's, 1.03",
        ),
    ]


def tables() -> list[tuple[str, str, str]]:
    """Records for four processes, and a table for four ranks."""
    figures = _kept("table")["figures"]

    def each(what: str, form: str) -> str:
        return ", ".join(f"{row[what]:{form}}" for row in figures["ways"].values())

    rivals = "copies, shared_memory, joblib, ours"
    megabytes = figures["records, bytes"] // 10**6
    over = ", ".join(f"{row['gained less objects, over zero-copy']:.2f}" for row in figures["flights"].values())
    return [
        (f"{megabytes} MB of records for 4 processes: {rivals}", f"{each('seconds', '.2f')} s", ""),
        ("the same, most memory held", f"{each('peak, MB', '.0f')} MB", ""),
        ("memory of 4 ranks for the flights, over its bytes: texts in Arrow; as objects, less these", over, "1.1"),
    ]


def tasks() -> list[tuple[str, str, str]]:
    """A map on two ranks."""
    figures = _kept("pool")["figures"]
    seconds = {name: row["seconds"] for name, row in figures["ways"].items()}
    ours, pool, loop = (
        seconds[name] for name in ("mpishare.map, bound method", "multiprocessing.Pool, bound method", "a loop")
    )
    overhead = figures["overhead"]
    return [
        (
            "a million tasks through a cache of a million texts, 2 ranks; multiprocessing.Pool over it",
            f"{ours:.1f} s, a loop {loop:.1f} s; {pool / ours:.1f}",
            "10",
        ),
        (
            "what a task costs besides its work, one at a time, by chunks",
            f"{overhead['one at a time, us']:.1f} us, {overhead['by chunks, us']:.2f} us",
            "15 us, 1 us",
        ),
        ("2 ranks over a loop, 20 us a task", f"{figures['work']['over a loop']:.2f}", "1.6"),
        (
            "how far apart ranks end where one task in a hundred is a hundred times longer",
            f"{figures['uneven']['apart, longest tasks']:.2f} of a longest task",
            "1",
        ),
    ]


def additions() -> list[tuple[str, str, str]]:
    """Of all ranks of a node into one histogram."""
    figures = _kept("kernels")["figures"]
    ways = figures["ways"]
    ours, plain, fetch = (ways[name] for name in ("kernels.atomic_add", "plain +=", "MPI_Fetch_and_op, from Python"))
    own = ways["a histogram a rank, += and Reduce"]
    return [
        (
            f"{ours['additions']:,} atomic additions by {figures['ranks']} ranks: lost; by plain `+=`",
            f"{ours['lost']:,}; {plain['lost']:,}",
            "0",
        ),
        (
            "millions of additions a second: ours, plain `+=`, a histogram a rank, MPI_Fetch_and_op",
            ", ".join(f"{row['millions a second']:.3g}" for row in (ours, plain, own, fetch)),
            "",
        ),
    ]


def files() -> list[tuple[str, str, str]]:
    """From a file in the page cache, on one node and over hosts."""
    figures = _kept("files")["figures"]

    def at(name: str, way: str, what: str) -> float:
        figure: float = figures[name][way][what]
        return figure

    def size(name: str) -> str:
        return f"{figures['bytes'][name] >> 20} MiB of HDF5 to {figures['ranks']} ranks"

    def over(name: str) -> str:
        figure = [at(name, way, "of the limit") for way in (FRESH, RECYCLED, EACH)]
        result = f"{figure[0]:.2f}; {figure[1]:.2f} in memory used again; every rank for itself {figure[2]:.1f}"
        if MPIO_PARTS in figures[name]:
            result += f"; a part each through MPI {at(name, MPIO_PARTS, 'of the limit'):.1f}"
        return result

    held = [at(CONTIGUOUS, FRESH, what) for what in ("peak, of the bytes", "read, of the bytes")]
    hosts = figures["over hosts"]
    links = [hosts[f"{FRESH}, {name}"]["over bytes over bandwidth"] for name in (CONTIGUOUS, CHUNKED)]
    between = f"{hosts['bytes'] >> 20} MiB from a file to {hosts['hosts']} hosts, over bytes / {hosts['rate']}"
    return [
        (f"{size(CONTIGUOUS)}, contiguous, over one process with h5py and a warm array", over(CONTIGUOUS), "1.3"),
        (f"{size(CHUNKED)}, compressed chunks, over the same", over(CHUNKED), ""),
        ("most memory held, and read from the file, over the bytes", f"{held[0]:.2f}, {held[1]:.2f}", "1.05, 1"),
        (
            f"{between}: contiguous, chunked",
            ", ".join(f"{item:.2f}" for item in links),
            "1.15",
        ),
    ]


def _listed(figures: Iterable[float]) -> str:
    return ", ".join(f"{item:.2f}" for item in figures)


def _kept(name: str) -> dict[str, Any]:
    figure: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return figure


BLOCKS: dict[Path, Callable[[], str]] = {
    ROOT / "README.md": front,
    ROOT / "docs/explanation/measurement.md": written,
}

if __name__ == "__main__":
    main()
