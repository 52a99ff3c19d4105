"""Ports read_map of PySM: a sky map from a FITS file, of which each rank takes its pixels, with the unit of the file.

    mpiexec -n 4 python -m jobs.ports.pysm_read_map --nside 512
    mpiexec -n 4 python -m jobs.ports.pysm_read_map --data dust.fits --nside 256

PySM (pysm3/models/template.py) reads the map on rank 0, brings it to another resolution, and shares it by a window of
each node, which is freed when each rank has copied its pixels. Without --data a map is made. Needs healpy, which brings
astropy. Where PySM is installed, its own function is measured as well.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import healpy
import numpy as np
from astropy.io import fits
from astropy.units import Quantity
from mpi4py import MPI
from numpy.typing import NDArray

import mpishare as ms

try:
    import pysm3
except ImportError:
    pysm3 = None
from jobs.ports.figures import Way, arguments, compare

world = MPI.COMM_WORLD


def read(path: Path, nside: int) -> tuple[NDArray[Any], str]:
    """The map at that resolution, in RING order, and its unit. Both ways read so, on rank 0."""
    values = healpy.read_map(path, dtype=None, memmap=True)  # one copy less in healpy than PySM, without `memmap`, has
    dtype = values.dtype.newbyteorder("=")
    if nside != healpy.get_nside(values):
        values = healpy.ud_grade(values.astype(float), nside)
    return values.astype(dtype, copy=False), fits.getval(path, "TUNIT1", ext=1)


def by_hand(path: Path, nside: int, pixels: NDArray[Any]) -> Any:
    """This rank's pixels of the map, which travels through a window of each node."""
    dtype, unit, shape = None, None, None
    if world.rank == 0:
        values, unit = read(path, nside)
        dtype, shape = values.dtype, values.shape
    dtype, unit, shape = world.bcast((dtype, unit, shape))
    node: Any = world.Split_type(MPI.COMM_TYPE_SHARED)
    leaders = world.Split(0 if node.rank == 0 else MPI.UNDEFINED)
    nbytes = int(np.prod(shape)) * dtype.itemsize
    window = MPI.Win.Allocate_shared(nbytes if node.rank == 0 else 0, dtype.itemsize, comm=node)
    memory: Any = window.Shared_query(0)[0]
    shared = np.frombuffer(memory, dtype).reshape(shape)
    if world.rank == 0:
        shared[...] = values
    if node.rank == 0:
        leaders.Bcast(shared)
        leaders.Free()
    world.Barrier()
    own = shared[..., pixels]
    del shared, memory
    window.Free()
    node.Free()
    return Quantity(own, unit, copy=False)


def by_mpishare(path: Path, nside: int, pixels: NDArray[Any]) -> Any:
    """This rank's pixels of the map, which is once on each node."""
    return ms.share(call=lambda: Quantity(*read(path, nside), copy=False))[..., pixels]


def main(args: Sequence[str] | None = None) -> int:
    """Compares both; returns 0 when they give the same bits."""
    parser = arguments(__doc__)
    parser.add_argument("--data", type=Path, metavar="FILE.fits", help="a HEALPix map")
    parser.add_argument("--nside", type=int, default=512, help="the resolution (default: %(default)s)")
    options = parser.parse_args(args)
    with tempfile.TemporaryDirectory() as folder:
        path = world.bcast(options.data or Path(folder, "map.fits"))
        if world.rank == 0 and options.data is None:
            values = np.random.default_rng(2022).standard_normal(12 * options.nside**2, np.float32)
            healpy.write_map(path, values, column_units="uK", dtype=values.dtype)
        world.Barrier()
        request = path, options.nside, np.r_[ms.partition(12 * options.nside**2)]
        ways: dict[str, Way] = {}
        if pysm3 is not None:
            spread = pysm3.MapDistribution(pixel_indices=request[2], mpi_comm=world)
            ways["PySM"] = Way([], lambda: pysm3.models.template.read_map(str(path), options.nside, map_dist=spread))
        ways["by hand"] = Way([by_hand], lambda: by_hand(*request))
        ways["mpishare"] = Way([by_mpishare], lambda: by_mpishare(*request))
        status = compare("PySM, read_map", 48 * options.nside**2, ways, options)
        world.Barrier()
    return status


if __name__ == "__main__":
    raise SystemExit(main())
