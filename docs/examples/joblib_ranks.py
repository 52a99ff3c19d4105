"""The same sums by joblib: the ranks of an MPI job are its workers, and each node has one copy of the table."""

import numpy as np
from joblib import Parallel, delayed, parallel_config

from mpishare.compat.joblib import register


def column_sum(table, column):
    return float(table[:, column].sum())


if __name__ == "__main__":
    with register(), parallel_config(backend="mpishare"):
        # Rank 0 alone: the other ranks run its tasks within register(), and end there.
        table = np.ones((500_000, 4))
        print(Parallel()(delayed(column_sum)(table, column) for column in range(4)))
