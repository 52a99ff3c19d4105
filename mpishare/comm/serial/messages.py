"""Messages of the rank to itself: the calls of a communicator, and its queues."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from mpishare.arrays.raw import Block
from mpishare.comm.serial.buffers import simple
from mpishare.comm.serial.constants import (
    ANY_SOURCE,
    ANY_TAG,
    ERR_RANK,
    ERR_TAG,
    LARGEST_TAG,
    PROC_NULL,
    Exception,
    never,
)
from mpishare.comm.serial.requests import NOTHING, Operation, Request
from mpishare.comm.serial.status import Status


def dump(obj: Any) -> Block:
    """An object as mpi4py sends it: pickled, and None as no bytes."""
    return NOTHING if obj is None else np.frombuffer(pickle.dumps(obj, pickle.HIGHEST_PROTOCOL), np.uint8)


def load(data: Block) -> Any:
    """The object that `dump` made."""
    return pickle.loads(data.data) if data.size else None  # noqa: S301 - of this process


class Messages:
    """The calls of a communicator that send and receive."""

    def __init__(self) -> None:
        self._sends: list[Operation] = []  # that have met no receive, in their order
        self._receives: list[Operation] = []  # that have met no send, in their order

    # Messages of buffers

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        """Sends to this rank: to the first receive that waits for such a message, or into the queue."""
        self._send(_sent(buf, dest), dest, tag)
        return Request(Operation())

    Ibsend = Irsend = Isend

    def Issend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        """Sends to this rank. The request has ended when the message has met a receive."""
        return Request(self._send(_sent(buf, dest), dest, tag))

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Sends to this rank."""
        self.Isend(buf, dest, tag)

    Bsend = Rsend = Send

    def Ssend(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Sends to this rank, where a receive waits for it."""
        self.Issend(buf, dest, tag).Wait()

    def Irecv(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """Receives the first message that fits, now or when it is sent."""
        return Request(self._receive(_received(buf, source), source, tag))

    def Recv(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> None:
        """Receives the first message that fits."""
        self._wait(self.Irecv(buf, source, tag), status)

    def Sendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> None:
        """Sends, and receives."""
        self._wait(self.Isendrecv(sendbuf, dest, sendtag, recvbuf, source, recvtag), status)

    def Isendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
    ) -> Request:
        """Sends, and receives the first message that fits, now or when it is sent."""
        self.Send(sendbuf, dest, sendtag)
        return self.Irecv(recvbuf, source, recvtag)

    def Sendrecv_replace(
        self,
        buf: Any,
        dest: int,
        sendtag: int = 0,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> None:
        """Sends from a buffer, and receives into it."""
        self.Sendrecv(buf, dest, sendtag, buf, source, recvtag, status)

    def Isendrecv_replace(
        self, buf: Any, dest: int, sendtag: int = 0, source: int = ANY_SOURCE, recvtag: int = ANY_TAG
    ) -> Request:
        """Sends from a buffer, and receives into it the first message that fits, now or when it is sent."""
        return self.Isendrecv(buf, dest, sendtag, buf, source, recvtag)

    # Messages of objects

    def isend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        """Sends an object to this rank."""
        self._send(dump(obj), dest, tag)
        return Request(Operation())

    ibsend = isend

    def issend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        """Sends an object to this rank. The request has ended when the message has met a receive."""
        return Request(self._send(dump(obj), dest, tag))

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Sends an object to this rank."""
        self.isend(obj, dest, tag)

    bsend = send

    def ssend(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Sends an object to this rank, where a receive waits for it."""
        self.issend(obj, dest, tag).wait()

    def irecv(self, buf: Any = None, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """Receives the first object that fits, now or when it is sent. It needs no `buf`."""
        return Request(self._receive(load, source, tag))

    def recv(self, buf: Any = None, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Any:
        """Receives the first object that fits. It needs no `buf`."""
        if buf is not None:
            warnings.warn("recv() makes no use of buf", UserWarning, stacklevel=2)
        return self._wait(self.irecv(buf, source, tag), status)

    def sendrecv(
        self,
        sendobj: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> Any:
        """Sends an object, and receives the first one that fits."""
        self.send(sendobj, dest, sendtag)
        return self.recv(recvbuf, source, recvtag, status)

    # Probes

    def Iprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> bool:
        """Whether there is a message that fits."""
        return self._probe(source, tag, status) is not None

    def Probe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> bool:
        """True if there is a message that fits."""
        if not self.Iprobe(source, tag, status):
            raise never()
        return True

    iprobe, probe = Iprobe, Probe

    # The queues

    def _send(self, data: Block, dest: int, tag: int) -> Operation:
        """Sends to this rank; the end of the message here."""
        _check(dest, tag, lowest_tag=0)
        if dest == PROC_NULL:
            return Operation()
        send = Operation(data=data, tag=tag)
        if (receive := _first(self._receives, tag)) is None:
            send.wait_in(self._sends)
        else:
            receive.receive(send)
        return send

    def _receive(self, deliver: Callable[[Block], Any], source: int, tag: int) -> Operation:
        """Receives from this rank; the end of the message here."""
        _check(source, tag, lowest_tag=ANY_TAG)
        if source == PROC_NULL:
            return Operation(deliver, source=PROC_NULL)
        receive = Operation(deliver, tag=tag)
        if (send := _first(self._sends, tag)) is None:
            receive.wait_in(self._receives)
        else:
            receive.receive(send)
        return receive

    def _probe(self, source: int, tag: int, status: Status | None) -> Operation | None:
        """The first message that fits, described as its receive would be."""
        _check(source, tag, lowest_tag=ANY_TAG)
        send = Operation(source=PROC_NULL) if source == PROC_NULL else _first(self._sends, tag)
        seen = Operation()
        if send is not None:
            seen.see(send)
        seen.describe(status)
        return send

    def _wait(self, request: Request, status: Status | None) -> Any:
        """Waits for a receive that has just begun; one that would wait for ever is taken back."""
        if not request.get_status():
            request.cancel()
            raise never()
        return request.wait(status)


def _sent(buf: Any, dest: int) -> Block:
    """A copy of the bytes to send, as the program may change them."""
    return NOTHING if dest == PROC_NULL else simple(buf).read().copy()


def _received(buf: Any, source: int) -> Callable[[Block], None]:
    """What takes the bytes that are received."""
    return simple(None if source == PROC_NULL else buf).write


def _first(queue: list[Operation], tag: int) -> Operation | None:
    """The first end of a message in a queue that fits."""
    return next((end for end in queue if end.tag == tag or ANY_TAG in (end.tag, tag)), None)


def _check(rank: int, tag: int, lowest_tag: int) -> None:
    if rank not in (0, PROC_NULL) and not (rank == ANY_SOURCE and lowest_tag == ANY_TAG):
        raise Exception(f"MPI_ERR_RANK: there is one rank, 0, and no rank {rank}", ERR_RANK)
    if not lowest_tag <= tag <= LARGEST_TAG:
        raise Exception(f"MPI_ERR_TAG: tag {tag} is not allowed", ERR_TAG)
