"""Which processes are ranks: not what a rank starts, but what a wrapper starts under the launcher."""

import re
import sys

import pytest

from tests.blackbox.launch import PROGRAMS, other_python, run, run_ranks

PROGRAM = ["-m", f"{PROGRAMS}.children"]
RANKS = ["rank 0 of 2", "rank 1 of 2"]


def ranks_in(ended):
    """The ranks that have printed, whose lines a launcher may mix."""
    return sorted(re.findall(r"rank \d of \d", ended.stdout))


@pytest.mark.parametrize("mpi", [*(pytest.param(mpi, marks=pytest.mark.first) for mpi in ("", "mpich")), "intel"])
def test_children_of_ranks(mpi):
    """A call of mpishare in a process that a rank has started, by fork, multiprocessing or otherwise.

    Outcome: ArgumentError there at once; the job goes on.
    """
    python = other_python(mpi) if mpi else sys.executable
    assert ranks_in(run([python, "-m", "mpishare", "run", "-n", "2", "--", python, *PROGRAM])) == RANKS


SHELLS = ["sh", "-c", '"$@"; exit $?', "sh"] * 2
PYTHON = [sys.executable, "-c", "import mpi4py, subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"]
CODE = "import mpishare as ms; print(f'rank {ms.topology().rank} of {ms.topology().size}')"


@pytest.mark.first
def test_ranks_below_a_wrapper():
    """Python below Python is tried on Open MPI alone, as it closes the socket of MPICH's launcher."""
    for wrapper in (SHELLS, PYTHON):
        assert ranks_in(run_ranks(2, ["--", *wrapper, sys.executable, "-c", CODE])) == RANKS
    python = other_python("mpich")
    assert ranks_in(run([python, "-m", "mpishare", "run", "-n", "2", "--", *SHELLS, python, "-c", CODE])) == RANKS


NESTED = "import subprocess, sys; from mpi4py import MPI; sys.exit(subprocess.call(sys.argv[1:]))"


@pytest.mark.first
def test_ranks_of_a_launcher_that_a_rank_has_started():
    for python in (sys.executable, other_python("mpich")):
        launch = [python, "-m", "mpishare", "run", "-n", "1", "--", python, "-c"]
        assert ranks_in(run([*launch, NESTED, *launch, CODE])) == ["rank 0 of 1"]
