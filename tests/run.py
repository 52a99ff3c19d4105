"""Runs tests and prints a summary: `python -m tests.run` those of `make test`, `--all` all, `--only 'mpi-*'` some."""

import argparse
import os
import re
import resource
import subprocess
import sys
import time
from collections import Counter
from fnmatch import fnmatch
from tempfile import TemporaryDirectory, gettempdir
from typing import NamedTuple

from tests import bare
from tests.blackbox.launch import ROOT, environment, python_of
from tests.cluster.missing import missing, missing_namespaces, missing_strace

TIME_LIMIT_S = 1800  # a launch that takes longer hangs

FIRST = ["unit", "docstrings", "mpi-1", "mpi-3-block:2", "mpi-4-cyclic:2", "mpich-3", "faults", "manual"]
"""The launches of `make test`. `bare` runs them on a machine where no Slurm and no MPI is installed."""

ABOVE = ["objects", "messages", "files", "checkpoints", "tasks", "kernels", "compat", "cli"]
"""Folders of tests/mpi that stand on the others and know little of placement: they run once for a number of ranks."""
EVERYWHERE, WHOLE = "not large and not once", "not large"
"""Which tests of tests/mpi a launch runs, by their marks. `mpi-3-block:2` leaves none out."""
SHARING = ["test_sharing.py", "memory", "transfer"]
"""The core of tests/mpi, which depends most on the MPI library."""
WATCHED = {"MPISHARE_CHECK": "1", "MPISHARE_TIMEOUT": "30"}
LAYOUTS = [
    (3, {"MPISHARE_NODES": ""}, ["memory", *ABOVE]),
    (3, {"MPISHARE_NODES": "block:2"}, []),
    (4, {"MPISHARE_NODES": "cyclic:2", **WATCHED}, ABOVE),
]
"""Numbers of ranks, settings, and folders left out. Placement is on pretended nodes; "" is all ranks on the real one.
`memory-folder` has 2 ranks on the real node, and `cluster` ranks on 2 and 3 hosts."""

NO_LOCAL = {"MPIR_CVAR_NOLOCAL": "1"}
"""MPICH puts each rank on a node of its own, and so sends everything over its network: UCX, unless it is told OFI."""
OFI = {**NO_LOCAL, "MPIR_CVAR_CH4_NETMOD": "ofi"}
OTHER_MPIS: dict[str, list[tuple[int, dict[str, str], dict[str, list[str]]]]] = {
    "mpich": [
        (3, {"MPISHARE_NODES": "block:2"}, {"only": [*SHARING, "comm", "test_rows.py", "test_allreduce.py"]}),
        (2, OFI, {"only": ["messages", "tasks", "files"]}),
    ],
    "intel": [(3, {"MPISHARE_NODES": "block:2"}, {"only": [*SHARING, "messages"]})],
    "system-openmpi": [(2, WATCHED, {"without": ["objects", "files", "checkpoints", "kernels", "compat", "cli"]})],
    "system-mpich": [(2, NO_LOCAL, {"only": ["test_sharing.py", "transfer", "messages"]})],
}
"""Launches on other MPIs, which make sets up: the number of ranks, settings, and folders of tests/mpi. A rank of
MPICH that waits leaves its core to no other, so that most folders above the others run on 2 ranks."""

ALONE = {"OMPI_MCA_osc": "^ucx", "OMPI_MCA_btl": "^ofi,sm,vader"}
"""One rank without a launcher, two of them at a time: no files of Open MPI, which nobody would remove."""
FOLDER = {"MPISHARE_DIR": gettempdir(), "MPISHARE_RECYCLE": "0", "OMPI_MCA_osc": "^ucx,sm"}
"""An MPI that refuses windows, files in a folder, and no memory that is used again."""
OF_BACKENDS = ["test_sharing.py", "test_creation.py", "test_into.py", "memory"]
OF_MANY_RANKS = [
    "comm/test_comm.py::test_nodes_are_those_of_mpi_or_as_the_rule_of_pretend_nodes_says",
    "comm/test_comm.py::test_errors_that_differ_are_told_with_their_ranks",
    "test_sharing.py::test_again_and_again_from_arrays_that_change_afterwards",
    "test_rows.py::test_one_copy_per_node",
    "tasks/test_map.py::test_on_another_communicator",
]
OF_ONE_COPY = (
    "one_copy or read_once or read_that_fails or outlives or into_arrays or file_does_not_fit or without_dimensions"
)
NO_LINUX = {"PYTEST_ADDOPTS": f"-p tests.no_linux -k 'not ({OF_ONE_COPY})'", "MPISHARE_NODES": ""}
"""Python as it is on another system. Arrays that ranks write to are refused there, and so are handles."""
WITHOUT_LINUX = [
    "test_sharing.py",
    "test_rows.py",
    "test_allreduce.py",
    "test_point_to_point.py",
    "messages",
    "tasks/test_map.py",
    "files",
    "checkpoints",
]
"""Of tests/mpi what needs neither."""

PYTEST = ["-m", "pytest", "-q", "--color=no"]
FAILURE = r"^(?:FAILED |ERROR |\[rank \d+\] tests/).*"
"""A line of a launch's output that is repeated in the summary: pytest's, and those of the ranks of tests/mpi."""
SUMMARIES = r"^\d+ passed, \d+ failed, \d+ skipped$"
"""The last line of this program, which the launch `bare` starts more than once."""
SUMMARY = r"^.*\d+ (?:passed|failed|error|skipped).* in [\d.]+s.*$"
"""The last line of a pytest session."""


class Launch(NamedTuple):
    """One process tree: its name for `--only`, the command, and what is added to the environment."""

    name: str
    command: list[str]
    environ: dict[str, str]


def main():
    """Runs the launches; returns 0 when all passed, and in CI only when nothing was skipped."""
    parser = argparse.ArgumentParser(prog="python -m tests.run", description=__doc__)
    parser.add_argument("--all", action="store_true", help="every launch; those that `bare` runs are left to it")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="launches of these names or patterns")
    parser.add_argument("--list", action="store_true", help="print the names of the launches")
    options = parser.parse_args()
    every = launches()
    unknown = [pattern for pattern in options.only if not any(fnmatch(item.name, pattern) for item in every)]
    if unknown:
        parser.error(f"no launch is named {', '.join(unknown)} here; --list prints the names")
    patterns = options.only or (["*"] if options.all or options.list else FIRST)
    chosen = [item for item in every if any(fnmatch(item.name, pattern) for pattern in patterns)]
    if options.list:
        print(*(item.name for item in chosen), sep="\n")
        return 0
    is_whole = options.all and not options.only
    if is_whole and not bare.reasons():
        chosen = [item for item in chosen if item.name not in [*FIRST, bare.OF_USER]]
    return run_all(chosen, is_whole=is_whole)


def run_all(chosen, *, is_whole):
    """Runs these and prints the summary; `is_whole` also reports what is left out."""
    lines, *numbers = zip(*(run(launch) for launch in chosen), strict=True)
    print("\n== summary", *lines, sep="\n")
    passed, failed, skipped = map(sum, numbers)
    lacking = left_out() if is_whole else []
    print(*lacking, sep="\n")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    is_incomplete = "CI" in os.environ and (skipped > 0 or bool(lacking))
    return int(failed > 0 or is_incomplete)


def launches():
    """All launches."""
    doctests = ["--doctest-modules", "mpishare", "-W", "ignore:private"]
    chosen = [pytest("unit", "--numprocesses=2", "tests/unit"), pytest("docstrings", *doctests)]
    one_rank = [*mpi_tests(without=["objects", "files", "checkpoints", "kernels", "compat", "cli"])]
    chosen.append(Launch("mpi-1", [sys.executable, *one_rank, "--numprocesses=2", "--dist=loadfile"], ALONE))
    for size, environ, without in LAYOUTS:
        name = f"mpi-{size}-{environ['MPISHARE_NODES']}".rstrip("-")
        chosen.append(mpi(name, size, environ, without=without))
    chosen.append(mpi("memory-folder", 2, FOLDER, only=OF_BACKENDS))
    chosen.append(mpi("ranks-64", 64, {"MPISHARE_NODES": "block:32"}, only=OF_MANY_RANKS))
    of_one = [f"tests/unit/{part}" for part in ("arrays", "comm", "objects", "tasks", "files/test_npy.py")]
    chosen.append(pytest("no-linux-1", "--numprocesses=2", *of_one)._replace(environ=NO_LINUX))
    chosen.append(mpi("no-linux-2", 2, NO_LINUX, only=WITHOUT_LINUX))
    for name in OTHER_MPIS:
        if python_of(name).exists():
            chosen += on_another_mpi(name)
    chosen.append(mpi("large-3", 3, {"MPISHARE_NODES": "sizes:2,1"}, only=["test_large.py"], marks="large"))
    many, files = ["--numprocesses=3", "--dist=worksteal"], ["--numprocesses=2", "--dist=loadfile"]
    chosen.append(pytest("faults", *many, "-m", "first", "tests/faults"))
    chosen.append(pytest("manual", "-m", "first", "tests/blackbox/test_manual.py", "tests/blackbox/test_commands.py"))
    if not [*missing_strace(), *missing_namespaces()]:
        chosen.append(pytest("kernel", *many, "-m", "not first", "tests/faults"))
    chosen.append(pytest("blackbox", *files, "-m", "not first", "tests/blackbox"))
    if not missing(slurm=False):
        chosen.append(pytest("cluster", "tests/cluster", "--ignore=tests/cluster/test_slurm.py"))
    if not missing(slurm=True):
        chosen.append(pytest("slurm", "--numprocesses=2", "--dist=worksteal", "tests/cluster/test_slurm.py"))
    if not bare.reasons():
        chosen.append(Launch("bare", [sys.executable, "-m", "tests.bare"], {}))
    return chosen


def left_out():
    """One line for each part of the tests that cannot run on this machine: why, and what would allow it."""
    reasons = [*missing_strace(), *missing_namespaces()]
    lines = [f"left out: the tests of what the kernel refuses, and ranks lack: {reason}" for reason in reasons]
    for name in [name for name in OTHER_MPIS if not python_of(name).exists()]:
        first = "make cluster-packages, and then " if name.startswith("system") else ""
        lines.append(f"left out: the tests on {name}: there is no .venv-{name}; {first}make test-all creates it")
    lines += [f"left out: what a machine without MPI and Slurm shows: {reason}" for reason in bare.reasons()[:1]]
    hosts, slurm = missing(slurm=False), missing(slurm=True)
    if hosts:
        return [*lines, *(f"left out: all tests on several hosts: {reason}" for reason in hosts[:1])]
    return [*lines, *(f"left out: the tests under Slurm: {reason}" for reason in slurm[:1])]


def pytest(name, *args):
    """Pytest in one process."""
    return Launch(name, [sys.executable, *PYTEST, "--durations=10", *args], {})


def mpi(name, size, environ, **chosen):
    """The tests of tests/mpi on `size` ranks, or some of them."""
    command = [sys.executable, "-m", "mpishare", "run", "-n", str(size), "python"]
    return Launch(name, [*command, *mpi_tests(**chosen)], environ)


def mpi_tests(*, only=(), without=(), marks=None):
    """The arguments with which Python runs tests/mpi on each rank: all of it, or some of its folders."""
    marks = marks or (EVERYWHERE if only or without else WHOLE)
    folders = [f"tests/mpi/{folder}" for folder in only or [""]]
    ignored = [f"--ignore=tests/mpi/{folder}" for folder in without]
    return [*PYTEST, "--durations=5", "--tb=short", "-m", marks, *folders, *ignored]


def on_another_mpi(name):
    """The launches on an MPI of OTHER_MPIS, with its folder, and so its mpiexec, first on PATH."""
    python = python_of(name)
    path = os.pathsep.join([str(python.parent), os.environ.get("PATH", os.defpath)])
    for size, environ, folders in OTHER_MPIS[name]:
        command = [str(python), "-m", "mpishare", "run", "-n", str(size), "python", *mpi_tests(**folders)]
        yield Launch(f"{name}-{size}", command, {"PATH": path, **environ})


def run(launch):
    """Runs one launch within the time limit, and prints its output; its part of the summary, and three numbers.

    It has a temporary folder of its own: Open MPI names a job's folder by the launcher's process number alone, and no
    launcher begins where a killed one of the same number, which comes around, has left its folder.
    """
    settings = [f"{name}={value}" for name, value in launch.environ.items() if name != "PATH"]
    print(f"\n== {launch.name}\n{' '.join([*settings, *launch.command])}", flush=True)
    start, before = time.monotonic(), cpu_s()
    with TemporaryDirectory(prefix="tests-", ignore_cleanup_errors=True) as folder:
        environ = environment({"TMPDIR": folder, **launch.environ})
        line = ["timeout", "--foreground", str(TIME_LIMIT_S), *launch.command]  # mpiexec ends its ranks
        ended = subprocess.run(
            line, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace", check=False
        )
    own = re.findall(SUMMARIES, ended.stdout, re.MULTILINE)
    last = own or re.findall(SUMMARY, ended.stdout, re.MULTILINE)[-1:]
    counts = Counter()
    for number, name in re.findall(r"(\d+) (passed|failed|error|skipped)", "\n".join(last)):
        counts[name] += int(number)
    passed, skipped = counts["passed"], counts["skipped"]
    failed = counts["failed"] + counts["error"] or int(ended.returncode != 0)  # a launch may fail without a test
    times = f"{time.monotonic() - start:6.1f} s {cpu_s() - before:6.1f} s of CPU"
    end = f"  exit status {ended.returncode}" if ended.returncode else ""
    summary = f"{launch.name:20} {passed:5} passed {failed:3} failed {skipped:3} skipped {times}{end}"
    print(ended.stdout, end="", flush=True)
    return "\n    ".join([summary, *re.findall(FAILURE, ended.stdout, re.MULTILINE)]), passed, failed, skipped


def cpu_s():
    """Seconds of CPU of all launches that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    raise SystemExit(main())
