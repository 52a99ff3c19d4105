"""The messages of one call that have begun and not ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

from mpishare.comm import mpi
from mpishare.comm.communicator import CollectiveComm
from mpishare.comm.requests import keep_alive, start

MAX_IN_FLIGHT = 4
"""Number of chunks in flight in each direction. Measured: 4 keep a link of 400 Mbit/s busy over 8 nodes."""


class InFlight:
    """The messages of one call that have begun and not ended, the oldest first.

    Leaving the block waits for all of them. An exception keeps their buffers alive instead, and begins what is left of
    `dests` and `buffers`, so that no other rank waits in the middle of the call for this rank, which has left it.
    """

    def __init__(
        self, comm: CollectiveComm, tag: int, dests: Sequence[int] = (), buffers: Sequence[tuple[int, Any]] = ()
    ) -> None:
        """Messages on `comm` with `tag`.

        Args:
            comm: The communicator.
            tag: The tag of all of them.
            dests: The rank to which each message is sent. After an exception those that are left are sent empty.
            buffers: For each message that is received the rank that sends it, and the memory that it goes to.
        """
        self._comm = comm
        self._tag = tag
        self._dests = dests
        self._buffers = buffers
        self._requests: list[mpi.Request] = []  # of all that have begun
        self._ranks: list[int] = []
        self._ended = 0

    def __enter__(self) -> InFlight:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.wait_until(0)
            elif not self._comm.is_given_up:  # else all ranks hear of it
                self._begin_rest()
        finally:
            keep_alive(self._requests[self._ended :])

    def send(self, block: Any, rank: int) -> None:
        """Begins to send."""
        start(self._requests, self._comm.isend, [block, mpi.BYTE], rank, self._tag)
        self._ranks.append(rank)

    def receive(self, block: Any, rank: int) -> None:
        """Begins to receive."""
        start(self._requests, self._comm.irecv, [block, mpi.BYTE], rank, self._tag)
        self._ranks.append(rank)

    def receive_all(self) -> Iterator[Any]:
        """Receives into `buffers`, in order, with up to `MAX_IN_FLIGHT` receives posted at a time.

        Yields:
            Each buffer once its message has arrived; as much of it as was sent.
        """
        status = mpi.Status()
        for number, (_, buffer) in enumerate(self._buffers):
            for source, next_buffer in self._buffers[len(self._requests) : number + MAX_IN_FLIGHT]:
                self.receive(next_buffer, source)
            self.wait_oldest(status)
            yield buffer[: status.count]

    def advance(self) -> None:
        """Lets MPI go on with the messages, between parts of other work."""
        if self._requests:
            self._requests[-1].Test()

    def wait_oldest(self, status: mpi.Status | None = None) -> None:
        """Waits for the oldest message."""
        self._comm.wait(self._requests[self._ended], self._ranks[self._ended], status)
        self._ended += 1

    def wait_until(self, count: int) -> None:
        """Waits until no more than `count` messages are left."""
        while len(self._requests) - self._ended > count:
            self.wait_oldest()

    def _begin_rest(self) -> None:
        begun = len(self._requests)
        for rank in self._dests[begun:]:
            self.send(b"", rank)
        for rank, buffer in self._buffers[begun:]:
            self.receive(buffer, rank)
