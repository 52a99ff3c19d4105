"""The backend of joblib: results, arrays that were shared before or come with a call, and errors."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from joblib import Parallel, delayed, parallel_config
from mpi4py import MPI

import mpishare as ms
from mpishare.compat.joblib import register
from tests.mpi.compat.test_schwimmbad import ends

tables = []
"""What this rank has registered."""


def is_registered(array):
    return np.shares_memory(array, tables[0])


def can_be_written(array):
    return array.flags.writeable


def n_running(folder, number):
    """How many tasks run at once, as this one sees it."""
    file = folder / str(number)
    file.touch()
    time.sleep(0.02)
    count = len(list(folder.iterdir()))
    file.unlink()
    return count


def total(*arrays):
    return sum(float(array.sum()) for array in arrays)


@pytest.fixture(autouse=True)
def _dropped():
    """Drops the arrays that were registered."""
    yield
    tables.clear()
    register(comm=MPI.COMM_SELF).close()


def test_tasks(comm):
    table = ms.share(np.arange(300_000.0) if comm.rank == 0 else None, comm=comm)
    own, small = np.ones((400, 500)), np.arange(3)
    with ends(comm), register(table, comm=comm), parallel_config(backend="mpishare"):
        for n_jobs in (None, 2, -1):
            parts = Parallel(n_jobs)(delayed(total)(table[first::7], own[first:, 5:], small) for first in range(20))
            assert parts == [total(table[first::7], own[first:, 5:], small) for first in range(20)]
        assert Parallel()(delayed(total)(own[::-1], own.T) for _ in range(3)) == [4e5] * 3
        with pytest.raises(ZeroDivisionError):
            Parallel()(delayed(divmod)(1, number) for number in (1, 0, 2))


@pytest.mark.ranks(2)
def test_arrays_that_are_sent_as_references(comm, shared_folder):
    table = ms.share(np.arange(300_000.0) if comm.rank == 0 else None, comm=comm)
    tables.append(table)
    with ends(comm), register(table, comm=comm), parallel_config(backend="mpishare"):
        np.save(shared_folder / "rows.npy", np.arange(300_000.0))
        mapped = np.load(shared_folder / "rows.npy", mmap_mode="r+")
        for max_nbytes in (None, "1M"):
            views = table, table[5:9], table[:10:3], table[7, ...], table[...]
            assert all(Parallel(n_jobs=2, max_nbytes=max_nbytes)(delayed(is_registered)(view) for view in views))
            empty = [delayed(total)(table[:0], table[300_000:]) for _ in range(2)]
            assert Parallel(n_jobs=2, max_nbytes=max_nbytes)(empty) == [0, 0]
        if comm.size > 2:  # else this rank runs all tasks
            parts = [delayed(can_be_written)(array) for array in (mapped, mapped[7:], np.asarray(mapped))]
            assert Parallel(n_jobs=2)(parts) == [False] * 3
        parts = [delayed(total)(mapped[first::7]) for first in range(5)]
        assert Parallel(n_jobs=2)(parts) == [total(mapped[first::7]) for first in range(5)]


@pytest.mark.ranks(3)
def test_threads_with_the_same_array(comm):
    own = np.ones(300_000)

    def totals(_):
        with parallel_config(backend="mpishare"):
            return [Parallel(n_jobs=2)(delayed(total)(own[first:]) for first in range(8)) for _ in range(10)]

    with ends(comm), register(comm=comm), ThreadPoolExecutor(3) as threads:
        assert list(threads.map(totals, range(3))) == [[[300_000.0 - first for first in range(8)]] * 10] * 3


@pytest.mark.ranks(4)
def test_no_more_tasks_than_n_jobs_run_at_once(comm, shared_folder):
    with ends(comm), register(comm=comm), parallel_config(backend="mpishare"):
        for options in ({}, {"pre_dispatch": "all"}):
            counts = Parallel(n_jobs=2, **options)(delayed(n_running)(shared_folder, number) for number in range(20))
            assert max(counts) <= 2
