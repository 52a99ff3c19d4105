"""Ports get_generic_integrals of ipie: the integrals of a molecule from an HDF5 file, once on each node.

    mpiexec -n 4 python -m jobs.ports.ipie_integrals --orbitals 96
    mpiexec -n 4 python -m jobs.ports.ipie_integrals --data afqmc.h5

ipie (ipie/hamiltonians/utils.py, ipie/utils/mpi.py) reads integrals on the first rank of each node, copies each array
to a window, and computes a third one there. Each array takes a window that is never freed, as does each question
whether there is shared memory. Without --data a file of that form is made. Needs h5py. Where ipie is installed, its own
function is measured as well.
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
    from ipie.hamiltonians.utils import get_generic_integrals
except ImportError:
    get_generic_integrals = None
from jobs.ports.figures import Way, arguments, compare, free_windows, windows

CHOLESKY = "Hamiltonian/DenseFactorized/L"  # of the dense form of QMCPACK
HCORE = "Hamiltonian/hcore"
ENERGIES = "Hamiltonian/Energies"

Integrals = tuple[NDArray[Any], NDArray[Any], NDArray[Any], float]

world = MPI.COMM_WORLD
node: Any = world.Split_type(MPI.COMM_TYPE_SHARED)


def numbers(stored: NDArray[Any]) -> NDArray[Any]:
    """A view of real numbers as they are, and of pairs of them, with one axis more, as complex ones."""
    return stored if stored.ndim == 2 else stored.view(complex)[..., 0]


def modified(hcore: NDArray[Any], cholesky: NDArray[Any]) -> Any:
    """The one-body integrals less what the order of the two-body operators adds. Both ways call it."""
    wide = cholesky.reshape(len(hcore), -1)
    return hcore - 0.5 * np.dot(wide, wide.T.conj())


def shared(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """An array in a window of the node."""
    itemsize = np.dtype(dtype).itemsize
    nbytes = int(np.prod(shape)) * itemsize
    window = MPI.Win.Allocate_shared(nbytes if node.rank == 0 else 0, itemsize, comm=node)
    windows.append(window)
    memory: Any = window.Shared_query(0)[0]
    return np.ndarray(shape, dtype, memory)


def by_hand(path: Path) -> Integrals:
    """Of both spins the one-body integrals, the Cholesky vectors, the modified ones of both spins, and the energy."""
    shapes, dtype, energy = None, None, None
    if node.rank == 0:
        with h5py.File(path) as file:
            hcore, cholesky = numbers(file[HCORE][()]), numbers(file[CHOLESKY][()])
            energy = float(file[ENERGIES][0])
        shapes, dtype = (hcore.shape, cholesky.shape), cholesky.dtype
    shapes, dtype, energy = node.bcast((shapes, dtype, energy))
    both, vectors = shared((2, *shapes[0]), dtype), shared(shapes[1], dtype)
    both_modified = shared(both.shape, dtype)
    if node.rank == 0:
        both[:] = hcore
        vectors[:] = cholesky
        both_modified[:] = modified(hcore, vectors)
    node.Barrier()
    return both, vectors, both_modified, energy


def one_body(path: Path, cholesky: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], float]:
    """All but the Cholesky vectors."""
    with h5py.File(path) as file:
        hcore, energy = numbers(file[HCORE][()]), float(file[ENERGIES][0])
    return np.stack([hcore] * 2), np.stack([modified(hcore, cholesky)] * 2), energy


def by_mpishare(path: Path, comm: MPI.Intracomm = world) -> Integrals:
    """The same, where each byte of the vectors is read once."""
    cholesky = numbers(ms.load(path, CHOLESKY, comm=comm))
    both, both_modified, energy = ms.share(call=lambda: one_body(path, cholesky), comm=comm)
    return both, cholesky, both_modified, energy


def by_ipie(path: Path) -> dict[str, Way]:
    """The way of ipie itself, if it is installed."""
    return {"ipie": Way([], lambda: get_generic_integrals(str(path), comm=node))} if get_generic_integrals else {}


def main(args: Sequence[str] | None = None) -> int:
    """Compares both; returns 0 when they give the same bits."""
    parser = arguments(__doc__)
    parser.add_argument("--data", type=Path, metavar="FILE.h5", help="in the dense form of QMCPACK")
    parser.add_argument("--orbitals", type=int, default=96, help="if it is made (default: %(default)s)")
    options = parser.parse_args(args)
    with tempfile.TemporaryDirectory() as folder:
        path = world.bcast(options.data or Path(folder, "integrals.h5"))
        if world.rank == 0 and options.data is None:
            write(path, options.orbitals)
        world.Barrier()
        with h5py.File(path) as file:
            nbytes = file[CHOLESKY].nbytes + 4 * file[HCORE].nbytes
        ways = {
            **by_ipie(path),
            "by hand": Way([shared, by_hand, free_windows], lambda: by_hand(path), free_windows),
            "mpishare": Way([by_mpishare], lambda: by_mpishare(path)),
        }
        status = compare("ipie, integrals", nbytes, ways, options)
        world.Barrier()
    return status


def write(path: Path, orbitals: int) -> None:
    """Makes a file of so many orbitals, with ten Cholesky vectors for each."""
    random = np.random.default_rng(2022)
    half = random.standard_normal((orbitals, orbitals))
    with h5py.File(path, "w") as file:
        file[HCORE] = half + half.T
        file[CHOLESKY] = random.standard_normal((orbitals**2, 10 * orbitals))
        file[ENERGIES] = [-1.0, 0.0]
        file["Hamiltonian/dims"] = [0, 0, 0, orbitals, 2, 2, 0, 10 * orbitals]


if __name__ == "__main__":
    raise SystemExit(main())
