"""How many rows each rank brings, and the array of all of them."""

from __future__ import annotations

import struct
from itertools import accumulate

import numpy as np

from mpishare import mpi
from mpishare.agreement import NOTE_BYTES, known_to
from mpishare.errors import SpecError
from mpishare.spec import Spec
from mpishare.topology import Topology

__all__ = ["note_rows", "rows_of", "stacked", "told_row"]

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


def note_rows(here: Topology, count: int) -> bytes:
    """The note by which this rank tells its count, if there is room for all."""
    if here.size > _NOTED_RANKS:
        return bytes(NOTE_BYTES)
    return (bytes(_COUNT.size * here.rank) + _COUNT.pack(count)).ljust(NOTE_BYTES, b"\0")


def stacked(here: Topology, note: bytes, spec: Spec) -> tuple[list[int], Spec]:
    """Where the rows of each rank begin, and those of the last one end; and the spec of all of them.

    Args:
        here: Where the ranks sit.
        note: What the ranks agreed on.
        spec: That of this rank's rows.

    Raises:
        SpecError: They are too many together, on all ranks.

    Collective:
        Over `here.comm`.
    """
    ends = [0, *accumulate(_told_rows(here, note, spec.shape[0]))]
    try:
        return ends, Spec.checked((ends[-1], *spec.shape[1:]), spec.dtype)
    except SpecError as error:
        known_to(here.channel, error)
        raise


def _told_rows(here: Topology, note: bytes, count: int) -> list[int]:
    """The counts of all ranks."""
    if here.size <= _NOTED_RANKS:
        return [_COUNT.unpack_from(note, _COUNT.size * rank)[0] for rank in range(here.size)]
    counts = np.zeros(here.size, np.int64)
    counts[here.rank] = count
    here.channel.Allreduce(mpi.IN_PLACE, counts, mpi.SUM)
    return [int(one) for one in counts]
