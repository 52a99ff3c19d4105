"""Pools of processes that are not ranks, which read what a handle brings, each on every rank."""

import multiprocessing
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np

import mpishare as ms
from tests.processes import file_id

N_ITEMS = 3 << 17
"""Of an array that has memory of its own: 3 MiB."""


def look(handle, number):
    """Sums of a handle's arrays, the files in which they are, and whether this process has MPI."""
    arrays = handle.get()
    has_mpi = "mpi4py.MPI" in sys.modules
    return [float(array[number:].sum()) for array in arrays], [file_id(array.ctypes.data) for array in arrays], has_mpi


def by_pool(tasks, method):
    """The results of multiprocessing's Pool, with this way to start processes."""
    with multiprocessing.get_context(method).Pool(2) as pool:
        return pool.starmap(look, tasks)


by_spawn, by_forkserver, by_fork = (partial(by_pool, method=name) for name in ("spawn", "forkserver", "fork"))


def by_executor(tasks):
    """The results of concurrent.futures, with processes as Python 3.14 starts them."""
    with ProcessPoolExecutor(2, multiprocessing.get_context("forkserver")) as pool:
        return [future.result() for future in [pool.submit(look, *task) for task in tasks]]


def by_loky(tasks):
    """The results of loky, joblib's own pool."""
    from joblib import Parallel, delayed

    return Parallel(2, "loky")(delayed(look)(*task) for task in tasks)


def main():
    """Lets each pool read an array of a window and one of a file."""
    warnings.filterwarnings("ignore", "handle.* bytes were copied into a nameless file")
    source = np.ones(N_ITEMS) if ms.topology().rank == 0 else None
    arrays = [ms.share(source, backend=backend) for backend in ("window", "memmap")]
    handle = ms.handle(arrays)
    files = [file_id(array.ctypes.data) for array in arrays]
    tasks = [(handle, number) for number in range(4)]
    for run in (by_spawn, by_forkserver, by_fork, by_executor, by_loky):
        expected = [([float(N_ITEMS - number)] * 2, files, run == by_fork) for number in range(4)]
        results = run(tasks)
        assert results == expected, (run, results, expected)
    print("all are right")


if __name__ == "__main__":
    main()
