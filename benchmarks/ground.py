"""What the library costs before it does anything fast: import, first calls, memory, and ten thousand live shares.

    mpishare run -n 4 -m benchmarks.ground

Prints a table and keeps it as results/ground.json. Goals: import at most 0.3 of NumPy's; proportional memory (PSS) of
all ranks at most 1.05 times the array, once the root dropped its source; descriptors and communicators flat; bad input
refused on all ranks within a second.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from mpi4py import MPI

import mpishare as ms
from benchmarks.keep import keep, pss_bytes
from benchmarks.rounds import order, row

NBYTES = 256 << 20
SHARES = 10_000
IMPORTS = 15
REFUSALS = 20
FIRST_CALLS = 9
PLACES = {"one node": "", "2 pretend nodes": "block:2"}
"""MPISHARE_NODES of the places of the first calls."""

_IMPORT = """
import sys, time
opened = 0
def count(event, args):
    global opened
    opened += event == "open"
if {counts}: sys.addaudithook(count)
start = time.perf_counter()
{code}
print(opened if {counts} else time.perf_counter() - start)
"""
_CODES = {
    "mpishare": "import mpishare",
    "NumPy": "import numpy",
    "mpishare and the modules of share": "import mpishare; mpishare.share",
}


def main() -> None:
    """Measures all; rank 0 prints and keeps."""
    comm = MPI.COMM_WORLD
    in_job = first_call(comm)  # what MPI and we allocate once is there then
    calls = {place: first_calls(comm, nodes) for place, nodes in PLACES.items()}
    figures = {
        "first call of the job, ms": round(in_job * 1e3, 3),
        "first calls": calls,
        "memory over the array": memory(comm),
        "live shares": live_shares(comm),
        "refusals until the last rank has raised, ms": refusals(comm),
        "import": imports() if comm.rank == 0 else None,
    }
    wait_asleep(comm)
    info = ms.info()
    if comm.rank == 0:
        for name, figure in figures.items():
            print(f"{name}: {figure}")
        keep("ground", figures, info)


def first_calls(comm: MPI.Intracomm, nodes: str) -> dict[str, dict[str, float]]:
    """The time of the first share of 1 KiB on a new communicator, until the last rank has it, and of the second."""
    os.environ["MPISHARE_NODES"] = nodes
    times: dict[str, list[float]] = {"first": [], "second": []}
    for _ in range(FIRST_CALLS + 1):  # the first round, in which modules are imported, is left out
        duplicate = comm.Dup()
        for taken in times.values():
            taken.append(first_call(duplicate))
        duplicate.Free()
    del os.environ["MPISHARE_NODES"]
    return {name: row(taken[1:]) for name, taken in times.items()}


def first_call(comm: MPI.Intracomm) -> float:
    """Seconds of a share on a communicator, of the slowest rank."""
    source = np.zeros(1 << 10, np.uint8) if comm.rank == 0 else None
    comm.Barrier()
    start = time.perf_counter()
    ms.share(source, comm=comm)
    return float(comm.allreduce(time.perf_counter() - start, MPI.MAX))


def memory(comm: MPI.Intracomm) -> float:
    """PSS that all ranks gained by one shared array, over its bytes on all nodes."""
    comm.Barrier()
    before = comm.allreduce(pss_bytes())
    source = np.arange(NBYTES // 8) if comm.rank == 0 else None
    shared = ms.share(source)
    del source
    shared.sum()  # every rank reads every page
    comm.Barrier()
    gained = comm.allreduce(pss_bytes()) - before
    return round(float(gained) / (NBYTES * ms.topology().n_nodes), 4)


def live_shares(comm: MPI.Intracomm) -> dict[str, float]:
    """The time of one small share among many, and what grew while ten thousand stayed alive."""
    before = held(comm)
    times, kept = [], []
    for number in range(SHARES):
        start = time.perf_counter()
        kept.append(ms.share(np.full(100, number) if comm.rank == 0 else None))
        times.append(time.perf_counter() - start)
    after = held(comm)
    return {
        "count": SHARES,
        "median of one, us": round(statistics.median(times) * 1e6, 1),
        "median of the last 1000, us": round(statistics.median(times[-1000:]) * 1e6, 1),
        "descriptors grown": comm.allreduce(after[0] - before[0], MPI.MAX),
        "communicators grown": comm.allreduce(after[1] - before[1], MPI.MAX),
    }


def refusals(comm: MPI.Intracomm) -> dict[str, float]:
    """The time until every rank has raised what is wrong with a call, the longest of several."""
    calls: dict[str, Callable[[], object]] = {
        "object dtype": lambda: ms.share(np.array([None])),
        "root that is no rank": lambda: ms.share(np.arange(3), root=99),
        "shape that differs": lambda: ms.empty(comm.rank),
        "negative shape on one rank": lambda: ms.zeros(-1 if comm.rank == comm.size - 1 else 3),
        "more than the host has": lambda: ms.empty(1 << 45, "u1"),
    }
    return {name: max(timed_refusal(comm, call) for _ in range(REFUSALS)) for name, call in calls.items()}


def timed_refusal(comm: MPI.Intracomm, call: Callable[[], object]) -> float:
    """Milliseconds from the first rank's call to the last rank's error."""
    comm.Barrier()
    start = time.perf_counter()
    try:
        call()
    except ms.MpishareError:
        return round(float(comm.allreduce(time.perf_counter() - start, MPI.MAX)) * 1e3, 2)
    raise AssertionError("this call must be refused")


def imports() -> dict[str, dict[str, float]]:
    """The time of imports in fresh processes, in an order that changes, and the files that they open."""

    def run(code: str, *, counts: bool) -> float:
        line = [sys.executable, "-c", _IMPORT.format(code=code, counts=counts)]
        return float(subprocess.run(line, capture_output=True, check=True).stdout)

    times: dict[str, list[float]] = {name: [] for name in _CODES}
    for number in range(IMPORTS + 1):  # the first round, in which modules are compiled, is left out
        for name in order(_CODES, number):
            times[name].append(run(_CODES[name], counts=False))
    return {name: {**row(times[name][1:]), "files opened": run(code, counts=True)} for name, code in _CODES.items()}


def wait_asleep(comm: MPI.Intracomm) -> None:
    """A barrier that leaves the cores to the rank that still measures."""
    come = comm.Ibarrier()
    while not come.Test():
        time.sleep(0.01)


def held(comm: MPI.Intracomm) -> tuple[int, int]:
    """Open descriptors, and the number that MPI gives to a new communicator."""
    duplicate = comm.Dup()
    number = duplicate.py2f()
    duplicate.Free()
    return len(list(Path("/proc/self/fd").iterdir())), number


if __name__ == "__main__":
    main()
