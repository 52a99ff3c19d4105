"""Messages that have begun and not ended, and what happens to their memory when an exception comes.

The rule: an exception from outside, such as a signal handler's, leaves alive until the process ends what MPI may still
read or write. Nothing else is repaired here; the communicator is refused from then on (`comm.collective`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from types import TracebackType
from typing import TYPE_CHECKING, Any

from mpishare.comm import mpi

if TYPE_CHECKING:
    from mpishare.comm.collective_comm import CollectiveComm

_kept_alive: list[object] = []


def keep_alive(objects: Collection[object]) -> None:
    """Keeps requests or buffers until the process ends."""
    _kept_alive.extend(objects)


def start(
    requests: list[mpi.Request] | deque[mpi.Request],
    call: Callable[..., mpi.Request],
    message: Any,
    rank: int,
    tag: int,
) -> None:
    """Begins a message and appends its request, in one call of C: no signal handler runs between the two."""
    requests.extend(map(call, (message,), (rank,), (tag,)))


class kept_alive_on_error:  # noqa: N801 - used as `with kept_alive_on_error([request]):`
    """Keeps what `objects` holds by then where an exception ends the block."""

    def __init__(self, objects: Collection[object]) -> None:
        self._objects = objects

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            keep_alive(self._objects)


class InFlight:
    """The messages of one call that have begun and not ended, the oldest first.

    Leaving the block waits for all of them; an exception keeps their buffers alive instead.
    """

    def __init__(self, comm: CollectiveComm, tag: int) -> None:
        """Messages on `comm` with `tag`."""
        self._comm = comm
        self._tag = tag
        self._requests: deque[mpi.Request] = deque()
        self._ranks: deque[int] = deque()

    def __enter__(self) -> InFlight:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.wait_until(0)
        finally:
            keep_alive(self._requests)

    def __len__(self) -> int:
        return len(self._requests)

    def send(self, block: Any, rank: int) -> None:
        """Begins to send."""
        start(self._requests, self._comm.isend, [block, mpi.BYTE], rank, self._tag)
        self._ranks.append(rank)

    def receive(self, block: Any, rank: int) -> None:
        """Begins to receive."""
        start(self._requests, self._comm.irecv, [block, mpi.BYTE], rank, self._tag)
        self._ranks.append(rank)

    def wait_oldest(self, status: mpi.Status | None = None) -> None:
        """Waits for the oldest message."""
        self._comm.wait(self._requests[0], self._ranks.popleft(), status)
        self._requests.popleft()

    def wait_until(self, count: int) -> None:
        """Waits until no more than `count` messages are left."""
        while len(self._requests) > count:
            self.wait_oldest()
