"""Writes the table of faults into CONTRIBUTING.md, from the docstrings of the tests: `python -m tests.faults.table`."""

import importlib
import inspect
import re
from pathlib import Path

CONTRIBUTING = Path(__file__).parent.parent.parent / "CONTRIBUTING.md"
_TABLE = re.compile(r"(?<=<!-- faults -->\n).*(?=<!-- end of faults -->)", re.DOTALL)
_ROW = re.compile(r"(.*)\.  Outcome: (.*)\.")
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
    """The faults and outcomes that the docstrings of tests name, in the order of the tests."""
    modules = [importlib.import_module(f"tests.{name}") for name in _MODULES]
    docstrings = [inspect.getdoc(test) or "" for module in modules for test in vars(module).values()]
    rows = [_ROW.fullmatch(text.replace("\n", " ")) for text in docstrings]
    return "| fault | outcome |\n|---|---|\n" + "".join(row.expand(r"| \1 | \2 |\n") for row in rows if row)


if __name__ == "__main__":
    main()
