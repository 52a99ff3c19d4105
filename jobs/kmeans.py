"""Finds clusters among points by Lloyd's k-means, from one copy of the points per node and compiled loops over them.

    mpiexec -n 4 python jobs/kmeans.py
    mpiexec -n 4 python jobs/kmeans.py --data points.npy --clusters 16 --output found.npz --json

Each rank finds the nearest center for its part of the points; the sums of what belongs to each center come together on
all ranks by allreduce. Rank 0 then does the same alone: labels must be equal, and centers, but for the order of
additions. A cluster that loses all its points keeps its center. Needs numba.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI
from numba import njit
from numpy.typing import NDArray

import mpishare as ms

Array = NDArray[Any]


def main(args: Sequence[str] | None = None) -> int:
    """The job, with `words` in place of the command line's; returns 0 when one rank alone finds the same."""
    comm, options = MPI.COMM_WORLD, parse_options(args)
    points = read(comm, options)
    chosen = np.random.default_rng(options.seed).choice(len(points), options.clusters, replace=False)
    start, begin = points[chosen].astype(float), time.perf_counter()
    labels, centers, rounds = clusters(comm, points, start, options)
    seconds, parts = time.perf_counter() - begin, comm.gather(labels)
    is_same = True
    if comm.rank == 0 and parts is not None:
        all_labels = np.concatenate(parts)
        alone, expected, _ = clusters(MPI.COMM_SELF, points, start, options)
        is_same = np.array_equal(all_labels, alone) and np.allclose(centers, expected, rtol=1e-10)
        if options.output:
            np.savez(options.output, labels=all_labels, centers=centers, start=start)
        tell(
            options, {"ranks": comm.size, "points": len(points), "rounds": rounds, "seconds": seconds, "same": is_same}
        )
    return 0 if comm.bcast(is_same) else 1


def parse_options(args: Sequence[str] | None) -> argparse.Namespace:
    """The command line, the same on every rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="FILE.npy", help="points, one a row; without it some are made")
    parser.add_argument("--points", type=int, default=200_000, help="how many are made (default: %(default)s)")
    parser.add_argument("--dims", type=int, default=8, help="of how many numbers each (default: %(default)s)")
    parser.add_argument("--clusters", type=int, default=10, help="clusters to find (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=300, help="rounds at most (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=2013, help="of the points and of the start (default: %(default)s)")
    parser.add_argument("--output", metavar="FILE.npz", help="where to write labels, centers and start")
    parser.add_argument("--progress", action="store_true", help="tell after each round how many points moved")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(args)
    if min(options.points, options.dims, options.clusters, options.rounds) < 1 or options.seed < 0:
        parser.error("--points, --dims, --clusters and --rounds take 1 or more, --seed 0 or more")
    return options


def read(comm: MPI.Intracomm, options: argparse.Namespace) -> Array:
    """The points, one copy per node; where they cannot be had, every rank ends with the words."""
    try:
        points: Array = ms.load(options.data) if options.data else ms.share(made(options) if comm.rank == 0 else None)
        if points.ndim != 2 or points.dtype.kind not in "iuf" or options.clusters > len(points):
            raise ValueError(
                f"{options.clusters} clusters of {points.dtype} {points.shape}: points are rows of numbers"
            )
        if not np.isfinite(points).all():
            raise ValueError(f"{options.data} has values that are not finite: these are near no center")
    except (ValueError, ms.MpishareError) as error:
        message = f"kmeans: {type(error).__name__}: {error}"
        raise SystemExit(message if comm.rank == 0 else 1) from error
    return points


def made(options: argparse.Namespace) -> Array:
    """Points around as many places as there are clusters to find."""
    rng = np.random.default_rng(options.seed)
    places = rng.uniform(-10, 10, (options.clusters, options.dims))
    points: Array = places[np.arange(options.points) % len(places)]
    return points + rng.standard_normal(points.shape)


def clusters(comm: MPI.Intracomm, points: Array, start: Array, options: argparse.Namespace) -> tuple[Array, Array, int]:
    """The labels of this rank's points, the centers, and the number of rounds until no point moved."""
    own = points[ms.partition(len(points), comm=comm)]
    labels, centers = np.full(len(own), -1, np.int32), start.copy()
    for number in range(1, options.rounds + 1):
        sums = np.zeros((len(centers), centers.shape[1] + 2))  # of points, then their number, then how many came
        assign(own, centers, labels, sums)
        total = ms.allreduce(sums, comm=comm)
        count, moved = total[:, -2:-1], int(total[:, -1].sum())
        centers = np.where(count > 0, total[:, :-2] / np.maximum(count, 1), centers)
        if options.progress and MPI.COMM_WORLD.rank == 0:
            print(f"round {number} on {comm.size} ranks: {moved:,} points moved", file=sys.stderr, flush=True)
        if moved == 0:
            break
    return labels, centers, number


@njit(nogil=True)
def assign(points: Array, centers: Array, labels: Array, sums: Array) -> None:
    """Labels each point with its nearest center, and adds it to the sums of that."""
    for row in range(len(points)):
        nearest, least = 0, np.inf
        for center in range(len(centers)):
            distance = 0.0
            for column in range(points.shape[1]):
                distance += (points[row, column] - centers[center, column]) ** 2
            if distance < least:
                nearest, least = center, distance
        for column in range(points.shape[1]):
            sums[nearest, column] += points[row, column]
        sums[nearest, -2] += 1
        sums[nearest, -1] += labels[row] != nearest
        labels[row] = nearest


def tell(options: argparse.Namespace, figures: dict[str, Any]) -> None:
    """Prints the figures."""
    verdict = "one rank alone finds the same" if figures["same"] else "ONE RANK ALONE FINDS OTHERS"
    if options.json:
        print(json.dumps(figures))
    else:
        print(
            f"{options.clusters} clusters of {figures['points']:,} points in {figures['rounds']} rounds on "
            f"{figures['ranks']} ranks, {figures['seconds']:.2f} s: {verdict}"
        )


if __name__ == "__main__":
    sys.exit(main())
