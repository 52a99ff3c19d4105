"""The number of rows that each rank has, and the array that they make together."""

from __future__ import annotations

import struct
from itertools import accumulate

import numpy as np

from mpishare.arrays.spec import Spec
from mpishare.comm import mpi
from mpishare.comm.agreement import NOTE_BYTES, mark_known
from mpishare.comm.context import Context
from mpishare.errors import SpecError

_COUNT = struct.Struct("<q")
_MAX_NOTED_RANKS = NOTE_BYTES // _COUNT.size
"""The note of an agreement has room for the counts of this many ranks."""


def rows_of(array: object) -> Spec:
    """The spec of an array that has rows.

    Raises:
        SpecError: The array is 0-d, or cannot be shared.
    """
    spec = Spec.of(array)
    if not spec.shape:
        raise SpecError("an array without dimensions has no rows. Pass array[numpy.newaxis] for one row of it.")
    return spec


def describe_row(spec: Spec) -> str:
    """The shape and dtype of one row, which must be equal on all ranks."""
    return f"shape {list(spec.shape[1:])}, {spec.dtype.str if spec.dtype.names is None else spec.dtype}"


def note_rows(context: Context, count: int) -> bytes:
    """The note of an agreement that tells the other ranks this rank's number of rows, if all counts fit in it."""
    if context.topology.size > _MAX_NOTED_RANKS:
        return bytes(NOTE_BYTES)
    return (bytes(_COUNT.size * context.topology.rank) + _COUNT.pack(count)).ljust(NOTE_BYTES, b"\0")


def stack_rows(context: Context, note: bytes, spec: Spec) -> tuple[list[int], Spec]:
    """Where the rows of each rank begin in the array of all rows, with their total at the end; and its spec.

    Args:
        context: That of the communicator.
        note: The note of the agreement, from the `note_rows` of all ranks.
        spec: That of this rank's rows.

    Raises:
        SpecError: An array cannot have so many rows. On all ranks.

    Collective:
        Over the communicator.
    """
    starts = [0, *accumulate(_row_counts(context, note, spec.shape[0]))]
    try:
        return starts, Spec.checked((starts[-1], *spec.shape[1:]), spec.dtype)
    except SpecError as error:
        mark_known(context.collective_comm, error)
        raise


def _row_counts(context: Context, note: bytes, count: int) -> list[int]:
    """The number of rows of each rank, by rank."""
    size, rank = context.topology.size, context.topology.rank
    if size <= _MAX_NOTED_RANKS:
        return [number for (number,) in _COUNT.iter_unpack(note)][:size]
    counts = np.zeros(size, np.int64)
    counts[rank] = count
    context.collective_comm.allreduce(counts, mpi.SUM)
    return list(map(int, counts))
