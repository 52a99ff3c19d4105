"""A folder for checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from mpi4py import MPI


@pytest.fixture
def folder(comm: MPI.Intracomm, shared_folder: Path) -> Iterator[Path]:
    """A folder that the first save makes."""
    yield shared_folder / "run"
    comm.Barrier()
    assert not [file for file in shared_folder.rglob("*") if ".tmp." in file.name]
