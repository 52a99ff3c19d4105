"""What the ports are measured by: lines of sharing code, memory of all ranks, time, and whether the bits are the same.

All ranks must be of one host, on which nothing else runs.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import os
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from benchmarks.harness import order

LOOK_S = 0.004  # between two looks at the memory of the ranks

windows: list[MPI.Win] = []
"""Those that a code shares by hand, until all ranks have taken what they need, or the program ends."""


class Way(NamedTuple):
    """One way to do the same.

    Attributes:
        functions: Those that are there for sharing, whose lines count; none for the code's own.
        call: Gives this rank its array, or a tuple of arrays. All ranks call it.
        free: What all ranks call when they have dropped the array.
    """

    functions: Sequence[Callable[..., Any]]
    call: Callable[[], Any]
    free: Callable[[], None] = lambda: None


def free_windows() -> None:
    """Frees all windows. All ranks call it."""
    while windows:
        windows.pop().Free()


def arguments(description: str | None) -> argparse.ArgumentParser:
    """What every port takes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="how often each is timed (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    return parser


def compare(title: str, nbytes: int, ways: dict[str, Way], options: argparse.Namespace) -> int:
    """Measures the ways and prints the figures on rank 0; returns 0 when all gave this rank the same bits.

    Args:
        title: What is shared.
        nbytes: The bytes of one copy.
        ways: By name.
        options: What `arguments` parsed.
    """
    comm = MPI.COMM_WORLD
    memory = {name: held(comm, way, nbytes) for name, way in ways.items()}  # of the first call, with all that it keeps
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    checksums = set()
    for number in range(options.rounds):
        for name in order(ways, number):
            way = ways[name]
            comm.Barrier()
            start = time.perf_counter()
            result = way.call()
            seconds[name].append(comm.allreduce(time.perf_counter() - start, MPI.MAX))
            checksums.add(tuple(crc32(np.ascontiguousarray(array).tobytes()) for array in arrays_of(result)))
            del result
            way.free()
    is_same = comm.allreduce(len(checksums) == 1, MPI.LAND)
    figures: list[dict[str, Any]] = [
        {"way": name, "lines": sum(map(lines, way.functions)), **memory[name], "seconds": median(seconds[name])}
        for name, way in ways.items()
    ]
    if comm.rank == 0 and options.json:
        print(json.dumps({"title": title, "bytes": nbytes, "ranks": comm.size, "ways": figures, "same": is_same}))
    elif comm.rank == 0:
        print(f"{title}: {nbytes:,} bytes, {comm.size} ranks; memory of all ranks in copies of them")
        for row in figures:
            count = f"{row['lines']} lines" if row["lines"] else ""
            memory_of = f"at most {row['most']:.2f} held, then {row['kept']:.2f}, and {row['left']:.2f} left"
            print(f"  {row['way']:14} {count:9} {memory_of}, {row['seconds'] * 1e3:.1f} ms")
        print("  all ways give the same bits" if is_same else "  THE BITS DIFFER")
    return 0 if is_same else 1


def arrays_of(result: Any) -> list[NDArray[Any]]:
    """The arrays that a way gives."""
    return [np.asanyarray(array) for array in (result if isinstance(result, tuple) else (result,))]


def lines(function: Callable[..., Any]) -> int:
    """Lines of code of a function as `ast.unparse` writes them: without its head, its docstring and comments."""
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(definition, ast.FunctionDef)
    body = definition.body[1:] if ast.get_docstring(definition) else definition.body
    return len(ast.unparse(ast.Module(body, [])).splitlines())


def held(comm: MPI.Intracomm, way: Way, nbytes: int) -> dict[str, float]:
    """The memory of all ranks, less what they held before, over `nbytes`.

    Returns:
        `most`, during a call; `kept`, after it; `left`, when all ranks have dropped the array.
    """
    pids = comm.allgather(os.getpid())
    with watched(pids) if comm.rank == 0 else nullcontext([0]) as looks:
        comm.Barrier()
        result = way.call()
        for array in arrays_of(result):
            array.sum()  # so that all pages are there
        comm.Barrier()
    comm.Barrier()
    del result, array
    way.free()
    comm.Barrier()
    left = used(pids) if comm.rank == 0 else 0
    comm.Barrier()
    figures = {"most": max(looks), "kept": looks[-1], "left": left}
    return {name: (figure - looks[0]) / nbytes for name, figure in figures.items()}


@contextmanager
def watched(pids: Sequence[int]) -> Iterator[list[int]]:
    """Looks at the memory of processes again and again: what they use before the block, within it, and at its end."""
    looks = [used(pids)]
    has_ended = threading.Event()

    def look() -> None:
        while not has_ended.wait(LOOK_S):
            looks.append(used(pids))

    watch = threading.Thread(target=look)
    watch.start()
    try:
        yield looks
    finally:
        has_ended.set()
        watch.join()
        looks.append(used(pids))


def used(pids: Sequence[int]) -> int:
    """Bytes of these processes' own pages, and of the shared memory of the machine, on which nothing else runs.

    Proportional set sizes are read one process after the other, and count a page twice that a second rank touches in
    between.
    """
    return kib("/proc/meminfo", "Shmem:") + sum(kib(f"/proc/{pid}/status", "RssAnon:") for pid in pids) << 10


def kib(file: str, name: str) -> int:
    """The number on a line of a file of /proc."""
    return next(int(line.split()[1]) for line in Path(file).read_text().splitlines() if line.startswith(name))
