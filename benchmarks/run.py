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

from benchmarks.harness import MEDIAN, RESULTS, ROOT

LAUNCHES = {
    "share": ("share", "--powers 10,20 --rounds 1 --mib 32"),
    "nodes": ("nodes", "--links pretend,1gbit --hosts 2 --powers 10,20 --rounds 1"),
    "messages": ("messages", "--powers 3,20 --rounds 1"),
    "messages-hosts": ("messages --hosts 2 --powers 3,10,16,20,24", "--powers 3,20 --rounds 1"),
    "collectives": ("collectives", "--hosts 2 --powers 10,20 --rounds 1"),
    "files": ("files", "--mib 32 --chunked_mib 8 --rounds 1"),
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


def readme(share: Any, nodes: Any) -> str:
    """One node, several hosts, and what was measured on what."""
    memory = {name: row["held by all ranks, arrays"] for name, row in share["memory"].items()}
    columns = {size: share["times"][size] for size in ("1 KiB", "1 MiB", "256 MiB")}
    one = markdown(f"one node, {share['ranks']} ranks", columns, {"copies for 4 ranks": memory})
    hosts = {
        f"{size}, {place.rpartition(', ')[2].replace('free', 'links as fast as memory')}": nodes[place][size]
        for place in nodes
        if place.startswith("4 hosts of 1,")
        for size in ("1 MiB", "16 MiB")
    }
    return "\n\n".join([one.strip(), markdown("to 4 hosts of one rank", hosts).strip(), origin("share")])


def manual(share: Any, nodes: Any) -> str:
    """A table for each question, of at most three sizes."""
    largest = {place: [*sizes.items()][-1] for place, sizes in nodes.items()}
    calls = kept("collectives")["2 pretend nodes of 2"]
    files = {name: rows for name, rows in kept("files").items() if isinstance(rows, dict) and LOAD in rows}
    peaks = {name: row["peak, MB"] for name, row in kept("table").items()}
    parts = [
        *("### One node", markdown(f"{share['ranks']} ranks", few(share["times"]))),
        *("### Several nodes", markdown("", {f"{size} to {place}": table for place, (size, table) in largest.items()})),
        *("### Messages", markdown("one node", few(kept("messages")["one node"]))),
        *("### Sums", markdown("4 ranks on 2 pretend nodes", few(calls["allreduce"]))),
        *("### Gathers", markdown("4 ranks on 2 pretend nodes", few(calls["allgather"]))),
        *("### Files", markdown("4 ranks", files)),
        *("### Tasks", markdown("2 workers", {name: rows for name, rows in kept("pool").items() if name != "workers"})),
        *("### The table of flights", markdown("4 processes", {"time": kept("table")}, {"most memory, MB": peaks})),
    ]
    return "\n\n".join([*map(str.strip, parts), origin("share")])


def few(sizes: Mapping[str, Any]) -> dict[str, Any]:
    """The first, the middle and the last of them."""
    names = [*sizes]
    return {name: sizes[name] for name in dict.fromkeys([names[0], names[len(names) // 2], names[-1]])}


def markdown(title: str, tables: Tables, added: Mapping[str, Mapping[str, float]] | None = None) -> str:
    """Ways as rows, cases as columns, ours in bold. The best of forced algorithms is named without its choice."""
    cells: dict[str, dict[str, str]] = {}
    for case, rows in tables.items():
        for way, row in rows.items():
            name = f"{way.partition(': ')[0]}, best forced" if re.match(r"MPI_\w+.*: ", way) else way
            cells.setdefault(name, {})[case] = duration(row[MEDIAN])
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


def origin(name: str) -> str:
    """What a result was measured on."""
    facts = json.loads((RESULTS / f"{name}.json").read_text())["facts"]
    versions = facts["versions"]
    return (
        f"Medians, measured at commit `{facts['commit']}` on {facts['date'].split()[0]}: {facts['CPU']}, "
        f"{facts['cores']} cores, Linux {facts['kernel']}, {versions['MPI']}, mpi4py {versions['mpi4py']}, "
        f"NumPy {versions['numpy']}, Python {versions['Python']}."
    )


def draw_share(share: Any) -> None:
    """Bars: the time of the largest array, and the memory that it takes."""
    *_, (size, table) = share["times"].items()
    times = {name: row[MEDIAN] for name, row in table.items()}
    copies = {name: row["held by all ranks, arrays"] for name, row in share["memory"].items()}
    panels = {f"time of {size} to {share['ranks']} ranks, ms": times, "copies that 4 ranks hold": copies}
    bars("share", panels, "An array for all ranks of a node")


def draw_nodes(nodes: Any) -> None:
    """Bars: the time of the largest array on each kind of link between hosts."""
    panels = {}
    for place, sizes in nodes.items():
        if place.startswith("4 hosts"):
            size, table = [*sizes.items()][-1]
            panels[f"time of {size} to {place}, ms"] = {name: row[MEDIAN] for name, row in table.items()}
    bars("nodes", panels, "An array to every host")


def bars(name: str, panels: Mapping[str, Mapping[str, float]], title: str) -> None:
    """A panel of horizontal bars for each item, ours in one colour, as results/NAME.png; needs matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.2), layout="constrained", facecolor="white")
    figure.suptitle(title)
    for number, (label, values) in enumerate(panels.items(), 1):
        axes = figure.add_subplot(1, len(panels), number, xlabel=label)
        drawn = axes.barh([*values][::-1], [*values.values()][::-1])
        for bar, way in zip(drawn, [*values][::-1], strict=True):
            bar.set_color(_OURS if way.startswith("mpishare") else _RIVALS)
        axes.bar_label(drawn, fmt="%.3g", padding=3)
        axes.margins(x=0.15)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(RESULTS / f"{name}.png", dpi=80)


if __name__ == "__main__":
    sys.exit(main())
