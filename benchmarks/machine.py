"""What a result was measured with: the commit, the machine and its limits, the versions, the command.

python -m benchmarks.machine    prints it
"""

from __future__ import annotations

import json
import mmap
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import mpi4py
import numpy as np

mpi4py.rc.initialize = False  # its version is asked for, no more
from mpi4py import MPI  # noqa: E402

ROOT = Path(__file__).parent.parent
_PACKAGES = [
    "numpy",
    "mpi4py",
    "h5py",
    "numba",
    "pandas",
    "pyarrow",
    "joblib",
    "pshmem",
    "schwimmbad",
    "ray",
    "distributed",
    "matplotlib",
]
_COPIED_BYTES, _FAULTED_BYTES, _CALLS = 256 << 20, 64 << 20, 100_000
_ROUNDS = 9


def facts() -> dict[str, Any]:
    """All of it, but for the command."""
    return {
        **code(),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        **machine(),
        "limits": limits(),
    }


def code() -> dict[str, str]:
    """The commit, and the git tree of mpishare/, by which results are of the same code whatever else was changed."""
    is_changed = bool(_git("status", "--porcelain", "--", "mpishare"))
    return {
        "commit": _git("rev-parse", "--short=10", "HEAD"),
        "code": _git("rev-parse", "HEAD:mpishare") + (" and changes" if is_changed else ""),
    }


def machine() -> dict[str, Any]:
    """Hardware, kernel and versions."""
    versions = {"Python": platform.python_version(), "MPI": MPI.Get_library_version().split(",")[0]}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "CPU": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory, bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "kernel": platform.release(),
        "versions": versions,
    }


def limits() -> dict[str, float]:
    """What this machine can do at most, now: medians of some rounds."""
    count = min(2, len(os.sched_getaffinity(0)))
    arrays = [np.ones((2, _COPIED_BYTES), np.uint8) for _ in range(count)]

    def copy(array: Any) -> None:
        np.copyto(array[0], array[1])

    def copies() -> None:
        list(threads.map(copy, arrays))

    with ThreadPoolExecutor(count) as threads:
        one_core, all_cores = _median_s(lambda: copy(arrays[0])), _median_s(copies)
    figures = {"memcpy on one core, GB/s": _COPIED_BYTES / one_core / 1e9}
    if count > 1:
        figures["memcpy on two cores, GB/s"] = count * _COPIED_BYTES / all_cores / 1e9
    figures["a page fault, us"] = _median_s(_fault) / (_FAULTED_BYTES // mmap.PAGESIZE) * 1e6
    figures["a call in Python, ns"] = _median_s(_call) / _CALLS * 1e9
    return {column: round(value, 3) for column, value in figures.items()}


def _fault() -> None:
    """Touches each page of new memory."""
    with mmap.mmap(-1, _FAULTED_BYTES) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        array = np.frombuffer(memory, np.uint8)
        array[:: mmap.PAGESIZE] = 1
        del array


def _call() -> None:
    for _ in range(_CALLS):
        _nothing()


def _nothing() -> None:
    """What is called."""


def _median_s(call: Callable[[], object]) -> float:
    call()
    taken = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _git(*args: str) -> str:
    """What git prints; empty where this folder is no clone."""
    ended = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=False)
    return ended.stdout.strip()


if __name__ == "__main__":
    print(json.dumps(facts(), indent=2))
