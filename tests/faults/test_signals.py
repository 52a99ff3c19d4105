"""Ranks and launchers that are killed or stopped."""

import os
import re
import select
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.blackbox.launch import clean, environment, nothing_left, run_ranks, started
from tests.processes import children_of

pytestmark = pytest.mark.first
PROGRAM = ["-m", "tests.faults.programs.signalled"]


def run_until_signalled(victim, number, moment, **environ):
    """Runs the program until the signal has ended it."""
    command = [*PROGRAM, str(victim), number, moment]
    ended = run_ranks(4, command, {"MPISHARE_NODES": "block:2", **environ}, status="failure")
    assert ended.stdout == "sharing\nsharing again\n"
    return ended


# The rank, the signal, the moment.
KILLED = [(0, "SIGKILL", "during"), (2, "SIGKILL", "during"), (3, "SIGKILL", "after"), (1, "SIGTERM", "before")]


@pytest.mark.parametrize(("victim", "number", "moment"), KILLED)
def test_killed_rank(victim, number, moment, tmp_path):
    """SIGKILL or SIGTERM of the root, of a leader or of another rank, before, during or after a share.

    Outcome: mpiexec ends the job at once; /dev/shm and TMPDIR are as before.
    """
    run_until_signalled(victim, number, moment, TMPDIR=str(tmp_path))
    assert list(tmp_path.iterdir()) == []


@contextmanager
def launched(folder, settings):
    """A launcher and its ranks, which share without end; they must have ended with the block."""
    line = [sys.executable, "-m", "mpishare", "run", "-n", "4", *PROGRAM, "9", "SIGKILL", "never"]
    with started(line, environment({"TMPDIR": str(folder), **settings}), "sharing") as job:
        ranks = children_of(job.pid)
        assert len(ranks) == 4
        watches = [os.pidfd_open(rank) for rank in ranks]
        yield job, ranks
    for watch in watches:
        assert select.select([watch], [], [], 60)[0]
        os.close(watch)


def test_sigterm_of_the_launcher(tmp_path):
    """SIGTERM of mpiexec, as a batch system sends it.

    Outcome: mpiexec ends the job at once; TMPDIR is as before, and /dev/shm too, unless MPI was just making a window:
    `mpishare clean` removes its file.
    """
    with nothing_left() as settings:
        with launched(tmp_path, settings) as (job, _):
            job.terminate()
            assert job.wait(60) != 0
        cleaned({"osc_sm"}, settings)
    assert list(tmp_path.iterdir()) == []


def test_sigkill_of_the_launcher(tmp_path):
    """SIGKILL of mpiexec.

    Outcome: its ranks end at once (MPICH), or go on until they call MPI (Open MPI); nothing of ours is left, and
    `mpishare clean` removes what is left of MPI's.
    """
    with nothing_left() as settings:
        with launched(tmp_path, settings) as (job, ranks):
            job.kill()
            for rank in ranks:
                os.kill(rank, signal.SIGKILL)
        assert cleaned({"sm_segment", "osc_sm"}, settings)  # Open MPI's own, for messages and for a window


def cleaned(kinds, settings):
    """Has `mpishare clean` remove what ended jobs left in the folder of `nothing_left`: files of these kinds alone."""
    folder = Path(settings["OMPI_MCA_osc_sm_backing_directory"])
    left = set(folder.iterdir())
    assert {file.name.partition(".")[0] for file in left} <= kinds
    clean(folder)
    assert not set(folder.iterdir())
    return left


def test_sigstop():
    """SIGSTOP of a rank.

    Outcome: with MPISHARE_TIMEOUT a StallError on the others, each of which names its call, line and host; without,
    they wait for it, and say so after a minute.
    """
    ended = run_until_signalled(3, "SIGSTOP", "before", MPISHARE_TIMEOUT="5")  # more than a share takes when others run
    stalled = r"StallError: .* at .*signalled.py:\d+, on rank [0-2] on host .* has waited 5 s \(MPISHARE_TIMEOUT\)"
    assert re.search(stalled, ended.stderr), ended.stderr
    assert "mpishare: rank 3" not in ended.stderr


@pytest.mark.parametrize("name", ["a first call", "fence"])
def test_a_job_that_is_suspended(name, tmp_path):
    """SIGSTOP of all ranks and SIGCONT later, as a batch system suspends a job, with MPISHARE_TIMEOUT.

    Outcome: nothing: the time between does not count.
    """
    program = [sys.executable, "-m", "tests.faults.programs.calls", "be_suspended", name, str(tmp_path / "resumed")]
    command = [sys.executable, "-m", "mpishare", "run", "-n", "3", *program]
    with started(command, environment({"MPISHARE_TIMEOUT": "3"}), "waiting") as job:
        ranks = children_of(job.pid)
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for rank in ranks:
                os.kill(rank, number)
            time.sleep(3 if number == signal.SIGSTOP else 0)
        (tmp_path / "resumed").touch()
        output = job.stdout.read()
        assert output.count("done") == 3, output
