"""`mpishare plan`: what data take on a node, and the lines for Slurm; no MPI where the node is told."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from mpishare.cli.plan import Plan, main, parse_bytes

GIB = 1 << 30


@pytest.fixture
def file(tmp_path: Path) -> Path:
    with h5py.File(tmp_path / "run.h5", "w") as new:
        new["grid"] = np.zeros((1 << 10, 1 << 10))
        new.create_dataset("deep/packed", (1000, 3), "f4", chunks=(100, 3), compression="gzip")
    return tmp_path / "run.h5"


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("0", 0), ("512", 512), ("64G", 64 * GIB), ("1.5g", 3 * GIB // 2), ("8 KiB", 8192), ("2TB", 2 << 40)],
)
def test_sizes_are_slurms(text: str, nbytes: int) -> None:
    assert parse_bytes(text.replace(" ", "")) == nbytes


@pytest.mark.parametrize("text", ["", "G", "-1G", "1P", "4 apples"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="no number of bytes"):
        parse_bytes(text)


def test_the_fullest_node_counts() -> None:
    plan = Plan(data=10 * GIB, ranks=66, nodes=4, each=GIB, memory=64 * GIB, limit=32 * GIB, shm=0)
    assert (plan.ranks_a_node, plan.shared, plan.copied) == (17, 27 * GIB, 187 * GIB)
    assert plan.fits
    assert plan.sbatch() == ["#SBATCH --nodes=4", "#SBATCH --ntasks=66", "#SBATCH --mem=27648M"]


def test_a_limit_of_control_groups_counts() -> None:
    assert not Plan(data=10 * GIB, ranks=2, nodes=1, each=GIB, memory=64 * GIB, limit=11 * GIB, shm=0).fits


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """The exit status and what was printed."""
    status = main([*words, "--memory", "1G"])
    return status, capsys.readouterr().out


def test_one_dataset(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, told = planned(capsys, f"{file}:grid", "-n", "8", "-N", "2", "--each", "128M")
    assert status == 0
    assert "/grid: (1024, 1024) float64, 8,388,608 bytes, contiguous" in told
    lines = {line.split("  ")[1]: line.split()[-2:] for line in told.splitlines() if line.startswith("  one copy")}
    each = 128 << 20
    assert lines["one copy, shared"] == [f"{1 << 23:,}", f"{(1 << 23) + 4 * each:,}"]
    assert lines["one copy a rank"] == [f"{4 << 23:,}", f"{4 * ((1 << 23) + each):,}"]
    assert told.endswith("#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n#SBATCH --mem=768M\n")


def test_a_whole_file_as_json(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, told = planned(capsys, str(file), "-n", "4", "-N", "1", "--json")
    found = json.loads(told)
    assert [one["name"] for one in found["arrays"]] == ["/deep/packed", "/grid"]
    assert found["data"] == (8 << 20) + 12000
    assert (status, found["fits"]) == (1, False)  # 4 ranks of 256 MiB fill 1 GiB


def test_what_does_not_fit_is_told(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, told = planned(capsys, str(file), "-n", "4", "-N", "1")
    assert status == 1
    assert "one copy does not fit, but with 3 ranks a node" in told


def test_a_colon_in_a_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "a:b.npy", np.zeros(3))
    assert planned(capsys, str(tmp_path / "a:b.npy"), "-n", "1", "-N", "1")[0] == 0


@pytest.mark.parametrize("name", ["missing.h5", "run.h5:nothing", f"{'x' * 300}.h5:grid"])
def test_what_is_not_there(file: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(file.parent / name), "-n", "1", "-N", "1", "--memory", "1G"]) == 2
    assert capsys.readouterr().err.startswith("mpishare plan: ")


@pytest.mark.parametrize(
    "words", [["-n", "1", "-N", "2"], ["-n", "0", "-N", "0"], ["-n", "2", "-N", "1", "--each", "0"]]
)
def test_impossible_jobs(file: Path, words: list[str]) -> None:
    with pytest.raises(SystemExit):
        main([str(file), *words])
