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
from pathlib import Path
from typing import Any

from benchmarks.engines import HELD
from benchmarks.engines import OURS as PUSH
from benchmarks.engines import PUSHED as TO_EACH
from benchmarks.harness import MEDIAN, RESULTS, ROOT
from benchmarks.nodes import EXPERT, TO_ALL
from benchmarks.share import BY_HAND, OURS, OURS_KEPT

LAUNCHES = {
    "share": ("share", "--powers 10,20 --rounds 1 --mib 32"),
    "ranks": ("ranks", "--counts 2,4 --mib 32"),
    "nodes": ("nodes", "--links pretend,1gbit --hosts 2 --powers 10,20 --rounds 1"),
    "messages": ("messages", "--powers 3,20 --rounds 1"),
    "messages-hosts": ("messages --hosts 2 --powers 3,10,16,20,24", "--powers 3,20 --rounds 1"),
    "collectives": ("collectives", "--hosts 2 --powers 10,20 --rounds 1"),
    "files": ("files", "--mib 32 --chunked_mib 8 --rounds 1"),
    "take": ("take", "--links pretend --counts 128 --rounds 1"),
    "engines": ("engines", "--counts 2 --mib 2,33 --hosts= --rounds 1"),
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
    """The pictures, and the figures of README.md and of the manual, between the marks that they have there."""
    share, nodes = kept("share"), kept("nodes")
    draw_share(share)
    draw_nodes(nodes)
    replace(ROOT / "README.md", readme(share, nodes))
    replace(ROOT / "docs/explanation/performance.md", manual(share, nodes))


def replace(page: Path, text: str) -> None:
    """Writes a text between the marks of a page."""
    marks = re.compile(r"(?<=<!-- results -->\n).*(?=<!-- end of results -->)", re.DOTALL)
    page.write_text(marks.sub(lambda _: f"\n{text}\n\n", page.read_text()))


def readme(share: Any, nodes: Any) -> str:
    """What README says about time."""

    def times(table: Mapping[str, Mapping[str, float]], *ways: str) -> list[str]:
        return [duration(table[way][MEDIAN]) for way in ways]

    small, large = share["times"]["1 MiB"], share["times"]["256 MiB"]
    one = {way: " and ".join(times(small, way) + times(large, way)) for way in (OURS_KEPT, BY_HAND, TO_ALL, OURS)}
    ours, by_hand, to_all = times(nodes["4 hosts of 4, 1gbit"]["16 MiB"], OURS, EXPERT, TO_ALL)
    little, bcast = times(share["times"]["1 KiB"], OURS, TO_ALL)
    return f"""\
On one node, 1 MiB and 256 MiB reach {share["ranks"]} ranks in {one[OURS_KEPT]} where the array is kept (`zeros`,
`fence`), in {one[BY_HAND]} by a window by hand, {one[TO_ALL]} by `comm.Bcast`, {one[OURS]} by `share`.
To 4 hosts at 1 Gbit/s, 16 MiB take {ours} by `share`, {by_hand} by windows and `Bcast`, {to_all} by `comm.Bcast`.
`share` is slower for small arrays: 1 KiB takes {little}, and {bcast} by `comm.Bcast`."""


def short(way: str) -> str:
    """The name of a way; the best of forced algorithms is named without its choice."""
    return f"{way.partition(': ')[0]}, best forced" if re.match(r"MPI_\w+.*: ", way) else way


def manual(share: Any, nodes: Any) -> str:
    """A table for each question; but for the first, of at most three sizes."""
    hosts = {f"{size} to {place}": table for place, sizes in nodes.items() for size, table in [*sizes.items()][-2:]}
    calls = kept("collectives")["2 pretend nodes of 2"]
    files = {name: rows for name, rows in kept("files").items() if isinstance(rows, dict) and LOAD in rows}
    peaks = {name: row["peak, MB"] for name, row in kept("table").items()}
    parts = [
        *("### One node", markdown(f"{share['ranks']} ranks", share["times"])),
        *("### Many ranks", many(kept("ranks"))),
        *("### Several nodes", markdown("", hosts)),
        *("### Messages", markdown("one node", few(kept("messages")["one node"]))),
        *("### Sums", markdown("4 ranks on 2 pretend nodes", few(calls["allreduce"]))),
        *("### Gathers", markdown("4 ranks on 2 pretend nodes", few(calls["allgather"]))),
        *("### Rows of other nodes", markdown("rows of 3 KiB", takes(kept("take")))),
        *("### Files", markdown("4 ranks", files)),
        *("### Engines of ipyparallel", engines(kept("engines"))),
        *("### Tasks", markdown("2 workers", {name: rows for name, rows in kept("pool").items() if name != "workers"})),
        *("### The table of flights", markdown("4 processes", {"time": kept("table")}, {"most memory, MB": peaks})),
    ]
    return "\n\n".join([*map(str.strip, parts), origin(*LAUNCHES)])


def many(figures: Any) -> str:
    """The memory of an array, by the number of ranks on a node and by backend."""
    memory = figures["memory"]
    lines = [f"| {figures['memory, MiB']} MiB, over one copy | {' | '.join(f'{ranks} ranks' for ranks in memory)} |"]
    lines.append("|---|" + "---:|" * len(memory))
    for backend in ("window", "memmap"):
        held = (rows[backend]["held by all ranks, arrays"] for rows in memory.values())
        lines.append(f"| **mpishare.share, {backend}** | {' | '.join(f'{copies:.3f}' for copies in held)} |")
    return "\n".join(lines)


def takes(places: Mapping[str, Tables]) -> Tables:
    """The rows of each way, by the number of rows taken and the place."""
    return {f"{int(count):,} to {place}": rows for place, counts in places.items() for count, rows in counts.items()}


def engines(places: Mapping[str, Tables]) -> str:
    """The times of each way, by size and place; and the memory of the largest array on most engines."""
    cases = {f"{size} to {place}": rows for place, sizes in places.items() for size, rows in sizes.items()}
    largest = max((case for case in cases if HELD in cases[case][PUSH]), key=lambda case: cases[case][TO_EACH][HELD])
    return markdown("", cases, {f"copies, {largest}": {way: row[HELD] for way, row in cases[largest].items()}})


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
    figure.savefig(RESULTS / "share.png", dpi=120)


def draw_nodes(nodes: Any) -> None:
    """Bars: the time of the largest array on each kind of link between hosts."""
    found = {}
    for place, sizes in nodes.items():
        if place.startswith("4 hosts"):
            size, table = [*sizes.items()][-1]
            found[f"{size} to {place}, ms"] = {name: row[MEDIAN] for name, row in table.items()}
    figure, axes = panels(len(found), "An array to every host; by MPI_Bcast, one rank\nper host, to one rank of each")
    for each, (label, values) in zip(axes, found.items(), strict=True):
        draw_bars(each, values, label)
    figure.savefig(RESULTS / "nodes.png", dpi=120)


def panels(count: int, title: str) -> Any:
    """A figure and its panels, one below the other, so that they can be read on a narrow screen; needs matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 3.4 * count), layout="constrained", facecolor="white")
    figure.suptitle(title)
    axes = [figure.add_subplot(count, 1, number + 1) for number in range(count)]
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
