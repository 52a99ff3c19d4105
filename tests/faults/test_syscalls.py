"""The n-th system call that makes, fills or maps a segment fails, for n = 1, 2, 3, … until there is none."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.blackbox.launch import nothing_left, run, run_ranks

PROGRAM = ["-m", "tests.faults.programs.injected"]
OUTCOME = "the next kind, or one error on all ranks; the next call works"

# For each kind, the system calls that mpishare makes itself. Those inside MPI_Win_allocate_shared are MPI's.
CALLS = {
    ("window", ""): ["mremap", "madvise", "mprotect"],
    ("memmap", ""): ["memfd_create", "ftruncate", "openat", "mmap", "madvise", "mprotect"],
    ("memmap", "folder"): ["openat", "fallocate", "mmap", "mprotect"],
}


def _fault(what: str, backend: str, where: str, outcome: str) -> pytest.MarkDecorator:
    kind = f"{backend} in a folder" if where else backend
    return pytest.mark.fault(f"{what} at the n-th system call of {kind}", outcome)


@pytest.mark.parametrize(
    ("backend", "where"),
    [pytest.param(*item, id=" ".join(item), marks=_fault("ENOSPC or EIO", *item, OUTCOME)) for item in CALLS],
)
def test_errors(backend: str, where: str, tmp_path: Path) -> None:
    environ = {"MPISHARE_BACKEND": backend, **({"MPISHARE_DIR": str(tmp_path)} if where else {})}
    with nothing_left():
        ended = run_ranks(2, [*PROGRAM, "0", ",".join(CALLS[backend, where]), "ENOSPC,EIO"], environ)
    assert ended.returncode == 0, ended.stderr
    counts = json.loads(ended.stdout.splitlines()[-1])
    assert len(counts) == 2 * len(CALLS[backend, where])
    assert all(counts.values()), "a call was never made"
    assert list(tmp_path.iterdir()) == []


KILLED = "mpiexec ends the job at once; nothing is left"


@pytest.mark.parametrize(
    ("backend", "where", "call"),
    [
        pytest.param(*item, call, id=" ".join((*item, call)), marks=_fault("SIGKILL", *item, KILLED))
        for item, calls in CALLS.items()
        for call in calls
    ],
)
def test_kill(backend: str, where: str, call: str, tmp_path: Path) -> None:
    environ = {"MPISHARE_BACKEND": backend, **({"MPISHARE_DIR": str(tmp_path)} if where else {})}
    for number in (1, 2):
        with nothing_left():
            ended = run_ranks(2, [*PROGRAM, "0", call, "SIGKILL", str(number)], environ)
        assert "AssertionError" not in ended.stderr, ended.stderr
        assert list(tmp_path.iterdir()) == []
        assert ended.stdout.startswith("shared\n"), ended.stderr
        if ended.returncode == 0:
            assert number > 1
            break  # there is no call of this number


def clean(folder: Path) -> None:
    """Removes what MPI has left there."""
    assert run([sys.executable, "-m", "mpishare", "clean", "--dir", str(folder)]).returncode == 0


@pytest.mark.fault(
    "SIGKILL inside MPI_Win_allocate_shared, with MPISHARE_BACKEND=window",
    "mpiexec ends the job at once; MPI's file may stay, and `mpishare clean` removes it",
)
def test_kill_inside_mpi() -> None:
    with nothing_left() as folder:
        ended = run_ranks(2, [*PROGRAM, "0", "ftruncate", "SIGKILL", "1"], {"MPISHARE_BACKEND": "window"})
        clean(folder)
    assert ended.returncode != 0


@pytest.mark.fault(
    "a window that MPI cannot make although there was room",
    "the job ends at once with a message, as MPI leaves the other ranks hanging; `mpishare clean` removes MPI's file",
)
def test_a_window_that_fails_late() -> None:
    environ = {"MPISHARE_BACKEND": "window"}
    with nothing_left() as folder:
        ended = run_ranks(3, [*PROGRAM, "0", "ftruncate", "ENOSPC"], environ)
        clean(folder)
    assert ended.returncode != 0
    assert "mpishare: MPI could not make a window of 2,400,000 bytes on host" in ended.stderr
