"""Shares an array with every rank, one copy per node. Each rank computes its 2-norm, and all must agree to the bit.

    mpiexec -n 4 python jobs/broadcast.py --data table.npy
    mpiexec -n 4 python jobs/broadcast.py --shape 512,512

Prints what each node holds, what one copy per rank would take, and the time beside mpi4py's two broadcasts.

Your own data: --data takes a .npy file; read another format in `read`, which only rank 0 calls.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

import mpishare as ms

comm = MPI.COMM_WORLD


def main(args: Sequence[str] | None = None) -> None:
    """The job. An error on any rank ends it, also where the ranks differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="FILE.npy", help="the array to share; only rank 0 reads the file")
    parser.add_argument("--shape", default="512,512", help="share random float64 of this shape (default: %(default)s)")
    options = ms.share(call=lambda: parser.parse_args(args))  # rank 0 alone prints the usage
    shared = ms.share(call=lambda: read(options))
    norms = comm.allgather(two_norm(shared).hex())
    if len(set(norms)) > 1:
        raise SystemExit(f"the ranks have the 2-norms {norms}")
    if comm.rank == 0:
        describe(shared)
        print(f"2-norm {float.fromhex(norms[0])!r}: all {comm.size} ranks agree bit for bit")
    compare(shared)


def read(options: argparse.Namespace) -> np.ndarray[Any, Any]:
    """The array."""
    if options.data is None:
        return np.random.default_rng(2013).standard_normal([int(length) for length in options.shape.split(",")])
    array = np.asarray(np.load(options.data, allow_pickle=False))
    if array.dtype.kind not in "biufc":
        raise ValueError(f"{options.data} holds {array.dtype}; the 2-norm takes numbers")
    return array


def two_norm(array: np.ndarray[Any, Any], block: int = 1 << 20) -> float:
    """The square root of the sum of squares of all items, without a temporary copy of the whole."""
    flat = array.ravel(order="K")
    blocks = (flat[start : start + block] for start in range(0, flat.size, block))
    return math.sqrt(math.fsum(float(np.sum(np.square(np.abs(items), dtype=float))) for items in blocks))


def describe(shared: np.ndarray[Any, Any]) -> None:
    """The memory of each node."""
    nodes = ms.topology()
    print(f"{shared.shape} {shared.dtype}, {shared.nbytes:,} bytes, shared from rank 0")
    for node, host in enumerate(nodes.hosts):
        ranks = nodes.ranks_of(node)
        held = f"{shared.nbytes:,} bytes held once, {shared.nbytes * len(ranks):,} with one copy per rank"
        print(f"  node {node} ({host}), ranks {', '.join(map(str, ranks))}: {held}")


def compare(shared: np.ndarray[Any, Any]) -> None:
    """Times three ways to give every rank the array, in an order by chance. The first round is to warm up."""
    array = np.array(shared)
    ways: dict[str, Callable[[], Any]] = {
        "share, one copy per node": lambda: ms.share(array),
        "comm.Bcast, into its own buffer": lambda: comm.Bcast([array.ravel(order="K").view("u1"), MPI.BYTE]),
    }
    if shared.nbytes < 2**31 - 1:  # the largest message of MPI 3
        ways["comm.bcast, pickled"] = lambda: comm.bcast(array)
    chance = np.random.default_rng(0)  # the same order on all ranks
    rounds = [{name: seconds(ways[name]) for name in chance.permutation([*ways]).tolist()} for _ in range(8)][1:]
    if comm.rank == 0:
        print(f"until every rank has it, median of {len(rounds)}:")
        for name in ways:
            print(f"  {name}: {statistics.median(times[name] for times in rounds) * 1e3:.1f} ms")
        print(f"array: {ms.report().summary}")


def seconds(way: Callable[[], Any]) -> float:
    """How long the slowest rank takes."""
    comm.Barrier()
    start = time.perf_counter()
    way()
    return float(comm.allreduce(time.perf_counter() - start, MPI.MAX))


if __name__ == "__main__":
    main()
