"""Messages that are sent and received later: what `isend` and `irecv` return.

The head of each travels over the head communicator with the caller's tag, the parts over the data communicator with a
tag that the head names. So threads may send and receive at the same time, and whoever receives from any rank gets the
parts from the right one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

from numpy.typing import NDArray

from mpishare.arrays.raw import Block
from mpishare.arrays.slices import chunks
from mpishare.comm import mpi, progress
from mpishare.comm.context import Context
from mpishare.comm.pending import kept_alive_on_error, start
from mpishare.errors import MpishareError
from mpishare.messages.compression import FRAME_BYTES, MEASURED_FRAMES, compress_frame, pays
from mpishare.messages.interrupts import check_usable, interrupted, refused_if_interrupted
from mpishare.messages.wire import HEAD_BYTES, Message, decode, pieces, travels_in_frames

_Finish: TypeAlias = "Callable[[Any, mpi.Status], Any]"
"""Makes what `wait` returns of the array or `PickledObject`, and of the status of the head."""

_dropped: list[list[mpi.Request]] = []
"""What MPI still reads of send requests that the user dropped."""

_releasing = threading.Lock()
"""Held by the thread that looks which of these have ended."""


class Request:
    """A message that has begun, from `isend` or `irecv`. It keeps the bytes that MPI reads or writes.

    A large message is received in several steps, which are made within all calls that wait for other ranks. A request
    that is dropped before its end goes on in the same way: its message is sent, or received and lost.
    """

    def __init__(self, result: Any = None) -> None:
        """A message to or from MPI.PROC_NULL, which has ended before it began, with `result`."""
        self._result = result

    def wait(self) -> Any:
        """Waits for the end.

        Returns:
            What was received; None for a message that was sent.

        Raises:
            What `recv` does.

        Collective:
            No; with the rank at the other end.
        """
        return self._result

    def test(self) -> tuple[bool, Any]:
        """Advances the message without waiting.

        Returns:
            Whether it has ended, and if so what `wait` returns.

        Raises:
            What `recv` does.

        Collective:
            No, local.
        """
        return True, self._result

    def cancel(self) -> bool:
        """Gives up a receive for which nothing has come yet.

        Returns:
            Whether it was given up. A message that was sent, or has begun to come, cannot be: MPI takes none back.

        Collective:
            No, local.

        Source:
            MPI 4.1, section 3.8.4 (MPI_Cancel), which deprecates cancelling a send.
        """
        return False


class SendRequest(Request):
    """A message from this rank."""

    def __init__(
        self, context: Context, message: Message, dest: int, tag: int, *, frames_ahead: int | None = None
    ) -> None:
        """Begins to send.

        Args:
            context: That of the communicator.
            message: What to send.
            dest: The rank to send to.
            tag: That of the head.
            frames_ahead: How many frames may be under way while the next is compressed; None for any number.

        Raises:
            MpishareError: Messages on the communicator are refused.
        """
        super().__init__()
        self._requests: list[mpi.Request] = []
        self._context = context
        self._dest = dest
        self._tag = message.tag
        self._frames_ahead = frames_ahead
        check_usable(context)
        _release_dropped()
        with refused_if_interrupted(context):
            start(self._requests, context.head_comm.Isend, [message.head, mpi.BYTE], dest, tag)
            for part in message.parts:
                if travels_in_frames(part.nbytes, message.has_frames):
                    self._send_frames(part)
                else:
                    for piece in pieces(part):
                        self._send(piece)

    def _send(self, block: Block | bytes, *, is_synchronous: bool = False) -> None:
        comm = self._context.data_comm
        start(self._requests, comm.Issend if is_synchronous else comm.Isend, [block, mpi.BYTE], self._dest, self._tag)

    def _send_frames(self, part: Block) -> None:
        """Sends a large part, compressed from where that pays on."""
        frames = list(chunks(part.nbytes, FRAME_BYTES))
        speeds, node = self._context.link_speeds, self._context.topology.node_of(self._dest)
        if node not in speeds:
            speeds[node] = self._measured_speed([part[frame] for frame in frames[:MEASURED_FRAMES]])
            del frames[:MEASURED_FRAMES]
        does_pay = pays(part[frames[0].start :], speeds[node])
        for frame in frames:
            if self._frames_ahead is not None:
                self._wait_until(self._frames_ahead)
            self._send(compress_frame(part[frame]) if does_pay else part[frame])

    def _measured_speed(self, frames: list[Block]) -> float:
        """Bytes a second: sends `frames` one after the other, and takes the time of the last.

        A synchronous send ends when its receive has begun (MPI 3.1, section 3.4), which is when the frame before it has
        been received. So a receiver that comes late does not count.
        """
        ends = []
        for frame in frames:
            self._send(frame, is_synchronous=True)
            self._wait_until(0)
            ends.append(time.perf_counter())
        return frames[-1].nbytes / max(ends[-1] - ends[-2], 1e-9)

    def _wait_until(self, count: int) -> None:
        """Waits until no more than `count` of MPI's requests are left."""
        while len(self._requests) > count:
            self._context.wait_for_message(self._requests[0], self._dest, "send to")
            del self._requests[0]

    def wait(self) -> None:
        """See `Request.wait`."""
        with refused_if_interrupted(self._context):
            self._wait_until(0)

    def test(self) -> tuple[bool, None]:
        """See `Request.test`."""
        if mpi.Request.Testall(self._requests):
            self._requests.clear()
        return not self._requests, None

    def __del__(self) -> None:
        if self._requests:
            _dropped.append(self._requests)


def _release_dropped() -> None:
    """Releases the memory of dropped send requests that have ended, and advances all receives."""
    if _dropped and _releasing.acquire(blocking=False):
        try:
            for requests in list(_dropped):
                with suppress(mpi.Exception):  # of a message that nobody waits for
                    if not mpi.Request.Testall(requests):
                        continue
                _dropped.remove(requests)
        finally:
            _releasing.release()
    progress.advance_all()


def received_parts(
    context: Context, head: bytes, out: NDArray[Any] | None, source: int, status: mpi.Status
) -> Generator[mpi.Request, None, Any]:
    """Receives what follows a head: yields MPI's request for each message, to be waited for with `status`.

    Returns and raises what `decode` does.
    """
    decoding = decode(context, head, out)
    written: list[Block] = []
    with kept_alive_on_error(written):
        try:
            block, tag = next(decoding)
            while True:
                written.append(block)
                yield context.data_comm.Irecv([block, mpi.BYTE], source, tag)
                written.clear()
                block, tag = decoding.send(status.count)
        except StopIteration as end:
            return end.value


class ReceiveRequest(Request):
    """A message to this rank. It is a pending operation of the progress engine."""

    def __init__(self, context: Context, source: int, tag: int, out: NDArray[Any] | None, finish: _Finish) -> None:
        """Begins to receive.

        Args:
            context: That of the communicator.
            source: The rank to receive from, or MPI.ANY_SOURCE.
            tag: That of the message, or MPI.ANY_TAG.
            out: Where to receive; None for a fresh array.
            finish: Called by `wait` or `test`, once.

        Raises:
            MpishareError: Messages on the communicator are refused.
        """
        super().__init__()
        check_usable(context)
        _release_dropped()
        self._context = context
        self._source = source
        self._out = out
        self._finish: _Finish | None = finish  # until it has been called
        self._head_status = mpi.Status()
        self._status = self._head_status  # of the message that is waited for
        self._steps = self._receive(tag)
        self._is_done = False
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        progress.pending[self] = None
        with self._lock, self._ended_on_error():
            self._step()

    def _receive(self, tag: int) -> Generator[mpi.Request, None, Any]:
        head = bytearray(HEAD_BYTES)
        with kept_alive_on_error([head]):
            yield self._context.head_comm.Irecv([head, mpi.BYTE], self._source, tag)
        if self._head_status.Is_cancelled():
            self._finish = None
            return None
        self._source, self._status = self._head_status.source, mpi.Status()
        content = bytes(head[: self._head_status.count])
        return (yield from received_parts(self._context, content, self._out, self._source, self._status))

    def _step(self) -> None:
        """What was waited for has come: begins to receive the next message, or ends."""
        try:
            self._request = next(self._steps)
        except StopIteration as end:
            self._end(end.value, None)

    def _end(self, result: Any, error: BaseException | None) -> None:
        self._is_done, self._result, self._error = True, result, error
        progress.pending.pop(self, None)

    @contextmanager
    def _ended_on_error(self) -> Iterator[None]:
        """Ends the request with the error of the block, which `wait` and `test` raise; raises one from outside."""
        try:
            yield
        except (MpishareError, mpi.Exception, MemoryError) as error:
            self._end(None, error)
        except BaseException:
            self._context.refuse_messages()
            self._end(None, interrupted())
            raise

    def wait(self) -> Any:
        """See `Request.wait`."""
        with self._lock, self._ended_on_error():
            while not self._is_done:
                self._context.wait_for_message(self._request, self._source, "recv from", self._status, self)
                self._step()
        return self._finished()

    def test(self) -> tuple[bool, Any]:
        """See `Request.test`."""
        self.advance()
        return (True, self._finished()) if self._is_done else (False, None)

    def advance(self) -> None:
        """Advances it without waiting, unless another thread does."""
        if not self._is_done and self._lock.acquire(blocking=False):
            try:
                with self._ended_on_error():
                    while not self._is_done and self._request.Test(self._status):
                        self._step()
            finally:
                self._lock.release()

    def cancel(self) -> bool:
        """See `Request.cancel`."""
        with self._lock:
            if self._is_done or self._status is not self._head_status:
                return False
            with self._ended_on_error():
                self._request.Cancel()
                self._request.Wait(self._status)
                self._step()
            return self._head_status.Is_cancelled()

    def _finished(self) -> Any:
        """What `wait` returns. Objects are unpickled here, in the caller's own call."""
        if self._error is not None:
            raise self._error
        with self._lock:
            if self._finish is not None:
                self._result = self._finish(self._result, self._head_status)
                self._finish = None
        return self._result
