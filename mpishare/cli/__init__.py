"""The command line: `mpishare` or `python -m mpishare`.

One module a command. It answers which command runs (`main`), how a command reads its options and prints its results,
and what exit status it has. Only the shell calls it, by the script `mpishare` or by `python -m mpishare`. It must never
use more than the public names of mpishare, `config` and `host`, nor print one result on several ranks.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from importlib import import_module
from typing import Any, NoReturn

import mpishare as ms

_COMMANDS = {
    "info": "versions, placement and memory of a job, alone or under mpiexec or srun",
    "bench": "how fast arrays are shared on this machine or cluster, and a plain verdict",
    "plan": "the memory that data take on each node, shared and copied, and the lines that ask Slurm for it",
    "clean": "removes the shared memory that killed jobs of this user left on this host",
    "run": "mpiexec with the settings that a first job needs",
}
"""Each is a module of this folder, which is imported when the command runs."""

_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")

_BROKEN_PIPE_STATUS = 128 + signal.SIGPIPE
"""The exit status that a shell gives to a program that SIGPIPE has ended."""


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns its exit status.

    The status is 2 for an error that rank 0 prints, and 141 where nobody reads the output any more, as under `| head`.
    """
    try:
        try:
            return _run(argv)
        finally:
            print(end="", flush=True)
    except BrokenPipeError:
        # The interpreter flushes once more at its end. Source: Python's signal module, "Note on SIGPIPE".
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE_STATUS


def _run(argv: list[str] | None) -> int:
    """Runs one command, and imports its module alone."""
    commands = "\n".join(f"  {name:6} {summary}" for name, summary in _COMMANDS.items())
    parser = Parser(
        prog="mpishare",
        usage="mpishare COMMAND [options]",
        description="One copy per node of any array, as a plain NumPy view on every rank of an MPI job.",
        epilog=f"commands:\n{commands}\n\n`mpishare COMMAND --help` prints its options.\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"mpishare {ms.__version__}")
    parser.add_argument("command", metavar="COMMAND", choices=[*_COMMANDS, "help"], help=argparse.SUPPRESS)
    parser.add_argument("options", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    if not (sys.argv[1:] if argv is None else argv):
        parser.error(f"no command\n\n{parser.format_help()}")
    given = parser.parse_args(argv)
    if given.command == "help":
        parser.print_help()
        return 0
    try:
        status: int = import_module(f"mpishare.cli.{given.command}").main(given.options)
    except ms.MpishareError as error:
        if _is_first_rank():
            print(f"mpishare {given.command}: {error}", file=sys.stderr)
        elif isinstance(error, ms.ArgumentError):
            return 0  # see `Parser.error`
        return 2
    return status


def _is_first_rank() -> bool:
    """Whether this process is rank 0, or no rank, by its environment: MPI need not have begun."""
    return all(os.environ.get(name, "0") == "0" for name in _RANK_VARIABLES)


class Parser(argparse.ArgumentParser):
    """Options of a command on all ranks of a job. Prints help and errors on the first rank alone."""

    def _print_message(self, message: str, file: Any = None) -> None:
        if _is_first_rank():
            super()._print_message(message, file)

    def error(self, message: str) -> NoReturn:
        """See ArgumentParser.

        The other ranks end with status 0: a launcher ends the whole job at the first failed rank, maybe before rank 0
        has written.
        """
        if not _is_first_rank():
            raise SystemExit(0)
        super().error(message)
