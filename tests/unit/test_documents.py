"""The documents lead where they say, and have every public name, error, setting and fault."""

import re
import runpy
from pathlib import Path

import pytest

import mpishare as ms
from benchmarks import run
from mpishare import config, kernels
from tests.faults import table

ROOT = Path(__file__).parent.parent.parent


LINKED = [file for form in ("*.md", "jobs/**/*.md", "slurm/*.md") for file in ROOT.glob(form)]


@pytest.mark.parametrize("file", LINKED, ids=lambda file: str(file.relative_to(ROOT)))
def test_links_lead_somewhere(file):
    """To files of the project and, behind "#", to a heading there."""
    text = re.sub(r"```.*?```", "", file.read_text(), flags=re.DOTALL)
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", text):
        page = file.parent / target if target else file
        assert page.exists(), target
        assert not anchor or anchor in anchors_of(page.read_text()), anchor


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "SECURITY.md"])
def test_the_files_that_a_page_names_exist(page):
    """And they define the names that the page says are in them."""
    for name, path in re.findall(r"(?:`(\w+)` in )?`([a-z_/]+\.py)`", (ROOT / page).read_text()):
        [file] = [folder / path for folder in (ROOT, ROOT / "mpishare") if (folder / path).exists()] or [None]
        assert file, path
        assert re.search(rf"^(def|class) {name}\b|^{name}\b", file.read_text(), re.MULTILINE), (name, path)


def anchors_of(text):
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_table_of_faults_is_that_of_the_tests():
    assert table.shown() == table.table()


def manual(page):
    return (ROOT / "docs" / page).read_text()


def test_the_manual_has_every_public_name():
    pages = "".join(file.read_text() for file in (ROOT / "docs/reference").glob("*.md"))
    listed = re.findall(r"^\.\. auto\w+:: mpishare\.((?:kernels\.)?\w+)(?:\(\))?$", pages, re.MULTILINE)
    assert sorted(listed) == sorted([*ms.__all__, *(f"kernels.{name}" for name in kernels.__all__)])


def test_the_manual_says_what_to_do_about_every_error():
    page = manual("troubleshooting/messages.md")
    assert {name for name in ms.__all__ if name.endswith("Error") and f"`{name}" not in page} == set()


def test_the_manual_has_every_setting():
    names = {setting.metadata["name"] for setting in config._SETTINGS.values()}
    page = manual("reference/settings.md")
    objects = set(re.findall(r"^:::{envvar} (MPISHARE_\w+)$", page, re.MULTILINE))
    assert {name for name in names if name.startswith("MPISHARE_")} == objects
    assert names - objects - set(re.findall(r"`(\w+)`", page)) == set()


def test_the_figures_are_those_of_the_kept_results():
    for page, shown in {"README.md": run.readme, "docs/explanation/performance.md": run.manual}.items():
        assert shown(run.kept("share"), run.kept("nodes")) in (ROOT / page).read_text(), page


def test_the_front_page_is_short():
    assert len((ROOT / "README.md").read_text().split()) <= 650


def test_the_drawings_are_those_of_their_script():
    folder = ROOT / "docs/drawings"
    drawn = runpy.run_path(str(folder / "draw.py"))["files"]()
    assert drawn == {str(file.relative_to(folder)): file.read_text(encoding="utf-8") for file in folder.rglob("*.svg")}
