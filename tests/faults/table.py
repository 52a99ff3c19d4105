"""Writes the table of faults into CONTRIBUTING.md, from what the last runs of the tests found.

python -m pytest tests/faults && python -m pytest tests/cluster && python -m tests.faults.table
"""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

from tests.conftest import RESULTS

CONTRIBUTING = Path(__file__).parent.parent.parent / "CONTRIBUTING.md"
_TABLE = re.compile(r"(?<=<!-- faults -->\n).*(?=<!-- end of faults -->)", re.DOTALL)
_MODULES = (
    "faults.test_signals",
    "faults.test_calls",
    "faults.test_space",
    "faults.test_saving",
    "faults.test_syscalls",
    "blackbox.test_lives",
    "cluster.test_lost",
)


def main() -> None:
    """Rewrites the table.

    Raises:
        KeyError: A fault was not tried, or was not survived.
    """
    found: dict[str, dict[str, Any]] = {}
    for file in RESULTS.glob("*.json"):
        found |= json.loads(file.read_text())
    rows = ["| fault | what comes of it | tests passed | longest, s |", "|---|---|---|---|"]
    for what, outcome in declared().items():
        row = found[what]
        if row["failed"]:
            raise KeyError(f"{what}: failed")
        rows.append(f"| {what} | {outcome} | {row['passed']} | {row['longest']:.1f} |")
    CONTRIBUTING.write_text(_TABLE.sub(lambda _: "\n".join(rows) + "\n", CONTRIBUTING.read_text()))


def declared() -> dict[str, str]:
    """The faults that the tests are marked with, and what they say comes of each, in the order of the tests."""
    rows = {}
    for name in _MODULES:
        module = importlib.import_module(f"tests.{name}")
        for test in vars(module).values():
            for mark in _marks(test):
                if mark.name == "fault":
                    rows[mark.args[0]] = mark.args[1]
    return rows


def shown() -> dict[str, str]:
    """The faults in CONTRIBUTING.md."""
    found = _TABLE.search(CONTRIBUTING.read_text())
    assert found is not None
    cells = [line.split(" | ") for line in found[0].splitlines()[2:]]
    return {row[0].removeprefix("| "): row[1] for row in cells}


def _marks(test: object) -> list[Any]:
    """The marks of a test and those of its parameters."""
    marks = list(getattr(test, "pytestmark", []))
    for mark in list(marks):
        if mark.name == "parametrize":
            marks += [inner for parameter in mark.args[1] for inner in getattr(parameter, "marks", ())]
    return marks


if __name__ == "__main__":
    main()
