"""Shares an array with every rank, one copy per node; each rank computes its 2-norm, and all must agree to the bit.

    mpiexec -n 4 python jobs/broadcast.py --data table.npy
    mpiexec -n 4 python jobs/broadcast.py --shape 512,512

Prints for each node what it holds and what one copy per rank would take, then the time beside two other ways to give
every rank the data: a pickled comm.bcast, and comm.Bcast into one buffer per rank.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

import mpishare as ms

BLOCK_ITEMS = 1 << 20  # summed at a time, so that no rank makes a temporary copy of the whole
PICKLE_LIMIT_BYTES = 2**31 - 1  # the largest MPI 3 message, and so the largest pickle that comm.bcast can send


def main(args: Sequence[str] | None = None) -> int:
    """The job, with `words` in place of the command line's; returns 0 when all ranks agree."""
    comm = MPI.COMM_WORLD
    options = parse_options(args)
    array = on_root(comm, lambda: read(options))
    shared, times = timed(comm, lambda: ms.share(array))
    norms = comm.allgather(two_norm(shared).hex())
    if comm.rank == 0:
        describe(shared, times)
        print(f"2-norm {float.fromhex(norms[0])!r}: {agreement(norms)}")
    compare(comm, array, shared, max(times))
    return 0 if len(set(norms)) == 1 else 1


def parse_options(args: Sequence[str] | None) -> argparse.Namespace:
    """The command line, the same on every rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--data", metavar="FILE.npy", help="the array to share; only rank 0 reads the file")
    source.add_argument("--shape", default="512,512", help="share random float64 of this shape (default: %(default)s)")
    return parser.parse_args(args)


def read(options: argparse.Namespace) -> np.ndarray[Any, Any]:
    """The array, on the root."""
    if options.data:
        array = np.asarray(np.load(options.data, allow_pickle=False))
        if array.dtype.kind not in "biufc":
            raise ValueError(f"{options.data} holds {array.dtype}; the 2-norm takes numbers")
        return array
    shape = tuple(int(length) for length in options.shape.split(","))
    return np.random.default_rng(2013).standard_normal(shape)


def on_root(comm: MPI.Intracomm, build: Callable[[], Any]) -> Any:
    """What `build` returns on rank 0, None elsewhere; where it fails, every rank ends with its words."""
    built, args = None, None
    if comm.rank == 0:
        try:
            built = build()
        except Exception as error:  # whatever it is, the others wait for word of it
            args = f"broadcast: {type(error).__name__}: {error}"
    args = comm.bcast(args)
    if args is not None:
        raise SystemExit(args if comm.rank == 0 else 1)
    return built


def two_norm(array: np.ndarray[Any, Any]) -> float:
    """The square root of the sum of squares of all items, block by block in memory order."""
    flat = array.ravel(order="K")
    blocks = (flat[start : start + BLOCK_ITEMS] for start in range(0, flat.size, BLOCK_ITEMS))
    return math.sqrt(math.fsum(float(np.sum(np.square(np.abs(block), dtype=float))) for block in blocks))


def timed(comm: MPI.Intracomm, work: Callable[[], Any]) -> tuple[Any, list[float]]:
    """What `work` returns, and the seconds until each rank had it."""
    comm.Barrier()
    start = time.perf_counter()
    result = work()
    return result, comm.allgather(time.perf_counter() - start)


def describe(shared: np.ndarray[Any, Any], times: list[float]) -> None:
    """One line for each node."""
    nodes = ms.topology()
    print(f"shared {shared.shape} {shared.dtype}, {shared.nbytes:,} bytes, from rank 0 in {max(times) * 1e3:.1f} ms")
    for node, host in enumerate(nodes.hosts):
        ranks = nodes.ranks_of(node)
        print(
            f"  node {node} ({host}), ranks {', '.join(map(str, ranks))}: {shared.nbytes:,} bytes held once, "
            f"{shared.nbytes * len(ranks):,} with one copy per rank, {max(times[rank] for rank in ranks) * 1e3:.1f} ms"
        )


def agreement(norms: list[str]) -> str:
    """Whether all ranks have rank 0's bits, in words."""
    wrong = [rank for rank, norm in enumerate(norms) if norm != norms[0]]
    return f"ranks {wrong} differ from rank 0" if wrong else f"all {len(norms)} ranks agree with rank 0 bit for bit"


def compare(comm: MPI.Intracomm, array: Any, shared: np.ndarray[Any, Any], seconds: float) -> None:
    """Moves the same data in two other ways and prints their times."""
    private = array if comm.rank == 0 else np.empty_like(shared)
    ways = {"one buffer a rank, comm.Bcast": lambda: comm.Bcast([private.ravel(order="K").view("u1"), MPI.BYTE])}
    if shared.nbytes < PICKLE_LIMIT_BYTES:
        ways = {"a pickle a rank, comm.bcast": lambda: comm.bcast(array), **ways}
    for name, way in ways.items():
        other = max(timed(comm, way)[1])
        if comm.rank == 0:
            print(f"  {name}: {other * 1e3:.1f} ms, {other / seconds:.1f} times as long as share")


if __name__ == "__main__":
    raise SystemExit(main())
