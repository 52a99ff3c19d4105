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


def part(count: int, ranks: int, rank: int) -> slice:
    """Part number `rank` of `count` rows in as many parts as `ranks`."""
    return slice(count * rank // ranks, count * (rank + 1) // ranks)
