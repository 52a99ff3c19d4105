"""What it costs to keep ranks in step: a fence, and the agreement in a share of a few bytes, beside MPI's own calls.

    mpishare run -n 2 -m benchmarks.steps [--rounds 9]

Both grow with the ranks of a node, so `make bench-wide` runs it with 1, 2, 4, 8 ... of them. Times are those of the
last rank. Prints a table and keeps it as results/wide-steps-RANKS.json.
"""

from __future__ import annotations

import argparse

import numpy as np
from mpi4py import MPI

import mpishare as ms
from benchmarks.keep import keep
from benchmarks.rounds import Call, measure, row

_REPEATS = 200


def main() -> None:
    """Measures all ways; rank 0 prints and keeps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    comm = MPI.COMM_WORLD
    few, result = np.ones(1), np.ones(1)
    calls: dict[str, Call] = {
        "mpishare.fence": lambda _: ms.fence(),
        "MPI_Barrier": lambda _: comm.Barrier(),
        "mpishare.share, 8 bytes": lambda _: ms.share(few if comm.rank == 0 else None),
        "MPI_Bcast, 8 bytes": lambda _: comm.Bcast(few),
        "MPI_Allreduce, 8 bytes": lambda _: comm.Allreduce(few, result),
    }
    figures = {name: row(taken[1:]) for name, taken in measure(comm, calls, _REPEATS, rounds).items()}
    info = ms.info()
    if comm.rank == 0:
        for name, figure in figures.items():
            print(f"{name:24} " + "  ".join(f"{value:9,.4f} {column}" for column, value in figure.items()))
        keep(f"wide-steps-{comm.size}", figures, info)


if __name__ == "__main__":
    main()
