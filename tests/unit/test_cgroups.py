"""cgroups: limits and what is left of them, read from files made for the test."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpishare.host.cgroups import memory_left, memory_limit


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc/self/cgroup to fill."""
    return tmp_path / "proc"


def test_version_2_takes_the_smallest_of_all_levels(tmp_path: Path, proc: Path) -> None:
    write(proc, "0::/slurm/job7/step0\n")
    write(tmp_path / "slurm/job7/step0/memory.max", "max\n")
    write(tmp_path / "slurm/job7/memory.max", "5000\n")
    write(tmp_path / "slurm/memory.max", "9000\n")
    assert memory_limit(proc, tmp_path) == 5000


def test_version_1_takes_its_huge_number_for_no_limit(tmp_path: Path, proc: Path) -> None:
    write(proc, "5:cpu,cpuacct:/x\n4:memory:/docker/a\n")
    write(tmp_path / "memory/docker/a/memory.limit_in_bytes", "9223372036854771712\n")
    assert memory_limit(proc, tmp_path) is None
    write(tmp_path / "memory/docker/memory.limit_in_bytes", "7000\n")
    assert memory_limit(proc, tmp_path) == 7000


def test_no_control_groups(tmp_path: Path) -> None:
    assert memory_limit(tmp_path / "none", tmp_path) is None
    assert memory_left(tmp_path / "none", tmp_path) is None


def test_what_is_left_is_that_of_the_tightest_group(tmp_path: Path, proc: Path) -> None:
    write(proc, "0::/slurm/job7\n")
    write(tmp_path / "slurm/job7/memory.max", "9000\n")
    write(tmp_path / "slurm/job7/memory.current", "1000\n")
    write(tmp_path / "slurm/memory.max", "10000\n")
    write(tmp_path / "slurm/memory.current", "7000\n")
    assert memory_left(proc, tmp_path) == 3000
    write(tmp_path / "slurm/memory.stat", "anon 4000\ninactive_file 2500\n")
    assert memory_left(proc, tmp_path) == 5500
    write(tmp_path / "slurm/memory.current", "20000\n")
    assert memory_left(proc, tmp_path) == 0


def test_what_is_left_in_version_1(tmp_path: Path, proc: Path) -> None:
    write(proc, "4:memory:/a\n")
    write(tmp_path / "memory/a/memory.limit_in_bytes", "7000\n")
    write(tmp_path / "memory/a/memory.usage_in_bytes", "4000\n")
    write(tmp_path / "memory/a/memory.stat", "cache 3000\ninactive_file 1\ntotal_inactive_file 2000\n")
    assert memory_left(proc, tmp_path) == 5000
