"""What stands in for mpi4py.MPI where there is no MPI: one rank, in plain Python, under the names of mpi4py.

Only `comm.mpi` may import this module. It has what the library calls, and the
calls of Python objects that programs make beside it, and no more. With one rank a collective copies or
does nothing, and a message goes to the rank itself: it waits in its communicator until it is received. A receive that
blocks while no message is there would wait for ever, so it raises an error instead.
"""

from __future__ import annotations

import builtins
import itertools
import platform
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpishare.arrays.raw import Block, bytes_of

IN_PLACE, BYTE = object(), object()
ANY_SOURCE, ANY_TAG, PROC_NULL = -1, -1, -2
COMM_TYPE_SHARED, ERRORS_RETURN, TAG_UB, THREAD_MULTIPLE = range(4)

_LARGEST_TAG = (1 << 31) - 1
_handles = itertools.count(1)


class Exception(builtins.Exception):  # noqa: A001 - the name in mpi4py
    """An error of MPI."""


class Op:
    """An operation of a reduction, whose result is what the one rank gave."""

    is_predefined = is_commutative = True

    def __init__(self) -> None:
        self.handle = next(_handles)


OP_NULL, SUM, PROD, MIN, MAX, LAND, LOR, LXOR, BAND, BOR, BXOR = (Op() for _ in range(11))


class Win:
    """Windows, which only MPI makes."""


class Status:
    """What is known of a message: the rank that sent it, its tag, and its bytes."""

    source = tag = count = 0
    _is_cancelled = False

    def Is_cancelled(self) -> bool:
        """Whether the receive was taken back."""
        return self._is_cancelled

    def Set_elements(self, _datatype: object, count: int) -> None:
        """Sets the bytes."""
        self.count = count


class Message:
    """A message that has been sent, and not yet received."""

    def __init__(self, buffer: Any, tag: int) -> None:
        self.tag = tag
        self._data = _block(buffer).copy()

    def describe(self, status: Status | None) -> None:
        """Fills in `status`."""
        if status is not None:
            status.tag, status.count = self.tag, self._data.size

    def Recv(self, buffer: Any, status: Status | None = None) -> None:
        """Copies the bytes into `buffer`."""
        block = _block(buffer)
        if block.size < self._data.size:
            raise Exception("MPI_ERR_TRUNCATE: the message is longer than the memory for it")
        block[: self._data.size] = self._data
        self.describe(status)


class Request:
    """A call that has begun, and has ended unless it receives a message that has not been sent."""

    def __init__(self, receives: list[Request] | None = None, buffer: Any = None, tag: int = ANY_TAG) -> None:
        """One of the `receives` that wait for a message; one that has ended when None."""
        self.tag = tag
        self._receives = receives
        self._buffer = buffer
        self._message: Message | None = None
        self._is_cancelled = False

    def take(self, message: Message) -> None:
        """Receives `message`."""
        message.Recv(self._buffer)
        self._message, self._receives = message, None

    def Test(self, status: Status | None = None) -> bool:
        """Whether it has ended."""
        if self._message is not None:
            self._message.describe(status)
        elif status is not None:
            status._is_cancelled = self._is_cancelled
        return self._receives is None

    def Wait(self, status: Status | None = None) -> None:
        """Returns if it has ended."""
        if not self.Test(status):
            raise _never()

    def Cancel(self) -> None:
        """Takes back a receive."""
        if self._receives is not None:
            self._receives.remove(self)
            self._receives, self._is_cancelled = None, True

    @staticmethod
    def Testall(requests: Sequence[Request]) -> bool:
        """Whether all have ended."""
        return all(request.Test() for request in requests)


class Comm:
    """What all communicators are."""

    @staticmethod
    def Create_keyval(*, delete_fn: Callable[..., object]) -> int:
        """A key for attributes. `delete_fn` is called when a communicator that has one is freed."""
        keyval = next(_handles)
        _delete_fns[keyval] = delete_fn
        return keyval


_delete_fns: dict[int, Callable[..., object]] = {}


class Intracomm(Comm):
    """A communicator of this rank alone. Two are equal if they are one, or have both been freed."""

    rank, size = 0, 1

    name = "one rank without MPI"

    def __init__(self, handle: int | None = None) -> None:
        self.handle = next(_handles) if handle is None else handle
        self._attributes: dict[int, Any] = {TAG_UB: _LARGEST_TAG}
        self._messages: list[Message] = []  # in the order in which they were sent
        self._receives: list[Request] = []  # that have begun, in their order

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Intracomm) and self.handle == other.handle

    def __hash__(self) -> int:
        return hash(self.handle)

    def Get_rank(self) -> int:
        """The rank of this process."""
        return self.rank

    def Get_size(self) -> int:
        """The number of ranks."""
        return self.size

    def Dup(self, *_: Any, **__: Any) -> Intracomm:
        """Another communicator."""
        return Intracomm()

    Split = Split_type = Dup

    def Idup(self) -> tuple[Intracomm, Request]:
        """Another communicator."""
        return Intracomm(), Request()

    def Free(self) -> None:
        """Ends it, and what its attributes keep."""
        for keyval, value in list(self._attributes.items()):
            if delete := _delete_fns.get(keyval):
                delete(self, keyval, value)
        self.handle = 0

    def Set_attr(self, keyval: int, value: Any) -> None:
        """Sets an attribute."""
        self._attributes[keyval] = value

    def Get_attr(self, keyval: int) -> Any:
        """The attribute, or None."""
        return self._attributes.get(keyval)

    def Set_errhandler(self, _: object) -> None:
        """Does nothing: errors are always raised."""

    def Barrier(self) -> None:
        """Returns at once."""

    barrier = Barrier

    def Bcast(self, buf: Any, root: int = 0) -> None:
        """Returns at once."""

    def Allgather(self, send: Any, receive: Any, *_: object) -> None:
        """Copies from one memory to the other."""
        if send is not IN_PLACE and receive is not None:
            _block(receive)[:] = _block(send)

    Allgatherv = Alltoallv = Allreduce = Reduce = Allgather

    def Ibarrier(self, *_: Any) -> Request:
        """Returns what has ended."""
        return Request()

    Ibcast = Ibarrier

    def Iallgather(self, *args: Any) -> Request:
        """Copies, and returns what has ended."""
        self.Allgather(*args)
        return Request()

    Iallgatherv = Ialltoallv = Iallreduce = Ireduce = Iallgather

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """The object itself."""
        return obj

    def reduce(self, sendobj: Any, op: Op = SUM, root: int = 0) -> Any:
        """The object itself."""
        return sendobj

    allreduce = reduce

    def scatter(self, sendobj: Sequence[Any], root: int = 0) -> Any:
        """The object for the one rank."""
        (obj,) = sendobj
        return obj

    def gather(self, sendobj: Any, root: int = 0) -> list[Any]:
        """The object of the one rank."""
        return [sendobj]

    allgather = gather

    def alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        """The object for the one rank."""
        return [*sendobj]

    def Isend(self, buffer: Any, dest: int, tag: int = 0) -> Request:
        """Sends to this rank: to the first receive that waits for such a message, or into the queue."""
        if dest != PROC_NULL:
            message = Message(buffer, tag)
            request = next((request for request in self._receives if request.tag in (ANY_TAG, tag)), None)
            if request is None:
                self._messages.append(message)
            else:
                self._receives.remove(request)
                request.take(message)
        return Request()

    Send = Isend

    def Irecv(self, buffer: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """Receives the first message that fits, now or when it is sent."""
        if source == PROC_NULL:
            return Request()
        request = Request(self._receives, buffer, tag)
        message = self.Improbe(source, tag)
        if message is None:
            self._receives.append(request)
        else:
            request.take(message)
        return request

    def Recv(self, buffer: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> None:
        """Receives the first message that fits."""
        if source == PROC_NULL:
            return
        message = self.Improbe(source, tag)
        if message is None:
            raise _never()
        message.Recv(buffer, status)

    def Iprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> bool:
        """Whether there is a message that fits."""
        message = self._first(tag)
        if message is not None:
            message.describe(status)
        return message is not None

    def Probe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> None:
        """Returns if there is a message that fits."""
        if not self.Iprobe(source, tag, status):
            raise _never()

    def Improbe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Message | None:
        """Takes the first message that fits out of the queue."""
        message = self._first(tag)
        if message is not None:
            self._messages.remove(message)
            message.describe(status)
        return message

    def _first(self, tag: int) -> Message | None:
        return next((message for message in self._messages if tag in (ANY_TAG, message.tag)), None)


COMM_NULL, COMM_WORLD, COMM_SELF = Intracomm(0), Intracomm(), Intracomm()


def Is_initialized() -> bool:
    """Whether calls are possible."""
    return True


def Is_finalized() -> bool:
    """Whether calls are no longer possible."""
    return False


def Query_thread() -> int:
    """Which threads may call."""
    return THREAD_MULTIPLE


def Get_processor_name() -> str:
    """The name of the host."""
    return platform.node()


def _handleof(item: Intracomm | Op) -> int:
    return item.handle


def _never() -> Exception:
    return Exception("this rank is alone, and waits for a message that it has not sent")


def _block(buffer: Any) -> Block:
    """The bytes of a buffer as mpi4py takes it: alone, or the first in a list."""
    memory = buffer[0] if isinstance(buffer, list | tuple) else buffer
    return bytes_of(memory) if isinstance(memory, np.ndarray) else np.frombuffer(memory, np.uint8)
