"""What tests of checkpoints ask of a folder."""

from __future__ import annotations

from pathlib import Path

from mpi4py import MPI

import mpishare as ms


def found(checkpoint: ms.Checkpoint) -> ms.Snapshot:
    """The latest snapshot, of which there must be one."""
    snapshot = checkpoint.latest()
    assert snapshot is not None
    return snapshot


def names_in(folder: Path) -> list[str]:
    """The names in a folder, seen by all ranks before any of them goes on."""
    names = sorted(file.name for file in folder.iterdir())
    MPI.COMM_WORLD.Barrier()
    return names


def part(count: int, comm: MPI.Intracomm = MPI.COMM_WORLD) -> slice:
    """This rank's part of `count` rows."""
    return slice(count * comm.rank // comm.size, count * (comm.rank + 1) // comm.size)
