"""What travels between ranks: objects, and what tasks returned, which the root puts in the order of the items."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import chain, starmap
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.spec import PLAIN_CLASSES
from mpishare.comm import mpi
from mpishare.comm.agreement import Deferred, agree
from mpishare.comm.communicator import CollectiveComm
from mpishare.comm.context import Context
from mpishare.comm.in_flight import InFlight, Tag
from mpishare.errors import MpishareError
from mpishare.messages.wire import HEAD_BYTES, decode, encode
from mpishare.objects.pickling import PickledObject, pickle_object, unpickle_object
from mpishare.tasks.errors import apply_to_items

Values: TypeAlias = "list[Any] | NDArray[Any]"
"""Results, one after the other: as the rows of an array if they are alike, else as a list."""


def send_object(context: Context, comm: CollectiveComm, pickled: PickledObject, dest: int, tag: int) -> None:
    """Sends an object to `receive_object` on rank `dest`. Returns when its arrays may be changed.

    First comes the head of a message (`messages.wire`), then its chunks.
    """
    head, _, chunks = encode(context, pickled)
    with InFlight(comm, tag) as in_flight:
        for chunk in (head, *chunks):
            in_flight.send(chunk, dest)


def receive_object(context: Context, comm: CollectiveComm, source: int, tag: int) -> Any:
    """Receives what `send_object` sends, to the end, also where it raises one of these.

    After any other exception, such as a signal handler's, the communicator is refused: the rest of the message
    would come to the next receive, and Open MPI 5.0 writes a message that is too long past the end of its buffer.

    Returns:
        The object, unpickled.

    Raises:
        CapacityError: There is no memory for it.
        Exception: What the object's classes raise when they are unpickled.
    """
    head, status = np.empty(HEAD_BYTES, np.uint8), mpi.Status()
    try:
        with InFlight(comm, tag) as in_flight:
            in_flight.receive(head, source)
            in_flight.wait_oldest(status)
            steps = decode(context, head[: status.count].tobytes(), None)
            try:
                block, _ = next(steps)
                while True:
                    in_flight.receive(block, source)
                    in_flight.wait_oldest()
                    block, _ = steps.send(block.nbytes)
            except StopIteration as end:
                pickled: PickledObject = end.value
    except MpishareError:
        raise
    except BaseException:
        context.is_out_of_step = True
        raise
    return unpickle_object(pickled)


class RankResults:
    """What the tasks of this rank returned.

    Attributes:
        bounds: Where each chunk of items begins and ends: an eighth of the memory of tuples.
        values: The results.
    """

    def __init__(self) -> None:
        self.bounds = array("q")
        self.values: list[Any] = []

    def add(self, chunk: range, values: list[Any]) -> None:
        """Adds the results of the items with the numbers `chunk`."""
        self.bounds.extend((chunk.start, chunk.stop))
        self.values += values

    def pickled(self) -> PickledObject:
        """The bounds and the results.

        Raises:
            ItemFailed: A result cannot be pickled.
        """
        try:
            return pickle_object((self.bounds.tobytes(), stack(self.values)))
        except Exception:  # user classes may raise anything when they are pickled
            items = chain.from_iterable(starmap(range, _pairs(self.bounds)))
            for item, value in zip(items, self.values, strict=True):
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
        if comm.rank != root:
            send_object(context, comm, pickled, root, Tag.MAP_RESULT)
            return None
        gathered, errors = [None] * count, Deferred()
        _place(gathered, results.bounds, results.values)
        for rank in set(range(comm.size)) - {root}:
            with errors:  # also after an error, as each of them sends
                bounds, values = receive_object(context, comm, rank, Tag.MAP_RESULT)
                _place(gathered, memoryview(bounds).cast("q"), values)
        errors.raise_first()
    return gathered


def _place(gathered: list[Any], bounds: memoryview | array[int], values: Values) -> None:
    """Puts the results of one rank at the places of their items."""
    begin = 0
    for start, stop in _pairs(bounds):
        end = begin + stop - start
        gathered[start:stop] = values[begin:end]
        begin = end


def _pairs(numbers: memoryview | array[int]) -> Iterator[tuple[int, int]]:
    """Two of the numbers at a time."""
    iterator = iter(numbers)
    return zip(iterator, iterator, strict=True)
