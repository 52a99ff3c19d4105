"""Ranks and launchers that are killed or stopped."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.blackbox.launch import ROOT, Ended, environment, nothing_left, run_ranks
from tests.processes import children_of

PROGRAM = ["-m", "tests.faults.programs.signalled"]
ENDS = "mpiexec ends the job at once; /dev/shm and TMPDIR are as before"

SHM = Path("/dev/shm")
VICTIMS = {"the root": 0, "a leader": 2, "another rank": 3}


def run_until_signalled(victim: int, number: str, moment: str, **environ: str) -> Ended:
    """Runs the program until the signal has ended it."""
    with nothing_left():
        ended = run_ranks(4, [*PROGRAM, str(victim), number, moment], {"MPISHARE_NODES": "block:2", **environ})
    assert ended.returncode != 0
    assert ended.stdout == "sharing\n"
    return ended


def _fault(who: str, moment: str) -> pytest.MarkDecorator:
    return pytest.mark.fault(f"SIGKILL of {who} {moment} a share", ENDS)


@pytest.mark.parametrize(
    ("who", "moment"),
    [
        pytest.param(who, moment, marks=_fault(who, moment))
        for who in VICTIMS
        for moment in ("before", "during", "after")
    ],
)
def test_sigkill(who: str, moment: str, tmpdir_watched: Path) -> None:
    run_until_signalled(VICTIMS[who], "SIGKILL", moment, TMPDIR=str(tmpdir_watched))


@pytest.mark.fault("SIGTERM of a rank", ENDS)
def test_sigterm(tmpdir_watched: Path) -> None:
    run_until_signalled(1, "SIGTERM", "during", TMPDIR=str(tmpdir_watched))


@contextmanager
def started(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The program, without a signal of its own, once it shares."""
    line = [sys.executable, "-m", "mpishare", "run", "-n", "4", *PROGRAM, "9", "SIGKILL", "never"]
    environ, pipe = environment({"TMPDIR": str(folder)}), subprocess.PIPE
    with subprocess.Popen(line, cwd=ROOT, env=environ, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as job:
        assert job.stdout is not None
        assert any(line == "sharing\n" for line in job.stdout)
        yield job


@pytest.mark.fault("SIGTERM of mpiexec, as a batch system sends it", ENDS)
def test_sigterm_of_the_launcher(tmpdir_watched: Path) -> None:
    with nothing_left(), started(tmpdir_watched) as job:
        job.terminate()
        assert job.wait(60) != 0


@pytest.mark.fault(
    "SIGKILL of mpiexec",
    "its ranks go on, as MPI leaves them; nothing of ours is left, and `mpishare clean` removes what is left of MPI's",
)
def test_sigkill_of_the_launcher(tmp_path: Path) -> None:
    with started(tmp_path) as job:
        ranks = children_of(job.pid)
        assert len(ranks) == 4
        files = {file for file in SHM.iterdir() if str(file) in Path(f"/proc/{ranks[0]}/maps").read_text()}
        job.kill()
        job.wait()
    watches = [os.pidfd_open(rank) for rank in ranks]
    for rank, watch in zip(ranks, watches, strict=True):
        os.kill(rank, signal.SIGKILL)
        assert select.select([watch], [], [], 60)[0]
        os.close(watch)
    left = {file for file in files if file.exists()}
    assert {file.name.partition(".")[0] for file in left} == {"sm_segment"}  # Open MPI's own, for messages
    ended = subprocess.run([sys.executable, "-m", "mpishare", "clean"], cwd=ROOT, capture_output=True, text=True)
    assert all(f"removed {file}, " in ended.stdout for file in left)
    assert not any(file.exists() for file in left)


@pytest.mark.fault(
    "SIGSTOP of a rank",
    "with MPISHARE_TIMEOUT a StallError on the others, which names it and its host; without, they wait for it",
)
def test_sigstop() -> None:
    ended = run_until_signalled(3, "SIGSTOP", "before", MPISHARE_TIMEOUT="5")  # more than a share takes when others run
    missing = r"StallError: .* has waited 5 s \(MPISHARE_TIMEOUT\) for ranks that have not come: (.*; )?rank 3 on host"
    assert re.search(missing, ended.stderr), ended.stderr
    assert "is in no call of mpishare, or does not run" in ended.stderr
