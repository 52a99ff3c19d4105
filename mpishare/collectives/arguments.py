"""Arguments that several calls take: scopes, and arrays that must lie in node-shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.raw import address_of
from mpishare.arrays.spec import Spec, describe
from mpishare.errors import ArgumentError, SpecError
from mpishare.memory.segment import segment_of

SCOPES = ("node", "all")
"""Which ranks take part: the ranks of each node, or all ranks of the communicator."""


def check_scope(scope: object, scopes: Sequence[str] = SCOPES) -> None:
    """Raises an `ArgumentError` if there is no such scope."""
    if not isinstance(scope, str) or scope not in scopes:
        raise ArgumentError(f"scope {scope!r} is unknown. Use {' or '.join(map(repr, scopes))}.")


def shared_name(array: NDArray[Any], *, writes: bool, is_contiguous: bool = True, argument: str = "array") -> str:
    """A name for the bytes of a node-shared array, the same on all ranks, so that an agreement can compare them.

    Args:
        array: The array.
        writes: Whether the call writes to it.
        is_contiguous: Whether it must be contiguous.
        argument: Its name in errors.

    Raises:
        SpecError: `array` is not in node-shared memory, not contiguous, or read-only where the call writes to it.
    """
    segment = segment_of(array) if isinstance(array, np.ndarray) else None
    if segment is None or segment.key is None:
        given = f"{argument} is {describe(array)}, which cannot be traced to node-shared memory"
        raise SpecError(f"{given}. Pass one from empty, zeros or full.")
    if writes and not array.flags.writeable:
        raise SpecError(f"{argument} is read-only, as every array of share is. Pass one from empty, zeros or full.")
    if is_contiguous and not array.flags.forc:
        raise SpecError(
            f"{argument} is a part that is not contiguous. Pass the whole array, or a contiguous part of it."
        )
    offset = address_of(array) - segment.address
    strides = "" if array.flags.forc else f", strides={array.strides}"
    return f"array {segment.key:x} from byte {offset}, {Spec.of(array)}{strides}"


def name_of_out(out: NDArray[Any] | None) -> str:
    """What an agreement compares of an array that a result is written into; "" without one.

    Raises:
        SpecError: It is not in node-shared memory, not contiguous, or read-only.
    """
    return "" if out is None else f", out={shared_name(out, writes=True, argument='out')}"


def place_of(array: NDArray[Any] | None) -> tuple[int | None, int, tuple[int, ...]] | None:
    """Where a node-shared array lies: the key of its segment, the byte it begins at, its strides; else None."""
    segment = None if array is None else segment_of(array)
    if array is None or segment is None:
        return None
    return segment.key, address_of(array) - segment.address, array.strides


def is_in_shared_memory(array: NDArray[Any]) -> bool:
    """Whether all ranks of this node see the same bytes of a node-shared array; else each has its own."""
    segment = segment_of(array)
    return segment is not None and segment.origin.is_shared
