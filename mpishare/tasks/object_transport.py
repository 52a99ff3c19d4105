"""Objects with arrays in them from one rank to another, for calls of ours, over a communicator and a tag of ours."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from mpishare.comm.collective_comm import CollectiveComm
from mpishare.comm.context import Context
from mpishare.errors import MpishareError
from mpishare.messages.wire import Message, decode, encode, pieces
from mpishare.objects.pickled import PickledObject

_YIELDS = 1000
_REST_S = 0.00005
"""Who waits for another rank yields the core so many times and then sleeps so long between looks."""


def rest(looks: int) -> int:
    """Lets others have the core before the next look; how many there have been."""
    if looks < _YIELDS:
        os.sched_yield()
    else:
        time.sleep(_REST_S)
    return looks + 1


def send_block(comm: CollectiveComm, block: Any, dest: int, tag: int) -> None:
    """Sends bytes, and returns when they may be changed."""
    for piece in pieces(block):
        comm.wait(comm.isend(piece, dest, tag), dest)


def receive_block(comm: CollectiveComm, block: Any, source: int, tag: int) -> None:
    """Receives as many bytes as there is room for."""
    for piece in pieces(block):
        comm.wait(comm.irecv(piece, source, tag), source)


def send_object(context: Context, comm: CollectiveComm, parcel: PickledObject, dest: int, tag: int) -> None:
    """Sends an object that was taken apart: the length of the head, the head, and all that follows it."""
    letter = encode(context, parcel)
    send_block(comm, np.array([len(letter.head)], np.int64).view(np.uint8), dest, tag)
    for block in _blocks(letter):
        send_block(comm, block, dest, tag)


def _blocks(letter: Message) -> Iterator[Any]:
    yield np.frombuffer(letter.head, np.uint8)
    yield from letter.parts


def receive_object(context: Context, comm: CollectiveComm, source: int, tag: int) -> PickledObject | MpishareError:
    """What `send_parcel` sends, or why it has no place here; it has been received all the same."""
    length = np.empty(1, np.int64)
    receive_block(comm, length.view(np.uint8), source, tag)
    head = np.empty(int(length[0]), np.uint8)
    receive_block(comm, head, source, tag)
    steps = decode(context, head.tobytes(), None)
    try:
        piece, _ = next(steps)
        while True:
            comm.wait(comm.irecv(piece, source, tag), source)
            piece, _ = steps.send(piece.nbytes)
    except StopIteration as end:
        parcel: PickledObject = end.value
        return parcel
    except MpishareError as error:
        return error
