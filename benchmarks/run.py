"""Runs the benchmarks one after the other, as two at once would measure each other, and writes what documents show.

    python -m benchmarks.run [--only NAME ...] [--short]
    python -m benchmarks.run --write    pictures and tables anew from the results that are kept

`--short` makes few rounds of small sizes, to see that each script works; its results go to build/bench-short.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.harness import MEDIAN, RESULTS, ROOT

LAUNCHES = {
    "share": ("share", "--powers 10,20 --rounds 1 --mib 32"),
    "nodes": ("nodes", "--links pretend,1gbit --hosts 2 --powers 10,20 --rounds 1"),
    "messages": ("messages", "--powers 3,20 --rounds 1"),
    "messages-hosts": ("messages --hosts 2 --powers 3,10,16,20,24", "--powers 3,20 --rounds 1"),
    "collectives": ("collectives", "--hosts 2 --powers 10,20 --rounds 1"),
    "files": ("files", "--mib 32 --chunked_mib 8 --rounds 1"),
    "take": ("take", "--links pretend --counts 128 --rounds 1"),
    "pool": ("pool", "--items 2000 --bits 8 --rounds 1"),
    "table": ("table", "--rounds 1"),
}
"""By the name of the result: the script with its options, and the options that a short run adds."""
LOAD = "mpishare.load"
_OURS, _RIVALS = "#d55e00", "#7f9fb5"
Tables = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Rows of ways, by case."""


def main() -> int:
    """Runs them; 0 where all ended well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=LAUNCHES, default=[*LAUNCHES], metavar="NAME")
    parser.add_argument("--short", action="store_true", help="few rounds of small sizes")
    parser.add_argument("--write", action="store_true", help="only the pictures and tables")
    options = parser.parse_args()
    if options.write:
        write()
        return 0
    failed = [name for name in options.only if not run(name, short=options.short)]
    if failed:
        print(f"failed: {', '.join(failed)}")
    elif not options.short:
        write()
    return len(failed)


def run(name: str, *, short: bool) -> bool:
    """Whether a benchmark ended well."""
    args, added = LAUNCHES[name]
    words = f"benchmarks.{args} {added if short else ''}".split()
    results = {"BENCHMARK_RESULTS": str(ROOT / "build/bench-short")} if short else {}
    print(f"\n== python -m {' '.join(words)}", flush=True)
    start = time.perf_counter()
    environ = {**os.environ, **results}
    status = subprocess.run([sys.executable, "-m", *words], cwd=ROOT, env=environ, check=False).returncode
    print(f"\n{name} took {time.perf_counter() - start:.0f} s", flush=True)
    return status == 0


def kept(name: str) -> Any:
    """The figures of a result."""
    return json.loads((RESULTS / f"{name}.json").read_text())["figures"]


def write() -> None:
    """The pictures, and the tables of README.md and of the manual, between the marks that they have there."""
    share, nodes = kept("share"), kept("nodes")
    draw_share(share)
    draw_nodes(nodes)
    replace(ROOT / "README.md", readme(share, nodes))
    replace(ROOT / "docs/explanation/performance.md", manual(share, nodes))


def replace(page: Path, text: str) -> None:
    """Writes a text between the marks of a page."""
    marks = re.compile(r"(?<=<!-- results -->\n).*(?=<!-- end of results -->)", re.DOTALL)
    page.write_text(marks.sub(lambda _: f"\n{text}\n\n", page.read_text()))


README_ROWS = {
    "`comm.bcast`, pickled": ["comm.bcast, pickled"],
    "`mpi4py.util.pkl5`, `bcast`": ["mpi4py.util.pkl5 bcast"],
    "`comm.Bcast` into a new array; into one that is kept": ["comm.Bcast", "comm.Bcast, kept"],
    "`comm.Bcast` into an array that is kept": ["comm.Bcast, kept"],
    "pshmem, new; kept and refilled": ["pshmem, new", "pshmem, kept"],
    "pshmem, kept and refilled": ["pshmem, kept"],
    "MPI window by hand, new; kept and refilled": ["window by hand, new", "window by hand, kept"],
    "MPI window by hand, kept and refilled, `Bcast` between hosts": ["window by hand, kept, MPI_Bcast of leaders"],
    "**`ms.zeros`, `ms.fence`**, kept and refilled": ["mpishare.zeros and fence, kept"],
    "**`ms.zeros`, `ms.bcast`**, kept and refilled": ["mpishare.zeros and bcast, kept"],
    "**`ms.share`**; in memory never used before": ["mpishare.share", "mpishare.share, new memory"],
    "**`ms.share`**": ["mpishare.share"],
}
"""Rows of README and the ways that each shows; where a table has all ways of a row, it has no row of fewer of them."""
LIMITS = ["MPI_Bcast, one rank per host", "MPI_Bcast, one rank per host, best forced"]
LIMIT_WORDS = "limit: to one rank of each host, MPI_Bcast by default or tuned by hand"
README_LINKS = {"1gbit": "1 Gbit/s", "free": "not limited"}


def readme(share: Any, nodes: Any) -> str:
    """One node, several hosts, and what was measured on what."""
    one = {size: share["times"][size] for size in ("1 KiB", "1 MiB", "16 MiB", "256 MiB")}
    hosts = {
        f"{size}, links {README_LINKS[link]}": nodes[f"4 hosts of 4, {link}"][size]
        for link in README_LINKS
        for size in ("1 MiB", "16 MiB")
    }
    title = f"one node, {share['ranks']} ranks"
    return "\n\n".join(
        [
            whole_times(title, one),
            whole_times("4 virtual hosts of 4 ranks", hosts),
            elsewhere(one),
            origin("share", "nodes", "files", "pool"),
        ]
    )


def elsewhere(one: Tables) -> str:
    """When to use it, and where something else is faster."""
    files, tasks = kept("files"), [*kept("pool").values()][-1]
    call, loop = duration(one["1 KiB"]["mpishare.share"][MEDIAN]), duration(tasks["a loop"][MEDIAN])
    load, mapped = (duration(files["contiguous"][way][MEDIAN]) for way in (LOAD, "every rank maps, numpy.load"))
    bcast = duration(one["1 KiB"]["comm.Bcast"][MEDIAN])
    return f"""\
Use it where memory is short, or for arrays of 256 MiB; up to 16 MiB, MPI fills an array that is kept faster. Use \
something else for

- small arrays in an inner loop: a `share` of 1 KiB takes {call}, and `comm.Bcast` {bcast}.
- a `.npy` file on one node: {files["MiB"]["contiguous"]} MiB take {load} by `load`, and {mapped} by \
`numpy.load(path, mmap_mode="r")`.
- tasks of a microsecond: 20,000 take {duration(tasks["mpishare.map, by method"][MEDIAN])} by `map` on two ranks, and \
{loop} in a loop on one."""


def whole_times(title: str, tables: Tables) -> str:
    """A table of README: the memory of each way, and its times, the fastest of each column in bold."""
    named = [{short(way): row[MEDIAN] for way, row in rows.items()} for rows in tables.values()]
    lines = [f"| {title} | memory on a node | {' | '.join(tables)} |", "|---|---|" + "---:|" * len(named)]
    shown: set[str] = set()
    for words, ways in README_ROWS.items():
        if shown.isdisjoint(ways) and all(way in times for times in named for way in ways):
            shown.update(ways)
            memory = "a copy per rank" if ways[0].startswith(("comm.", "mpi4py")) else "one copy"
            lines.append(f"| {words} | {memory} | {' | '.join('; '.join(cells(times, ways)) for times in named)} |")
    if all(way in times for times in named for way in LIMITS):
        limits = [f"*{duration(min(times[way] for way in LIMITS))}*" for times in named]
        lines.append(f"| *{LIMIT_WORDS}* | *one copy* | {' | '.join(limits)} |")
    return "\n".join(lines)


def cells(times: Mapping[str, float], ways: list[str]) -> list[str]:
    """The times of some ways, in bold where it is the shortest of all that README shows."""
    shortest = min(times[way] for way in {*chain.from_iterable(README_ROWS.values())} & {*times})
    return [f"**{duration(times[way])}**" if times[way] == shortest else duration(times[way]) for way in ways]


def short(way: str) -> str:
    """The name of a way; the best of forced algorithms is named without its choice."""
    return f"{way.partition(': ')[0]}, best forced" if re.match(r"MPI_\w+.*: ", way) else way


def manual(share: Any, nodes: Any) -> str:
    """A table for each question; but for the first, of at most three sizes."""
    largest = {place: [*sizes.items()][-1] for place, sizes in nodes.items()}
    calls = kept("collectives")["2 pretend nodes of 2"]
    files = {name: rows for name, rows in kept("files").items() if isinstance(rows, dict) and LOAD in rows}
    peaks = {name: row["peak, MB"] for name, row in kept("table").items()}
    parts = [
        *("### One node", markdown(f"{share['ranks']} ranks", share["times"])),
        *("### Several nodes", markdown("", {f"{size} to {place}": table for place, (size, table) in largest.items()})),
        *("### Messages", markdown("one node", few(kept("messages")["one node"]))),
        *("### Sums", markdown("4 ranks on 2 pretend nodes", few(calls["allreduce"]))),
        *("### Gathers", markdown("4 ranks on 2 pretend nodes", few(calls["allgather"]))),
        *("### Rows of other nodes", markdown("rows of 3 KiB", takes(kept("take")))),
        *("### Files", markdown("4 ranks", files)),
        *("### Tasks", markdown("2 workers", {name: rows for name, rows in kept("pool").items() if name != "workers"})),
        *("### The table of flights", markdown("4 processes", {"time": kept("table")}, {"most memory, MB": peaks})),
    ]
    return "\n\n".join([*map(str.strip, parts), origin(*LAUNCHES)])


def takes(places: Mapping[str, Tables]) -> Tables:
    """The rows of each way, by the number of rows taken and the place."""
    return {f"{int(count):,} to {place}": rows for place, counts in places.items() for count, rows in counts.items()}


def few(sizes: Mapping[str, Any]) -> dict[str, Any]:
    """The first, the middle and the last of them."""
    names = [*sizes]
    return {name: sizes[name] for name in dict.fromkeys([names[0], names[len(names) // 2], names[-1]])}


def markdown(title: str, tables: Tables, added: Mapping[str, Mapping[str, float]] | None = None) -> str:
    """Ways as rows, cases as columns, ours in bold. The best of forced algorithms is named without its choice."""
    cells: dict[str, dict[str, str]] = {}
    for case, rows in tables.items():
        for way, row in rows.items():
            cells.setdefault(short(way), {})[case] = duration(row[MEDIAN])
    for column, figures in (added or {}).items():
        for way, figure in figures.items():
            cells[way][column] = f"{figure:.3g}"
    columns = [*(added or {}), *tables]
    lines = [f"| {title} | {' | '.join(columns)} |", "|---|" + "---:|" * len(columns)]
    for way, texts in cells.items():
        name = f"**{way}**" if way.startswith("mpishare") else way
        lines.append(f"| {name} | {' | '.join(texts.get(column, '') for column in columns)} |")
    return "\n".join(lines) + "\n"


def duration(ms: float) -> str:
    """Of a time in ms, three digits."""
    number, unit = (ms * 1e3, "us") if ms < 1 else (ms, "ms")
    return f"{number:.3g} {unit}" if number < 1000 else f"{number:,.0f} {unit}"


def origin(*names: str) -> str:
    """What results were measured on, and at which commits."""
    facts = {name: json.loads((RESULTS / f"{name}.json").read_text())["facts"] for name in names}
    commits: dict[str, list[str]] = {}
    for name, fact in facts.items():
        commits.setdefault(f"`{fact['commit']}` on {fact['date'].split()[0]}", []).append(name)
    whens = " and ".join(f"{when} ({', '.join(made)})" for when, made in commits.items())
    fact = facts[names[0]]
    versions = fact["versions"]
    return (
        f"Medians, measured at commit {whens}: {fact['CPU']}, {fact['cores']} cores, Linux {fact['kernel']}, "
        f"{versions['MPI']}, mpi4py {versions['mpi4py']}, NumPy {versions['numpy']}, Python {versions['Python']}."
    )


def draw_share(share: Any) -> None:
    """Two panels: the memory of a node against its ranks, and bars of the time of the largest array."""
    *_, (size, table) = share["times"].items()
    times = {name: row[MEDIAN] for name, row in table.items() if not name.startswith("limit")}
    figure, [left, right] = panels(2, "An array for all ranks of a node")
    for way, words, color in (
        ("comm.Bcast", "comm.Bcast", _RIVALS),
        ("mpishare.share", "mpishare, pshmem, a window by hand", _OURS),
    ):
        held = {int(ranks): rows[way]["held by all ranks, arrays"] for ranks, rows in share["memory"].items()}
        drawn = [copies * share["memory, MiB"] / 1024 for copies in held.values()]
        left.plot([*held], drawn, "o-", color=color)
        left.annotate(words, ([*held][-1], drawn[-1]), (-8, 8), textcoords="offset points", ha="right")
    left.set(xlabel="ranks on the node", ylabel=f"memory for {share['memory, MiB']} MiB, GiB", ylim=(0, None))
    draw_bars(right, times, f"time of {size} to {share['ranks']} ranks, ms")
    figure.savefig(RESULTS / "share.png", dpi=80)


def draw_nodes(nodes: Any) -> None:
    """Bars: the time of the largest array on each kind of link between hosts."""
    found = {}
    for place, sizes in nodes.items():
        if place.startswith("4 hosts"):
            size, table = [*sizes.items()][-1]
            found[f"{size} to {place}, ms"] = {name: row[MEDIAN] for name, row in table.items()}
    figure, axes = panels(len(found), "An array to every host; by MPI_Bcast, one rank per host, to one rank of each")
    for each, (label, values) in zip(axes, found.items(), strict=True):
        draw_bars(each, values, label)
    figure.savefig(RESULTS / "nodes.png", dpi=80)


def panels(count: int, title: str) -> Any:
    """A figure and its panels side by side; needs matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.2), layout="constrained", facecolor="white")
    figure.suptitle(title)
    axes = [figure.add_subplot(1, count, number + 1) for number in range(count)]
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
    return figure, axes


def draw_bars(axes: Any, values: Mapping[str, float], label: str) -> None:
    """Horizontal bars, ours in one colour."""
    drawn = axes.barh([*values][::-1], [*values.values()][::-1])
    for bar, way in zip(drawn, [*values][::-1], strict=True):
        bar.set_color(_OURS if way.startswith("mpishare") else _RIVALS)
    axes.bar_label(drawn, fmt="%.3g", padding=3)
    axes.margins(x=0.15)
    axes.set_xlabel(label)


if __name__ == "__main__":
    sys.exit(main())
