"""The list of benchmarks, and what is kept with a result."""

import json

import pytest

from benchmarks import keep
from benchmarks.run import LAUNCHES, MORE, ROOT, Launch, names_for, wide

ALL = [*LAUNCHES, *MORE, *wide(8)]


@pytest.mark.parametrize("launch", ALL, ids=lambda launch: launch.name)
def test_each_launch_has_a_script_and_a_short_run(launch):
    command = launch.command(short=False)
    module = command[-len(launch.args.split())]
    assert (ROOT / f"{module.replace('.', '/')}.py").is_file()
    assert launch.command(short=True) == [*command, *launch.short.split()]


def test_no_two_launches_have_one_name():
    assert len({launch.name for launch in ALL}) == len(ALL)


def test_a_result_that_is_added_to_names_all_commands_that_make_it():
    named = {launch.name: names_for(launch) for launch in LAUNCHES}
    assert named["share-2"] == ["share-2"]
    assert named["nodes-many"] == ["nodes", "nodes-delays", "nodes-more", "nodes-many"]


def test_a_wide_machine_is_measured_with_powers_of_two_up_to_its_cores():
    counts = {int(launch.name.rpartition("-")[2]) for launch in wide(48) if launch.name != "wide-growth"}
    assert counts == {1, 2, 4, 8, 16, 32}


def test_ranks_are_started_by_mpishare_run():
    assert Launch("a", 3, "share --rounds 9", "").command(short=False) == (
        ["-m", "mpishare", "run", "-n", "3", "-m", "benchmarks.share", "--rounds", "9"]
    )


def test_a_result_has_the_facts_and_is_added_to_only_by_the_same_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(keep, "RESULTS", tmp_path / "results")
    monkeypatch.setenv(keep.FACTS, json.dumps({"code": "a tree"}))
    keep.keep("name", {"a": 1})
    assert json.loads((tmp_path / "results" / "name.json").read_text()) == {
        "facts": {"code": "a tree"},
        "figures": {"a": 1},
    }
    assert keep.kept_figures("name") == {"a": 1}
    for others in ({"code": "another tree"}, {"code": "a tree", "commit": "another"}):
        monkeypatch.setenv(keep.FACTS, json.dumps(others))
        assert keep.kept_figures("name") == {}
    assert keep.kept_figures("no such name") == {}
