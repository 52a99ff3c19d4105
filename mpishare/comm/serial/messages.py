"""Messages of the rank to itself: the requests, the calls of a communicator, and its queues."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from inspect import signature
from itertools import zip_longest
from typing import Any, TypeAlias

import numpy as np

from mpishare.arrays.raw import Block
from mpishare.comm.serial import values
from mpishare.comm.serial.values import PROC_NULL, Status, simple

Requests: TypeAlias = "Sequence[Request]"
Statuses: TypeAlias = "list[Status] | None"

_ANY = values.ANY_SOURCE
"""MPI_ANY_SOURCE, and MPI_ANY_TAG, which is the same number."""

_NOTHING = np.empty(0, np.uint8)


def dump(obj: Any) -> Block:
    """An object as mpi4py sends it: pickled, and None as no bytes."""
    return _NOTHING if obj is None else np.frombuffer(pickle.dumps(obj, pickle.HIGHEST_PROTOCOL), np.uint8)


def load(data: Block) -> Any:
    """The object that `dump` made."""
    return pickle.loads(data.data) if data.size else None  # noqa: S301 - of this process


def _check_ended(has_ended: object) -> None:
    if not has_ended:
        raise values.Exception("this rank is alone, and waits for a message that it has not sent")


def _without_objects(call: Callable[..., Any], part: int | slice = 0) -> staticmethod[..., Any]:
    """The call for buffers: it returns what `call` returns but for the objects."""
    return staticmethod(lambda *args, **kwargs: call(*args, **kwargs)[part])


@dataclass(eq=False, repr=False, kw_only=True)
class Request:
    """A call that has begun: one end of a message, or what has ended at once. It is true until it has been waited for.

    Attributes:
        is_active: Whether it has not been waited for.
        source: The rank that has sent; ANY_SOURCE of a receive that has met no message.
        tag: The tag that is sent or may be received; from when the ends meet, that of the message.
        data: What is sent, or has been received.
        deliver: What takes the bytes of a receive and returns the object.
        is_cancelled: Whether it was taken back before the ends met.
        queue: The requests of its kind that wait for the other end, if it does.
    """

    is_active: bool = False
    source: int = _ANY
    tag: int = _ANY
    data: Block = field(default_factory=lambda: _NOTHING)
    deliver: Callable[[Block], Any] | None = None
    is_cancelled: bool = False
    queue: dict[Request, None] | None = None

    def __bool__(self) -> bool:
        return self.is_active

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Request) and not self and not other)

    __hash__ = object.__hash__

    def wait_in(self, queue: dict[Request, None]) -> None:
        """Waits for the other end."""
        queue[self], self.queue = None, queue

    def leave_queue(self) -> None:
        """Waits no longer."""
        if self.queue is not None:
            del self.queue[self]
            self.queue = None

    def receive(self, send: Request) -> None:
        """Meets the other end."""
        self.leave_queue()
        send.leave_queue()
        self.source, self.tag, self.data = send.source, send.tag, send.data

    def describe(self, status: Status | None) -> None:
        """Fills in `status`."""
        if status is not None:
            tag = _ANY if self.is_cancelled else self.tag
            status.source, status.tag = self.source, tag
            status.count, status.cancelled = self.data.size, self.is_cancelled

    def get_status(self, status: Status | None = None) -> bool:
        """Whether it has ended. It stays as it is."""
        if self and self.queue is not None:
            return False
        (self or REQUEST_NULL).describe(status)
        return True

    def test(self, status: Status | None = None) -> tuple[bool, Any]:
        """Whether it has ended, and the object that it received."""
        has_ended = self.get_status(status)
        if not self or not has_ended:
            return has_ended, None
        self.Free()
        deliver, data = self.deliver, self.data
        self.deliver, self.data = None, _NOTHING  # as the program may keep the request
        return True, None if deliver is None or self.is_cancelled else deliver(data)

    def Test(self, status: Status | None = None) -> bool:
        """Whether it has ended."""
        return self.test(status)[0]

    def wait(self, status: Status | None = None) -> Any:
        """The object that it received. Raises an error if it has not ended."""
        has_ended, obj = self.test(status)
        _check_ended(has_ended)
        return obj

    def Wait(self, status: Status | None = None) -> bool:
        """True if it has ended. Raises an error if it has not."""
        self.wait(status)
        return True

    def Cancel(self) -> None:
        """Takes it back if it waits for the other end of a message."""
        self.is_cancelled |= self.queue is not None
        self.leave_queue()

    def Free(self) -> None:
        """Forgets it."""
        self.is_active = False

    Get_status, cancel, free = get_status, Cancel, Free

    @staticmethod
    def testsome(requests: Requests, statuses: Statuses = None) -> tuple[list[int] | None, list[Any] | None]:
        """Which have ended, and their objects; (None, None) if none is left to wait for."""
        if not any(requests):
            return None, None
        indices = [number for number, request in enumerate(requests) if request and request.get_status()]
        return indices, _ended([requests[number] for number in indices], statuses)

    @staticmethod
    def waitsome(requests: Requests, statuses: Statuses = None) -> tuple[list[int] | None, list[Any] | None]:
        """Like `testsome`. Raises an error if none has ended."""
        indices, objects = Request.testsome(requests, statuses)
        _check_ended(indices != [])
        return indices, objects

    @staticmethod
    def testany(requests: Requests, status: Status | None = None) -> tuple[int, bool, Any]:
        """One that has ended, whether there is one or none left to wait for, and its object."""
        for number, request in enumerate(requests):
            if request and request.get_status():
                return number, *request.test(status)
        return values.UNDEFINED, not any(requests), None

    @staticmethod
    def waitany(requests: Requests, status: Status | None = None) -> tuple[int, Any]:
        """One that has ended, and its object. Raises an error if none has."""
        index, flag, obj = Request.testany(requests, status)
        _check_ended(flag)
        return index, obj

    @staticmethod
    def testall(requests: Requests, statuses: Statuses = None) -> tuple[bool, list[Any] | None]:
        """Whether all have ended, and then their objects."""
        if not all(request.get_status() for request in requests):
            return False, None
        return True, _ended(requests, statuses)

    @staticmethod
    def waitall(requests: Requests, statuses: Statuses = None) -> Any:
        """The objects of all. Raises an error if one has not ended."""
        flag, objects = Request.testall(requests, statuses)
        _check_ended(flag)
        return objects

    @staticmethod
    def Waitall(requests: Requests, statuses: Statuses = None) -> bool:
        """True if all have ended. Raises an error if one has not."""
        Request.waitall(requests, statuses)
        return True

    Testsome, Waitsome = _without_objects(testsome), _without_objects(waitsome)
    Testany, Waitany = _without_objects(testany, slice(2)), _without_objects(waitany)
    Testall = _without_objects(testall)


REQUEST_NULL = Request()


def _ended(requests: Requests, statuses: Statuses) -> list[Any]:
    """The objects of requests that have ended. A list of statuses becomes as long as that of the requests."""
    if statuses is not None:
        statuses[:] = [*statuses, *(Status() for _ in requests)][: len(requests)]
    return [request.test(status)[1] for request, status in zip_longest(requests, statuses or ())]


def _blocking(begin: Callable[..., Request]) -> Callable[..., Any]:
    """The call that makes `begin` and waits: its last argument is a status, and it returns what is received."""
    n_arguments = len(signature(begin).parameters)

    def call(*args: Any, status: Status | None = None, **kwargs: Any) -> Any:
        request = begin(*args[:n_arguments], **kwargs)
        if not request.get_status():
            request.cancel()  # as nobody else could
            _check_ended(has_ended=False)
        return request.wait(*args[n_arguments:] or [status])

    return call


class Messages:
    """The calls of a communicator that send and receive."""

    def __init__(self) -> None:
        # In their order, the ends of messages that have not met the other end.
        self._sends: dict[Request, None] = {}
        self._receives: dict[Request, None] = {}

    # Messages of buffers

    def Issend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        """Sends to this rank. The request has ended when the message has met a receive."""
        return self._send(simple(None if dest == PROC_NULL else buf).block.copy(), dest, tag)

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        """Sends to this rank: to the first receive that waits for such a message, or into the queue."""
        self.Issend(buf, dest, tag)
        return Request(is_active=True)

    def Irecv(self, buf: Any, source: int = _ANY, tag: int = _ANY) -> Request:
        """Receives the first message that fits, now or when it is sent."""
        return self._receive(simple(None if source == PROC_NULL else buf).write, source, tag)

    def Isendrecv(
        self, sendbuf: Any, dest: int, sendtag: int = 0, recvbuf: Any = None, source: int = _ANY, recvtag: int = _ANY
    ) -> Request:
        """Sends, and receives the first message that fits, now or when it is sent."""
        self.Isend(sendbuf, dest, sendtag)
        return self.Irecv(recvbuf, source, recvtag)

    def Isendrecv_replace(
        self, buf: Any, dest: int, sendtag: int = 0, source: int = _ANY, recvtag: int = _ANY
    ) -> Request:
        """Sends from a buffer, and receives into it the first message that fits, now or when it is sent."""
        return self.Isendrecv(buf, dest, sendtag, buf, source, recvtag)

    Ibsend = Irsend = Isend
    Send = Bsend = Rsend = _blocking(Isend)
    Ssend, Recv = _blocking(Issend), _blocking(Irecv)
    Sendrecv, Sendrecv_replace = _blocking(Isendrecv), _blocking(Isendrecv_replace)

    # Messages of objects

    def issend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        """Sends an object to this rank. The request has ended when the message has met a receive."""
        return self._send(dump(obj), dest, tag)

    def isend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        """Sends an object to this rank."""
        self.issend(obj, dest, tag)
        return Request(is_active=True)

    def irecv(self, buf: Any = None, source: int = _ANY, tag: int = _ANY) -> Request:
        """Receives the first object that fits, now or when it is sent. It needs no `buf`."""
        return self._receive(load, source, tag)

    def _irecv(self, buf: Any = None, source: int = _ANY, tag: int = _ANY) -> Request:
        """The same for `recv`, which warns."""
        if buf is not None:
            warnings.warn("recv() makes no use of buf", UserWarning, stacklevel=3)
        return self.irecv(buf, source, tag)

    def _isendrecv(
        self, sendobj: Any, dest: int, sendtag: int = 0, recvbuf: Any = None, source: int = _ANY, recvtag: int = _ANY
    ) -> Request:
        """Sends an object, and receives the first one that fits."""
        self.isend(sendobj, dest, sendtag)
        return self._irecv(recvbuf, source, recvtag)

    ibsend = isend
    send = bsend = _blocking(isend)
    ssend, recv, sendrecv = _blocking(issend), _blocking(_irecv), _blocking(_isendrecv)

    # Probes

    def Iprobe(self, source: int = _ANY, tag: int = _ANY, status: Status | None = None) -> bool:
        """Whether there is a message that fits."""
        _check(source, tag, lowest_tag=_ANY)
        send = Request(source=PROC_NULL) if source == PROC_NULL else _first(self._sends, tag)
        (REQUEST_NULL if send is None else send).describe(status)
        return send is not None

    def Probe(self, source: int = _ANY, tag: int = _ANY, status: Status | None = None) -> bool:
        """True if there is a message that fits. Raises an error if there is none."""
        _check_ended(self.Iprobe(source, tag, status))
        return True

    iprobe, probe = Iprobe, Probe

    # The queues

    def _send(self, data: Block, dest: int, tag: int) -> Request:
        """Sends to this rank; the end of the message here."""
        _check(dest, tag, lowest_tag=0)
        send = Request(is_active=True, source=0, tag=tag, data=data)
        if dest != PROC_NULL:
            if (receive := _first(self._receives, tag)) is None:
                send.wait_in(self._sends)
            else:
                receive.receive(send)
        return send

    def _receive(self, deliver: Callable[[Block], Any], source: int, tag: int) -> Request:
        """Receives from this rank; the end of the message here."""
        _check(source, tag, lowest_tag=_ANY)
        if source == PROC_NULL:
            return Request(is_active=True, source=PROC_NULL)
        receive = Request(is_active=True, tag=tag, deliver=deliver)
        if (send := _first(self._sends, tag)) is None:
            receive.wait_in(self._receives)
        else:
            receive.receive(send)
        return receive


def _first(queue: dict[Request, None], tag: int) -> Request | None:
    """The first end of a message in a queue that fits."""
    return next((end for end in queue if end.tag == tag or _ANY in (end.tag, tag)), None)


def _check(rank: int, tag: int, lowest_tag: int) -> None:
    if rank not in (0, PROC_NULL) and not (rank == lowest_tag == _ANY):
        raise values.Exception(f"MPI_ERR_RANK: there is one rank, 0, and no rank {rank}", values.ERR_RANK)
    if not lowest_tag <= tag <= values.LARGEST_TAG:
        raise values.Exception(f"MPI_ERR_TAG: tag {tag} is not allowed", values.ERR_TAG)
