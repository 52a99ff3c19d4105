"""Counts the rows of a table in fine bins of several columns: one histogram per node, to which all its ranks add.

    mpiexec -n 4 python jobs/histogram.py
    mpiexec -n 4 python jobs/histogram.py --data build/flights.npy --columns 5 8 10 --bins 256 --output bins.npz

The bins of 3 columns take more memory than most tables, and few of them are filled: 256 x 256 x 256 bins of 8 bytes are
134 MB. There atomic additions to one histogram win over a histogram per rank, which MPI sums up, in a quarter of the
memory. With 1000 bins it is the other way round: a histogram per rank is many times as fast.

Your own data: --data takes a .npy file with the rows of a table. With --check, rank 0 counts all rows by NumPy, and the
job fails where a bin differs. Needs numba.
"""

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI
from numba import njit
from numpy.typing import NDArray

import mpishare as ms
from mpishare import kernels

Array = NDArray[Any]

comm = MPI.COMM_WORLD


def main(args: Sequence[str] | None = None) -> None:
    """The job. An error on any rank ends it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="FILE.npy", help="the table; without it one is made")
    parser.add_argument("--columns", type=int, nargs="+", default=[0, 1, 2], help="which to use (default: %(default)s)")
    parser.add_argument("--bins", type=int, default=256, help="of each column, of equal width (default: %(default)s)")
    parser.add_argument("--output", metavar="FILE.npz", help="where to write the filled bins and the edges")
    parser.add_argument("--plot", metavar="FILE.png", help="where to draw the first two columns; needs matplotlib")
    parser.add_argument("--check", action="store_true", help="compare with NumPy on rank 0 alone")
    options = ms.share(call=lambda: parser.parse_args(args))  # rank 0 alone prints the usage
    nodes = ms.topology()
    rows, edges = ms.share(call=lambda: read(options))
    counts = ms.zeros(options.bins ** len(options.columns), np.int64)
    add_rows(rows[ms.partition(len(rows))], edges, counts)
    ms.fence()
    saved = ms.report().summary
    if nodes.n_nodes > 1 and nodes.is_leader:
        counts = ms.allreduce(counts, comm=nodes.leaders)  # each leader has the histogram of its node
    if comm.rank == 0:
        filled = np.flatnonzero(counts)
        print(f"{counts.sum():,} rows on {comm.size} ranks in {filled.size:,} of {counts.size:,} bins")
        if options.output:
            np.savez(options.output, bins=filled, counts=counts[filled], edges=edges)
        if options.check:
            np.testing.assert_array_equal(counts, np.histogramdd(rows, list(edges))[0].reshape(-1))
            print("histogram: as by NumPy on one rank")
        if options.plot:
            plot(counts.reshape(options.bins, options.bins, -1).sum(axis=2), edges, options.plot)
        print(f"histogram and rows: {saved}")


def plot(counts: Array, edges: Array, file: str) -> None:
    """Draws how many rows are in each bin of the first two columns."""
    from matplotlib.figure import Figure

    axes = (figure := Figure(layout="constrained")).subplots()
    image = axes.pcolormesh(edges[0], edges[1], counts.T, norm="log")
    axes.set(xlabel="first column", ylabel="second column")
    figure.colorbar(image, label="rows")
    figure.savefig(file, dpi=80)


def read(options: argparse.Namespace) -> tuple[Array, Array]:
    """The columns, shape (n, columns), and the edges of their bins, shape (columns, bins + 1)."""
    if options.plot and len(options.columns) < 2:
        raise ValueError("histogram: --plot takes two columns or more")
    if options.data:
        rows = np.load(options.data)[:, options.columns].astype(float)
    else:
        rows = np.random.default_rng(2013).standard_normal((1_000_000, len(options.columns)))
    return rows, np.array([np.histogram_bin_edges(column, options.bins) for column in rows.T])


@njit(nogil=True, cache=True)
def add_rows(rows: Array, edges: Array, counts: Array) -> None:
    """Adds 1 to the bin of each row; the last bin of a column has its upper edge, as NumPy's."""
    bins = edges.shape[1] - 1
    for row in rows:
        place = 0
        for column in range(len(edges)):
            place = place * bins + min(np.searchsorted(edges[column], row[column], "right"), bins) - 1
        kernels.atomic_add(counts, place, 1)


if __name__ == "__main__":
    main()
