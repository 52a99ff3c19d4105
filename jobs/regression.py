"""Fits a line through data that no node holds whole, by stochastic gradient descent over batches of random rows.

    mpiexec -n 4 python jobs/regression.py
    mpiexec -n 4 python jobs/regression.py --data samples.npy --epochs 5

Each node holds its part of the rows. In each epoch all ranks shuffle the numbers of all rows alike; each rank takes its
share of a batch, whichever nodes have the rows, and allreduce adds up the gradients. At the end the job prints the
memory of each node beside the bytes of the data.

Your own data: --data takes a .npy file with a sample a row, whose last column is to be predicted by the others. With
--check, rank 0 takes all rows and does the same alone.
"""

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import mpishare as ms

Array = NDArray[Any]

comm = MPI.COMM_WORLD


def main(args: Sequence[str] | None = None) -> None:
    """The job. An error on any rank ends it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="FILE.npy", help="samples, one a row; without it some are made")
    parser.add_argument("--samples", type=int, default=100_000, help="how many are made (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=3, help="how often each sample is used (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=1000, help="samples of a step (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=0.1, help="length of a step (default: %(default)s)")
    parser.add_argument("--check", action="store_true", help="compare with the same on rank 0 alone")
    options = parser.parse_args(args)
    samples = ms.load(options.data, split=True) if options.data else ms.distribute(local=make_samples(options.samples))
    weights = fit(samples.take, samples.shape, options, comm)
    nodes = ms.topology()
    held = ms.report().segments[0]
    for node in range(nodes.n_nodes if comm.rank == 0 else 0):
        size = f"{held.bytes_per_node[node] / samples.nbytes:.0%} of {samples.nbytes:,} bytes"
        print(f"node {node}, {nodes.hosts[node]}: {held.rows_per_node[node]:,} of {len(samples):,} samples, {size}")
    everything = samples.take(range(len(samples)) if options.check and comm.rank == 0 else [])
    if comm.rank == 0:
        print(f"weights {np.array2string(weights, precision=3, threshold=8)}")
    if options.check and comm.rank == 0:
        alone = fit(everything.__getitem__, everything.shape, options, MPI.COMM_SELF)
        np.testing.assert_allclose(weights, alone, rtol=1e-9, atol=1e-12)
        print("regression: as on one rank")


def make_samples(count: int) -> Array:
    """This rank's samples: sixteen numbers, their sum with the weights 0, 1, …, 15 and some noise."""
    own = ms.partition(count)
    samples = np.random.default_rng([2013, comm.rank]).standard_normal((own.stop - own.start, 17))
    samples[:, -1] *= 0.1
    samples[:, -1] += samples[:, :-1] @ np.arange(16.0)
    return samples


def fit(take: Any, shape: tuple[int, ...], options: argparse.Namespace, comm: MPI.Intracomm) -> Array:
    """The weights after some epochs; `take` returns the samples of some numbers."""
    weights = np.zeros(shape[1] - 1)
    shuffle = np.random.default_rng(7)  # the same numbers on all ranks
    for _ in range(options.epochs):
        order = shuffle.permutation(shape[0])
        for start in range(0, len(order), options.batch):
            batch = order[start : start + options.batch]
            own = take(batch[ms.partition(len(batch), comm=comm)])
            error = own[:, :-1] @ weights - own[:, -1]
            weights = weights - options.rate / len(batch) * ms.allreduce(own[:, :-1].T @ error, comm=comm)
    return weights


if __name__ == "__main__":
    main()
