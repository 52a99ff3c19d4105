"""What tasks returned: brought to the root as few buffers, and put in the order of the items."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.raw import bytes_of
from mpishare.arrays.spec import PLAIN_CLASSES
from mpishare.comm.agreement import agree
from mpishare.comm.context import Context
from mpishare.comm.tags import Tag
from mpishare.errors import MpishareError, SpecError, text_of_error
from mpishare.objects.pickled import PickledObject
from mpishare.objects.pickling import pickle_object, unpickle_object
from mpishare.tasks.object_transport import receive_block, receive_object, send_block, send_object


@dataclass(frozen=True)
class Kind:
    """What results have in common.

    Attributes:
        item: `float`, `int`, `np.ndarray` or a NumPy number, `NoneType`; None where they differ or are anything else.
        dtype: Of an array that has all of them.
        shape: Of each of them.
    """

    item: type | None
    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] = ()

    @classmethod
    def of(cls, values: list[Any]) -> Kind:
        """The kind of `values`, of which there is one at least."""
        items = set(map(type, values))
        item = items.pop()
        if items:
            return cls(None)
        if item is float:
            return cls(item, np.dtype(float))
        if item is int and min(values) >= -(2**63) and max(values) < 2**63:
            return cls(item, np.dtype(np.int64))
        if item is type(None):
            return cls(item)
        return cls._of_arrays(item, values)

    @classmethod
    def _of_arrays(cls, item: type, values: list[Any]) -> Kind:
        """Of NumPy's arrays or numbers, where they are alike."""
        if item not in PLAIN_CLASSES and not issubclass(item, np.number | np.bool_):
            return cls(None)
        dtype, shape = values[0].dtype, values[0].shape
        is_alike = dtype.names is None and not dtype.hasobject and dtype.itemsize
        if is_alike and all(value.dtype == dtype and value.shape == shape for value in values):
            return cls(item, dtype, shape)
        return cls(None)

    def array_of(self, values: list[Any]) -> NDArray[Any]:
        """One array with a row for each of `values`."""
        array = np.empty((len(values), *self.shape), self.dtype)
        if self.item not in PLAIN_CLASSES:
            array[:] = values
        elif self.shape:
            np.concatenate(values, out=array.reshape(len(values) * self.shape[0], *self.shape[1:]))
        else:
            np.stack(values, out=array)
        return array

    def values_of(self, array: NDArray[Any]) -> list[Any]:
        """The rows of `array` as they were, without a copy where they are arrays."""
        if self.item in (float, int):
            return list(array.tolist())
        if self.item in PLAIN_CLASSES and not self.shape:
            return [array[row, ...] for row in range(len(array))]
        return list(array)


class Found:
    """What this rank's tasks returned.

    Attributes:
        portions: The numbers of its items, as it claimed them.
        values: What their tasks returned, one after the other.
    """

    def __init__(self) -> None:
        self.portions: list[range] = []
        self.values: list[Any] = []
        self.parcel: PickledObject | None = None

    def add(self, portion: range, values: list[Any]) -> None:
        """Adds those of one portion."""
        self.portions.append(portion)
        self.values += values

    def kind(self) -> Kind | None:
        """What they have in common, None where there are none.

        Raises:
            SpecError: One of them cannot be pickled.
        """
        if not self.values:
            return None
        kind = Kind.of(self.values)
        if kind.item is None:
            self.parcel = pickle_object(self.values)
        return kind

    @property
    def numbers(self) -> bytes:
        """Of each portion the first number and the length, in 64 bits each."""
        return np.array([(portion.start, len(portion)) for portion in self.portions], np.int64).tobytes()

    def first_unpicklable(self) -> int:
        """The number of the item whose result cannot be pickled, where one cannot."""
        numbers = chain.from_iterable(self.portions)
        pairs = zip(numbers, self.values, strict=True)
        return next((number for number, value in pairs if not _can_be_pickled(value)), self.portions[0].start)

    def sent(self) -> PickledObject:
        """All that they are, taken apart."""
        return self.parcel or pickle_object(self.values)


def common_kind(kinds: Iterable[Kind | None]) -> Kind:
    """The kind of the results of all ranks, of whom some have none."""
    common = set(kinds) - {None}
    return (common.pop() if len(common) == 1 else None) or Kind(None)


def collect(context: Context, root: int, count: int, found: Found, kinds: Sequence[Kind | None]) -> Any:
    """The results of all ranks on the root; `kinds` are those of the ranks.

    Returns:
        On the root an array with all results, where they are rows of one, else a list. Elsewhere None.

    Raises:
        SpecError: A result cannot be made again on the root.

    Collective:
        Over the communicator.
    """
    kind = common_kind(kinds)
    if kind.item is type(None):
        return [None] * count if context.topology.rank == root else None
    numbers = [
        np.frombuffer(told, np.int64).reshape(-1, 2) for told in context.collective_comm.allgather_obj(found.numbers)
    ]
    ranks = [rank for rank in range(context.topology.size) if kinds[rank] is not None]
    if kind.item is None:
        return _objects(context, root, count, found, ranks, numbers)
    return _rows(context, root, count, kind, found.values, ranks, numbers)


def _rows(
    context: Context,
    root: int,
    count: int,
    kind: Kind,
    values: list[Any],
    ranks: list[int],
    numbers: list[NDArray[np.int64]],
) -> NDArray[Any] | None:
    """The results as the rows of one array."""
    places = {rank: _each(numbers[rank]) for rank in ranks}
    with agree(context.collective_comm):  # all memory that it takes
        mine = kind.array_of(values) if values else None
        array = np.empty((count if context.topology.rank == root else 0, *kind.shape), kind.dtype)
        most = max((len(places[rank]) for rank in ranks if context.topology.rank == root != rank), default=0)
        came = np.empty((most, *kind.shape), kind.dtype)
    if context.topology.rank != root:
        if mine is not None:
            send_block(context.collective_comm, bytes_of(mine), root, Tag.MAP_RESULT)
        return None
    for rank in ranks:
        rows = mine if rank == root else came[: len(places[rank])]
        if rank != root:
            receive_block(context.collective_comm, bytes_of(came[: len(places[rank])]), rank, Tag.MAP_RESULT)
        array[places[rank]] = rows
    return array


def _each(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number of each item in portions that are given by their first numbers and their lengths."""
    firsts, lengths = numbers.T
    before = np.cumsum(lengths) - lengths
    found: NDArray[np.int64] = np.arange(lengths.sum()) + np.repeat(firsts - before, lengths)
    return found


def _objects(
    context: Context, root: int, count: int, found: Found, ranks: list[int], numbers: list[NDArray[np.int64]]
) -> list[Any] | None:
    """The results as any objects, their arrays as buffers."""
    if context.topology.rank != root and found.values:
        send_object(context, context.collective_comm, found.sent(), root, Tag.MAP_RESULT)
    others = [rank for rank in ranks if rank != root] if context.topology.rank == root else []
    came = {rank: receive_object(context, context.collective_comm, rank, Tag.MAP_RESULT) for rank in others}
    with agree(context.collective_comm):
        if context.topology.rank != root:
            return None
        collected: list[Any] = [None] * count
        for rank in ranks:
            values = found.values if rank == root else _made(came.pop(rank), rank)
            for number, value in zip(_each(numbers[rank]).tolist(), values, strict=True):
                collected[number] = value
    return collected


def _made(parcel: PickledObject | MpishareError, rank: int) -> Any:
    if isinstance(parcel, MpishareError):
        raise parcel
    try:
        return unpickle_object(parcel)
    except Exception as error:  # what a class does when it is made again may fail in any way
        raise SpecError(
            f"what rank {rank} returned cannot be made again on the root: {text_of_error(error)}"
        ) from error


def _can_be_pickled(value: Any) -> bool:
    try:
        pickle_object(value)
    except Exception:  # what a class does when it is pickled may fail in any way
        return False
    return True
