"""Writes the table of faults into the manual, from the docstrings of the tests: `python -m tests.faults.table`."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent.parent
PAGE = TESTS.parent / "docs/explanation/failures.md"
_TABLE = re.compile(r"(?<=<!-- faults -->\n).*(?=<!-- end of faults -->)", re.DOTALL)
_ROW = re.compile(r"(.*)\.  Outcome: (.*)\.")


def main():
    """Rewrites the table."""
    PAGE.write_text(_TABLE.sub(lambda _: table(), PAGE.read_text()))


def shown():
    """The table in the manual."""
    return _TABLE.findall(PAGE.read_text())[0]


def table():
    """The faults and outcomes that the docstrings of tests name, in the order of the files and tests."""
    rows = [_ROW.fullmatch(text.replace("\n", " ")) for text in _docstrings()]
    return "| fault | outcome |\n|---|---|\n" + "".join(row.expand(r"| \1 | \2 |\n") for row in rows if row)


def _docstrings():
    for file in sorted(TESTS.rglob("test_*.py")):
        functions = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)]
        yield from (ast.get_docstring(function) or "" for function in functions)


if __name__ == "__main__":
    main()
