"""Whole programs that load: who imports what."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.blackbox.launch import nothing_left, run_code

CODE = """
import sys, mpishare as ms
from mpi4py import MPI
found = ms.load({path!r}, {dataset!r})
assert found.sum() == 499500
print(MPI.COMM_WORLD.rank, "h5py" in sys.modules)
"""


@pytest.mark.parametrize(("dataset", "importing"), [("flat", {0}), ("chunked", {0})])
def test_h5py_is_imported_where_it_reads(tmp_path: Path, dataset: str, importing: set[int]) -> None:
    """A small dataset is read by the rank that looks at it, and one that lies in one run by no h5py at all."""
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w") as file:
        file["flat"] = np.arange(1000)
        file.create_dataset("chunked", data=np.arange(1000), chunks=(10,))
    with nothing_left():
        ended = run_code(4, CODE.format(path=path, dataset=dataset), {"MPISHARE_NODES": "block:2"})
    assert ended.returncode == 0, ended.stderr
    assert {int(line.split()[0]) for line in ended.stdout.splitlines() if line.endswith("True")} == importing
