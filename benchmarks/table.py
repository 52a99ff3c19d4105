"""The flights that left New York in 2013 as a DataFrame for four processes: by our share, and by what people do.

    python -m benchmarks.table [--rounds 9]

A process that has the table, 336,776 rows of numbers and of Arrow strings, brings it to four, each of which computes
the mean of a column. Only "every rank reads" begins with the file. All processes run before the clock starts, but
those of fork, which can only inherit what is there when they start. Each way runs in programs of its own, in an
order that changes, and once more for the memory: what all processes together hold more than before, at most.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from benchmarks import harness
from jobs.flights import table_file

OURS = "mpishare.share"
COLUMNS = ("dep_delay", "arr_delay", "air_time", "distance")
BLOCKS = 3
"""Programs of each way."""
_table: Any = None


def main() -> None:
    """Starts the programs of all ways, prints and keeps."""
    options = harness.options(__doc__, way="")
    if options.way:
        in_program(options)
        return
    times: dict[str, list[float]] = {name: [] for name in WAYS}
    for number in range(BLOCKS):
        for name in harness.order(times, number):
            times[name] += harness.watched(command(name, max(1, options.rounds // BLOCKS)), looks=False)[0]
    table = harness.compared(harness.rows(times), OURS)
    for name in WAYS:
        table[name]["peak, MB"] = round(harness.watched(command(name, 1), looks=True)[1] / 1e6)
    harness.show(f"the table of flights for {len(COLUMNS)} processes", table)
    harness.keep("table", table)


def command(name: str, rounds: int) -> list[str]:
    """The command line of one program."""
    ranks = len(COLUMNS) if WAYS[name][0] else 0
    return [*harness.on_ranks(ranks), "-m", "benchmarks.table", "--way", name, "--rounds", str(rounds)]


def in_program(options: Any) -> None:
    """One way; tells the seconds of each round but the first."""
    is_on_ranks, way = WAYS[options.way]
    seconds: list[float] = []

    def run(answers: Callable[[], list[float] | None], *, is_root: bool = True) -> None:
        if is_root:
            harness.wait_for_start()
        for _ in range(options.rounds + 1):
            start = time.perf_counter()
            found = answers()
            seconds.append(time.perf_counter() - start)
            assert not found or len({*found}) == len(COLUMNS)
        if is_root:
            print(json.dumps(seconds[1:]), flush=True)

    way(run) if not is_on_ranks else on_ranks(run, way)


def read() -> Any:
    """The table, with its texts as Arrow strings."""
    import pandas as pd

    table = pd.read_csv(table_file())
    texts = [name for name in table.columns if not pd.api.types.is_numeric_dtype(table[name])]
    return table.astype(dict.fromkeys(texts, "string[pyarrow]"))


def mean(table: Any, column: str) -> float:
    """What each process is to find out."""
    return float(table[column].mean())


def mean_of_global(column: str) -> float:
    """Of what this process has inherited."""
    return mean(_table, column)


def by_copies(run: Any) -> None:
    """A pool of the standard library pickles the table for each process."""
    table = read()
    with ProcessPoolExecutor(len(COLUMNS), multiprocessing.get_context("spawn")) as pool:
        list(pool.map(time.sleep, [0.5] * len(COLUMNS)))
        run(lambda: list(pool.map(mean, [table] * len(COLUMNS), COLUMNS)))


def by_fork(run: Any) -> None:
    """Processes are forked when the table is there."""
    global _table
    _table = read()

    def answers() -> list[float]:
        with multiprocessing.get_context("fork").Pool(len(COLUMNS)) as pool:
            return pool.map(mean_of_global, COLUMNS, chunksize=1)

    run(answers)


def by_joblib(run: Any) -> None:
    """joblib, whose processes run already."""
    from joblib import Parallel, delayed

    table = read()
    with Parallel(n_jobs=len(COLUMNS)) as parallel:
        parallel(delayed(time.sleep)(0.5) for _ in COLUMNS)
        run(lambda: parallel(delayed(mean)(table, column) for column in COLUMNS))


def on_ranks(run: Any, way: Callable[[Any], Any]) -> None:
    """Each rank computes the mean of a column of what `way` brings; rank 0 has the answers."""
    from mpi4py import MPI

    import mpishare as ms

    comm = MPI.COMM_WORLD
    ms.topology()
    table = read() if comm.rank == 0 else None
    comm.Barrier()
    run(lambda: comm.gather(mean(way(table), COLUMNS[comm.rank])), is_root=comm.rank == 0)


def by_share(table: Any) -> Any:
    """Ours."""
    import mpishare as ms

    return ms.share(table)


def by_bcast(table: Any) -> Any:
    """mpi4py pickles it for each rank."""
    from mpi4py import MPI

    return MPI.COMM_WORLD.bcast(table)


WAYS: dict[str, tuple[bool, Callable[[Any], Any]]] = {
    "ProcessPoolExecutor, pickled": (False, by_copies),
    "multiprocessing, fork with a global": (False, by_fork),
    "joblib": (False, by_joblib),
    "every rank reads, pandas.read_csv": (True, lambda table: read()),
    "comm.bcast, pickled": (True, by_bcast),
    OURS: (True, by_share),
}
"""For each way whether it runs on ranks, and what it does."""


if __name__ == "__main__":
    main()
