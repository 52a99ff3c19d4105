"""Ports _shared_bcast_ndarray of anuga: the nodes, triangles and neighbours of a mesh on every rank, once on each node.

    mpiexec -n 4 python -m jobs.ports.anuga_shared_bcast --triangles 1000000

anuga (anuga/parallel/parallel_api.py) distributes a mesh so: rank 0 has it, and every rank takes its own part out of
the shared arrays before it frees the windows. An error on one rank alone leaves the others in a Bcast. Where anuga is
installed, its own function is measured as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import mpishare as ms

try:
    from anuga.parallel.parallel_api import _shared_bcast_ndarray as original
except ImportError:
    original = None
from jobs.ports.figures import Way, arguments, compare, free_windows, windows

Arrays = tuple[NDArray[Any], ...]

world = MPI.COMM_WORLD
node: Any = world.Split_type(MPI.COMM_TYPE_SHARED)


def by_hand(array: NDArray[Any] | None) -> NDArray[Any]:
    """The root's array, through a window of each node."""
    shape, dtype = world.bcast(None if array is None else (array.shape, array.dtype))
    size = int(np.prod(shape)) * dtype.itemsize
    window = MPI.Win.Allocate_shared(size if node.rank == 0 else 0, dtype.itemsize, comm=node)
    windows.append(window)
    memory: Any = window.Shared_query(0)[0]
    shared: NDArray[Any] = np.ndarray(shape, dtype, memory)
    leaders = world.Split(0 if node.rank == 0 else MPI.UNDEFINED, world.rank)
    if world.rank == 0:
        shared[...] = array
    if node.rank == 0:
        leaders.Bcast(shared)
        leaders.Free()
    node.Barrier()
    return shared


def by_mpishare(array: NDArray[Any] | None) -> NDArray[Any]:
    """The root's array, once on each node. anuga's compiled functions take no read-only array, but change none."""
    return ms.share(array, writable="private")


def by_anuga(array: NDArray[Any] | None) -> NDArray[Any]:
    """The function of anuga itself."""
    shared: NDArray[Any]
    shared, window = original(array, world, node)
    windows.append(window)
    return shared


def mesh_of(triangles: int) -> Arrays:
    """A strip of triangles, of which each two have an edge in common: "nodes", "triangles" and "neighbours"."""
    corners = np.arange(triangles)[:, np.newaxis] + np.arange(3)
    neighbours = np.arange(triangles)[:, np.newaxis] + (-1, 1, triangles)
    places = np.random.default_rng(2026).standard_normal((triangles + 2, 2))
    return places, corners, np.where(neighbours < triangles, neighbours, -1)


def main(args: Sequence[str] | None = None) -> int:
    """Compares both; returns 0 when they give the same bits."""
    parser = arguments(__doc__)
    parser.add_argument("--triangles", type=int, default=1_000_000, help="of the mesh (default: %(default)s)")
    options = parser.parse_args(args)
    mesh = mesh_of(options.triangles) if world.rank == 0 else (None, None, None)

    def shared(way: Callable[[Any], NDArray[Any]]) -> Arrays:
        return tuple(way(array) for array in mesh)

    ways = {
        **({"anuga": Way([], partial(shared, by_anuga), free_windows)} if original else {}),
        "by hand": Way([by_hand, free_windows], partial(shared, by_hand), free_windows),
        "mpishare": Way([by_mpishare], partial(shared, by_mpishare)),
    }
    return compare("anuga, _shared_bcast_ndarray", 64 * options.triangles + 32, ways, options)


if __name__ == "__main__":
    raise SystemExit(main())
