"""`mpishare clean`, and the first call of a job: what killed jobs left goes, and nothing else."""

import io
import mmap
import os
import signal
import subprocess
import sys
import time
from fcntl import LOCK_EX, flock
from threading import Thread
from types import SimpleNamespace

import pytest

from mpishare.cli.clean import main
from mpishare.host import leftovers
from tests.processes import wait_until

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
        assert main(["--dir", str(folder), *options]) == 0
        return capsys.readouterr().out

    return run


def names_in(folder):
    return {file.name for file in folder.iterdir()}


def test_files_of_mpi_go_and_no_others(folder, clean):
    assert clean("--dry-run").count("would remove") == len(STALE)
    assert len(names_in(folder)) == len(STALE) + len(FOREIGN)
    output = clean()
    assert all(f"removed {folder / name}, 8,192 bytes" in output for name in STALE)
    assert f"{len(STALE) * 8192:,} bytes are free again" in output
    assert names_in(folder) == set(FOREIGN)


def test_files_in_use_stay_also_those_of_another_pid_namespace(folder):
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = ["unshare", *user, "--pid", "--fork", "--mount-proc", sys.executable, "-m", "mpishare", "clean"]
    file = (folder / STALE[1]).open("rb")
    with (folder / STALE[0]).open("r+b"), mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ):
        file.close()
        ended = subprocess.run([*command, "--dir", str(folder)], capture_output=True, text=True, check=True)
    assert [f"left {folder / name}: a process uses it" in ended.stdout for name in STALE[:3]] == [True, True, False]
    assert names_in(folder) == {*FOREIGN, *STALE[:2]}


UNKNOWN = {
    "a file system without leases": ("F_SETLEASE", -1, "Invalid argument"),
    "one of several hosts": ("_is_node_local", lambda directory: False, "other hosts may use its file system"),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_files_stay_where_their_use_cannot_be_known(case, folder, clean, monkeypatch):
    name, value, reason = UNKNOWN[case]
    monkeypatch.setattr(leftovers, name, value)
    assert clean().count(f"cannot be known: {reason}") == len(STALE)
    leftovers.remove_leftovers(str(folder))
    assert names_in(folder) == {*FOREIGN, *STALE}


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_files_may_vanish(folder, options, monkeypatch):
    class Output(io.StringIO):
        """As soon as the first file is named, the jobs of the others end."""

        def write(self, text):
            for name in STALE:
                (folder / name).unlink(missing_ok=True)
            return super().write(text)

    monkeypatch.setattr(sys, "stdout", output := Output())
    assert main(["--dir", str(folder), *options]) == 0
    assert output.getvalue().count(str(folder)) == 1


def test_links_and_folders_stay(tmp_path):
    (tmp_path / STALE[0]).mkdir()
    (tmp_path / "elsewhere").write_text("mine")
    (tmp_path / STALE[1]).symlink_to(tmp_path / "elsewhere")
    assert main(["--dir", str(tmp_path)]) == 0
    assert names_in(tmp_path) == {*STALE[:2], "elsewhere"}


def test_files_of_others_stay(folder, clean, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 12345678)
    assert clean() == "0 bytes are free again\n"
    assert names_in(folder) == {*FOREIGN, *STALE}


def test_the_first_call_removes_them_once_without_a_word(folder, capfd):
    leftovers.remove_leftovers(str(folder), str(folder / "missing"))
    assert names_in(folder) == set(FOREIGN)
    (folder / STALE[0]).touch()
    leftovers.remove_leftovers(str(folder), str(folder / "missing"))
    assert names_in(folder) == {*FOREIGN, STALE[0]}
    assert capfd.readouterr() == ("", "")


def test_the_first_call_leaves_files_in_use(folder):
    used = {STALE[0], "mpich_shm_9f88a72b_0"}
    files = [(folder / name).open() for name in used]
    leftovers.remove_leftovers(str(folder))
    assert names_in(folder) == {*FOREIGN, *used}
    for file in files:
        file.close()


def test_the_first_call_leaves_a_folder_to_the_process_that_is_about_it(folder):
    descriptor = os.open(folder, os.O_RDONLY)
    flock(descriptor, LOCK_EX)
    leftovers.remove_leftovers(str(folder))
    os.close(descriptor)
    assert names_in(folder) == {*FOREIGN, *STALE}


@pytest.mark.parametrize("event", ["nothing", "its maker opens it", "its name is used again"])
def test_a_young_file_goes_unless_something_happens_to_it(event, tmp_path, monkeypatch):
    (file := tmp_path / STALE[0]).touch()
    maker, signals, waits = Thread(target=file.read_bytes), [], []

    def sleep(seconds):
        waits.append(seconds)
        if event == "its maker opens it":
            maker.start()  # and waits for the lease
            wait_until(lambda: signals, 10)
        elif event == "its name is used again":
            file.unlink()
            file.touch()

    monkeypatch.setattr(leftovers, "time", SimpleNamespace(time=time.time, sleep=sleep))
    previous = signal.signal(signal.SIGURG, lambda *_: signals.append(1))
    leftovers.remove_leftovers(str(tmp_path))
    signal.signal(signal.SIGURG, previous)
    assert 0 < waits[0] <= 1
    assert file.exists() == (event != "nothing")
    if maker.ident:
        maker.join()


def test_a_file_stays_that_takes_the_name_of_one_that_was_opened(tmp_path, monkeypatch):
    (file := tmp_path / STALE[0]).touch()
    other = tmp_path / "other"
    other.touch()
    os.utime(file, (1, 1))

    def is_node_local(directory):  # is asked between
        other.rename(file)
        return True

    monkeypatch.setattr(leftovers, "_is_node_local", is_node_local)
    leftovers.remove_leftovers(str(tmp_path))
    assert file.exists()
