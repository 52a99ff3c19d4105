"""Too little room: in /dev/shm, in the temporary folder, in memory, in the table of open files."""

import os
import shlex
import sys

import pytest

from tests.blackbox.launch import run

PROGRAM = ["python", "-m", "tests.faults.programs.calls"]


def run_with(setup, *args, tracer=(), **environ):
    """What a function of the program prints on 2 ranks, in a mount namespace of its own that lines of shell set up."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    job = [*tracer, sys.executable, "-m", "mpishare", "run", "-n", "2", *PROGRAM, *args]
    return run(["unshare", *user, "--mount", "sh", "-ec", f"{setup}\nexec {shlex.join(job)}"], environ).stdout


SHM = "mount -t tmpfs -o size={} none /dev/shm; mkdir $OMPI_MCA_osc_sm_backing_directory"
FOLDER = "mkdir -p {0}; mount -t tmpfs -o size=8m{1} none {0}"


@pytest.mark.parametrize(("backend", "refusals"), [("", 0), ("window,memmap", 2)])
def test_small_shared_memory(backend, refusals):
    """A /dev/shm of 64 MiB, Docker's default, and an array of 256 MiB.

    Outcome: it lies in a nameless file in memory; where MPISHARE_BACKEND asks for a window first, report() says why
    not.
    """
    output = run_with(SHM.format("64m"), "share_large", MPISHARE_BACKEND=backend)
    assert output.count("memmap in memory") == 2
    assert output.count("not window: 268,435,456 bytes do not fit in /dev/shm") == refusals


def test_shared_memory_that_fills_up():
    """/dev/shm filling up while arrays are being made.

    Outcome: arrays that fit no longer go to memory; all keep their bits.
    """
    output = run_with(SHM.format("128m"), "share_while_it_fills_up", MPISHARE_BACKEND="window,memmap")
    assert output.count("['memmap in memory', 'window']") == 2


def test_full_folder(tmp_path):
    """MPISHARE_DIR or TMPDIR full.

    Outcome: CapacityError on all ranks, with the folder and its free space.
    """
    environ = {"MPISHARE_DIR": str(tmp_path / "full"), "MPISHARE_BACKEND": "memmap"}
    output = run_with(FOLDER.format(tmp_path / "full", ""), "make", str(16 << 20), **environ)
    assert output.count(f"16,777,216 bytes do not fit in {tmp_path / 'full'} of host") == 2


@pytest.mark.parametrize(("backend", "count"), [("memmap", 2), ("", 0)])
def test_read_only_folder(tmp_path, backend, count):
    """MPISHARE_DIR or TMPDIR read-only.

    Outcome: BackendError or PeerError on all ranks; without MPISHARE_BACKEND, the next kind.
    """
    environ = {"MPISHARE_DIR": str(tmp_path / "fixed"), **({"MPISHARE_BACKEND": backend} if backend else {})}
    output = run_with(FOLDER.format(tmp_path / "fixed", ",ro"), "make", "3", **environ)
    assert output.count("Read-only file system") == count


def test_no_open_files():
    """No open file left.

    Outcome: the next kind, in the end one copy per rank, where one is enough to read.
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
    assert all(line.startswith(("error: FileError 28 ", "error: PeerError ")) for line in lines)
    assert sum("a.npy" in line for line in lines) == 2
    assert sum("dataset 'x'" in line and "a.h5" in line for line in lines) == 2


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
