"""Runs every test: unit, MPI at each number of ranks and placement, blackbox, cluster. Prints what ran and came out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir

from tests.cluster.missing import missing, missing_strace

ROOT = Path(__file__).parent.parent
MPICH = ROOT / ".venv-mpich" / "bin" / "python"
MPIO = ROOT / ".venv-mpio" / "bin" / "python"
TIME_LIMIT_S = 900  # a launch that takes longer hangs

# For each number of ranks, the placements on pretended nodes; "" is all on the real one.
LAYOUTS = {
    1: [""],
    2: ["", "block:1"],
    3: ["", "block:1", "block:2"],
    4: ["", "block:2", "cyclic:2", "sizes:1,3"],
    5: ["", "cyclic:2", "sizes:1,3,1"],
}

MPI_TESTS = ["-m", "tests.mpi.session", "tests/mpi"]
WITHOUT_LARGE = ["--ignore=tests/mpi/test_large.py"]
_ONE_EACH = {1: [""], 2: [""], 3: ["block:2"], 4: [""], 5: ["sizes:1,3,1"]}
_NODES = {1: [""], 2: ["", "block:1"], 3: ["", "block:2"], 4: ["block:2", "sizes:1,3"], 5: ["sizes:1,3,1"]}
ABOVE = {
    **dict.fromkeys(("messages", "objects", "save", "checkpoint"), _ONE_EACH),
    **dict.fromkeys(("tasks", "pool"), _NODES),
}
"""Tests of what stands on the rest and knows little of placement: for each number of ranks where they run."""


@dataclass(frozen=True)
class Launch:
    """One process tree: a name for people, the command, and what is added to the environment."""

    name: str
    command: list[str]
    environ: dict[str, str]


@dataclass(frozen=True)
class Outcome:
    """What one launch came to."""

    launch: Launch
    status: int
    passed: int
    failed: int
    skipped: int
    seconds: float


def main() -> int:
    """Runs all launches in turn; 0 when all passed, and in CI only when nothing was skipped."""
    outcomes = [run(launch) for launch in launches()]
    print("\n== summary")
    for outcome in outcomes:
        print(
            f"{outcome.launch.name:34} {outcome.passed:5} passed {outcome.failed:3} failed {outcome.skipped:3} skipped "
            f"{outcome.seconds:6.1f} s" + ("" if outcome.status == 0 else f"  exit status {outcome.status}")
        )
    passed, failed, skipped = (sum(getattr(one, name) for one in outcomes) for name in ("passed", "failed", "skipped"))
    broken = sum(outcome.status != 0 and outcome.failed == 0 for outcome in outcomes)
    lacking = left_out()
    for line in lacking:
        print(line)
    print(f"{passed} passed, {failed + broken} failed, {skipped} skipped")
    return int(failed + broken > 0 or ((skipped > 0 or bool(lacking)) and "CI" in os.environ))


def launches() -> list[Launch]:
    """All launches, the quickest first."""
    python = sys.executable
    pytest = [python, "-m", "pytest", "-q"]
    found = [
        Launch("unit", [*pytest, "tests/unit"], {}),
        Launch("examples in docstrings", [*pytest, "--doctest-modules", "mpishare", "-W", "ignore:private"], {}),
    ]
    for size in LAYOUTS:
        found += [mpi_launch(size, layout) for layout in LAYOUTS[size]]
    found.append(mpi_launch(3, "block:2", {"MPISHARE_RECYCLE": "0"}))
    found.append(mpi_launch(3, "", {"MPISHARE_BACKEND": "window"}))
    found.append(mpi_launch(3, "", {"MPISHARE_BACKEND": "window", "MPISHARE_SECOND_MAP": "0"}))
    found.append(mpi_launch(3, "", {"MPISHARE_BACKEND": "memmap", "MPISHARE_DIR": gettempdir()}))
    # An MPI that refuses windows.
    found.append(mpi_launch(3, "sizes:1,2", {"OMPI_MCA_osc": "^ucx,sm", "MPISHARE_BACKEND": "window,memmap"}))
    found.append(mpi_launch(3, "block:2", {"MPISHARE_CHECK": "1", "MPISHARE_TIMEOUT": "30"}))
    if MPICH.exists():
        found.append(mpich_launch(3))
    if MPIO.exists():
        found.append(mpio_launch(3, "block:2"))
    found.append(mpi_launch(2, "", large=True))
    found.append(mpi_launch(3, "sizes:2,1", large=True))
    found.append(Launch("blackbox", [*pytest, "tests/blackbox"], {}))
    strace = ["--ignore=tests/faults/test_syscalls.py"] if missing_strace() else []
    found.append(Launch("faults", [*pytest, "tests/faults", *strace], {}))
    if not missing(slurm=False):
        slurm = ["--ignore=tests/cluster/test_slurm.py"] if missing(slurm=True) else []
        found.append(Launch("cluster", [*pytest, "tests/cluster", *slurm], {}))
    return found


def left_out() -> list[str]:
    """What does not run here: one line for each piece, why, and what brings it."""
    hosts, slurm = missing(slurm=False), missing(slurm=True)
    calls = [f"left out: the tests of failing system calls: {reason}" for reason in missing_strace()]
    if not MPICH.exists():
        calls.append("left out: the tests on a second MPI: .venv-mpich is not there; make test brings it")
    if not MPIO.exists():
        calls.append("left out: the tests of HDF5 through MPI: .venv-mpio is not there; make mpio brings it")
    if hosts:
        return [*calls, *(f"left out: all tests on several hosts: {reason}" for reason in hosts[:1])]
    return [*calls, *(f"left out: the tests under Slurm: {reason}" for reason in slurm[:1])]


def mpi_launch(size: int, layout: str, environ: dict[str, str] | None = None, *, large: bool = False) -> Launch:
    """tests/mpi on `size` ranks, placed as MPISHARE_NODES=`layout` says; only the large arrays, or all but these."""
    chosen = [*MPI_TESTS[:2], "tests/mpi/test_large.py"] if large else [*MPI_TESTS, *WITHOUT_LARGE]
    extra = {**({"MPISHARE_NODES": layout} if layout else {}), **(environ or {})}
    for name, layouts in ABOVE.items():
        if not large and (layout not in layouts[size] or (environ and "MPISHARE_CHECK" not in environ)):
            chosen.append(f"--ignore=tests/mpi/test_{name}.py")
    words = [
        f"mpi, {size} ranks",
        *(f"{name.removeprefix('MPISHARE_').lower()}={value}" for name, value in extra.items()),
    ]
    command = [sys.executable, "-m", "mpishare", "run", "-n", str(size), "python", *chosen]
    return Launch(", ".join([*words, *(["large"] if large else [])]), command, extra)


def mpich_launch(size: int) -> Launch:
    """tests/mpi on a second MPI, which `make test` sets up in a folder of its own."""
    path = os.pathsep.join([str(MPICH.parent), os.environ.get("PATH", os.defpath)])
    command = [str(MPICH), "-m", "mpishare", "run", "-n", str(size), "python", *MPI_TESTS, *WITHOUT_LARGE]
    return Launch(f"mpi, {size} ranks, MPICH", command, {"PATH": path})


def mpio_launch(size: int, layout: str) -> Launch:
    """The tests of files with an h5py that writes through MPI, which `make mpio` sets up in a folder of its own.

    Its MPI is the system's, whose launcher is beside no Python.
    """
    words = ["/usr/bin/mpiexec", "--oversubscribe", "-n", str(size), str(MPIO), "-m", "mpi4py"]
    files = ["tests/mpi/test_save.py", "tests/mpi/test_checkpoint.py"]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    environ = {**root, "MPISHARE_NODES": layout, "OMPI_MCA_osc": "^ucx"}
    return Launch(f"mpi, {size} ranks, HDF5 through MPI", [*words, *MPI_TESTS[:2], *files], environ)


def run(launch: Launch) -> Outcome:
    """Runs one launch, its output passed on, with a limit on its time."""
    settings = [f"{name}={value}" for name, value in launch.environ.items() if name != "PATH"]
    shown = " ".join([*settings, *launch.command])
    print(f"\n== {launch.name}\n{shown}", flush=True)
    start = time.monotonic()
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    environ = {**os.environ, "PATH": path, "OMPI_MCA_mpi_yield_when_idle": "1", **launch.environ}
    process = subprocess.Popen(launch.command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True)
    try:
        output = process.communicate(timeout=TIME_LIMIT_S)[0]
    except subprocess.TimeoutExpired:
        process.terminate()  # mpiexec ends its ranks
        output = process.communicate()[0]
    print(output, end="", flush=True)
    counts = {name: _count(output, name) for name in ("passed", "failed", "error", "skipped")}
    failed = counts["failed"] + counts["error"]
    return Outcome(launch, process.returncode, counts["passed"], failed, counts["skipped"], time.monotonic() - start)


def _count(output: str, word: str) -> int:
    """The number before `word` in pytest's last line."""
    found = re.findall(rf"(\d+) {word}", output[output.rfind("\n", 0, len(output) - 1) :])
    return int(found[0]) if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
