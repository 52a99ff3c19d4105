"""Which processes are ranks: not what a rank starts, but what a wrapper starts under the launcher."""

import re
import sys

import pytest

from tests.blackbox.launch import MPICH, PROGRAMS, python_of, run, run_ranks

PROGRAM = ["-m", f"{PROGRAMS}.children"]
RANKS = ["rank 0 of 2", "rank 1 of 2"]


def ranks_in(ended):
    """The ranks that have printed, whose lines a launcher may mix."""
    return sorted(re.findall(r"rank \d of \d", ended.stdout))


@pytest.mark.parametrize("mpi", ["", "mpich", "intel"])
def test_children_of_ranks(mpi):
    """A call of mpishare in a process that a rank has started, by multiprocessing or otherwise.

    Outcome: ArgumentError there at once; the job goes on.
    """
    python = python_of(mpi) if mpi else sys.executable
    if mpi and not python.exists():
        pytest.skip(f"there is no .venv-{mpi}; make test creates it")
    line = [python, "-m", "mpishare", "run", "-n", "2", "--", python, *PROGRAM]
    assert ranks_in(run([*map(str, line)])) == RANKS


WRAPPERS = {
    "shell": ["sh", "-c", '"$@"; exit $?', "sh"],
    "shells": ["sh", "-c", '"$@"; exit $?', "sh", "sh", "-c", '"$@"; exit $?', "sh"],
    "Python": [sys.executable, "-c", "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"],
    "Python with mpi4py": [
        sys.executable,
        "-c",
        "import mpi4py, subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))",
    ],
}
CODE = "import mpishare as ms; print(f'rank {ms.topology().rank} of {ms.topology().size}')"


@pytest.mark.parametrize("name", WRAPPERS)
def test_ranks_below_a_wrapper(name):
    ended = run_ranks(2, ["--", *WRAPPERS[name], sys.executable, "-c", CODE])
    assert ranks_in(ended) == RANKS
    if MPICH.exists() and "Python" not in name:  # which closes the socket of MPICH's launcher
        line = [MPICH, "-m", "mpishare", "run", "-n", "2", "--", *WRAPPERS[name], MPICH, "-c", CODE]
        assert ranks_in(run([*map(str, line)])) == RANKS


NESTED = "import subprocess, sys; from mpi4py import MPI; sys.exit(subprocess.call(sys.argv[1:]))"


@pytest.mark.parametrize("python", [sys.executable, MPICH])
def test_ranks_of_a_launcher_that_a_rank_has_started(python):
    if not MPICH.exists():
        pytest.skip("there is no .venv-mpich; make test creates it")
    launch = [python, "-m", "mpishare", "run", "--"]
    line = [*launch[:-1], "-n", "1", "--", python, "-c", NESTED, *launch[:-1], "-n", "1", "--", python, "-c", CODE]
    assert ranks_in(run([*map(str, line)])) == ["rank 0 of 1"]
