"""Too little room: in /dev/shm, in the temporary folder, in memory, in the table of open files."""

import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from mpishare.memory.pages import can_populate
from tests.blackbox.launch import AS_ROOT, run

pytestmark = pytest.mark.first
PROGRAM = ["python", "-m", "tests.faults.programs.calls"]


def run_with(setup, *args, before=(), jobs=1, **environ):
    """What a function of the program prints on 2 ranks, in a mount namespace of its own that lines of shell set up."""
    job = shlex.join([*before, sys.executable, "-m", "mpishare", "run", "-n", "2", *PROGRAM, *args])
    lines = [setup, *[f"{job} & others=$!"] * (jobs - 1), job, *["wait $others"] * (jobs - 1)]
    return run(["unshare", *AS_ROOT, "--mount", "sh", "-ec", "\n".join(lines)], environ).stdout


@pytest.fixture
def limited():
    """The line of shell that puts a program into a memory control group of 800 MiB."""
    hierarchies = {"memory": "memory.limit_in_bytes", ".": "memory.max"}  # of version 1 and 2
    folder, limit = next(item for item in hierarchies.items() if Path("/sys/fs/cgroup", item[0]).is_dir())
    group = Path("/sys/fs/cgroup", folder, f"mpishare-tests-{os.getpid()}")
    try:
        group.mkdir()
        (group / limit).write_text(str(800 << 20))
    except OSError as error:
        if group.exists():
            group.rmdir()
        pytest.skip(f"no control group can be limited: {error}")
    yield f"echo $$ > {group}/cgroup.procs"
    group.rmdir()


SHM = "mount -t tmpfs -o size={} none /dev/shm; mkdir $OMPI_MCA_osc_sm_backing_directory"
FOLDER = "mkdir -p '{0}'; mount -t tmpfs -o size=8m{1} none '{0}'"


def test_small_shared_memory():
    """A /dev/shm of 64 MiB, Docker's default, and an array of 256 MiB; one of 8 MiB, and any array.

    Outcome: it lies in a nameless file in memory, not in a window, and report() says why.
    """
    for nbytes, size, required in ((256 << 20, "64m", "539,033,600"), (80, "8m", "16,908,288")):
        output = run_with(SHM.format(size), "share_bytes", str(nbytes))
        assert output.count("memmap in memory") == 2
        full = f"bytes do not fit in /dev/shm.* {required} must be free"
        reason = full if can_populate() else "older than Linux 5.14"
        assert len(re.findall(f"not window: .*{reason}", output)) == 2


def test_shared_memory_that_fills_up():
    """/dev/shm filling up while arrays are being made.

    Outcome: arrays that fit no longer go to memory; all keep their bits.
    """
    output = run_with(SHM.format("128m"), "share_while_it_fills_up")
    assert output.count("['memmap in memory', 'window']") == 2


def test_full_folder(tmp_path):
    """MPISHARE_DIR or TMPDIR full.

    Outcome: CapacityError on all ranks, with the folder and its free space.
    """
    environ = {"MPISHARE_DIR": str(tmp_path / "full"), "MPISHARE_BACKEND": "memmap"}
    output = run_with(FOLDER.format(tmp_path / "full", ""), "make", str(16 << 20), **environ)
    assert output.count(f"16,777,216 bytes do not fit in {tmp_path / 'full'} of host") == 2


@pytest.mark.parametrize("system", ["tmpfs", "ramfs"])
def test_folder_in_memory(limited, system, tmp_path):
    """MPISHARE_DIR or TMPDIR on tmpfs or ramfs, in a control group with less memory than the array.

    Outcome: CapacityError on all ranks, with the memory that is free in the group.
    """
    mount = f"mount -t {system} -o size=0 none '{tmp_path}'"
    environ = {"MPISHARE_DIR": str(tmp_path), "MPISHARE_BACKEND": "memmap"}
    output = run_with(f"{limited}\n{mount}", "make", str(900 << 20), **environ)
    assert output.count("CapacityError 943,718,400 bytes do not fit in memory of host") == 2


def test_two_jobs_in_one_group(limited, tmp_path):
    """Two jobs of one control group that fill the rest of its memory at the same time.

    Outcome: CapacityError on all ranks of a job, or of both; the kernel kills none.
    """
    output = run_with(limited, "make_in_step", str(tmp_path), str(400 << 20), jobs=2, TMPDIR="/dev/shm")
    assert output.count("CapacityError 419,430,400 bytes do not fit in memory of host") in (2, 4)


@pytest.mark.parametrize(("option", "place"), [("v", "the address space of a process"), ("f", "a file")])
def test_limits_of_a_process(option, place):
    """An array larger than `ulimit -v` or `ulimit -f` allows.

    Outcome: CapacityError on all ranks, with the limit to raise.
    """
    output = run_with(f"ulimit -{option} 1500000", "make", str(3 << 30))
    assert output.count(f"CapacityError 3,221,225,472 bytes do not fit in {place} of host") == 2


def test_no_open_files():
    """No open file left.

    Outcome: the next backend, in the end one copy per rank, where one is enough to read.
    """
    assert run_with("true", "share_without_descriptors").count("['private']") == 2


def test_full_disk(tmp_path):
    """A full disk while saving.

    Outcome: FileError on all ranks: which file, no space; the old one stays.
    """
    folder = str(tmp_path / "full")
    lines = run_with(FOLDER.format(folder, ""), "save_on_a_full_disk", folder).splitlines()
    assert len(lines) == 4
    assert all("No space left on device" in line for line in lines)
    assert all(line.startswith(("error: FileError 28 ", "error: PeerFileError 28 ")) for line in lines)
    assert sum("a.npy" in line for line in lines) == 2
    assert sum("dataset 'x'" in line and "a.h5" in line for line in lines) == 2


def test_a_mount_that_is_read_only(tmp_path):
    """A save or a checkpoint on a file system that is mounted read-only.

    Outcome: FileError on all ranks: which file, read-only file system.
    """
    for name in ("a.npy", "a.h5"):
        (tmp_path / name).write_text("old")
    place = shlex.quote(str(tmp_path))
    output = run_with(f"mount --bind {place} {place}; mount -o remount,ro,bind {place}", "save_over", str(tmp_path))
    lines = output.splitlines()
    assert len(lines) == 8
    assert all("Read-only file system" in line and "ermission" not in line for line in lines)
    assert all(line.startswith(("error: FileError 30 ", "error: PeerFileError 30 ")) for line in lines)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"a.npy": "old", "a.h5": "old"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become someone else")
def test_no_permission(tmp_path):
    """No permission to save.

    Outcome: FileError on all ranks: which file, permission denied.
    """
    folders = {tmp_path.parent: 0o755, tmp_path: 0o755, tmp_path / "mine": 0o755, tmp_path / "open": 0o777}
    for folder, mode in folders.items():
        folder.mkdir(exist_ok=True)
        folder.chmod(mode)
    for name in ("a.npy", "a.h5"):
        (tmp_path / "open" / name).write_text("of another user")
    output = run_with("true", "save_as_nobody", str(tmp_path))
    assert output.count("Permission denied") == 8
    for name in ("mine/a.npy", "mine/a.h5", "open/a.npy", "open/a.h5"):
        assert output.count(f"/{name}: ") == 2
    assert (tmp_path / "open" / "a.npy").read_text() == "of another user"
