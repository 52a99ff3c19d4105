"""The documents show what `make test` really runs, what benchmarks measured, all faults, names, errors and settings."""

import ast
import re
from pathlib import Path

import pytest

import mpishare as ms
from benchmarks import readme
from mpishare import config, kernels
from mpishare.memory.selection import KINDS
from tests.faults import table
from tests.run import ALSO_ON_HOSTS, LAYOUTS, launches

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


def output_of_make_test(text):
    return text.partition("$ make test\n")[2].partition("```")[0].splitlines()


def test_the_summary_names_every_launch():
    lines = output_of_make_test(CONTRIBUTING)
    shown = [re.split(r"\s{2,}", line)[0] for line in lines if " passed " in line and " failed " in line]
    assert set(shown) >= {launch.name for launch in launches()} - {ALSO_ON_HOSTS}
    assert re.fullmatch(r"\d+ passed, 0 failed, 0 skipped", lines[-1])
    assert output_of_make_test(README) == lines[-1:]


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 160


LINKED = [file for form in ("*.md", "jobs/**/*.md", "slurm/*.md") for file in ROOT.glob(form)]


@pytest.mark.parametrize("file", LINKED, ids=lambda file: str(file.relative_to(ROOT)))
def test_links_lead_somewhere(file):
    """To files of the project and, behind "#", to a heading there."""
    text = re.sub(r"```.*?```", "", file.read_text(), flags=re.DOTALL)
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", text):
        page = file.parent / target if target else file
        assert page.exists(), target
        assert not anchor or anchor in anchors_of(page.read_text()), anchor


def anchors_of(text):
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_launches_cover_every_size_and_placement():
    assert {size for size, _, _ in LAYOUTS} == {1, 2, 3, 4, 5}
    assert {nodes.partition(":")[0] for _, nodes, _ in LAYOUTS} == {"", "block", "cyclic", "sizes"}


@pytest.mark.parametrize("page", readme.BLOCKS, ids=lambda page: page.name)
def test_the_results_are_those_that_are_kept(page):
    assert readme.shown(page) == readme.BLOCKS[page]()


def test_the_table_of_faults_is_that_of_the_tests():
    assert table.shown() == table.table()


def manual(page):
    return (ROOT / "docs" / page).read_text()


def test_the_manual_has_every_public_name():
    pages = "".join(file.read_text() for file in (ROOT / "docs/reference").glob("*.md"))
    listed = re.findall(r"^\.\. auto\w+:: mpishare\.((?:kernels\.)?\w+)$", pages, re.MULTILINE)
    assert sorted(listed) == sorted([*ms.__all__, *(f"kernels.{name}" for name in kernels.__all__)])


def test_the_manual_says_what_to_do_about_every_error():
    page = manual("troubleshooting/messages.md")
    assert {name for name in ms.__all__ if name.endswith("Error") and f"`{name}" not in page} == set()


def strings_of(tree):
    """The strings of a file but docstrings, with "…" for what is filled in."""
    docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in {*ast.walk(tree)} - docstrings:
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def messages_of_the_manual():
    """The messages that have a row, each as its parts between "…", without the error or the call in front."""
    page = manual("troubleshooting/messages.md").partition("\n## Messages of the system")[0]
    for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE):
        for message in row.split("`")[1::2]:
            parts = re.sub(r"^(\w+Error(\[\w+\])?|\w+\(\)): ", "", message).split("…")
            yield [part.strip(" ,") for part in parts]


def test_the_messages_in_the_manual_are_those_of_the_code():
    text = "\n".join(part for file in ROOT.glob("mpishare/**/*.py") for part in strings_of(ast.parse(file.read_text())))
    messages = [*messages_of_the_manual()]
    assert messages
    for parts in messages:
        assert all(part in text for part in parts) or "read-only" in parts[0], parts  # which is NumPy's


ERRORS = {"ArgumentError", "BackendError", "FileError", "LaunchError", "MpishareError", "SpecError"}
"""Errors whose text is written where they are raised. The text of each other class has a row."""
ALLOWED = r"; expected | must be | are allowed|; NumPy allows |, not …"
CURE = (
    r"[.:;,] (Use|Give|Pass|Save|Call|Load|Leave|Omit|Make|Set|Receive|Continue|See|name|give|use|see|unset)\b"
    r"|pip install|\. …$"
)
NO_ROW = {
    "the reason of a refused segment kind, which has a row": (
        r"windows that stay|copy of its own|can be created|can be opened|read-only: …|no shared-memory|kernel reports"
    ),
    "another text, with the dataset or the item": r"^(item )?…[:;.] ?…?$",
    "an argument, with what it was compared with": (
        r"(data|out) has|not an item|be added|integers; |too large|name twice|not fit|dataset is|is a group|no array"
    ),
    "a file or a dtype, with what is wrong": r"^(it|is) |cannot be stored|not understood by NumPy|counters cannot",
}
"""Why other strings have no row, and parts of them."""


def errors_of(tree):
    """The strings of the errors that a file makes; of a name, what the file assigns to it."""
    nodes = [*ast.walk(tree)]
    assigned = {ast.unparse(node.targets[0]): node.value for node in nodes if isinstance(node, ast.Assign)}
    for node in nodes:
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ERRORS:
            for arg in node.args:
                yield max(strings_of(assigned.get(ast.unparse(arg), arg)), key=len, default="")


def test_every_error_has_a_row_or_says_what_to_do():
    strings = {text for file in ROOT.glob("mpishare/**/*.py") for text in errors_of(ast.parse(file.read_text()))} - {""}
    assert len(strings) > 100
    rows = [".*".join(map(re.escape, parts)) for parts in messages_of_the_manual() if any(parts)]
    known = "|".join([*rows, ALLOWED, CURE, *NO_ROW.values()])
    assert {text for text in strings if not re.search(known, text)} == set()


def test_the_manual_has_every_segment_kind():
    rows = manual("explanation/segments.md").replace("`", "")
    assert {kind.title for kind in KINDS if f"\n| {kind.title} |" not in rows} == set()


def test_the_manual_has_every_setting():
    names = {name for name, _, _ in config._VARIABLES.values()}
    assert names - set(re.findall(r"`(\w+)`", manual("reference/settings.md"))) == set()
