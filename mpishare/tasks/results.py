"""What tasks returned, which the root puts in the order of the items."""

from __future__ import annotations

from itertools import chain, islice
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.spec import PLAIN_CLASSES
from mpishare.comm.agreement import Deferred, agree
from mpishare.comm.context import Context
from mpishare.comm.in_flight import Tag
from mpishare.messages.requests import receive_object, send_object
from mpishare.objects.pickling import PickledObject, pickle_object
from mpishare.tasks.errors import apply_to_items

Values: TypeAlias = "list[Any] | NDArray[Any]"
"""Results, one after the other: as the rows of an array if they are alike, else as a list."""


class RankResults:
    """What the tasks of this rank returned.

    Attributes:
        chunks: The numbers of their items.
        values: The results.
    """

    def __init__(self) -> None:
        self.chunks: list[range] = []
        self.values: list[Any] = []

    def add(self, chunk: range, values: list[Any]) -> None:
        """Adds the results of the items with the numbers `chunk`."""
        self.chunks.append(chunk)
        self.values += values

    def pickled(self) -> PickledObject:
        """The chunks and the results.

        Raises:
            ItemFailed: A result cannot be pickled.
        """
        try:
            return pickle_object((self.chunks, stack(self.values)))
        except Exception:  # user classes may raise anything when they are pickled
            for item, value in zip(chain(*self.chunks), self.values, strict=True):
                apply_to_items(pickle_object, [value], item)
            raise


def stack(values: list[Any]) -> Values:
    """One array with a row for each of `values`, if these are arrays or NumPy numbers of one dtype and one shape.

    Else `values`. Only native classes and dtypes are stacked, so that the rows are of the same class as the values.
    """
    kind = type(values[0]) if len(set(map(type, values))) == 1 else None
    is_array = kind in PLAIN_CLASSES
    if kind is None or not (is_array or issubclass(kind, np.number | np.bool_)):  # the dtype may be another library's
        return values
    dtype, shape = values[0].dtype, values[0].shape
    if (is_array and not shape) or dtype.kind in "OV" or not dtype.itemsize:
        return values
    is_alike = all(value.dtype == dtype and value.shape == shape for value in values)
    return np.array(values, dtype) if is_alike else values


def gather_results(
    context: Context, root: int, count: int, results: RankResults, pickled: PickledObject
) -> list[Any] | None:
    """Brings the results of all ranks to the root.

    Args:
        context: Of the communicator.
        root: Where they go.
        count: Number of items.
        results: This rank's.
        pickled: The same, pickled.

    Returns:
        On the root, the results in the order of the items; None elsewhere.

    Raises:
        SpecError: A result cannot be unpickled on the root.
        CapacityError: The root has no memory for them.
        PeerError: The root raised one of these.

    Collective:
        Over the communicator.
    """
    comm = context.collective_comm
    with agree(comm):
        errors = Deferred()
        if comm.rank != root:
            send_object(context, pickled, root, Tag.MAP_RESULT)
            return None
        gathered = [None] * count
        _place(gathered, results.chunks, results.values)
        for rank in set(range(comm.size)) - {root}:
            with errors:  # also after an error, as each of them sends
                _place(gathered, *receive_object(context, rank, Tag.MAP_RESULT))
        errors.raise_first()
    return gathered


def _place(gathered: list[Any], chunks: list[range], values: Values) -> None:
    """Puts the results of one rank at the places of their items."""
    rest = iter(values)
    for chunk in chunks:
        gathered[chunk.start : chunk.stop] = islice(rest, len(chunk))
