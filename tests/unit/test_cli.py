"""The command line: which command runs, and what is said where none does."""

import os
import sys

import pytest

import mpishare as ms
from mpishare.cli import main

USAGE = [
    ("", 2, "  plan   the memory that data take"),
    ("fly", 2, "mpishare: error: argument COMMAND: invalid choice: 'fly' (choose from "),
    ("help", 0, "usage: mpishare"),
    ("--version", 0, f"mpishare {ms.__version__}\n"),
    ("run -n 2 no/file.py", 2, "mpishare run: there is no file no/file.py.\n"),
    ("run -n 2 python -u no/file.py", 2, "mpishare run: there is no file no/file.py.\n"),
    ("run -wdir no -n 2 --dry-run file.py", 0, "-wdir no -n 2 "),
    ("run -n 2 --dry-run setup.py", 0, " -m mpi4py setup.py\n"),
    ("bench --mib 0", 2, "--mib takes 1 or more"),
    *((f"{command} --help", 0, "usage: mpishare") for command in ("", "info", "run")),
]


def status_of(args):
    try:
        return main(args)
    except SystemExit as ended:  # of the parser of the command's options
        return ended.code


@pytest.mark.parametrize(("args", "status", "text"), USAGE)
def test_usage(args, status, text, capsys):
    assert status_of(args.split()) == status
    output = capsys.readouterr()
    assert text in (output.err if status else output.out)


@pytest.mark.parametrize("args", ["fly", "bench --mib 0"])
def test_mistakes_on_other_ranks(args, capsys, monkeypatch):
    """They are silent and no failure, for which a launcher would end rank 0 before it has written."""
    monkeypatch.setenv("PMI_RANK", "1")
    assert status_of(args.split()) == 0
    assert capsys.readouterr() == ("", "")


def test_run_becomes_mpiexec(monkeypatch):
    """The terminal's width goes with it; it has none of its own."""
    started = []
    monkeypatch.setattr(os, "execve", lambda *args: started.append(args))
    monkeypatch.setattr(sys, "stderr", sys.__stderr__)
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((72, 20)))
    main(["run", "-n", "2", "setup.py"])
    ((file, line, environ),) = started
    assert (file, line[1:]) == (line[0], ["-n", "2", sys.executable, "-m", "mpi4py", "setup.py"])
    assert environ["MPISHARE_COLUMNS"] == "72"


def test_info_of_one_rank(capsys):
    assert main(["info"]) == 0
    assert capsys.readouterr().out.startswith("OK: 1 rank on 1 node, so no rank has another to share memory with")
