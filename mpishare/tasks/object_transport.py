"""Sends objects between two ranks within our own calls, on a communicator and a tag of ours."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from mpishare.comm import mpi
from mpishare.comm.communicator import CollectiveComm
from mpishare.comm.context import Context
from mpishare.comm.in_flight import InFlight
from mpishare.comm.watchdog import answer_everywhere
from mpishare.errors import MpishareError
from mpishare.messages.wire import HEAD_BYTES, chunks_of, decode, encode
from mpishare.objects.pickled import PickledObject
from mpishare.objects.pickling import unpickle_object

_YIELDS = 1000
_SLEEP_S = 0.00005

_MOST_IN_FLIGHT = 8


def backoff(sleep_s: float = _SLEEP_S) -> Iterator[None]:
    """Pauses with each `next`, between two looks at what another rank does: first yields the core, then sleeps.

    Ranks that have waited too long for this one get an answer meanwhile.
    """
    for _ in range(_YIELDS):
        os.sched_yield()
        yield
    while True:
        time.sleep(sleep_s)
        answer_everywhere()
        yield


def send_object(context: Context, comm: CollectiveComm, pickled: PickledObject, dest: int, tag: int) -> None:
    """Sends an object to `receive_object` on rank `dest`. Returns when its arrays may be changed.

    First comes the head of a message (`messages.wire`), then its parts.
    """
    message = encode(context, pickled)
    with InFlight(comm, tag) as in_flight:
        for block in (np.frombuffer(message.head, np.uint8), *message.parts):
            for chunk in chunks_of(block):
                in_flight.send(chunk, dest)
                in_flight.wait_until(_MOST_IN_FLIGHT)


def receive_object(context: Context, comm: CollectiveComm, source: int, tag: int) -> Any:
    """Receives what `send_object` sends, to the end, also where it raises one of these.

    After any other exception, such as a signal handler's, the communicator is refused: what is left of the message
    would come to the next receive, and Open MPI 5.0 writes a message that is too long past the end of its buffer.

    Returns:
        The object, unpickled.

    Raises:
        CapacityError: There is no memory for it.
        Exception: What the object's classes raise when they are unpickled.
    """
    try:
        pickled = _receive(context, comm, source, tag)
    except MpishareError:
        raise
    except BaseException:
        context.is_out_of_step = True
        raise
    return unpickle_object(pickled)


def _receive(context: Context, comm: CollectiveComm, source: int, tag: int) -> PickledObject:
    head, status = np.empty(HEAD_BYTES, np.uint8), mpi.Status()
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
            return pickled
