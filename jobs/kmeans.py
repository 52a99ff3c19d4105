"""Finds clusters among points by Lloyd's k-means, from one copy of the points per node and compiled loops over them.

    mpiexec -n 4 python jobs/kmeans.py
    mpiexec -n 4 python jobs/kmeans.py --data points.npy --clusters 16 --output clusters.npz

Each rank finds the nearest center of each of its points; allreduce adds up what belongs to each center. A cluster that
loses all its points keeps its center.

Your own data: --data takes a .npy file with a point a row. With --check, rank 0 does the same alone, and the job fails
where a label differs, or a center by more than the order of additions explains. Needs numba.
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

comm = MPI.COMM_WORLD


def main(args: Sequence[str] | None = None) -> None:
    """The job. An error on any rank ends it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="FILE.npy", help="points, one a row; without it some are made")
    parser.add_argument("--points", type=int, default=200_000, help="how many are made (default: %(default)s)")
    parser.add_argument("--clusters", type=int, default=10, help="how many to find (default: %(default)s)")
    parser.add_argument("--output", metavar="FILE.npz", help="where to write labels, centers and start")
    parser.add_argument("--plot", metavar="FILE.png", help="where to draw the clusters; needs matplotlib")
    parser.add_argument("--check", action="store_true", help="compare with the same on rank 0 alone")
    options = ms.share(call=lambda: parser.parse_args(args))  # rank 0 alone prints the usage
    points = ms.load(options.data) if options.data else ms.share(call=lambda: make_points(options))
    if points.ndim != 2 or options.clusters > len(points) or not np.isfinite(points.sum()):
        raise ValueError(f"{options.clusters} clusters of points {points.shape}: expected rows of finite numbers")
    chosen = np.random.default_rng(2013).choice(len(points), options.clusters, replace=False)
    start = points[chosen].astype(float)
    own_labels, centers, rounds = find_clusters(points, start, comm)
    labels = ms.gather(own_labels)
    if labels is None:  # not on rank 0
        return
    print(f"{options.clusters} clusters of {len(points):,} points in {rounds} rounds on {comm.size} ranks")
    if options.output:
        np.savez(options.output, labels=labels, centers=centers, start=start)
    if options.check:
        expected_labels, expected_centers, _ = find_clusters(points, start, MPI.COMM_SELF)
        np.testing.assert_array_equal(labels, expected_labels)
        np.testing.assert_allclose(centers, expected_centers, rtol=1e-10)
        print("kmeans: as on one rank")
    if options.plot:
        plot(points, labels, centers, options.plot)
    print(f"points: {ms.report().summary}")


def plot(points: Array, labels: Array, centers: Array, file: str) -> None:
    """Draws 900 of the points by their first two coordinates, in the colour of their cluster, and the centers."""
    from matplotlib.figure import Figure

    axes = (figure := Figure(layout="constrained")).subplots()
    few = np.random.default_rng(0).integers(len(points), size=900)
    axes.scatter(points[few, 0], points[few, 1], 4, labels[few], cmap="tab10")
    axes.plot(*centers[:, :2].T, "k+", markersize=14)
    axes.set(xlabel="first coordinate", ylabel="second coordinate")
    figure.savefig(file, dpi=80)


def make_points(options: argparse.Namespace) -> Array:
    """Points around as many places as there are clusters to find, in 8 dimensions."""
    rng = np.random.default_rng(2013)
    places = rng.uniform(-10, 10, (options.clusters, 8))
    points: Array = places[np.arange(options.points) % len(places)]
    return points + rng.standard_normal(points.shape)


def find_clusters(points: Array, start: Array, comm: MPI.Intracomm) -> tuple[Array, Array, int]:
    """The labels of this rank's points, the centers, and the number of rounds until no point moved."""
    own = points[ms.partition(len(points), comm=comm)]
    labels, centers, rounds, moved = np.full(len(own), -1, np.int32), start, 0, 1.0
    while moved:
        sums = np.zeros((len(centers), centers.shape[1] + 2))  # of points, then their number, then how many moved
        assign(own, centers, labels, sums)
        total = ms.allreduce(sums, comm=comm)
        count, moved, rounds = total[:, -2:-1], total[:, -1].sum(), rounds + 1
        centers = np.where(count > 0, total[:, :-2] / np.maximum(count, 1), centers)
    return labels, centers, rounds


@njit(nogil=True, cache=True)
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


if __name__ == "__main__":
    main()
