"""Ports the memory of dispersion of elphmod: eigenvectors of all k points on every rank, once on each node.

    mpiexec -n 4 python -m jobs.ports.elphmod_dispersion --points 4000

elphmod (elphmod/dispersion.py, elphmod/MPI.py) diagonalizes the points of each rank into an array of this rank, gathers
them on rank 0 in shared memory, and sends them to the other nodes. Each array takes two splits of the communicator and
a window, and neither is freed. Here the matrix is a chain of atoms with random couplings to its neighbours. Where
elphmod is installed, its own function is measured as well.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import mpishare as ms

try:
    import elphmod
except ImportError:
    elphmod = None
from jobs.ports.figures import Way, arguments, compare, free_windows, windows

Matrix = Callable[..., NDArray[Any]]

world = MPI.COMM_WORLD


def chain(bands: int) -> Matrix:
    """The Hamiltonian of a chain of cells with so many orbitals: on site, and to the next cell."""
    on_site, hops = np.random.default_rng(2017).standard_normal((2, bands, bands))

    def matrix(k: float = 0.0) -> NDArray[Any]:
        half = on_site + hops * np.exp(1j * k)
        hermitian: NDArray[Any] = half + half.conj().T
        return hermitian

    return matrix


def diagonalize(matrix: Matrix, k: NDArray[Any], vectors: NDArray[Any]) -> None:
    """Writes the eigenvectors at the points k to `vectors`. Both ways call it, for the points of each rank."""
    for place, point in enumerate(k):
        vectors[place] = np.linalg.eigh(matrix(point))[1]


def shared(shape: tuple[int, ...], dtype: Any) -> tuple[Any, Any, NDArray[Any]]:
    """An array in a window of each node, the ranks of the node, and the ranks of this place on all nodes."""
    node: Any = world.Split_type(MPI.COMM_TYPE_SHARED, key=world.rank)
    images = world.Split(node.rank, key=world.rank)
    itemsize = np.dtype(dtype).itemsize
    nbytes = int(np.prod(shape)) * itemsize
    window = MPI.Win.Allocate_shared(nbytes if node.rank == 0 else 0, itemsize, comm=node)
    windows.append(window)
    memory: Any = window.Shared_query(0)[0]
    return node, images, np.ndarray(shape, dtype, memory)


def by_hand(matrix: Matrix, k: NDArray[Any], bands: int) -> NDArray[Any]:
    """The eigenvectors of all points: each rank's own, gathered in a window, which travels to the other nodes."""
    counts = [len(part) for part in np.array_split(k, world.size)]
    first = sum(counts[: world.rank])
    own = np.empty((counts[world.rank], bands, bands), complex)
    diagonalize(matrix, k[first : first + len(own)], own)
    node, images, vectors = shared((len(k), bands, bands), complex)
    world.Gatherv(own, (vectors, [count * bands**2 for count in counts]))
    if node.rank == 0:
        images.Bcast(vectors)
    node.Barrier()
    images.Free()
    node.Free()
    return vectors


def by_mpishare(matrix: Matrix, k: NDArray[Any], bands: int) -> NDArray[Any]:
    """The eigenvectors of all points, of which each rank writes its own in place."""
    vectors = ms.empty((len(k), bands, bands), complex)
    own = ms.partition(len(k))
    diagonalize(matrix, k[own], vectors[own])
    return ms.allgather(vectors[own], out=vectors)


def by_elphmod(matrix: Matrix, k: NDArray[Any]) -> dict[str, Way]:
    """The way of elphmod itself, if it is installed."""
    if elphmod is None:
        return {}
    elphmod.misc.verbosity = 0  # no bar of progress
    options = {"vectors": True, "shared_memory": True}
    return {"elphmod": Way([], lambda: elphmod.dispersion.dispersion(matrix, k, **options)[1])}


def main(args: Sequence[str] | None = None) -> int:
    """Compares both; returns 0 when they give the same bits."""
    parser = arguments(__doc__)
    parser.add_argument("--points", type=int, default=2000, help="of k (default: %(default)s)")
    parser.add_argument("--bands", type=int, default=48, help="of each point (default: %(default)s)")
    options = parser.parse_args(args)
    matrix, k = chain(options.bands), np.linspace(0, np.pi, options.points)
    request = matrix, k, options.bands
    ways = {
        **by_elphmod(matrix, k),
        "by hand": Way([shared, by_hand, free_windows], lambda: by_hand(*request), free_windows),
        "mpishare": Way([by_mpishare], lambda: by_mpishare(*request)),
    }
    return compare("elphmod, dispersion", 16 * options.points * options.bands**2, ways, options)


if __name__ == "__main__":
    raise SystemExit(main())
