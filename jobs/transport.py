"""Monte Carlo transport of neutrons through a slab, with cross-section tables of which each node has one copy.

    mpiexec -n 4 python jobs/transport.py
    mpiexec -n 4 python jobs/transport.py --data tables.npz --neutrons 10000000 --thickness 20

A neutron enters the slab at 2 MeV. Where it collides, and with which nuclide, follows from the tables at its energy.
Each neutron has random numbers of its own, so that the counts are the same on any number of ranks.

Your own data: --data takes a .npz file with "energy" in eV, rising, shape (n,); "scatter" and "capture" in 1/cm, shape
(n, nuclides); "mass" of the nuclides over the neutron's, shape (nuclides,). With --check, rank 0 follows all neutrons
alone, and the job fails where a count differs. Needs numba.
"""

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI
from numba import njit
from numpy.typing import NDArray

import mpishare as ms

Array = NDArray[Any]
TABLES = "energy", "scatter", "capture", "mass"
FATES = "come back", "pass", "are captured", "slow down to 1 eV"
SOURCE_EV, LEAST_EV = 2e6, 1.0

comm = MPI.COMM_WORLD


def main(args: Sequence[str] | None = None) -> None:
    """The job. An error on any rank ends it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="FILE.npz", help="the tables; without it some are made")
    parser.add_argument("--neutrons", type=int, default=100_000, help="how many (default: %(default)s)")
    parser.add_argument("--thickness", type=float, default=10.0, help="of the slab, in cm (default: %(default)s)")
    parser.add_argument("--check", action="store_true", help="compare with the same on rank 0 alone")
    options = ms.share(call=lambda: parser.parse_args(args))  # rank 0 alone prints the usage
    shared = ms.share(call=lambda: dict(np.load(options.data)) if options.data else make_tables())
    tables = tuple(shared[name] for name in TABLES)
    ms.share(call=lambda: count_fates(0, 0, options.thickness, tables))  # rank 0 compiles, for all that see its files
    own = ms.partition(options.neutrons)
    counts = ms.allreduce(count_fates(own.start, own.stop, options.thickness, tables))
    if comm.rank == 0:
        listed = ", ".join(f"{count:,} {fate}" for count, fate in zip(counts, FATES, strict=True))
        print(f"{options.neutrons:,} neutrons on {comm.size} ranks: {listed}")
        if options.check:
            np.testing.assert_array_equal(counts, count_fates(0, options.neutrons, options.thickness, tables))
            print("transport: as on one rank")
        print(f"tables: {ms.report().summary}")


def make_tables(nuclides: int = 8, points: int = 20_000, resonances: int = 50) -> dict[str, Array]:
    """Constant scattering and capture that falls with the speed, both with resonances."""
    rng = np.random.default_rng(1942)
    energy = np.geomspace(LEAST_EV, SOURCE_EV, points)
    scatter, capture = np.full((points, nuclides), 0.02), np.outer(0.01 / np.sqrt(energy), np.ones(nuclides))
    for nuclide in range(nuclides):
        for peak in np.exp(rng.uniform(0, np.log(SOURCE_EV), resonances)):
            resonance = 1 / (1 + ((energy - peak) / (0.01 * peak)) ** 2)
            scatter[:, nuclide] += resonance
            capture[:, nuclide] += 0.1 * resonance
    return {"energy": energy, "scatter": scatter, "capture": capture, "mass": np.arange(1.0, nuclides + 1) ** 2}


@njit(nogil=True, cache=True)
def count_fates(first: int, stop: int, thickness: float, tables: tuple[Array, ...]) -> Array:
    """How many of the neutrons from `first` to `stop` have which fate."""
    counts = np.zeros(len(FATES), np.int64)
    for neutron in range(first, stop):
        np.random.seed(neutron)  # numba's own generator, of this thread
        counts[fate_of_one(thickness, tables)] += 1
    return counts


@njit(nogil=True, cache=True)
def fate_of_one(thickness: float, tables: tuple[Array, ...]) -> int:
    """The index of a neutron's fate in FATES."""
    energy, scatter, capture, mass = tables
    place, direction, ev = 0.0, 1.0, SOURCE_EV
    while ev > LEAST_EV:
        right = np.searchsorted(energy[1:-1], ev) + 1
        weight = (ev - energy[right - 1]) / (energy[right] - energy[right - 1])
        scattered = np.cumsum((1 - weight) * scatter[right - 1] + weight * scatter[right])  # by the first nuclides
        captured = np.sum((1 - weight) * capture[right - 1] + weight * capture[right])  # by all
        place += direction * np.random.exponential(1 / (scattered[-1] + captured))
        if not 0 <= place <= thickness:
            return int(place > 0)
        chosen = np.random.random() * (scattered[-1] + captured)
        if chosen >= scattered[-1]:
            return 2
        heavy = mass[np.searchsorted(scattered, chosen)]
        direction, least = np.random.uniform(-1, 1), ((heavy - 1) / (heavy + 1)) ** 2
        ev *= least + (1 - least) * np.random.random()
    return 3


if __name__ == "__main__":
    main()
