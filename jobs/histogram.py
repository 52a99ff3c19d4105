"""Counts values into one histogram per node, to which all its ranks add at once, and sums up those of the nodes.

    mpiexec -n 4 python jobs/histogram.py --data build/flights.npy --column 5
    mpiexec -n 4 python jobs/histogram.py --values 10000000 --bins 1000 --output counts.npy --json

The values lie once on each node; each rank counts its part of them by atomic additions in compiled code. Rank 0 then
counts all of them by numpy.histogram, and the counts must be equal. Needs numba.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI
from numba import njit
from numpy.typing import NDArray

import mpishare as ms
from mpishare import kernels

Array = NDArray[Any]
BLOCK = 1 << 20  # values between two words of progress


def main(args: Sequence[str] | None = None) -> int:
    """The job, with `words` in place of the command line's; returns 0 when numpy.histogram counts the same."""
    comm, options = MPI.COMM_WORLD, parse_options(args)
    values, edges = ms.share(on_root(comm, lambda: read(options)))
    start = time.perf_counter()
    counts = counted(values, edges, options)
    seconds, is_same = time.perf_counter() - start, True
    if comm.rank == 0:
        is_same = np.array_equal(counts, np.histogram(values, options.bins, (edges[0], edges[-1]))[0])
        if options.output:
            np.save(options.output, counts)
        tell(options, {"ranks": comm.size, "values": values.size, "counted": int(counts.sum()),
                       "largest": int(counts.max()), "seconds": seconds, "same": is_same})  # fmt: skip
    return 0 if comm.bcast(is_same) else 1


def parse_options(args: Sequence[str] | None) -> argparse.Namespace:
    """The command line, the same on every rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="FILE.npy", help="the values; without it normal ones are made")
    parser.add_argument("--column", type=int, help="which column of a table to count; all of it without")
    parser.add_argument("--values", type=int, default=1_000_000, help="how many are made (default: %(default)s)")
    parser.add_argument("--bins", type=int, default=100, help="of equal width (default: %(default)s)")
    parser.add_argument("--range", type=float, nargs=2, metavar=("LOW", "HIGH"), help="of the bins; all without it")
    parser.add_argument("--output", metavar="FILE.npy", help="where to write the counts")
    parser.add_argument("--progress", action="store_true", help="tell how far rank 0 is")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(args)
    if options.bins < 1 or options.values < 0:
        parser.error("--bins takes 1 or more, --values 0 or more")
    return options


def on_root(comm: MPI.Intracomm, build: Callable[[], Any]) -> Any:
    """What `build` returns on rank 0, None elsewhere; where it fails, every rank ends with its words."""
    built, args = None, None
    if comm.rank == 0:
        try:
            built = build()
        except Exception as error:  # whatever it is, the others wait for word of it
            args = f"histogram: {type(error).__name__}: {error}"
    args = comm.bcast(args)
    if args is not None:
        raise SystemExit(args if comm.rank == 0 else 1)
    return built


def read(options: argparse.Namespace) -> tuple[Array, Array]:
    """The values and the edges of the bins, on the root."""
    values = np.random.default_rng(2013).standard_normal(options.values)
    if options.data:
        table = np.load(options.data, allow_pickle=False)
        values = table.reshape(-1) if options.column is None else table[:, options.column]
        if values.dtype.kind not in "iuf" or not np.isfinite(values).all():
            raise ValueError(f"{options.data} has {values.dtype}, or values that are not finite: these have no bin")
    values, span = values.astype(float), tuple(options.range) if options.range else None
    return values, np.histogram_bin_edges(values, options.bins, span)


def counted(values: Array, edges: Array, options: argparse.Namespace) -> Array:
    """How many of all values are in each bin, on every rank."""
    counts = ms.zeros(options.bins, np.int64)
    part = ms.partition(len(values))
    for start in range(part.start, part.stop, BLOCK):
        add_values(values[start : min(start + BLOCK, part.stop)], edges, counts)
        if options.progress and MPI.COMM_WORLD.rank == 0:
            done = min(start + BLOCK, part.stop) - part.start
            print(f"{done:,} of {part.stop - part.start:,} values of rank 0", file=sys.stderr, flush=True)
    ms.fence()
    return ms.allreduce(counts if ms.topology().is_leader else np.zeros_like(counts))  # a leader speaks for its node


@njit(nogil=True)
def add_values(values: Array, edges: Array, counts: Array) -> None:
    """Adds 1 to the bin of each value; the last bin has its upper edge, as NumPy's."""
    last = len(counts) - 1
    scale = len(counts) / (edges[-1] - edges[0])
    for value in values:
        if edges[0] <= value <= edges[-1]:
            place = min(int((value - edges[0]) * scale), last)  # or one beside it, as this is rounded
            if value < edges[place]:
                place -= 1
            elif place < last and value >= edges[place + 1]:
                place += 1
            kernels.atomic_add(counts, place, 1)


def tell(options: argparse.Namespace, figures: dict[str, Any]) -> None:
    """Prints the figures."""
    verdict = "numpy.histogram counts the same" if figures["same"] else "NUMPY COUNTS OTHERWISE"
    if options.json:
        print(json.dumps(figures))
    else:
        print(
            f"{figures['counted']:,} of {figures['values']:,} values in {options.bins} bins on {figures['ranks']} "
            f"ranks, {figures['seconds']:.3f} s: {verdict}"
        )


if __name__ == "__main__":
    sys.exit(main())
