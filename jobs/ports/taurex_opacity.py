"""Ports the opacities of TauREx: the cross sections of a molecule, from an HDF5 file to all ranks, once on each node.

    mpiexec -n 4 python -m jobs.ports.taurex_opacity --wavenumbers 30000
    mpiexec -n 4 python -m jobs.ports.taurex_opacity --data H2O.h5

TauREx (taurex/opacity/hdf5opacity.py, taurex/mpi.py) reads dataset "xsecarr", float64 by pressure, temperature and
wavenumber, on every rank, and then moves it to a window of the node (`mpi_use_shared`), which it never frees. Without
--data a file of that shape is made. Needs h5py. Where TauREx is installed, its own function is measured as well.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import mpishare as ms

try:
    from taurex.mpi import allocate_as_shared
except ImportError:
    allocate_as_shared = None
from jobs.ports.figures import Way, arguments, compare, free_windows, windows

DATASET = "xsecarr"
PRESSURES, TEMPERATURES = 22, 27  # as the tables of ExoMolOP have

world = MPI.COMM_WORLD
node: Any = world.Split_type(MPI.COMM_TYPE_SHARED)


def by_hand(path: Path) -> NDArray[Any]:
    """The cross sections, read by every rank and moved to a window of its node."""
    with h5py.File(path) as file:
        array: NDArray[Any] = file[DATASET][()]
    window = MPI.Win.Allocate_shared(array.nbytes if node.rank == 0 else 0, array.itemsize, comm=node)
    windows.append(window)
    memory: Any = window.Shared_query(0)[0]
    shared: NDArray[Any] = np.frombuffer(memory, array.dtype).reshape(array.shape)
    if node.rank == 0:
        np.copyto(shared, array)
    node.Barrier()
    return shared


def by_mpishare(path: Path) -> Any:
    """The cross sections, of which each byte is read once."""
    return ms.load(path, DATASET)


def by_taurex(path: Path) -> dict[str, Way]:
    """The way of TauREx itself, if it is installed."""

    def original() -> Any:
        with h5py.File(path) as file:
            return allocate_as_shared(file[DATASET][()], force_shared=True)

    return {"TauREx": Way([], original)} if allocate_as_shared else {}


def main(args: Sequence[str] | None = None) -> int:
    """Compares both; returns 0 when they give the same bits."""
    parser = arguments(__doc__)
    parser.add_argument("--data", type=Path, metavar="FILE.h5", help="a table of ExoMolOP")
    parser.add_argument("--wavenumbers", type=int, default=10_000, help="if it is made (default: %(default)s)")
    options = parser.parse_args(args)
    with tempfile.TemporaryDirectory() as folder:
        path = world.bcast(options.data or Path(folder, "table.h5"))
        if world.rank == 0 and options.data is None:
            with h5py.File(path, "w") as file:
                shape = PRESSURES, TEMPERATURES, options.wavenumbers
                file[DATASET] = np.random.default_rng(2021).random(shape) * 1e-20
        world.Barrier()
        with h5py.File(path) as file:
            nbytes = file[DATASET].nbytes
        ways = {
            **by_taurex(path),
            "by hand": Way([by_hand], lambda: by_hand(path), free_windows),
            "mpishare": Way([by_mpishare], lambda: by_mpishare(path)),
        }
        status = compare("TauREx, xsecarr", nbytes, ways, options)
        world.Barrier()
    return status


if __name__ == "__main__":
    raise SystemExit(main())
