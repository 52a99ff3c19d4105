"""Each rank has two helper processes, which read the one copy per node of a table."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np

import mpishare as ms


def row_sum(handle, row):
    table = handle.get()  # a read-only view of the node's memory, in any process
    return float(table[row].sum())


if __name__ == "__main__":
    rank = ms.topology().rank
    table = ms.share(np.arange(12.0).reshape(4, 3) if rank == 0 else None, backend="memmap")
    handle = ms.handle(table)
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        print(rank, list(pool.map(row_sum, [handle] * 4, range(4))))
