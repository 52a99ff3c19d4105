"""Runs a program under mpiexec, with a limit on its time, and looks at what it left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import pytest

from mpishare.cli import run as launcher

ROOT = Path(__file__).parent.parent.parent
PROGRAMS = "tests.blackbox.programs"

OPEN_MPI = {"OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_btl": "^ofi"}
"""Patience, as ranks share cores; and no look for libfabric's networks, which takes 1 s of each MPI_Init (5.0.11)."""


def environment(extra: dict[str, str]) -> dict[str, str]:
    """The environment of a shell in which this Python's folder comes first on PATH.

    Bytecode is kept, so that pytest does not read and rewrite its plugins and the tests on each rank of each launch.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {**OPEN_MPI, **os.environ, "PATH": path, "PYTHONDONTWRITEBYTECODE": "", **extra}


PLAIN = ["--", "env", sys.executable]
"""Plain python, which `mpishare run` does not take for Python and so runs without `-m mpi4py`."""

Ended: TypeAlias = "subprocess.CompletedProcess[str]"


def run(command: list[str], environ: dict[str, str] | None = None, *, limit_s: float = 60) -> Ended:
    """Runs `command` in the project's folder; past `limit_s` it is killed with all it started, and the test fails."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment(environ or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"{command} did not end in {limit_s} s\n{out}\n{err}") from None
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def run_ranks(size: int, args: list[str], environ: dict[str, str] | None = None, *, limit_s: float = 60) -> Ended:
    """Runs words such as `prog.py` on `size` ranks: what `mpishare run` does, less the start of one more Python."""
    request = launcher.parse(["-n", str(size), *args])
    added = launcher.additions(request, environment(environ or {}))
    line = launcher.command(request, launcher.find_mpiexec())
    return run(line, {**added, **(environ or {})}, limit_s=limit_s)


def run_program(size: int, name: str, *args: str, limit_s: float = 60, nodes: str = "") -> Ended:
    """Runs a program of this folder on `size` ranks, on pretend nodes if so."""
    return run_ranks(size, ["-m", f"{PROGRAMS}.{name}", *args], {"MPISHARE_NODES": nodes}, limit_s=limit_s)


def run_code(size: int, code: str, environ: dict[str, str] | None = None) -> Ended:
    """Runs Python code on `size` ranks by plain python: nothing ends the job but what the library does."""
    return run_ranks(size, [*PLAIN, "-c", code], environ)


@contextmanager
def nothing_left() -> Iterator[Path]:
    """Has Open MPI put its files into a folder of /dev/shm, and fails when the block leaves one there."""
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory(prefix="tests-", dir="/dev/shm") as folder:
        for component in ("btl_sm", "osc_sm"):
            patch.setenv(f"OMPI_MCA_{component}_backing_directory", folder)
        yield Path(folder)
        left = [file.name for file in Path(folder).iterdir()]
    assert left == []
