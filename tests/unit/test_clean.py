"""`mpishare clean`: what killed jobs left is removed, and nothing else."""

import io
import mmap
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from mpishare.cli.clean import main
from mpishare.host import leftovers
from tests.blackbox.launch import AS_ROOT
from tests.processes import error_as

STALE = ["osc_sm.vm.ba3f0001.0.4", "osc_sm.n-1.example.org.4c.0.0x1f00000001"]
STALE += ["osc_rdma.vm.4c.3.817", "osc_rdma.vm.4c.3", "osc_ucx.vm.4c.0.0x1f00000001"]
STALE += ["sm_segment.a-b.0.31ef0000.0", "vader_segment.n1.1000.4c.0", "vader_segment.n1.4c.0"]
STALE += ["mpich_shar_tmpQ8vXl2", "mpich_shm_9f88a72b_0", "mpich_vci_9f88a72b_12"]
FOREIGN = ["psm2_shm.1", "sm_segment", "my.sm_segment.vm.0.4c.0", "osc_sm.vm 1.4c.0.1", "torch_123", "notes.txt"]
FOREIGN += ["osc_sm.notes-of-mine.txt", "sm_segment.my.data", "vader_segment.n1.4c.0.txt", "mpich_shar_tmp_results"]
FOREIGN += ["mpich_shm_copy_0", "mpich_shm_9f88a72b_0.npy"]


@pytest.fixture
def folder(tmp_path):
    """A folder like /dev/shm, with files from a minute ago."""
    for name in [*STALE, *FOREIGN]:
        (tmp_path / name).write_bytes(bytes(8192))
        os.utime(tmp_path / name, (time.time() - 60,) * 2)
    return tmp_path


@pytest.fixture
def clean(folder, capsys):
    """Runs the command on the folder; returns what it prints."""

    def run(*options):
        assert main(["--dir", str(folder), *(options or ["--yes"])]) == 0
        return capsys.readouterr().out

    return run


def names_in(folder):
    return {file.name for file in folder.iterdir()}


def test_files_of_mpi_go_and_no_others(folder, clean):
    listed = clean("--dry-run")
    assert all(f"{folder / name}, 8 KiB" in listed for name in STALE)
    assert len(names_in(folder)) == len(STALE) + len(FOREIGN)
    assert clean() == f"{listed}removed {len(STALE)} files, {len(STALE) * 8} KiB\n"
    assert names_in(folder) == set(FOREIGN)


def test_files_in_use_stay_also_those_of_another_pid_namespace(folder):
    command = ["unshare", *AS_ROOT, "--pid", "--fork", "--mount-proc", sys.executable, "-m", "mpishare", "clean"]
    command.append("--yes")
    file = (folder / STALE[1]).open("rb")
    with (folder / STALE[0]).open("r+b"), mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ):
        file.close()
        ended = subprocess.run([*command, "--dir", str(folder)], capture_output=True, text=True, check=True)
    assert [f"left {folder / name}: a process uses it" in ended.stdout for name in STALE[:3]] == [True, True, False]
    assert names_in(folder) == {*FOREIGN, *STALE[:2]}


@pytest.mark.parametrize(("answer", "are_removed"), [("y", True), ("", False), ("no", False)])
def test_it_asks_where_it_can(answer, are_removed, folder, monkeypatch):
    monkeypatch.setattr(sys, "stdin", stdin := io.StringIO(answer + "\n"))
    assert main(["--dir", str(folder)]) == 1
    assert names_in(folder) == {*STALE, *FOREIGN}
    monkeypatch.setattr(stdin, "isatty", lambda: True)
    assert main(["--dir", str(folder)]) == 0
    assert names_in(folder) == {*([] if are_removed else STALE), *FOREIGN}


UNKNOWN = {
    "a file system without leases": ("fcntl.F_SETLEASE", -1, "Invalid argument"),
    "one of several hosts": ("is_node_local", lambda directory: False, "other hosts may use its file system"),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_files_stay_where_their_use_cannot_be_known(case, folder, clean, monkeypatch):
    name, value, reason = UNKNOWN[case]
    monkeypatch.setattr(f"{leftovers.__name__}.{name}", value)
    assert clean().count(f"cannot be known: {reason}") == len(STALE)
    assert names_in(folder) == {*FOREIGN, *STALE}


def test_links_and_folders_and_files_of_others_stay(folder, clean, monkeypatch):
    (folder / "osc_sm.vm.1.0.1").mkdir()
    (folder / "osc_sm.vm.1.0.2").symlink_to(folder / "notes.txt")
    kept = {*FOREIGN, "osc_sm.vm.1.0.1", "osc_sm.vm.1.0.2"}
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 12345678)
        assert clean() == f"nothing to remove in {folder}\n"
        assert names_in(folder) == {*kept, *STALE}
    clean()
    assert names_in(folder) == kept


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of two users")
def test_root_cleans_after_a_user_as_that_user(capsys):
    """As in an epilog. Files of other users stay, and one that another job of the user has open."""
    user, owners = 65_532, [65_532, 65_532, 65_533, 0]
    with TemporaryDirectory(dir="/dev/shm") as name:
        options = ["--yes", "--dir", name]
        files = [Path(name, stale) for stale in STALE[:4]]
        for file, owner in zip(files, owners, strict=True):
            file.touch(mode=0o600)
            os.utime(file, (1, 1))
            os.chown(file, owner, owner)
        Path(name).chmod(0o1777)
        with files[0].open("rb"):
            assert error_as(user, partial(main, options)) == 0
        assert names_in(Path(name)) == {*STALE[:1], *STALE[2:4]}
        assert main(options) == 0
        assert names_in(Path(name)) == {STALE[0], STALE[2]}
        assert "left 2 files of other users: " in capsys.readouterr().out


def test_a_young_file_stays_and_one_that_takes_the_name_of_another(tmp_path, monkeypatch, capsys):
    """The maker of a young file may not have opened it."""
    (file := tmp_path / STALE[0]).touch()
    assert main(["--dir", str(tmp_path), "--yes"]) == 0
    assert f"left {file}: a process uses it" in capsys.readouterr().out
    os.utime(file, (1, 1))

    def is_node_local(directory):  # is asked when the file has been opened
        (other := tmp_path / "other").touch()
        other.rename(file)
        return True

    monkeypatch.setattr(leftovers, "is_node_local", is_node_local)
    assert main(["--dir", str(tmp_path), "--yes"]) == 0
    assert file.exists()
