"""Writes the table of faults into CONTRIBUTING.md, from the marks of the tests: `python -m tests.faults.table`."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

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
    """Rewrites the table."""
    CONTRIBUTING.write_text(_TABLE.sub(lambda _: table(), CONTRIBUTING.read_text()))


def shown() -> str:
    """The table in CONTRIBUTING.md."""
    return _TABLE.findall(CONTRIBUTING.read_text())[0]  # type: ignore[no-any-return]


def table() -> str:
    """The faults that tests are marked with, in the order of the tests, and the outcome that each test demands."""
    modules = [importlib.import_module(f"tests.{name}") for name in _MODULES]
    marks = [mark for module in modules for test in vars(module).values() for mark in _marks(test)]
    rows = dict(mark.args for mark in marks if mark.name == "fault")
    return "".join(
        ["| fault | outcome |\n|---|---|\n", *(f"| {fault} | {outcome} |\n" for fault, outcome in rows.items())]
    )


def _marks(test: object) -> list[Any]:
    """The marks of a test and those of its parameters."""
    marks = list(getattr(test, "pytestmark", []))
    parameters = [parameter for mark in marks if mark.name == "parametrize" for parameter in mark.args[1]]
    return marks + [mark for parameter in parameters for mark in getattr(parameter, "marks", ())]


if __name__ == "__main__":
    main()
