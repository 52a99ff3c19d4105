"""machine: the kernel's answers, read from files made for the test and from the real ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpishare.machine import Machine, memory_limit, memory_room, room


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


def test_room_of_a_directory(tmp_path: Path) -> None:
    found = room(str(tmp_path))
    assert found is not None
    assert 0 <= found.free <= found.total
    assert room(str(tmp_path / "missing")) is None


def test_this_machine() -> None:
    here = Machine.here()
    assert here.cores >= 1
    assert here.page_bytes in (4096, 16384, 65536)
    assert here.shm is not None
    assert 0 < memory_room().free <= here.memory_bytes
