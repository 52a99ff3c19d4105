"""What travels between ranks: objects, and what tasks returned, which the root puts in the order of the items."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import chain, starmap
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.spec import PLAIN_CLASSES
from mpishare.comm import mpi
from mpishare.comm.agreement import agree
from mpishare.comm.communicator import CollectiveComm
from mpishare.comm.context import Context
from mpishare.comm.in_flight import InFlight
from mpishare.comm.tags import Tag
from mpishare.errors import MpishareError
from mpishare.messages.wire import HEAD_BYTES, chunks_of, decode, encode
from mpishare.objects.pickled import PickledObject
from mpishare.objects.pickling import pickle_object, unpickle_object
from mpishare.tasks.errors import ItemFailed

Values: TypeAlias = "list[Any] | NDArray[Any]"
"""Results, one after the other: as the rows of an array if they are alike, else as a list."""


def send_object(context: Context, comm: CollectiveComm, pickled: PickledObject, dest: int, tag: int) -> None:
    """Sends an object to `receive_object` on rank `dest`. Returns when its arrays may be changed.

    First comes the head of a message (`messages.wire`), then its parts.
    """
    message = encode(context, pickled)
    with InFlight(comm, tag) as in_flight:
        for block in (np.frombuffer(message.head, np.uint8), *message.parts):
            for chunk in chunks_of(block):
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
    """What the tasks of this rank returned."""

    def __init__(self) -> None:
        self._chunks = array("q")  # where each begins and ends: an eighth of the memory of tuples
        self._values: list[Any] = []

    def add(self, chunk: range, values: list[Any]) -> None:
        """Adds the results of the items with the numbers `chunk`."""
        self._chunks.extend((chunk.start, chunk.stop))
        self._values += values

    @cached_property
    def content(self) -> tuple[bytes, Values]:
        """Where each chunk of items begins and ends, in 64 bits each, and the results. All have been added by then."""
        return self._chunks.tobytes(), stack(self._values)

    def pickled(self) -> PickledObject:
        """Their content, pickled.

        Raises:
            ItemFailed: A result cannot be pickled.
        """
        try:
            return pickle_object(self.content)
        except Exception as error:  # user classes may raise anything when they are pickled
            items = chain.from_iterable(starmap(range, _pairs(self._chunks)))
            for item, value in zip(items, self._values, strict=True):
                try:
                    pickle_object(value)
                except Exception:
                    raise ItemFailed(item) from error
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
) -> Values | None:
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
    comm, gathered, errors = context.collective_comm, None, []
    if comm.rank != root:
        send_object(context, comm, pickled, root, Tag.MAP_RESULT)
    with agree(comm):
        for rank in range(comm.size) if comm.rank == root else ():
            try:  # from all ranks, also after an error, since each of them sends
                content = results.content
                if rank != root:
                    content = receive_object(context, comm, rank, Tag.MAP_RESULT)
                gathered = _placed(gathered, count, *content)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
    return gathered


def _placed(gathered: Values | None, count: int, chunks: bytes, values: Values) -> Values | None:
    """`gathered`, of `count` items, with the results of one more rank; a list where the ranks' results differ."""
    if not chunks:
        return gathered
    row = _row_of(values)
    if gathered is None:
        gathered = [None] * count if row is None else np.empty((count, *row[1]), row[0])
    elif row != _row_of(gathered):
        gathered = list(gathered)
    begin = 0
    for start, stop in _pairs(memoryview(chunks).cast("q")):
        end = begin + stop - start
        gathered[start:stop] = values[begin:end]
        begin = end
    return gathered


def _pairs(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Two of the numbers at a time."""
    iterator = iter(numbers)
    return zip(iterator, iterator, strict=True)


def _row_of(values: Values) -> tuple[np.dtype[Any], tuple[int, ...]] | None:
    """The dtype and the shape of each of `values`; None if they are in a list."""
    return (values.dtype, values.shape[1:]) if isinstance(values, np.ndarray) else None
