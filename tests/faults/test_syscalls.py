"""The n-th system call that makes a segment or saves a file fails, for n = 1, 2, 3, … until there is none."""

import json
import re
from pathlib import Path
from tempfile import gettempdir

import h5py
import numpy as np
import pytest

import mpishare as ms
from mpishare.host.filesystems import IN_MEMORY, type_of
from tests.blackbox.launch import age, clean, nothing_left, run_ranks
from tests.faults.situations import WITHOUT_ADVICE
from tests.faults.test_calls import run as run_calls
from tests.faults.test_space import SHM, run_with

PROGRAM = ["-m", "tests.faults.programs.injected"]

ALLOCATES = "ftruncate" if type_of(gettempdir()) in IN_MEMORY else "fallocate"
# For each kind, the system calls that mpishare makes itself. Those inside MPI_Win_allocate_shared are MPI's.
CALLS = {
    "window": ["mremap", "madvise", "mprotect"],
    "memmap": ["memfd_create", "ftruncate", "openat", "mmap", "madvise", "mprotect"],
    "memmap in a folder": ["openat", ALLOCATES, "mmap", "mprotect"],
}


def settings(kind, folder):
    """The environment in which segments are of this kind."""
    backend, _, where = kind.partition(" ")
    return {"MPISHARE_BACKEND": backend, **({"MPISHARE_DIR": str(folder)} if where else {})}


@pytest.mark.parametrize("kind", CALLS)
def test_errors(kind, tmp_path):
    """ENOSPC or EIO at the n-th system call that makes a window, a file in memory, or one in a folder.

    Outcome: the next backend, or one error on all ranks; the next call works.
    """
    ended = run_ranks(2, [*PROGRAM, "0", ",".join(CALLS[kind]), "ENOSPC,EIO", "1"], settings(kind, tmp_path))
    counts = json.loads(ended.stdout.splitlines()[-1])
    assert len(counts) == 2 * len(CALLS[kind])
    assert all(counts.values()), "a call was never made"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("kind", "call"), [(kind, call) for kind, calls in CALLS.items() for call in calls])
def test_kill(kind, call, tmp_path):
    """SIGKILL at a system call that makes a window, a file in memory, or one in a folder.

    Outcome: mpiexec ends the job at once; nothing is left.
    """
    ended = run_ranks(2, [*PROGRAM, "0", call, "SIGKILL", "1"], settings(kind, tmp_path), status="failure")
    assert "AssertionError" not in ended.stderr, ended.stderr
    assert ended.stdout == "shared\n", ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_pages_that_cannot_be_protected_on_one_node():
    """ENOMEM where a node makes the pages of a small result read-only.

    Outcome: BackendError there, PeerError on the other nodes; the next call works.
    """
    ended = run_calls("protect_no_pages", MPISHARE_NODES="block:1", MPISHARE_BACKEND="memmap", MPISHARE_RECYCLE="0")
    lines = sorted(line for line in ended.stdout.splitlines() if line.startswith("error:"))
    assert [line.split()[1] for line in lines] == ["BackendError", "PeerError", "PeerError"]
    assert all("cannot be made read-only" in line for line in lines)
    assert ended.stdout.count("right") == 3


WINDOW = {"MPISHARE_BACKEND": "window"}


def test_a_kernel_that_cannot_populate_pages():
    """A kernel without MADV_POPULATE_WRITE (before 5.14, gVisor), and a /dev/shm that is full before an array is used.

    Outcome: nothing: pages are allocated with the array, in a file; the next one there is a CapacityError on all ranks.
    """
    folder = {"MPISHARE_BACKEND": "memmap", "MPISHARE_DIR": "/dev/shm"}
    output = run_with(SHM.format("64m"), "fill_before_use", before=WITHOUT_ADVICE, **folder)
    assert output.count("right") == 2
    assert output.count("CapacityError 20,971,520 bytes do not fit in /dev/shm") == 2


def test_kill_inside_mpi():
    """SIGKILL inside MPI_Win_allocate_shared.

    Outcome: mpiexec ends the job at once; MPI's file may stay, which `info` counts and `mpishare clean` removes.
    """
    with nothing_left() as settings:
        for call in ("ftruncate", "unlink"):
            run_ranks(2, [*PROGRAM, "0", call, "SIGKILL", "1"], {**WINDOW, **settings}, status="failure")
        left = files_of_mpi(settings)
        assert [file.name.partition(".")[0] for file in left] == ["osc_sm", "osc_sm"]
        age(left[0].parent)
        assert "2 files left by killed jobs" in run_ranks(2, ["-m", "mpishare", "info"], settings).stdout
        listed = run_ranks(2, ["-m", "mpishare", "info", "--verbose"], settings).stdout
        assert "\n  leftover files     2, of killed jobs\n" in listed
        assert not [file for file in left if file.name in listed]
        facts = json.loads(run_ranks(2, ["-m", "mpishare", "info", "--json"], settings).stdout)
        assert facts["nodes"][0]["leftovers"] == [*map(str, left)]
        clean(left[0].parent)


def files_of_mpi(settings):
    """The files in the folder that `nothing_left` made."""
    return sorted(Path(settings["OMPI_MCA_osc_sm_backing_directory"]).iterdir())


def test_a_window_that_fails_late():
    """A window that MPI cannot make although there was room.

    Outcome: the job ends at once with a message, as MPI leaves the other ranks hanging; `mpishare clean` removes MPI's
    file.
    """
    ended = run_ranks(3, [*PROGRAM, "0", "ftruncate", "ENOSPC", "1"], WINDOW, status="failure", is_cleaned=True)
    assert "mpishare: MPI could not make a window of 2,400,000 bytes on host" in ended.stderr


KILLS = [(0, "rename", 1), (0, "rename", 2), (0, "rename", 3), (0, "pwrite64", 3), (1, "pwrite64", 1)]


@pytest.mark.parametrize(("victim", "call", "number"), KILLS)
def test_kill_of_a_save(victim, call, number, tmp_path):
    """SIGKILL of a rank while it saves.

    Outcome: mpiexec ends the job at once; each file is as before or whole, and the next save removes what is left.
    """
    ended = run_ranks(2, [*PROGRAM, str(victim), call, "SIGKILL", str(number), str(tmp_path)], status="failure")
    assert ended.stdout == "shared\n"
    assert "Traceback" not in ended.stderr, ended.stderr
    snapshot = ms.Checkpoint(tmp_path / "run").latest()
    with h5py.File(tmp_path / "a.h5") as file:
        arrays = [np.load(tmp_path / "a.npy"), file["rows"][:], snapshot.load("rows")]
    for array in arrays:
        assert array.shape == (100_000, 2)
        assert (array == array[0, 0]).all()
    assert len(list(tmp_path.rglob("*.tmp.*"))) == 1
    ms.save(tmp_path / "a.npy", np.ones(3))
    ms.save(tmp_path / "a.h5", np.ones(3), "rows")
    ms.Checkpoint(tmp_path / "run").save(9, {})
    assert not list(tmp_path.rglob("*.tmp.*"))


IN_TIME = re.escape("and takes its name unless rank 0 reports an error")


@pytest.mark.parametrize(
    ("name", "number", "is_saved", "outcome"),
    [
        ("save", "1", False, "save at .* has waited 1 s "),
        ("save", "2", True, f"save at .*{IN_TIME}.* has waited 1 s "),
        ("Checkpoint.save", "2", True, f"Checkpoint.save at .*{IN_TIME}.* has waited 1 s "),
    ],
)
def test_a_save_that_takes_long(name, number, is_saved, outcome, tmp_path):
    """An fsync that takes longer than MPISHARE_TIMEOUT.

    Outcome: StallError; the old file stays, unless the error says that the new one takes its name.
    """
    ended = run_calls("take_long", name, str(tmp_path), number, timeout_s="1")
    lines = [line for line in ended.stdout.splitlines() if line.startswith("error: StallError")]
    assert len(lines) == 3 - ended.stdout.count("done")
    assert sum(bool(re.search(outcome, line)) for line in lines) >= 2, lines
    assert any(file.suffix in (".npy", ".h5") for file in tmp_path.iterdir()) == is_saved


# Which rank's system calls fail with which errors while a file is made, filled and named.
SAVING = [
    (0, "pwrite64", "ENOSPC"),
    (0, "ftruncate", "ENOSPC"),
    (0, "fsync", "EIO"),
    (0, "rename", "EIO"),
    (0, "close", "EIO"),
    (1, "close", "ENOSPC"),
]


@pytest.mark.parametrize(("victim", "call", "faults"), SAVING)
def test_errors_of_a_save(victim, call, faults, tmp_path):
    """ENOSPC or EIO at the n-th system call of a save.

    Outcome: FileError or PeerFileError on all ranks; what was there is there still, nothing is left, and the next call
    works.
    """
    outcomes = errors_of_a_save(victim, call, faults, tmp_path)
    assert all({"FileError", "PeerFileError"} & set(of_fault) for of_fault in outcomes.values())
    assert call == "close" or not any("bits" in of_fault for of_fault in outcomes.values())


def test_errors_of_a_save_on_a_disk_that_becomes_read_only(tmp_path):
    """A file system that becomes read-only while a file is saved.

    Outcome: FileError or PeerFileError on all ranks; what was there is there still, and a later job removes what is
    left.
    """
    ((first, *_),) = errors_of_a_save(0, "/^(rename|unlink)$", "EROFS", tmp_path).values()
    assert first == "FileError"


def errors_of_a_save(victim, call, faults, folder):
    """What came of each call that failed, for each of the faults."""
    ended = run_ranks(2, [*PROGRAM, str(victim), call, faults, "1", str(folder)])
    return json.loads(ended.stdout.splitlines()[-1])
