"""`mpishare clean`: what killed jobs left goes, and nothing else."""

import mmap
import os

import pytest

from mpishare.cli.clean import leftovers, main

STALE = ["osc_sm.vm.ba3f0001.0.4", "sm_segment.a-b.0.31ef0000.0", "vader_segment.n1.1000.4c.0", "mpich_shar_tmpQ8vXl2"]
FOREIGN = ["psm2_shm.1", "sm_segment", "my.sm_segment.vm", "osc_sm.vm 1", "torch_123", "notes.txt"]


@pytest.fixture
def folder(tmp_path):
    """A folder like /dev/shm."""
    for name in [*STALE, *FOREIGN]:
        (tmp_path / name).write_bytes(bytes(8192))
    return tmp_path


def test_only_files_of_mpi_that_are_not_in_use(folder):
    with (folder / STALE[0]).open("r+b"), (folder / STALE[1]).open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        file.close()
        assert {file.name for file in leftovers(folder)} == set(STALE[2:])
    assert {file.name for file in leftovers(folder)} == set(STALE)


def test_links_and_folders_stay(tmp_path):
    (tmp_path / STALE[0]).mkdir()
    (tmp_path / "elsewhere").write_text("mine")
    (tmp_path / STALE[1]).symlink_to(tmp_path / "elsewhere")
    assert leftovers(tmp_path) == []


def test_files_of_others_stay(folder, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 12345678)
    assert leftovers(folder) == []


def test_the_command(folder, capsys):
    assert main(["--dir", str(folder), "--dry-run"]) == 0
    assert capsys.readouterr().out.count("would remove") == len(STALE)
    assert len(list(folder.iterdir())) == len(STALE) + len(FOREIGN)
    assert main(["--dir", str(folder)]) == 0
    result = capsys.readouterr().out
    assert all(f"removed {folder / name}, 8,192 bytes" in result for name in STALE)
    assert f"{4 * 8192:,} bytes are free again" in result
    assert {file.name for file in folder.iterdir()} == set(FOREIGN)
