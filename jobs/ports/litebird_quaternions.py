"""Ports the shared quaternions of litebird_sim: how a spinning spacecraft points at each time, once on each node.

    mpiexec -n 4 python -m jobs.ports.litebird_quaternions --days 30

litebird_sim (Simulation.set_scanning_strategy, litebird_sim/shared_memory.py) computes the quaternions on one rank of
each node, copies them to a window, and warns at the next call that the window stays until the program ends. Only the
rank that computed them may write to them. Where litebird_sim is installed, its own class is measured as well.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import mpishare as ms

try:
    from litebird_sim.shared_memory import SharedMemoryManager
except ImportError:
    SharedMemoryManager = None
from jobs.ports.figures import Way, arguments, compare, free_windows, windows

STEP_S = 2.0  # between two quaternions, as litebird_sim has by default
DAY_S = 86400
YEAR_S = 365.25 * DAY_S
PRECESSION_S = 192.348 * 60
SPIN_SUN_ANGLE = np.deg2rad(45)
BLOCK = 4096  # quaternions that are computed at once

world = MPI.COMM_WORLD
node: Any = world.Split_type(MPI.COMM_TYPE_SHARED)


def point(quats: NDArray[Any], first: int = 0) -> None:
    """Writes the quaternions from number `first` on: about z by the precession, about y, about z by the year."""
    for start in range(0, len(quats), BLOCK):
        block = quats[start : start + BLOCK]
        times = (first + start + np.arange(len(block))) * STEP_S
        year, precession = np.pi * times / YEAR_S, np.pi * times / PRECESSION_S  # half of each angle
        block[:, 0] = np.sin(SPIN_SUN_ANGLE / 2) * np.sin(precession - year)
        block[:, 1] = np.sin(SPIN_SUN_ANGLE / 2) * np.cos(precession - year)
        block[:, 2] = np.cos(SPIN_SUN_ANGLE / 2) * np.sin(precession + year)
        block[:, 3] = np.cos(SPIN_SUN_ANGLE / 2) * np.cos(precession + year)


def computed(count: int) -> NDArray[Any]:
    """All quaternions, in memory of this rank."""
    quats = np.empty((count, 4))
    point(quats)
    return quats


def by_hand(count: int) -> NDArray[Any]:
    """The quaternions, which the first rank of each node computes and copies to a window."""
    quats = computed(count) if node.rank == 0 else None
    shape, dtype = node.bcast(None if quats is None else (quats.shape, quats.dtype))
    nbytes = int(np.prod(shape)) * dtype.itemsize
    window = MPI.Win.Allocate_shared(nbytes if node.rank == 0 else 0, dtype.itemsize, comm=node)
    windows.append(window)
    memory: Any = window.Shared_query(0)[0]
    shared: NDArray[Any] = np.ndarray(shape, dtype, memory)
    window.Fence()
    if quats is not None:
        shared[:] = quats
    window.Fence()
    shared.flags.writeable = node.rank == 0
    return shared


def by_mpishare(count: int) -> NDArray[Any]:
    """The quaternions, of which each rank of a node computes some where all read them."""
    quats = ms.empty((count, 4))
    own = ms.partition(count, scope="node")
    point(quats[own], own.start)
    ms.fence()
    quats.flags.writeable = False
    return quats


def by_litebird_sim(count: int) -> dict[str, Way]:
    """The way of litebird_sim with its own class, if it is installed."""
    if SharedMemoryManager is None:
        return {}
    manager = SharedMemoryManager(world)

    def original() -> Any:
        is_root = manager.node_rank == manager.node_root
        quats = computed(count) if is_root else None
        flat, window = manager.alloc_shared_node(4 * count, np.float64)
        shared = flat.reshape(count, 4)
        window.Fence()
        if is_root:
            shared[:] = quats
        window.Fence()
        return shared

    return {"litebird_sim": Way([], original)}


def main(args: Sequence[str] | None = None) -> int:
    """Compares both; returns 0 when they give the same bits."""
    parser = arguments(__doc__)
    parser.add_argument("--days", type=float, default=30, help="of observation (default: %(default)s)")
    options = parser.parse_args(args)
    count = int(options.days * DAY_S / STEP_S) + 1
    ways = {
        **by_litebird_sim(count),
        "by hand": Way([by_hand, free_windows], lambda: by_hand(count), free_windows),
        "mpishare": Way([by_mpishare], lambda: by_mpishare(count)),
    }
    return compare("litebird_sim, quaternions", 32 * count, ways, options)


if __name__ == "__main__":
    raise SystemExit(main())
