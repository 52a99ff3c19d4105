"""What the benchmarks share: places to run in, rounds, rows of figures, and results kept with their machine."""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tests.processes import children_of

Bytes = NDArray[np.uint8]
Call = Callable[[int], Any]
"""One operation. Its number differs from call to call and chooses the contents."""
Row = dict[str, float]
Table = dict[str, Row]
"""Rows by the name of the way."""

ROOT = Path(__file__).parent.parent
RESULTS = Path(os.environ.get("BENCHMARK_RESULTS") or Path(__file__).parent / "results")
"""BENCHMARK_RESULTS names another folder for a trial."""
MEDIAN, OVER_BEST = "median, ms", "over the best rival"
READY = "ready"
"""A watched program prints this line before it begins, and begins when it has read a line."""
_PACKAGES = ["numpy", "mpi4py", "h5py", "pandas", "pyarrow", "joblib", "pshmem", "schwimmbad", "ipyparallel"]
_LIMIT_S = 900


class Place(NamedTuple):
    """Where a program runs.

    Attributes:
        title: Its name in the results.
        ranks: Ranks of each host.
        nodes: MPISHARE_NODES; pretend nodes talk through shared memory, a link as fast as memory.
        hosts: Hosts of a cluster on this machine, each in namespaces of its own; 0 for this machine itself.
        rate: Speed of each host's link as tc writes it; "" for as fast as the machine is.
    """

    title: str
    ranks: int
    nodes: str = ""
    hosts: int = 0
    rate: str = ""

    def run(self, module: str, *args: str) -> Any:
        """What `benchmarks.MODULE --inside ARGS` tells there."""
        program = ["-m", f"benchmarks.{module}", "--inside", *args]
        if not self.hosts:
            return told([*on_ranks(self.ranks), *program], MPISHARE_NODES=self.nodes)
        from tests.cluster.cluster import cluster
        from tests.cluster.spec import make_spec

        with cluster(make_spec(self.hosts, ranks=str(self.ranks), rate=self.rate)) as hosts:
            return json.loads(hosts.mpiexec([sys.executable, *program], limit_s=_LIMIT_S).stdout.splitlines()[-1])


def on_ranks(count: int) -> list[str]:
    """The beginning of a command line that runs Python on `count` ranks of this machine, or, for 0, as it is."""
    return [sys.executable, *(["-m", "mpishare", "run", "-n", str(count)] if count else [])]


def told(command: Sequence[str], **environ: str) -> Any:
    """The last line that a program prints, which is JSON."""
    environ = {**os.environ, **environ}
    ended = subprocess.run(command, cwd=ROOT, env=environ, stdout=-1, text=True, check=True, timeout=_LIMIT_S)
    return json.loads(ended.stdout.splitlines()[-1])


def options(doc: str | None, rounds: int = 9, **defaults: Any) -> argparse.Namespace:
    """The command line: `--rounds`, an option for each of `defaults`, and how a program is told to run on ranks."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    for name, default in {"rounds": rounds, **defaults}.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help="(default: %(default)s)")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def powers(text: str) -> list[int]:
    """Sizes in bytes of powers of two with commas between them."""
    return [1 << int(power) for power in text.split(",")]


def tell(comm: Any, figures: Any) -> None:
    """Rank 0 tells the program that started the ranks."""
    if comm.rank == 0:
        print(json.dumps(figures), flush=True)


class Sources:
    """Arrays of `nbytes` on rank 0, each with other contents, of which each call takes the next."""

    def __init__(self, comm: Any, nbytes: int) -> None:
        self._count = max(2, min(4, (1 << 29) // nbytes))
        pattern = np.arange(251 + self._count, dtype=np.uint8)
        numbers = range(self._count if comm.rank == 0 else 0)
        self._arrays = [np.resize(pattern[first : first + 251], nbytes) for first in numbers]

    def get(self, number: int) -> Bytes | None:
        """The array of a call on rank 0, None elsewhere."""
        return self._arrays[number % self._count] if self._arrays else None

    def check(self, comm: Any, name: str, call: Call) -> None:
        """Ends the job where a call brings another array; None is what a rank has to which nothing comes."""
        for number in range(2):
            result = call(number)
            comm.Barrier()
            for index in () if result is None else (0, result.size // 2, result.size - 1):
                if result[index] != number + index % 251:
                    raise SystemExit(f"{name}: byte {index} is {result[index]}")
            comm.Barrier()


def repeats(nbytes: int, most: int = 50) -> int:
    """Calls that are timed as one, so that clocks and barriers count little."""
    return max(1, min(most, (1 << 20) // nbytes))


def measure(
    comm: Any,
    calls: Mapping[str, Call],
    count: int,
    rounds: int,
    *,
    warm_up: int = 10,
    after: Callable[[], object] = lambda: None,
) -> dict[str, list[float]]:
    """Seconds of a call until the last rank is done, by name and round.

    Each round times every call, in an order that changes, so that all meet the same weather; ratios are then of one
    run. The first round, in which everything is new, is left out, as are `warm_up` calls after it: small arrays use
    memory again from the ninth on. `after` follows each timing and is not timed.
    """
    times = {name: list[float]() for name in calls}
    for number in range(rounds + 1):
        for name in order(calls, number):
            comm.Barrier()
            start = time.perf_counter()
            for turn in range(number * count, (number + 1) * count):
                calls[name](turn)  # what it returns goes before the next call, so that its memory can be used again
            times[name].append(max(comm.allgather(time.perf_counter() - start)) / count)
            after()
            for turn in range(0 if number else warm_up):
                calls[name](turn)
            after()
    return {name: taken[1:] for name, taken in times.items()}


def order(names: Iterable[str], number: int) -> list[str]:
    """The names in the order of a round. What one way leaves behind, the next one meets."""
    listed = list(names)
    return random.Random(number).sample(listed, len(listed))


def rows(times: Mapping[str, Sequence[float]]) -> Table:
    """Medians and quartiles in ms of seconds."""
    return {name: _row(taken) for name, taken in times.items()}


def _row(taken: Sequence[float]) -> Row:
    low, middle, high = statistics.quantiles(taken, n=4, method="inclusive") if len(taken) > 1 else [*taken] * 3
    figures = {"first quartile, ms": low, MEDIAN: middle, "third quartile, ms": high}
    return {**{name: round(value * 1e3, 5) for name, value in figures.items()}, "rounds": len(taken)}


def compared(table: Table, ours: str, *, without: Sequence[str] = ()) -> Table:
    """The table with the ratio of ours to the fastest other way but those that are limits."""
    rivals = [row[MEDIAN] for name, row in table.items() if not name.startswith(("mpishare", *without))]
    if rivals and ours in table:
        table[ours][OVER_BEST] = round(table[ours][MEDIAN] / min(rivals), 3)
    return table


def best_of(table: Table, prefix: str) -> Table:
    """The table with the fastest alone of the ways whose names begin with `prefix`."""
    names = sorted((name for name in table if name.startswith(prefix)), key=lambda name: table[name][MEDIAN])
    return {name: row for name, row in table.items() if name not in names[1:]}


def size_of(nbytes: int) -> str:
    """As 1 KiB or 64 MiB."""
    power = (nbytes.bit_length() - 1) // 10
    return f"{nbytes >> 10 * power} {('B', 'KiB', 'MiB', 'GiB')[power]}"


def held(comm: Any) -> float:
    """Bytes that all ranks hold together: what several map counts once (PSS)."""
    gc.collect()
    comm.Barrier()
    total = float(comm.allreduce(pss("self")))
    comm.Barrier()
    return total


def pss(pid: int | str) -> int:
    """Proportional set size of a process, in bytes."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


def held_with_children(pid: int) -> int:
    """What a process and all that it has started hold together."""
    total, left = 0, [pid]
    while left:
        item = left.pop()
        try:
            total += pss(item)
            left += children_of(item)
        except (OSError, StopIteration):
            continue  # it has ended meanwhile
    return total


def watched(command: Sequence[str], *, looks: bool) -> tuple[Any, int]:
    """What a program told as JSON, and by how many bytes it grew at most, with all that it started, since it was ready.

    Looking at memory takes time, so a run is either looked at or timed.
    """
    with subprocess.Popen(command, cwd=ROOT, stdin=-1, stdout=-1, text=True) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        while (line := program.stdout.readline()).strip() != READY:
            if not line:
                raise SystemExit(f"{command} ended before it was ready")
        before, peak, is_over = held_with_children(program.pid), 0, threading.Event()

        def look() -> None:
            nonlocal peak
            while looks and not is_over.wait(0.02):
                peak = max(peak, held_with_children(program.pid))

        thread = threading.Thread(target=look)
        thread.start()
        program.stdin.write("go\n")
        program.stdin.flush()
        line = program.stdout.readline()
        is_over.set()
        thread.join()
    return json.loads(line), max(peak - before, 0)


def wait_for_start() -> None:
    """Waits until whoever watches has seen what this program holds before it begins."""
    print(READY, flush=True)
    sys.stdin.readline()


def show(title: str, table: Table) -> None:
    """Prints a table, the fastest first."""
    print(f"\n{title}")
    for name, row in sorted(table.items(), key=lambda item: item[1].get(MEDIAN, 0)):
        cells = (f"{value:12,.4f} {column}" for column, value in row.items() if "quartile" not in column)
        print(f"  {name:46} " + "  ".join(cells), flush=True)


def keep(name: str, figures: Any) -> None:
    """Writes figures to NAME.json among the results, with the commit, the machine, the date and the command."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"facts": facts(), "figures": figures}, indent=1)
    (RESULTS / f"{name}.json").write_text(text + "\n")


def facts() -> dict[str, Any]:
    """What a result was measured with."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    module = sys.modules["__main__"].__spec__
    return {
        "command": " ".join(["python -m", module.name if module else "", *sys.argv[1:]]),
        "commit": _git("rev-parse", "--short=10", "HEAD") + (" and changes" if _git("status", "--porcelain") else ""),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "CPU": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory, bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "kernel": platform.release(),
        "versions": _versions(),
    }


def _versions() -> dict[str, str]:
    import mpi4py

    mpi4py.rc.initialize = False
    from mpi4py import MPI

    versions = {"Python": platform.python_version(), "MPI": MPI.Get_library_version().split(",")[0]}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def _git(*args: str) -> str:
    """What git prints; nothing where this folder is no clone. Results are no change of the code."""
    line = ["git", *args, *(["--", ".", ":!benchmarks/results"] if "status" in args else [])]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
