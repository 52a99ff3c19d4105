"""Messages of one call between ranks: their tags, and those that have begun and not ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum, unique
from typing import Any

from mpishare.comm import mpi
from mpishare.comm.agreement import mark_cut_off
from mpishare.comm.communicator import CollectiveComm
from mpishare.comm.requests import keep_alive, this_thread
from mpishare.errors import MpishareError

MAX_IN_FLIGHT = 4
"""Number of chunks in flight in each direction. Measured: 4 keep a link of 400 Mbit/s busy over 8 nodes."""


@unique
class Tag(IntEnum):
    """The tags of mpishare's own messages, which travel on communicators that only mpishare can see.

    One number for each kind of message on the collective communicator, which is the data communicator too.
    """

    CHUNK = 1  # transfer/between_nodes: a chunk of an array, from node to node
    ROW_REQUEST = 2  # transfer/exchange: which rows of the receiver's node a rank wants
    TASKS = 3  # tasks/scheduler: a rank asks the root for tasks, and gets some
    MAP_RESULT = 4  # tasks/items: what the tasks of one rank returned
    POOL_COMMAND = 5  # tasks/dispatcher: what a worker does next
    POOL_RESULT = 6  # tasks/dispatcher: what a call returned
    ROW_BLOCK = 7  # files/replace_file: rows on their way to the node that writes
    TILE_READY = 8  # files/parallel_read: a reader tells its leader that a piece is in memory
    ROWS = 9  # transfer/rows and transfer/exchange: rows
    FIRST_OF_MESSAGES = 10  # messages/wire: this and all above, what follows the head of a message


class InFlight:
    """The messages of one call that have begun and not ended, the oldest first.

    Leaving the block waits for all of them. An exception keeps their buffers alive instead. One from outside, such as a
    signal handler's, is raised at once, without an agreement: the other ranks may wait for messages of this one, until
    MPISHARE_TIMEOUT or the end of the job.
    """

    def __init__(self, comm: CollectiveComm, tag: int, buffers: Sequence[tuple[int, Any]] = ()) -> None:
        """Messages on `comm` with `tag`.

        Args:
            comm: The communicator.
            tag: The tag of all of them.
            buffers: For `receive_all`: for each message the rank that sends it, and the memory that it goes to.
        """
        self._comm = comm
        self._tag = tag
        self._buffers = buffers
        self._requests: list[mpi.Request] = []  # of all that have begun
        self._last: Any = None  # the newest buffer: after an interrupt MPI may use it though its request is lost
        self._ended = 0

    def __enter__(self) -> InFlight:
        this_thread.begun += 1
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            if error is None:
                self.wait_until(0)
        except BaseException as ending:
            self._give_up(ending)
            raise
        if error is not None:
            self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        keep_alive([self._last, *self._requests[self._ended :]])
        if not isinstance(error, MpishareError):
            mark_cut_off(error)

    def send(self, block: Any, rank: int) -> None:
        """Begins to send."""
        self._last = block
        self._requests.append(self._comm.isend([block, mpi.BYTE], rank, self._tag))

    def receive(self, block: Any, rank: int) -> None:
        """Begins to receive."""
        self._last = block
        self._requests.append(self._comm.irecv([block, mpi.BYTE], rank, self._tag))

    def receive_all(self) -> Iterator[Any]:
        """Receives into `buffers`, in order, with up to `MAX_IN_FLIGHT` receives posted at a time.

        Yields:
            Each buffer once its message has arrived; as much of it as was sent.
        """
        status = mpi.Status()
        for number, (_, buffer) in enumerate(self._buffers):
            for source, next_buffer in self._buffers[len(self._requests) : number + MAX_IN_FLIGHT]:
                self.receive(next_buffer, source)
            self.wait_until(len(self._requests) - number - 1, status)
            yield buffer[: status.count]

    def wait_until(self, count: int, status: mpi.Status | None = None) -> None:
        """Waits for the oldest, until no more than `count` messages are left. `status` is filled in for the last."""
        while len(self._requests) - self._ended > count:
            self._comm.wait(self._requests[self._ended], status)
            self._ended += 1
