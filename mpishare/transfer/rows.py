"""How many rows each rank brings, and the array of all of them."""

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
_NOTED_RANKS = NOTE_BYTES // _COUNT.size
"""So many ranks have room for their counts in the note of an agreement."""


def rows_of(array: object) -> Spec:
    """The spec of an array that has rows.

    Raises:
        SpecError: It has none, or cannot be shared.
    """
    spec = Spec.of(array)
    if not spec.shape:
        raise SpecError("an array without dimensions has no rows. Pass array[numpy.newaxis] for one row of it.")
    return spec


def told_row(spec: Spec) -> str:
    """What the rows of all ranks must have in common."""
    return f"shape {list(spec.shape[1:])}, {spec.dtype.str if spec.dtype.names is None else spec.dtype}"


def note_rows(context: Context, count: int) -> bytes:
    """The note by which this rank tells its count, if there is room for all."""
    if context.topology.size > _NOTED_RANKS:
        return bytes(NOTE_BYTES)
    return (bytes(_COUNT.size * context.topology.rank) + _COUNT.pack(count)).ljust(NOTE_BYTES, b"\0")


def stacked(context: Context, note: bytes, spec: Spec) -> tuple[list[int], Spec]:
    """Where the rows of each rank begin, and those of the last one end; and the spec of all of them.

    Args:
        context: That of the communicator.
        note: What the ranks agreed on.
        spec: That of this rank's rows.

    Raises:
        SpecError: They are too many together, on all ranks.

    Collective:
        Over the communicator.
    """
    ends = [0, *accumulate(_told_rows(context, note, spec.shape[0]))]
    try:
        return ends, Spec.checked((ends[-1], *spec.shape[1:]), spec.dtype)
    except SpecError as error:
        mark_known(context.collective_comm, error)
        raise


def _told_rows(context: Context, note: bytes, count: int) -> list[int]:
    """The counts of all ranks."""
    if context.topology.size <= _NOTED_RANKS:
        return [_COUNT.unpack_from(note, _COUNT.size * rank)[0] for rank in range(context.topology.size)]
    counts = np.zeros(context.topology.size, np.int64)
    counts[context.topology.rank] = count
    context.collective_comm.allreduce(counts, mpi.SUM)
    return [int(one) for one in counts]
