"""Writes what the kept results say into README.md and the manual, between their markers.

    python -m benchmarks.readme

All of them are of one code, whose commit each table names; it refuses others. `tests/unit/test_documents.py` compares
both pages with it, so that nothing is quoted that was not measured and kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from benchmarks import goals, kept
from benchmarks.cells import Cell, Question, Times, questions, time_name

ROOT = Path(__file__).parent.parent
_BLOCK = re.compile(r"(?<=<!-- results -->\n).*(?=<!-- end of results -->)", re.DOTALL)
_ON_FRONT = (0, 1, 2, 4, 5, 8)
"""Places in the list of questions: two of memory, two of links, a message, a sum."""


def main() -> None:
    """Rewrites the blocks."""
    for page, block in BLOCKS.items():
        page.write_text(_BLOCK.sub(block().replace("\\", r"\\"), page.read_text()))


def shown(page: Path) -> str:
    """What a page has now."""
    figure = _BLOCK.search(page.read_text())
    return "" if figure is None else figure[0]


def front() -> str:
    """What README.md should have: six questions, each with sizes that a rule chooses and with its worst cell."""
    results = kept.read()
    columns = ("what", "small", "middle", "large", "worst of all cells", "missed")
    lines = [results.origin, "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    asked = questions(results.figures)
    for question in (asked[number] for number in _ON_FRONT):
        shown = [_brief(cell) if cell else "" for cell in _once(question)]
        place = f"{question.title}: {question.place}"
        lines.append(f"| {' | '.join([place, *shown, _full(question.worst), _missed(question)])} |")
    return "\n".join(lines) + "\n"


def written() -> str:
    """What the page of the manual should have: every goal, then every cell."""
    results = kept.read()
    lines = [results.origin, "", "| what | measured | goal | |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(row.shown)} |" for row in goals.rows(results.figures)]
    lines += ["", "| what | where | size | ours, quartiles | best rival | its, quartiles | ratio of medians |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for question in questions(results.figures):
        for cell in question.cells:
            times = f"{_quartiles(cell.ours)} | {cell.rival} | {_quartiles(cell.rivals)} | {_ratio(cell)}"
            lines.append(f"| {question.title} | {cell.place} | {cell.size} | {times} |")
    return "\n".join(lines) + "\n"


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
    ROOT / "README.md": front,
    ROOT / "docs/explanation/measurement.md": written,
}

if __name__ == "__main__":
    main()
