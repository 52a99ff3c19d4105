"""Records for four processes: by what the standard library, NumPy, joblib, Ray, dask and MPI have, and by our share.

    python -m benchmarks.table [--mb 80] [--rounds 9]

Each way has its processes running before the clock starts, but for fork, whose processes can only inherit what is there
when they start. Then a process that has the records, 5 columns of 8 bytes, brings them to all four, each of which
computes the mean of a column, and has the answers. The records are new ones in each round. Each way runs as a program
of its own, three times, in an order that changes, and once more for the memory: the peak is what all processes together
hold more than before. What is not installed is named in the result. Beside it the flights that left New York in 2013:
what sharing that table adds to the memory of all four ranks, with its strings as Arrow columns and as Python objects,
over its bytes. Prints a table and keeps it as results/table.json, with a picture beside it.

What they cannot do: fork and shared memory of the standard library, files in memory, and joblib do not reach a second
node; fork brings nothing to processes that run already; Ray and dask do not run on the ranks of an MPI job.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import multiprocessing
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.keep import keep, pss_bytes
from benchmarks.picture import bars
from benchmarks.rounds import in_blocks, order, seconds_row
from benchmarks.watch import READY, watched
from jobs.flights import table_file

RECORD = np.dtype([("id", "i8"), ("x", "f8"), ("y", "f8"), ("z", "f8"), ("mass", "f8")])
COLUMNS = ("x", "y", "z", "mass")
Records = NDArray[np.void]
ROOT = Path(__file__).parent.parent
OURS = "mpishare.share"


def main() -> None:
    """Runs each way as programs of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mb", type=int, default=80)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=[*WAYS], metavar="WAY", help="some of them")
    parser.add_argument("--way", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        in_program(options.way, options.mb * 10**6 // RECORD.itemsize, options.rounds)
        return
    installed = [name for name in options.ways if REQUIRED.get(name) is None or find_spec(REQUIRED[name])]
    seconds: dict[str, list[float]] = {name: [] for name in installed}
    for number, rounds in enumerate(in_blocks(options.rounds)):
        for name in order(installed, number):
            result, _ = watched(command(name, options.mb, rounds), ROOT, looks=False)
            seconds[name] += result["seconds"][1:]
    figures: dict[str, dict[str, float]] = {}
    for name in installed:
        _, peak = watched(command(name, options.mb, 1), ROOT)
        figures[name] = {**seconds_row(seconds[name]), "peak, MB": round(peak / 1e6, 1)}
        cells = (f"{value:9,.3f} {column}" for column, value in figures[name].items())
        print(f"  {name:38} " + "  ".join(cells), flush=True)
    flights, _ = watched(command(FLIGHTS, options.mb, 1), ROOT)
    for name, figure in flights["tables"].items():
        print(f"  {name:38} " + "  ".join(f"{column} {value:,}" for column, value in figure.items()))
    asked = {"records, bytes": options.mb * 10**6, "processes": len(COLUMNS), "rounds": options.rounds}
    missing = [name for name in options.ways if name not in installed]
    kept = {**asked, "not installed": missing, "ways": figures, "flights": flights["tables"]}
    keep("table", kept, flights["ground"])
    labels = {"seconds": "time until all processes have them, s", "peak, MB": "most memory of all processes, MB"}
    for column, axis_label in labels.items():
        series = {column: {name: figure[column] for name, figure in figures.items()}}
        title = f"{options.mb} MB of records for {len(COLUMNS)} processes"
        bars(f"table-{column.partition(',')[0]}", series, axis_label, title)


def command(way: str, mb: int, rounds: int) -> list[str]:
    """What runs one way, on ranks if it takes ranks."""
    is_on_ranks = way == FLIGHTS or WAYS[way] in (shared_in_ranks, window_in_ranks)
    launcher = ["-m", "mpishare", "run", "-n", str(len(COLUMNS))] if is_on_ranks else []
    args = ["--mb", str(mb), "--rounds", str(rounds), "--way", way]
    return [sys.executable, *launcher, "-m", "benchmarks.table", *args]


def in_program(way: str, rows: int, rounds: int) -> None:
    """One way, in a program of its own; prints the seconds that each round took, with one more at first."""
    if way == FLIGHTS:
        flights_in_ranks()
    else:
        WAYS[way](rows, rounds + 1)


def timed(rows: int, rounds: int, answers: Callable[[Records], list[float]]) -> None:
    """Tells how long each round of `answers` took."""
    records = made(rows, 0)
    wait_for_start()
    seconds = []
    for number in range(rounds):
        records = made(rows, number)
        expected = [mean(records, column) for column in COLUMNS]
        start = time.perf_counter()
        assert answers(records) == expected
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"seconds": seconds}), flush=True)


def wait_for_start() -> None:
    """Until whoever watches has seen what there is before."""
    print(READY, flush=True)
    sys.stdin.readline()


def made(rows: int, number: int) -> Records:
    """Records with something in each column, other ones for each number."""
    records = np.zeros(rows, RECORD)
    for column_number, column in enumerate(RECORD.names or ()):
        records[column] = np.arange(number, rows + number) % (1000 + column_number)
    return records


def mean(records: Records, column: str) -> float:
    """What each process is to find out."""
    return float(records[column].mean())


def by_copies(rows: int, rounds: int) -> None:
    """A pool of the standard library, which pickles the records for each process."""
    with _pool() as pool:
        timed(rows, rounds, lambda records: list(pool.map(mean, [records] * len(COLUMNS), COLUMNS)))


_global: Any = None
"""What a forked process inherits, and what a process that runs already keeps: a block of shared memory."""


def mean_of_global(column: str) -> float:
    """Of what this process has inherited."""
    return mean(_global, column)


def by_fork(rows: int, rounds: int) -> None:
    """Processes that are forked when the records are there, and inherit them."""
    global _global

    def answers(records: Records) -> list[float]:
        global _global
        _global = records
        with multiprocessing.get_context("fork").Pool(len(COLUMNS)) as pool:
            return pool.map(mean_of_global, COLUMNS, chunksize=1)

    timed(rows, rounds, answers)


def attach(name: str) -> None:
    """Keeps the block for all tasks to come."""
    global _global
    _global = SharedMemory(name)


def mean_in_block(rows: int, column: str) -> float:
    """Of the records that are in the block now."""
    return mean(np.ndarray(rows, RECORD, _global.buf), column)


def by_shared_memory(rows: int, rounds: int) -> None:
    """One block of shared memory, to which each process is attached, and into which all records are copied."""
    block = SharedMemory(create=True, size=rows * RECORD.itemsize)
    room: Records = np.ndarray(rows, RECORD, block.buf)

    def answers(records: Records) -> list[float]:
        np.copyto(room, records)
        return list(pool.map(mean_in_block, [rows] * len(COLUMNS), COLUMNS))

    with _pool(attach, (block.name,)) as pool:
        timed(rows, rounds, answers)
    block.unlink()


def mean_in_file(path: str, column: str) -> float:
    """Of records that are mapped."""
    return mean(np.load(path, mmap_mode="r"), column)


def by_file(rows: int, rounds: int) -> None:
    """A file in memory, written by numpy.save and mapped by numpy.load."""
    with TemporaryDirectory(dir="/dev/shm") as folder, _pool() as pool:
        path = f"{folder}/records.npy"

        def answers(records: Records) -> list[float]:
            np.save(path, records)
            return list(pool.map(mean_in_file, [path] * len(COLUMNS), COLUMNS))

        timed(rows, rounds, answers)


def by_joblib(rows: int, rounds: int) -> None:
    """joblib, which writes a large array to a file that its processes map."""
    from joblib import Parallel, delayed

    def answers(records: Records) -> list[float]:
        values: list[float] = parallel(delayed(mean)(records, column) for column in COLUMNS)
        return values

    with Parallel(n_jobs=len(COLUMNS)) as parallel:
        parallel(delayed(abs)(number) for number in range(len(COLUMNS)))
        timed(rows, rounds, answers)


def by_ray(rows: int, rounds: int) -> None:
    """Ray, whose tasks map what was put into its store."""
    import ray

    ray.init(num_cpus=len(COLUMNS), include_dashboard=False, log_to_driver=False, object_store_memory=4 << 30)
    remote = ray.remote(mean)

    def answers(records: Records) -> list[float]:
        put = ray.put(records)
        values: list[float] = ray.get([remote.remote(put, column) for column in COLUMNS])
        return values

    timed(rows, rounds, answers)
    ray.shutdown()


def by_dask(rows: int, rounds: int) -> None:
    """dask, which scatters the records to each of its processes."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=len(COLUMNS), threads_per_worker=1, dashboard_address=None, silence_logs=50) as cluster,
        Client(cluster) as client,
    ):

        def answers(records: Records) -> list[float]:
            future = client.scatter(records, broadcast=True, hash=False)
            calls = [client.submit(mean, future, column, pure=False) for column in COLUMNS]
            values: list[float] = client.gather(calls)
            return values

        timed(rows, rounds, answers)


def _pool(initializer: Callable[..., object] | None = None, initargs: tuple[Any, ...] = ()) -> ProcessPoolExecutor:
    """Processes that run already, and have inherited nothing."""
    pool = ProcessPoolExecutor(len(COLUMNS), multiprocessing.get_context("spawn"), initializer, initargs)
    list(pool.map(time.sleep, [0.2] * len(COLUMNS)))
    return pool


def shared_in_ranks(rows: int, rounds: int) -> None:
    """Ours, on one rank a process."""
    from mpi4py import MPI

    import mpishare as ms

    ms.topology()
    _in_ranks(MPI.COMM_WORLD, rows, rounds, ms.share)


def window_in_ranks(rows: int, rounds: int) -> None:
    """What an expert writes: a window that is made once, and a copy into it."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    window = MPI.Win.Allocate_shared(rows * RECORD.itemsize if comm.rank == 0 else 0, 1, comm=comm)
    memory: Any = window.Shared_query(0)[0]
    room: Records = np.frombuffer(memory, RECORD)

    def copied(records: Records | None) -> Records:
        if records is not None:
            np.copyto(room, records)
        comm.Barrier()
        return room

    _in_ranks(comm, rows, rounds, copied)
    window.Free()


def _in_ranks(comm: Any, rows: int, rounds: int, bring: Callable[[Records | None], Records]) -> None:
    """Each rank computes the mean of a column; rank 0 has the answers."""

    def answers(records: Records | None) -> list[float]:
        return comm.gather(mean(bring(records), COLUMNS[comm.rank])) or []

    if comm.rank == 0:
        timed(rows, rounds, answers)
    else:
        for _ in range(rounds):
            answers(None)


WAYS: dict[str, Callable[[int, int], None]] = {
    "ProcessPoolExecutor, copies": by_copies,
    "multiprocessing, fork with a global": by_fork,
    "multiprocessing.shared_memory": by_shared_memory,
    "numpy.load, mmapped": by_file,
    "joblib, memory-mapped": by_joblib,
    "Ray, put and get": by_ray,
    "dask, scatter": by_dask,
    "window used again": window_in_ranks,
    OURS: shared_in_ranks,
}
REQUIRED = {"Ray, put and get": "ray", "dask, scatter": "distributed"}
FLIGHTS = "flights"


def flights_in_ranks() -> None:
    """The table of flights, whose texts are Arrow columns, and whose texts are objects."""
    from mpi4py import MPI

    import mpishare as ms

    comm = MPI.COMM_WORLD
    table = flights() if comm.rank == 0 else None
    if comm.rank == 0:
        wait_for_start()
    tables = {}
    for name, dtype in {"flights, texts in Arrow": "string[pyarrow]", "flights, texts as objects": object}.items():
        own = None if table is None else table.astype(dict.fromkeys(table.columns[table.dtypes == "str"], dtype))
        tables[name] = gained(comm, ms, own)
        del own
    ground = ms.info().as_dict()
    if comm.rank == 0:
        print(json.dumps({"tables": tables, "ground": ground}), flush=True)


def flights() -> Any:
    """All flights that left New York in 2013, with the hour as a date."""
    import pandas as pd

    table = pd.read_csv(table_file()).infer_objects()
    text = [name for name in table.columns if table[name].dtype == object or table[name].dtype == "str"]
    return table.astype(dict.fromkeys(text, "str")).assign(time_hour=pd.to_datetime(table["time_hour"], utc=True))


def gained(comm: Any, ms: Any, table: Any) -> dict[str, float]:
    """What the ranks together hold more with the table shared, beside what the table takes."""
    import pandas as pd

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that texts are objects is what is measured
        ms.share(None if table is None else table.head())  # what it takes to unpickle such a table is there now
        before = _held(comm)
        shared = ms.share(table)
        growth = _held(comm) - before
    report = ms.report().segments[0]
    hashes = comm.gather([int(pd.util.hash_pandas_object(column).sum()) for _, column in shared.items()])
    if comm.rank == 0:
        expected = [int(pd.util.hash_pandas_object(column).sum()) for _, column in table.items()]
        assert all(values == expected for values in hashes)
    copied = report.bytes_copied * comm.size
    return {
        "zero-copy bytes": report.nbytes,
        "objects of all ranks, bytes": copied,
        "gained, bytes": int(growth),
        "gained less objects, over zero-copy": round((growth - copied) / report.nbytes, 3),
    }


def _held(comm: Any) -> float:
    """The PSS of all ranks, without what has been freed and is kept by the C library or by Arrow."""
    import pyarrow as pa

    gc.collect()
    pa.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)
    comm.Barrier()
    return float(comm.allreduce(pss_bytes()))


if __name__ == "__main__":
    main()
