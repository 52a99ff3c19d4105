"""What documents quote: results of one code, cells that a rule chooses, and goals that are met or missed."""

import json
import re
from dataclasses import replace

import pytest

from benchmarks import keep, kept, readme
from benchmarks.cells import Cell, Question, Times, name_of, size_name, time_name
from benchmarks.goals import Row

FACTS = {"code": "a tree", "commit": "abc", "date": "2026-11-23 14:00 UTC", "CPU": "a CPU", "cores": 2}
GROUND = {
    "nodes": [{"machine": {"cores": 2, "kernel": "6"}}],
    "versions": {"MPI library": "Open MPI, more", "mpi4py": "4", "NumPy": "2", "Python": "3"},
}


def write(folder, **facts_by_name):
    for name, facts in facts_by_name.items():
        result = {"facts": {**FACTS, **facts}, "figures": {"of": name}, "ground": GROUND}
        (folder / f"{name}.json").write_text(json.dumps(result))


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(keep, "RESULTS", tmp_path)
    return tmp_path


def test_results_of_one_code_are_read_with_all_their_commits(results):
    write(results, nodes={}, pool={"commit": "def"})
    read = kept.read(("nodes", "pool"))
    assert read.figures == {"nodes": {"of": "nodes"}, "pool": {"of": "pool"}}
    assert read.origin.startswith("Measured at commit `abc` and commit `def`, on 2026-11-23, a CPU, 2 cores, ")


@pytest.mark.parametrize(
    "facts",
    [{"code": "another tree"}, {"CPU": "another CPU"}, {"cores": 4}, {"kernel": "7"}, {"versions": {"numpy": "3"}}],
)
def test_results_of_two_codes_or_machines_are_refused(results, facts):
    write(results, nodes={}, pool=facts)
    with pytest.raises(SystemExit, match=f"pool: {next(iter(facts))} differs from that of nodes"):
        kept.read(("nodes", "pool"))


def test_results_of_code_in_no_commit_are_refused(results):
    write(results, nodes={"code": "a tree and changes"})
    with pytest.raises(SystemExit, match="in no commit"):
        kept.read(("nodes",))


@pytest.mark.parametrize("page", readme.BLOCKS, ids=lambda page: page.name)
def test_each_table_says_at_which_commit_its_rows_were_measured(page):
    facts = [json.loads((keep.RESULTS / f"{name}.json").read_text()).get("facts", {}) for name in kept.QUOTED]
    commits = {each["commit"] for each in facts if each}
    origin = readme.shown(page).splitlines()[0]
    assert set(re.findall(r"`(\w+)`", origin)) == commits
    assert commits or kept._NO_COMMIT in origin


def question(*ratios):
    rival = Times(1.0, 1.0, 1.0)
    cells = [
        Cell(place, f"{number} B", Times(0.0, ratio, 10.0), "a rival", rival)
        for number, (place, ratio) in enumerate(ratios)
    ]
    return Question("a question", "near", tuple(cells))


def test_sizes_are_chosen_by_their_place_in_the_list_and_the_worst_by_its_ratio():
    asked = question(("near", 0.1), ("near", 3.0), ("near", 0.5), ("near", 0.2), ("near", 0.3), ("far", 9.0))
    assert [cell.size for cell in asked.shown] == ["0 B", "2 B", "4 B"]
    assert (asked.worst.place, asked.worst.ratio) == ("far", 9.0)
    assert [cell.size for cell in question(*[("near", 1.0)] * 4).shown] == ["0 B", "1 B", "3 B"]


def test_a_single_size_is_shown_once():
    cells = question(("near", 0.5)).shown
    assert len(set(cells)) == 1
    assert [cell is not None for cell in readme._once(question(("near", 0.5)))] == [True, False, False]


@pytest.mark.parametrize(
    ("row", "is_met"),
    [
        (Row("", (0.9, 1.0), 1.0), True),
        (Row("", (0.9, 1.1), 1.0), False),
        (Row("", (2.0,), 1.6, is_least=True), True),
        (Row("", (1.5,), 1.6, is_least=True), False),
    ],
)
def test_a_goal_is_met_by_all_values_or_missed(row, is_met):
    assert row.is_met == is_met
    assert row.shown[-1] == ("met" if is_met else "**missed**")


@pytest.mark.parametrize(("nbytes", "name"), [(8, "8 B"), (1024, "1 KiB"), (1000, "1,000 B"), (1 << 31, "2 GiB")])
def test_sizes_have_names(nbytes, name):
    assert size_name(nbytes) == name


@pytest.mark.parametrize(
    ("title", "name"), [("1,048,576 bytes", "1 MiB"), ("8 bytes", "8 B"), ("100 of 1,024 bytes", "100 of 1,024 bytes")]
)
def test_tables_are_named_by_their_size_if_their_title_is_one(title, name):
    assert name_of(title) == name


def test_the_front_has_the_worst_cell_of_each_question(monkeypatch):
    asked = [question((f"place {number}", 1.0), ("far", 2.0 + number)) for number in range(8)]
    monkeypatch.setattr(kept, "read", lambda: kept.Kept({}, "origin"))
    monkeypatch.setattr(
        readme, "questions", lambda figures: [replace(each, place=each.cells[0].place) for each in asked]
    )
    *table, _, left_out = readme.readme().splitlines()
    assert len([line for line in table if line.startswith("| a question")]) == readme._ON_FRONT
    assert all(f"{2.0 + number:.2f} times a rival" in "\n".join(table) for number in range(readme._ON_FRONT))
    assert all(f"{2.0 + number:.2f} times a rival (1 of 2)" in left_out for number in range(readme._ON_FRONT, 8))


@pytest.mark.parametrize(
    ("seconds", "name"), [(2.345, "2.35 s"), (0.2, "200 ms"), (1.5e-6, "1.5 us"), (3e-7, "0.3 us")]
)
def test_times_have_units(seconds, name):
    assert time_name(seconds) == name
