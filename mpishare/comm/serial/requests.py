"""Requests, and what they stand for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from mpishare.arrays.raw import Block
from mpishare.comm.serial.constants import ANY_SOURCE, ANY_TAG, UNDEFINED, never
from mpishare.comm.serial.status import Status

NOTHING = np.empty(0, np.uint8)

Requests: TypeAlias = "Sequence[Request]"
Statuses: TypeAlias = "list[Status] | None"


class Operation:
    """What a request stands for: the end of a message, or what has ended when it begins.

    Attributes:
        tag: The tag that is sent or may be received; from when the ends meet, that of the message.
        data: What is sent, or has been received.
    """

    def __init__(
        self,
        deliver: Callable[[Block], Any] | None = None,
        data: Block = NOTHING,
        tag: int = ANY_TAG,
        source: int = ANY_SOURCE,
    ) -> None:
        """For a receive, `deliver` takes the bytes and returns the object."""
        self.tag, self.data = tag, data
        self._deliver, self._source, self._is_cancelled = deliver, source, False
        self._queue: list[Operation] | None = None

    @property
    def has_ended(self) -> bool:
        """Whether it waits no longer for the other end."""
        return self._queue is None

    def wait_in(self, queue: list[Operation]) -> None:
        """Waits for the other end."""
        queue.append(self)
        self._queue = queue

    def leave_queue(self) -> None:
        """Waits no longer."""
        if self._queue is not None:
            self._queue.remove(self)
            self._queue = None

    def receive(self, send: Operation) -> None:
        """Meets the other end."""
        self.leave_queue()
        send.leave_queue()
        self.see(send)

    def see(self, send: Operation) -> None:
        """Knows the message of the other end."""
        self.data, self.tag = send.data, send.tag
        self._source = 0 if send._source == ANY_SOURCE else send._source

    def cancel(self) -> None:
        """Takes it back if it waits."""
        self._is_cancelled |= not self.has_ended
        self.leave_queue()

    def describe(self, status: Status | None) -> None:
        """Fills in `status`."""
        if status is not None:
            status.take(Status())
            status.cancelled = self._is_cancelled
            if self._source != ANY_SOURCE:
                status.source, status.tag, status.count = self._source, self.tag, self.data.size

    def result(self) -> Any:
        """Receives, and returns the object that was received, if it is one."""
        return None if self._deliver is None or self._is_cancelled else self._deliver(self.data)


class Request:
    """A call that has begun. It is true until it has been waited for."""

    def __init__(self, request: Request | Operation | None = None) -> None:
        self._operation: Operation | None = request._operation if isinstance(request, Request) else request

    def __bool__(self) -> bool:
        return self._operation is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Request) and self._identity() == other._identity()

    __hash__ = object.__hash__

    def _identity(self) -> Any:
        return self._operation

    def get_status(self, status: Status | None = None) -> bool:
        """Whether it has ended. It stays as it is."""
        operation = self._operation or Operation()
        if operation.has_ended:
            operation.describe(status)
        return operation.has_ended

    Get_status = get_status

    def test(self, status: Status | None = None) -> tuple[bool, Any]:
        """Whether it has ended, and the object that it received."""
        has_ended = self.get_status(status)
        if self._operation is None or not has_ended:
            return has_ended, None
        operation, self._operation = self._operation, None
        return True, operation.result()

    def Test(self, status: Status | None = None) -> bool:
        """Whether it has ended."""
        return self.test(status)[0]

    def wait(self, status: Status | None = None) -> Any:
        """The object that it received. Raises an error if it has not ended."""
        return self.waitall([self], None if status is None else [status])[0]

    def Wait(self, status: Status | None = None) -> bool:
        """True if it has ended. Raises an error if it has not."""
        self.wait(status)
        return True

    def cancel(self) -> None:
        """Takes it back if it waits for the other end of a message."""
        if self._operation is not None:
            self._operation.cancel()

    Cancel = cancel

    def Free(self) -> None:
        """Forgets it."""
        self._operation = None

    free = Free

    @classmethod
    def testsome(cls, requests: Requests, statuses: Statuses = None) -> tuple[list[int] | None, list[Any] | None]:
        """Which have ended, and their objects; (None, None) if none is left to wait for."""
        if not any(request._operation for request in requests):
            return None, None
        indices = [number for number, request in enumerate(requests) if request._operation and request.get_status()]
        return indices, _ended([requests[number] for number in indices], statuses)

    @classmethod
    def waitsome(cls, requests: Requests, statuses: Statuses = None) -> tuple[list[int] | None, list[Any] | None]:
        """Like `testsome`. Raises an error if none has ended."""
        indices, objects = cls.testsome(requests, statuses)
        if indices == []:
            raise never()
        return indices, objects

    @classmethod
    def testany(cls, requests: Requests, status: Status | None = None) -> tuple[int, bool, Any]:
        """One that has ended, whether there is one or none left to wait for, and its object."""
        active = [number for number, request in enumerate(requests) if request._operation]
        for number in active:
            if requests[number].get_status():
                return number, *requests[number].test(status)
        return UNDEFINED, not active, None

    @classmethod
    def waitany(cls, requests: Requests, status: Status | None = None) -> tuple[int, Any]:
        """One that has ended, and its object. Raises an error if none has."""
        index, flag, obj = cls.testany(requests, status)
        if not flag:
            raise never()
        return index, obj

    @classmethod
    def testall(cls, requests: Requests, statuses: Statuses = None) -> tuple[bool, list[Any] | None]:
        """Whether all have ended, and then their objects."""
        if not all(request.get_status() for request in requests):
            return False, None
        return True, _ended(requests, statuses)

    @classmethod
    def waitall(cls, requests: Requests, statuses: Statuses = None) -> list[Any]:
        """The objects of all. Raises an error if one has not ended."""
        objects = cls.testall(requests, statuses)[1]
        if objects is None:
            raise never()
        return objects

    @classmethod
    def Testsome(cls, requests: Requests, statuses: Statuses = None) -> list[int] | None:
        """Which have ended; None if none is left to wait for."""
        return cls.testsome(requests, statuses)[0]

    @classmethod
    def Waitsome(cls, requests: Requests, statuses: Statuses = None) -> list[int] | None:
        """Like `Testsome`. Raises an error if none has ended."""
        return cls.waitsome(requests, statuses)[0]

    @classmethod
    def Testany(cls, requests: Requests, status: Status | None = None) -> tuple[int, bool]:
        """One that has ended, and whether there is one or none left to wait for."""
        return cls.testany(requests, status)[:2]

    @classmethod
    def Waitany(cls, requests: Requests, status: Status | None = None) -> int:
        """One that has ended. Raises an error if none has."""
        return cls.waitany(requests, status)[0]

    @classmethod
    def Testall(cls, requests: Requests, statuses: Statuses = None) -> bool:
        """Whether all have ended."""
        return cls.testall(requests, statuses)[0]

    @classmethod
    def Waitall(cls, requests: Requests, statuses: Statuses = None) -> bool:
        """True if all have ended. Raises an error if one has not."""
        cls.waitall(requests, statuses)
        return True


def _ended(requests: Requests, statuses: Statuses) -> list[Any]:
    """The objects of requests that have ended. A list of statuses becomes as long as that of the requests."""
    made = [Status() for _ in requests]
    objects = [request.test(status)[1] for request, status in zip(requests, made, strict=True)]
    for given, status in zip(statuses or (), made, strict=False):
        given.take(status)
    if isinstance(statuses, list):
        statuses[len(made) :] = []
        statuses += made[len(statuses) :]
    return objects


REQUEST_NULL = Request()
