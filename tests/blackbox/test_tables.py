"""Programs that share tables: the job."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import h5py
import pytest

from tests.blackbox.launch import run_ranks

JOB = "jobs/table_stats.py"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Three columns: a number, a text with a gap, a date."""
    file = tmp_path / "table.csv"
    file.write_text("delay,carrier,time_hour\n1.5,UA,2013-01-01 05:00:00\n2.5,,2013-01-01 06:00:00\n")
    return file


@pytest.mark.parametrize(("size", "nodes"), [(1, ""), (2, ""), (5, "sizes:1,3,1")])
def test_the_flights(size: int, nodes: str, tmp_path: Path) -> None:
    output = tmp_path / "stats.csv"
    ended = run_ranks(size, [JOB, "--output", str(output), "--progress"], {"MPISHARE_NODES": nodes})
    assert ended.returncode == 0, ended.stderr
    assert f"336,776 rows, 19 columns, {size} ranks" in ended.stdout
    assert "all are as on one rank" in ended.stdout
    assert ended.stderr == ""
    rows = {row["column"]: row for row in csv.DictReader(output.read_text().splitlines())}
    assert rows["carrier"]["distinct"] == "16"
    assert rows["tailnum"]["missing"] == "2512"
    assert float(rows["dep_delay"]["mean"]) == pytest.approx(12.63907)


def test_a_table_of_ones_own(table: Path, tmp_path: Path) -> None:
    output = tmp_path / "stats.h5"
    ended = run_ranks(3, [JOB, "--data", str(table), "--output", str(output), "--json"])
    told = json.loads(ended.stdout)
    assert (told["rows"], told["differ"], len(told["columns"])) == (2, [], 3)
    with h5py.File(output) as file:
        assert file["missing"][:].tolist() == [0, 1, 0]
        assert file["mean"].asstr()[:].tolist() == ["2.0", "", ""]
        assert file["minimum"].asstr()[2] == "2013-01-01 05:00:00+00:00"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--data", "nowhere.csv"], "table_stats: FileNotFoundError"),
        (["--output", "stats.txt"], "must end in .csv or .h5"),
    ],
)
def test_bad_input(words: list[str], told: str) -> None:
    ended = run_ranks(2, [JOB, *words], limit_s=30)
    assert ended.returncode != 0
    assert told in ended.stderr
