"""The command line: `mpishare` or `python -m mpishare`.

One module a command. It answers which command runs (`main`), how a command reads its options and prints its results,
and what exit status it has. Only the shell calls it, by the script `mpishare` or by `python -m mpishare`. It must never
use more than the public names of mpishare, `config` and `host`, nor print one result on several ranks.
"""

from __future__ import annotations

import os
import signal
import sys
from types import ModuleType

import mpishare as ms
from mpishare.cli import bench, clean, info, plan, run
from mpishare.cli.parser import is_first_rank
from mpishare.config import did_you_mean

_COMMANDS: dict[str, ModuleType] = {"info": info, "bench": bench, "plan": plan, "clean": clean, "run": run}

_USAGE = """\
usage: mpishare COMMAND [options]

One copy per node of any array, as a plain NumPy view on every rank of an MPI job.

commands:
{}

`mpishare COMMAND --help` prints its options.
"""

_BROKEN_PIPE_STATUS = 128 + signal.SIGPIPE
"""The exit status that a shell gives to a program that SIGPIPE has ended."""


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns its exit status.

    The status is 2 for an error that rank 0 prints, and 141 where nobody reads the output any more, as under `| head`.
    """
    try:
        try:
            return _run(sys.argv[1:] if argv is None else argv)
        finally:
            print(end="", flush=True)
    except BrokenPipeError:
        # The interpreter flushes once more at its end. Source: Python's signal module, "Note on SIGPIPE".
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE_STATUS


def _run(args: list[str]) -> int:
    """Runs one command, or prints the usage."""
    name, *options = args or [""]
    if name in ("-h", "--help", "help"):
        print(_usage(), end="")
        return 0
    if name == "--version":
        print(f"mpishare {ms.__version__}")
        return 0
    try:
        if not name:
            raise ms.ArgumentError(f"no command\n{_usage()}")
        if name not in _COMMANDS:
            hint = did_you_mean(name, _COMMANDS) or "; see mpishare --help"
            raise ms.ArgumentError(f"unknown command{hint}")
        status: int = _COMMANDS[name].main(options)
    except ms.MpishareError as error:
        if is_first_rank():
            print(f"{f'mpishare {name}'.rstrip()}: {error}", file=sys.stderr)
        elif isinstance(error, ms.ArgumentError):
            return 0  # see `Parser.error`
        return 2
    return status


def _usage() -> str:
    """The usage, with the first line of each module."""
    summaries = {name: (module.__doc__ or "").partition(": ")[2].rstrip() for name, module in _COMMANDS.items()}
    return _USAGE.format("\n".join(f"  {name:6} {summary}" for name, summary in summaries.items()))
