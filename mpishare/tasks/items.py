"""Items of a map in the memory of each node, and what their tasks return.

An item is unpickled only on a rank that runs its task, or the task of one next to it.

An array is shared as it is, and each task gets one row. Other items are pickled in groups: numbers and strings 32 at a
time, any other item by itself, so that one that cannot be unpickled fails its own task only. Their arrays are shared.

The root makes batches of them: one batch if their number is known, else a few items at a time. It puts what the tasks
returned in the order of the items.
"""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.raw import Block
from mpishare.arrays.spec import PLAIN_CLASSES, describe
from mpishare.comm import mpi
from mpishare.comm.agreement import PAYLOAD_BYTES, Deferred, agree
from mpishare.comm.alone import alone
from mpishare.comm.context import Context
from mpishare.comm.in_flight import Tag
from mpishare.errors import ArgumentError, SpecError
from mpishare.messages.requests import receive_object, send_object
from mpishare.objects.pickling import PickledObject, pickle_object, unpickle_object
from mpishare.objects.references import pickle_referring, resolved, segment_to_name
from mpishare.tasks.errors import apply_to_items

_GROUP = 32
"""Items in one pickle. That takes 0.1 us for each plain item, in place of 1 us."""

_PLAIN = frozenset({int, float, complex, bool, type(None), str, bytes})
"""Classes that can be pickled and unpickled on any rank."""

_READ_S = 0.5
"""How long the root reads an iterator while the others may wait."""

_BATCH_BYTES = 16 << 20
"""Bytes of a batch of an iterator, but for its last item. Two batches are in memory at a time."""

_BATCH_ITEMS = 1 << 16
_FIRST_PER_RANK = 4
_GROWTH = 8
"""The first batch of an iterator has 4 items for each rank. Each next one is 8 times as large."""


@dataclass(frozen=True)
class PackedItems:
    """Pickled items.

    Attributes:
        starts: For each group, and the end, the numbers of the first item, the first byte and the first array.
        pickles: The pickles of all groups.
        arrays: The items' arrays.
    """

    starts: NDArray[np.int64]
    pickles: Block
    arrays: list[NDArray[Any]]

    def __len__(self) -> int:
        return int(self.starts[-1, 0])

    def __getitem__(self, chunk: slice) -> Iterator[Any]:
        """Yields items, each made when it is asked for."""
        begin, end = chunk.start, chunk.stop
        group = int(np.searchsorted(self.starts[:, 0], begin, "right")) - 1
        while begin < end:
            (first, byte, array), (stop, byte_end, array_end) = self.starts[group : group + 2].tolist()
            pickled = PickledObject(self.pickles[byte:byte_end].data, self.arrays[array:array_end])
            yield from unpickle_object(pickled)[begin - first : end - first]
            group, begin = group + 1, stop


Items: TypeAlias = "range | NDArray[Any] | PackedItems"
"""A batch of items on one rank. A slice of it are the items of a chunk."""


def pack(items: Iterable[Any]) -> PackedItems:
    """Packs items, of which some may be pickled already.

    Raises:
        SpecError: An item cannot be pickled; the text names it.
    """
    groups: list[tuple[int, PickledObject]] = []
    rest, first = iter(items), 0
    while group := list(islice(rest, _GROUP)):
        if _are_plain(group):
            groups.append((len(group), PickledObject(pickle.dumps(group, protocol=5), [])))
        else:
            groups += [(1, _pickled(item, number)) for number, item in enumerate(group, first)]
        first += len(group)
    counts = [(count, len(pickled.skeleton), len(pickled.arrays)) for count, pickled in groups]
    pickles = b"".join(pickled.skeleton for _, pickled in groups)
    arrays = [array for _, pickled in groups for array in pickled.arrays]
    return PackedItems(np.cumsum([(0, 0, 0), *counts], axis=0), np.frombuffer(pickles, np.uint8), arrays)


def _are_plain(group: list[Any]) -> bool:
    """Whether they are numbers and strings, or tuples of such."""
    classes = set(map(type, group))
    return classes <= _PLAIN or (classes == {tuple} and _PLAIN.issuperset(map(type, chain.from_iterable(group))))


def _pickled(item: Any, number: int) -> PickledObject:
    """An item, or what it was pickled to before."""
    if type(item) is PickledObject:
        return item
    try:
        return pickle_object((item,))
    except SpecError as error:
        raise SpecError(f"item {number}: {error}") from error


class Batches:
    """The batches of a map's items: one if their number is known, else as many as are not empty, and an empty one.

    Attributes:
        total: Number of items; None if it is not known.
    """

    def __init__(self, items: Any, comm: mpi.Intracomm) -> None:
        """Batches of `items`, for the ranks of `comm`. To read them is a block in which the other ranks do not come.

        Raises:
            ArgumentError: They cannot be iterated.
        """
        self.total = len(items) if hasattr(items, "__len__") and getattr(items, "shape", None) != () else None
        try:
            self._items = iter(items) if self.total is None else items
        except TypeError as error:
            cure = "Give a list, an array, a generator."
            raise ArgumentError(f"items is {describe(items)}, which cannot be iterated. {cure}") from error
        self._most = _FIRST_PER_RANK * comm.size
        self._n_read = 0
        self._reading = alone(comm, "by the items of a map")
        self._ready: PackedItems | None = None
        self._error: Exception | None = None

    def next(self) -> tuple[bool, Items]:
        """Whether the next batch is the last, and the batch.

        Raises:
            SpecError: An item cannot be pickled.
            Exception: What the iterator raised.
        """
        items = self._items
        if self.total is None:
            batch, self._ready = self._read() if self._ready is None else self._ready, None
            if self._error is not None and not batch:
                raise self._error
            return not batch, batch
        is_array = type(items) in PLAIN_CLASSES and not items.dtype.hasobject
        with self._reading:
            return True, items if is_array or isinstance(items, range) else pack(items)

    def read_ahead(self) -> None:
        """Makes the next batch while other ranks work. An error of the iterator waits for `next`.

        Items that take 1 ms each to be read, for tasks of 3 ms on 4 ranks, took a fifth longer without it.
        """
        if self.total is None:
            self._ready = self._read()

    def _read(self) -> PackedItems:
        with self._reading:
            batch = pack(self._some())
        self._n_read += len(batch)
        self._most = min(self._most * _GROWTH, _BATCH_ITEMS)
        return batch

    def _some(self) -> Iterator[Any]:
        """The next items, pickled if they may change later. Those before an error come before it."""
        end, nbytes = time.monotonic() + _READ_S, 0
        try:
            for number, item in enumerate(islice(self._items, self._most), self._n_read):
                if type(item) in _PLAIN:
                    nbytes += sys.getsizeof(item)
                    yield item
                else:
                    skeleton, arrays = _pickled(item, number)
                    kept = [array if segment_to_name(array) else array.copy(order="K") for array in arrays]
                    nbytes += len(skeleton) + sum(copy.nbytes for copy in kept if copy.flags.owndata)
                    yield PickledObject(skeleton, kept)
                if nbytes >= _BATCH_BYTES or time.monotonic() > end:
                    break
        except Exception as error:
            self._error, self._items = error, iter(())


Values: TypeAlias = "list[Any] | NDArray[Any]"
"""Results, one after the other: as the rows of an array if they are alike, else as a list."""


_LACKING = b"\1".ljust(PAYLOAD_BYTES, b"\0")
"""The payload of a root that lacks what results refer to."""


class RankResults:
    """What the tasks of this rank returned.

    Attributes:
        bounds: Where each chunk of their items begins and ends, which is pickled in a tenth of the time of ranges.
        values: The results.
    """

    def __init__(self) -> None:
        self.bounds: list[int] = []
        self.values: list[Any] = []

    def add(self, chunk: range, values: list[Any]) -> None:
        """Adds the results of the items with the numbers `chunk`."""
        self.bounds.extend((chunk.start, chunk.stop))
        self.values += values

    def pickled(self, *, refers: bool = True) -> PickledObject:
        """The bounds and the results, with references to what is in node memory if it `refers`.

        Raises:
            ItemFailed: A result cannot be pickled.
        """
        try:
            content = self.bounds, stack(self.values)
            return pickle_referring(content, names_objects=False)[0] if refers else pickle_object(content)
        except Exception:  # user classes may raise anything when they are pickled
            items = chain.from_iterable(map(range, self.bounds[::2], self.bounds[1::2]))
            for item, value in zip(items, self.values, strict=True):
                apply_to_items(pickle_object, [value], item)
            raise


def stack(values: list[Any]) -> Values:
    """One array with a row for each of `values`, if these are arrays or NumPy numbers of one dtype and one shape.

    Else `values`, and also if the first is an array that can be referred to. Only native classes and dtypes are
    stacked, so that the rows are of the same class as the values.
    """
    kind = type(values[0]) if len(set(map(type, values))) == 1 else None
    is_array = kind in PLAIN_CLASSES
    if kind is None or not (is_array or issubclass(kind, np.number | np.bool_)):  # the dtype may be another library's
        return values
    dtype, shape = values[0].dtype, values[0].shape
    if (is_array and (not shape or segment_to_name(values[0]))) or dtype.kind in "OV" or not dtype.itemsize:
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
    comm, is_root, gathered = context.collective_comm, context.topology.rank == root, [None] * count
    with agree(comm) as agreement:
        errors = Deferred()
        if not is_root:
            send_object(context, pickled, root, Tag.MAP_RESULT)
        else:
            _place(gathered, results.bounds, results.values)
        for rank in set(range(comm.size)) - {root} if is_root else ():
            with errors:  # also after an error, as each of them sends
                received = resolved(receive_object(context, rank, Tag.MAP_RESULT))
                if received is None:
                    agreement.payload = _LACKING
                else:
                    _place(gathered, *received)
        errors.raise_first()
    if agreement.payload == _LACKING:
        with agree(comm):
            pickled = results.pickled(refers=False)
        return gather_results(context, root, count, results, pickled)
    return gathered if is_root else None


def _place(gathered: list[Any], bounds: list[int], values: Values) -> None:
    """Puts the results of one rank at the places of their items."""
    rest = iter(values)
    for start, stop in zip(bounds[::2], bounds[1::2], strict=True):
        gathered[start:stop] = islice(rest, stop - start)
