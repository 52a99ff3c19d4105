"""The documents show what `make test` really runs and prints, what benchmarks measured, and the faults of the tests."""

import re
from pathlib import Path

from benchmarks import readme
from tests.faults import table
from tests.run import LAYOUTS, launches

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text()


def test_the_summary_names_every_launch():
    block = README.partition("$ make test\n")[2].partition("```")[0]
    shown = [re.split(r"\s{2,}", line)[0] for line in block.splitlines() if " passed " in line and " failed " in line]
    assert set(shown) >= {launch.name for launch in launches()}
    assert re.search(r"^\d+ passed, 0 failed, 0 skipped$", block, re.MULTILINE)


def test_the_launches_cover_every_size_and_placement():
    assert {size for size, _, _ in LAYOUTS} == {1, 2, 3, 4, 5}
    assert {nodes.partition(":")[0] for _, nodes, _ in LAYOUTS} == {"", "block", "cyclic", "sizes"}


def test_the_results_are_those_that_are_kept():
    assert readme.shown() == readme.written()


def test_the_table_of_faults_is_that_of_the_tests():
    assert table.shown() == table.table()


def test_the_pictures_are_there():
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README)
    assert pictures
    for picture in pictures:
        assert (ROOT / picture).is_file()
