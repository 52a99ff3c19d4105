"""Runs every test: unit, MPI at each number of ranks and placement, blackbox, cluster. Prints what ran and came out."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir

from tests.blackbox.launch import environment
from tests.cluster.missing import missing, missing_strace

ROOT = Path(__file__).parent.parent
MPICH = ROOT / ".venv-mpich" / "bin" / "python"
MPIO = ROOT / ".venv-mpio" / "bin" / "python"
TIME_LIMIT_S = 900  # a launch that takes longer hangs

# For each number of ranks, the placements on pretended nodes; "" is all on the real one.
LAYOUTS = {
    1: [""],
    2: ["", "block:1"],
    3: ["", "block:2"],
    4: ["", "block:2", "cyclic:2"],
    5: ["", "sizes:1,3,1"],
}

_ONE_EACH = {1: [""], 2: [""], 3: ["block:2"], 4: [], 5: ["sizes:1,3,1"]}
_NODES = {1: [""], 2: ["block:1"], 3: [], 4: ["block:2"], 5: ["sizes:1,3,1"]}
ABOVE = {
    **dict.fromkeys(("checkpoint", "kernels", "messages", "objects", "property", "save"), _ONE_EACH),
    **dict.fromkeys(("files", "gather", "pool", "tasks"), _NODES),
}
"""Tests of what stands on the rest and knows little of placement, or that place the ranks themselves: for each number
of ranks where they run."""

MEMORY = ["board", "collectives", "errors", "make", "private", "property", "recycle", "report", "segments", "share"]
"""Tests of what can differ where MPISHARE_BACKEND and its kin choose other memory; these alone run there."""

PLACEMENT = [
    "agreement",
    "allgather",
    "allreduce",
    "board",
    "collectives",
    "make",
    "pull",
    "share",
    "topology",
]
"""Tests of what can differ from one placement of the ranks to another. tests/cluster runs these on all, all on one."""


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
    cpu_s: float


def main() -> int:
    """Runs all launches in turn; 0 when all passed, and in CI only when nothing was skipped."""
    outcomes = [run(launch) for launch in launches()]
    print("\n== summary")
    for outcome in outcomes:
        end = "" if outcome.status == 0 else f"  exit status {outcome.status}"
        counts = f"{outcome.passed:5} passed {outcome.failed:3} failed {outcome.skipped:3} skipped"
        print(f"{outcome.launch.name:34} {counts} {outcome.seconds:6.1f} s {outcome.cpu_s:6.1f} s of CPU{end}")
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
    pytest = [python, "-m", "pytest", "-q", "--durations=10"]
    found = [
        Launch("unit", [*pytest, "tests/unit"], {}),
        Launch("examples in docstrings", [*pytest, "--doctest-modules", "mpishare", "-W", "ignore:private"], {}),
    ]
    for size in LAYOUTS:
        found += [mpi_launch(size, placement, leaves_out=left_out_of(size, placement)) for placement in LAYOUTS[size]]
    found.append(mpi_launch(3, "block:2", {"MPISHARE_RECYCLE": "0"}, files=MEMORY))
    found.append(mpi_launch(3, "", {"MPISHARE_BACKEND": "window"}, files=MEMORY))
    found.append(mpi_launch(3, "", {"MPISHARE_BACKEND": "window", "MPISHARE_SECOND_MAP": "0"}, files=MEMORY))
    found.append(mpi_launch(3, "", {"MPISHARE_BACKEND": "memmap", "MPISHARE_DIR": gettempdir()}, files=MEMORY))
    # An MPI that refuses windows.
    refused = {"OMPI_MCA_osc": "^ucx,sm", "MPISHARE_BACKEND": "window,memmap"}
    found.append(mpi_launch(3, "sizes:1,2", refused, files=MEMORY))
    watched = {"MPISHARE_CHECK": "1", "MPISHARE_TIMEOUT": "30"}
    found.append(mpi_launch(3, "block:2", watched))
    found.append(mpi_launch(3, "block:1", watched, files=["allreduce", "checkpoint", "share"]))  # a node in the midst
    if MPICH.exists():
        found.append(mpich_launch(3))
    if MPIO.exists():
        found.append(mpio_launch(3, "block:2"))
    found.append(mpi_launch(2, "", files=["large"]))
    found.append(mpi_launch(3, "sizes:2,1", files=["large"]))
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
        calls.append("left out: the tests of HDF5 through MPI: no such h5py; make cluster-packages brings it")
    if hosts:
        return [*calls, *(f"left out: all tests on several hosts: {reason}" for reason in hosts[:1])]
    return [*calls, *(f"left out: the tests under Slurm: {reason}" for reason in slurm[:1])]


def left_out_of(size: int, placement: str) -> list[str]:
    """The tests that do not run in this placement."""
    return [name for name, layouts in ABOVE.items() if placement not in layouts[size]]


def mpi_launch(
    size: int,
    placement: str,
    environ: dict[str, str] | None = None,
    *,
    files: Sequence[str] = (),
    leaves_out: Sequence[str] = (),
) -> Launch:
    """Those `files` of tests/mpi, or all but some, on `size` ranks, placed as MPISHARE_NODES=`layout` says."""
    chosen = chosen_tests(files, leaves_out)
    extra = {**({"MPISHARE_NODES": placement} if placement else {}), **(environ or {})}
    words = [
        f"mpi, {size} ranks",
        *(f"{name.removeprefix('MPISHARE_').lower()}={value}" for name, value in extra.items()),
        *(["large"] if files == ["large"] else []),
    ]
    command = [sys.executable, "-m", "mpishare", "run", "-n", str(size), "python", *chosen]
    return Launch(", ".join(words), command, extra)


def chosen_tests(files: Sequence[str] = (), leaves_out: Sequence[str] = ()) -> list[str]:
    """The words that have Python run them, on each rank."""
    named = [f"tests/mpi/test_{name}.py" for name in files]
    ignored = [f"--ignore=tests/mpi/test_{name}.py" for name in ("large", *leaves_out)]
    return ["-m", "tests.mpi.session", "--durations=5", *(named or ["tests/mpi", *ignored])]


def mpich_launch(size: int) -> Launch:
    """tests/mpi on a second MPI, which `make test` sets up in a folder of its own."""
    path = os.pathsep.join([str(MPICH.parent), os.environ.get("PATH", os.defpath)])
    command = [str(MPICH), "-m", "mpishare", "run", "-n", str(size), "python", *chosen_tests()]
    return Launch(f"mpi, {size} ranks, MPICH", command, {"PATH": path})


def mpio_launch(size: int, placement: str) -> Launch:
    """The tests of files with the system's h5py, which writes through MPI; its launcher is beside no Python."""
    words = ["/usr/bin/mpiexec", "--oversubscribe", "-n", str(size), str(MPIO), "-m", "mpi4py"]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.geteuid() == 0 else {}
    environ = {**root, "MPISHARE_NODES": placement, "OMPI_MCA_osc": "^ucx"}
    tests = chosen_tests(["files", "save", "checkpoint"])
    return Launch(f"mpi, {size} ranks, HDF5 through MPI", [*words, *tests], environ)


def run(launch: Launch) -> Outcome:
    """Runs one launch, its output passed on, with a limit on its time."""
    settings = [f"{name}={value}" for name, value in launch.environ.items() if name != "PATH"]
    shown = " ".join([*settings, *launch.command])
    print(f"\n== {launch.name}\n{shown}", flush=True)
    start, before_s = time.monotonic(), _cpu_s()
    process = subprocess.Popen(
        launch.command, cwd=ROOT, env=environment(launch.environ), stdout=subprocess.PIPE, text=True
    )
    try:
        output = process.communicate(timeout=TIME_LIMIT_S)[0]
    except subprocess.TimeoutExpired:
        process.terminate()  # mpiexec ends its ranks
        output = process.communicate()[0]
    print(output, end="", flush=True)
    counts = {name: _count(output, name) for name in ("passed", "failed", "error", "skipped")}
    failed = counts["failed"] + counts["error"]
    seconds, cpu_s = time.monotonic() - start, _cpu_s() - before_s
    return Outcome(launch, process.returncode, counts["passed"], failed, counts["skipped"], seconds, cpu_s)


def _cpu_s() -> float:
    """What the processes that were started here have taken so far, and those that they waited for."""
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


def _count(output: str, word: str) -> int:
    """The number before `word` in pytest's last line."""
    found = re.findall(rf"(\d+) {word}", output[output.rfind("\n", 0, len(output) - 1) :])
    return int(found[0]) if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
