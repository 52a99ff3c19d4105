"""Ports shared_mem_bcast of pyuvsim: an array of rank 0 on every rank, once on each node, read-only.

    mpiexec -n 4 python -m jobs.ports.pyuvsim_shared_mem_bcast --mib 64

pyuvsim (pyuvsim/mpi.py) shares its sky model so. All ranks call the function, the root with the array, the others with
None. What it returns is read-only, and the windows live until the end of the program. Where pyuvsim is installed, its
own function is measured as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import mpishare as ms

try:
    from pyuvsim import mpi as original
except ImportError:
    original = None
from jobs.ports.figures import Way, arguments, compare, free_windows, windows

MAX_COUNT = 2**31 - 1  # of MPI 3

world = MPI.COMM_WORLD
node: Any = world.Split_type(MPI.COMM_TYPE_SHARED)
across = world.Split(node.rank)


def by_hand(array: NDArray[Any] | None) -> NDArray[Any]:
    """The root's array, through a window of each node."""
    facts = world.bcast(None if array is None else (array.dtype, array.shape, array.nbytes))
    dtype, shape, nbytes = facts
    window = MPI.Win.Allocate_shared(nbytes if node.rank == 0 else 0, 1, comm=node)
    windows.append(window)
    memory: Any = window.Shared_query(0)[0]
    shared: NDArray[Any] = np.frombuffer(memory, dtype).reshape(shape)
    if world.rank == 0:
        shared[...] = array
    if node.rank == 0:
        block = np.frombuffer(memory, np.uint8)
        for start in range(0, nbytes, MAX_COUNT):
            across.Bcast([block[start : start + MAX_COUNT], MPI.BYTE])
    shared.flags.writeable = False
    world.Barrier()
    return shared


def by_mpishare(array: NDArray[Any] | None) -> NDArray[Any]:
    """The root's array, once on each node."""
    return ms.share(array)


def by_pyuvsim(array: NDArray[Any] | None) -> dict[str, Way]:
    """The way of pyuvsim itself, if it is installed."""
    if original is None:
        return {}
    original.start_mpi(block_nonroot_stdout=False)
    return {"pyuvsim": Way([], lambda: original.shared_mem_bcast(array), original.free_shared)}


def main(args: Sequence[str] | None = None) -> int:
    """Compares both; returns 0 when they give the same bits."""
    parser = arguments(__doc__)
    parser.add_argument("--mib", type=float, default=64, help="size of the array (default: %(default)s)")
    options = parser.parse_args(args)
    count = int(options.mib * (1 << 20)) // 24
    positions = np.random.default_rng(2018).standard_normal((count, 3)) if world.rank == 0 else None
    ways = {
        **by_pyuvsim(positions),
        "by hand": Way([by_hand, free_windows], lambda: by_hand(positions), free_windows),
        "mpishare": Way([by_mpishare], lambda: by_mpishare(positions)),
    }
    return compare("pyuvsim, shared_mem_bcast", 24 * count, ways, options)


if __name__ == "__main__":
    raise SystemExit(main())
