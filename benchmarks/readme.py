"""Writes what the kept results say into README.md and the manual, between their markers.

    python -m benchmarks.readme

All of them are of one code, whose commit each table names; it refuses others. `tests/unit/test_documents.py` compares
both pages with it, so that nothing is quoted that was not measured and kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import goals, kept
from benchmarks.cells import Cell, Question, Times, questions, time_name
from benchmarks.profile import AGREEMENT, ALONE, COPIES, MPI_CALLS, PYTHON, TOTAL, WITH_CLOCKS
from benchmarks.rounds import MEDIAN

ROOT = Path(__file__).parent.parent
_BLOCK = re.compile(r"(?<=<!-- results -->\n).*(?=<!-- end of results -->)", re.DOTALL)
_ON_FRONT = 6
"""So many questions, from the first on: two of memory, two of links, a message, a sum."""


def main() -> None:
    """Rewrites the blocks."""
    for page, block in BLOCKS.items():
        page.write_text(_BLOCK.sub(block().replace("\\", r"\\"), page.read_text()))


def shown(page: Path) -> str:
    """What a page has now."""
    figure = _BLOCK.search(page.read_text())
    return "" if figure is None else figure[0]


def readme() -> str:
    """What README.md should have: six questions, each with sizes that a rule chooses; the worst cell of each of all."""
    results = kept.read()
    columns = ("what", "small", "middle", "large", "worst of all cells", "missed")
    lines = [results.origin, "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    asked = questions(results.figures)
    for question in asked[:_ON_FRONT]:
        shown = [_brief(cell) if cell else "" for cell in _once(question)]
        place = f"{question.title}: {question.place}"
        lines.append(f"| {' | '.join([place, *shown, _full(question.worst), _missed(question)])} |")
    left_out = (f"{question.title}: {_full(question.worst)} ({_missed(question)})" for question in asked[_ON_FRONT:])
    lines += ["", f"The worst cells of the questions left out, and how many are missed: {'; '.join(left_out)}."]
    return "\n".join(lines) + "\n"


def written() -> str:
    """What the page of the manual should have: every goal, then every cell."""
    results = kept.read()
    lines = [results.origin, "", "### Goals", "", "| what | measured | goal | |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(row.shown)} |" for row in goals.rows(results.figures)]
    lines += ["", *_first_calls(results.figures["ground"])]
    lines += ["", "### Where the time goes", "", *_profile(results.figures["profile"])]
    columns = ("where", "size", "ours, quartiles", "best rival", "its, quartiles", "ratio of medians")
    for question in questions(results.figures):
        title = f"{question.title[0].upper()}{question.title[1:]}"
        lines += ["", f"### {title}", "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
        for cell in question.cells:
            times = f"{_quartiles(cell.ours)} | {cell.rival} | {_quartiles(cell.rivals)} | {_ratio(cell)}"
            lines.append(f"| {cell.place} | {cell.size} | {times} |")
    return "\n".join(lines) + "\n"


def _first_calls(figures: Mapping[str, Any]) -> list[str]:
    """The first share of a job, and those of further communicators, beside the second one there."""
    taken = time_name(figures["first call of the job, ms"] / 1e3)
    lines = [f"The first `share` of a job of 4 ranks takes {taken}, measured once, with what it imports."]
    for place, calls in figures["first calls"].items():
        first, second = (time_name(calls[which][MEDIAN] / 1e3) for which in ("first", "second"))
        lines.append(f"The first one on a further communicator, 1 KiB, {place}, takes {first}, and the next {second}.")
    return lines


def _profile(figures: Mapping[str, Any]) -> list[str]:
    """The parts of the calls of `benchmarks.profile`."""
    parts = (TOTAL, ALONE, WITH_CLOCKS, AGREEMENT, MPI_CALLS, COPIES, PYTHON)
    columns = ("where", "call", "caches", *(part.removesuffix(", us") for part in parts))
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for place, calls in figures.items():
        for call, rows in calls.items():
            for caches, row in rows.items():
                times = (time_name(row[part] / 1e6) if row[part] else "" for part in parts)
                lines.append(f"| {' | '.join((place, call, caches, *times))} |")
    return lines


def _once(question: Question) -> list[Cell | None]:
    """Small, middle, large; None for a cell that stands in a column before."""
    cells = question.shown
    return [cell if cell not in cells[:number] else None for number, cell in enumerate(cells)]


def _quartiles(times: Times) -> str:
    return f"**{time_name(times.median_s)}**, {time_name(times.first_s)} to {time_name(times.third_s)}"


def _brief(cell: Cell) -> str:
    return f"{cell.size}: {time_name(cell.ours.median_s)}, {_ratio(cell)} times {cell.rival}"


def _full(cell: Cell) -> str:
    return f"{cell.place}, {_brief(cell)}"


def _missed(question: Question) -> str:
    missed = sum(cell.ratio > 1 for cell in question.cells)
    return f"{missed} of {len(question.cells)}"


def _ratio(cell: Cell) -> str:
    return f"{cell.ratio:.2f}" if cell.ratio < 10 else f"{cell.ratio:.0f}"


BLOCKS: dict[Path, Callable[[], str]] = {
    ROOT / "README.md": readme,
    ROOT / "docs/explanation/measurement.md": written,
}

if __name__ == "__main__":
    main()
