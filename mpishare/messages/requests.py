"""Messages that are sent and received, at once or later: what `isend` and `irecv` return.

The head of each message travels over the head communicator with the caller's tag. Its chunks travel over the data
communicator with a tag that the head names. So threads may send and receive at the same time, and whoever receives from
any rank gets the chunks from the right one.

Objects of the library's own, such as what tasks return, travel in the same way (`send_object`), except that their heads
have a tag of `comm.in_flight` on the data communicator, where no receive of a user takes them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.comm import mpi
from mpishare.comm.context import Context
from mpishare.comm.requests import advance_all, keep_alive, pending, wait_for, waits
from mpishare.errors import MpishareError
from mpishare.messages.wire import FRAME_BYTES, HEAD_BYTES, Decoding, Head, Message, compressed, decode, encode
from mpishare.objects.pickling import PickledObject, unpickle_object

_FRAMES_AHEAD = 4
"""Frames under way while a blocking send compresses the next."""

_MEASURED_FRAMES = 2
"""The first frames to a node, which are sent without compression: the time of the last one is the speed of the link."""

_REFUSED = (
    "an exception from outside, such as a signal handler's, ended an earlier message on this rank before it was "
    "complete. Messages on this communicator may be lost: end the job, or use a new communicator."
)

_dropped: list[list[mpi.Request]] = []
"""What MPI still reads of send requests that the user dropped."""

_releasing = threading.RLock()
"""Held by the thread that looks which of these have ended."""


_heads: list[Head] = []
"""Heads to be used again: as many as there were threads in `receive_now` at a time."""


class Request:
    """A message that has begun, from `isend` or `irecv`. It keeps the bytes that MPI reads or writes.

    A large message is received in several steps, which are made within all calls that wait for other ranks. A request
    that is dropped before its end continues in the same way: its message is sent, or received and lost.
    """

    def __init__(self, result: Any = None) -> None:
        """A message to or from MPI.PROC_NULL, which has ended before it began, with `result`."""
        self._result = result

    def wait(self) -> Any:
        """Waits for the end.

        Returns:
            What was received; None for a message that was sent.

        Raises:
            MpishareError: The errors of `recv`.

        Collective:
            No; with the rank at the other end.
        """
        return self._result

    def test(self) -> tuple[bool, Any]:
        """Advances the message without waiting.

        Returns:
            Whether it has ended, and if so what `wait` returns.

        Raises:
            MpishareError: The errors of `recv`.

        Collective:
            No, local.
        """
        return True, self._result

    def cancel(self) -> bool:
        """Gives up a receive for which nothing has come yet.

        Returns:
            Whether it was given up. A message that was sent, or has begun to come, cannot be, as MPI takes none back.

        Collective:
            No, local.

        Source:
            MPI 4.1, section 3.8.4 (MPI_Cancel), which deprecates cancelling a send.
        """
        return False


class SendRequest(Request):
    """A message from this rank."""

    def __init__(
        self,
        context: Context,
        message: Message,
        dest: int,
        tag: int,
        *,
        compresses: bool = False,
        is_blocking: bool = False,
        head_comm: mpi.Intracomm | None = None,
    ) -> None:
        """Begins to send.

        Args:
            context: The context of the communicator.
            message: What to send.
            dest: The rank to send to.
            tag: The tag of the head.
            compresses: Whether the chunks are frames, which may be compressed.
            is_blocking: Whether to wait for earlier frames before the next is compressed.
            head_comm: The communicator of the head; that of users' messages when None.

        Raises:
            MpishareError: Messages on the communicator are refused.
        """
        super().__init__()
        head, self._tag, chunks = message
        self._requests: list[mpi.Request] = []
        self._context = context
        self._dest = dest
        _prepare(context, is_of_user=head_comm is None)
        try:
            self._requests.append((head_comm or context.head_comm).Isend((head, mpi.BYTE), dest, tag))
            for chunk in self._compressed(chunks, is_blocking) if compresses else chunks:
                self._chunk = chunk  # kept until MPI's request has it
                self._requests.append(context.data_comm.Isend((chunk, mpi.BYTE), dest, self._tag))
        except BaseException as error:
            keep_alive([self, message])  # which MPI may have begun to send just now
            refuse_if_interrupted(context, error)
            raise

    def _compressed(self, chunks: Iterable[NDArray[Any]], is_blocking: bool) -> Iterator[NDArray[Any] | bytes]:
        """The chunks, compressed where that pays on the link, whose speed the first large ones measure."""
        node, speeds, measured = self._context.topology.node_of(self._dest), self._context.cached(link_speeds), 0
        for chunk in chunks:
            if node not in speeds and is_blocking and chunk.nbytes == FRAME_BYTES:
                measured += 1
                speed = self._measured_speed(chunk)
                if measured == _MEASURED_FRAMES:
                    speeds[node] = speed
                continue
            if is_blocking:
                self._wait_until(_FRAMES_AHEAD)
            yield compressed(chunk, speeds[node]) if node in speeds else chunk

    def _measured_speed(self, frame: NDArray[Any]) -> float:
        """Sends a frame, and returns bytes a second.

        A synchronous send ends when its receive has begun (MPI 3.1, section 3.4), which is when the frame before it has
        been received. So a receiver that comes late counts for the first frame alone.
        """
        self._wait_until(0)
        start_s = time.perf_counter()
        self._requests.append(self._context.data_comm.Issend((frame, mpi.BYTE), self._dest, self._tag))
        self._wait_until(0)
        return frame.nbytes / max(time.perf_counter() - start_s, 1e-9)

    def _wait_until(self, count: int) -> None:
        """Waits until no more than `count` of MPI's requests are left."""
        while len(self._requests) > count:
            _wait_for_message(self._context, self._requests[0], self._dest, "send to")
            del self._requests[0]

    def wait(self) -> None:
        """See `Request.wait`."""
        self._wait_until(0)

    def test(self) -> tuple[bool, None]:
        """See `Request.test`."""
        if mpi.Request.Testall(self._requests):
            self._requests.clear()
        return not self._requests, None

    def __del__(self) -> None:
        if self._requests:
            _dropped.append(self._requests)


class ReceiveRequest(Request):
    """A message to this rank, which is pending until a thread waits for it."""

    def __init__(
        self,
        context: Context,
        source: int,
        tag: int,
        out: NDArray[Any] | None = None,
        status: mpi.Status | None = None,
        head_comm: mpi.Intracomm | None = None,
    ) -> None:
        """Begins to receive.

        Args:
            context: The context of the communicator.
            source: The rank to receive from, or MPI.ANY_SOURCE.
            tag: The tag of the message, or MPI.ANY_TAG.
            out: Where to receive; None for a fresh array.
            status: Is filled in by the `wait` or `test` that returns the result.
            head_comm: The communicator of the head; that of users' messages when None.

        Raises:
            MpishareError: Messages on the communicator are refused.
        """
        super().__init__()
        _prepare(context, is_of_user=head_comm is None)
        self._context = context
        self._source = source
        self._out = out
        self._user_status = status
        self._head_status = self._status = mpi.Status()
        self._buffer: NDArray[Any] | bytearray = bytearray(
            HEAD_BYTES
        )  # of the message that is waited for, as is `_status`
        self._decoding: Decoding | None = None  # from when the head has come until the result is returned
        self._is_done = False
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        try:
            self._request = (head_comm or context.head_comm).Irecv((self._buffer, mpi.BYTE), source, tag)
            pending[self.advance] = None
        except BaseException as error:
            keep_alive([self._buffer])
            refuse_if_interrupted(context, error)
            raise

    def _step(self) -> None:
        """What was waited for has come: begins to receive the next message, or ends."""
        try:
            if self._decoding is not None:
                self._buffer, tag = self._decoding.send(self._status.count)
            elif self._head_status.Is_cancelled():
                self._end(None, None)
                return
            else:
                head = bytes(self._buffer[: self._status.count])
                self._source, self._status = self._head_status.source, mpi.Status()
                self._decoding = decode(self._context, head, self._out)
                self._buffer, tag = next(self._decoding)
        except StopIteration as end:
            self._end(end.value, None)
        else:
            if self._context.data_comm == mpi.COMM_NULL:  # some MPIs end the job where it is used
                raise MpishareError("the communicator was freed while a message was on its way. Free it after wait().")
            self._request = self._context.data_comm.Irecv((self._buffer, mpi.BYTE), self._source, tag)

    def _end(self, result: Any, error: BaseException | None) -> None:
        self._is_done, self._result, self._error = True, result, error
        pending.pop(self.advance, None)

    def _advance(self, *, can_wait: bool) -> None:
        """Goes on to the end, or until it would wait. Errors end the request, and `wait` and `test` raise them."""
        try:
            if can_wait:
                pending.pop(self.advance, None)
            while not self._is_done:
                if can_wait:
                    _wait_for_message(self._context, self._request, self._source, "recv from", self._status)
                elif not self._request.Test(self._status):
                    return
                self._step()
        except (MpishareError, mpi.Exception, MemoryError) as error:
            self._end(None, error)
        except BaseException:
            keep_alive([self._buffer])
            self._context.is_refused_for_messages = True
            self._end(None, MpishareError(_REFUSED))
            raise

    def wait(self) -> Any:
        """See `Request.wait`."""
        with self._lock:
            self._advance(can_wait=True)
        return self._finished()

    def test(self) -> tuple[bool, Any]:
        """See `Request.test`."""
        self.advance()
        return (True, self._finished()) if self._is_done else (False, None)

    def advance(self) -> None:
        """Advances it without waiting, unless another thread does."""
        if not self._is_done and self._lock.acquire(blocking=False):
            try:
                self._advance(can_wait=False)
            finally:
                self._lock.release()

    def cancel(self) -> bool:
        """See `Request.cancel`."""
        with self._lock:
            if self._is_done or self._decoding is not None:
                return False
            self._request.Cancel()
            while not self._is_done and self._decoding is None:  # local (MPI 3.1, section 3.8.4)
                self._advance(can_wait=False)
            return self._head_status.Is_cancelled()

    def _finished(self) -> Any:
        """What `wait` returns. Objects are unpickled here, in the caller's own call."""
        if self._error is not None:
            raise self._error
        with self._lock:
            if self._decoding is not None:
                self._result = finished(self._result, self._user_status, self._head_status)
                self._decoding = None
        return self._result


def link_speeds(_: Context) -> dict[int, float]:
    """Bytes a second to other nodes, by node, as far as messages over a communicator have measured it."""
    return {}


def has_fast_messages(context: Context) -> bool:
    """Whether users' messages are neither watched nor refused, and take the fewest steps."""
    return not context.is_refused_for_messages and context.config.timeout_s is None


def _wait_for_message(
    context: Context, request: mpi.Request, rank: int, call: str, status: mpi.Status | None = None
) -> None:
    """Waits for one message of a user. Pending operations are advanced meanwhile.

    Args:
        context: The context of the communicator.
        request: The message. An exception keeps its buffer alive.
        rank: The rank at its other end, or MPI_ANY_SOURCE.
        call: What this rank does, for errors, such as "recv from".
        status: Filled in.

    Raises:
        StallError: MPISHARE_TIMEOUT has passed. A message that has not begun to come is given up.
    """
    waits[0] += 1
    try:
        if context.config.timeout_s is None:
            wait_for(request, status)
        else:
            call = f"{call} {'any rank' if rank == mpi.ANY_SOURCE else f'rank {rank}'}"
            context.limit.wait_for_message(request, call, status)
    except BaseException as error:
        keep_alive([request])
        refuse_if_interrupted(context, error)
        raise


def send_now(context: Context, message: Message, dest: int, tag: int) -> None:
    """Sends a message to another rank, waiting inside MPI. See `receive_now`."""
    head, data_tag, chunks = message
    waits[0] += 1
    try:
        context.head_comm.Send((head, mpi.BYTE), dest, tag)
        for chunk in chunks:
            context.data_comm.Isend((chunk, mpi.BYTE), dest, data_tag).Wait()  # it begins while the head is read
    except BaseException as error:
        keep_alive([message])
        refuse_if_interrupted(context, error)
        raise


def receive_now(context: Context, source: int, tag: int, out: NDArray[Any] | None, status: mpi.Status | None) -> Any:
    """Receives a message, waiting inside MPI.

    Only where nothing is pending and `has_fast_messages`, as it advances nothing else and knows no time limit.

    Raises:
        SpecError, ArgumentError, CapacityError, BackendError: See `decode`.
    """
    try:
        head = _heads.pop()
    except IndexError:
        head = Head()
    waits[0] += 1
    try:
        context.head_comm.Recv((head.buffer, mpi.BYTE), source, tag, head.status)
        result = head.small_array(out)
        if result is None:
            result = _receive_chunks(context, head, out)
    except BaseException as error:
        refuse_if_interrupted(context, error)
        raise
    if status is not None or type(result) is not np.ndarray:
        result = finished(result, status, head.status)
    _heads.append(head)
    return result


def _receive_chunks(context: Context, head: Head, out: NDArray[Any] | None) -> Any:
    """Receives what follows a head."""
    source, status = head.status.source, mpi.Status()
    found = head.large_array(out)
    if found is not None:
        array, tag = found
        context.data_comm.Recv((array, mpi.BYTE), source, tag)
        return array
    decoding = decode(context, bytes(head.buffer[: head.status.count]), out)
    try:
        buffer, tag = next(decoding)
        while True:
            context.data_comm.Recv((buffer, mpi.BYTE), source, tag, status)
            buffer, tag = decoding.send(status.count)
    except StopIteration as end:
        return end.value


def send_object(context: Context, content: PickledObject | NDArray[Any], dest: int, tag: int) -> None:
    """Sends an object of the library's own to `receive_object` on rank `dest`, with a tag of `comm.in_flight`."""
    SendRequest(context, encode(context, content), dest, tag, head_comm=context.data_comm).wait()


def receive_object(context: Context, source: int, tag: int) -> Any:
    """Receives what `send_object` sends, and unpickles what is not an array."""
    return ReceiveRequest(context, source, tag, head_comm=context.data_comm).wait()


def _prepare(context: Context, *, is_of_user: bool = True) -> None:
    """Releases the memory of dropped send requests that have ended, and advances all receives.

    Raises:
        MpishareError: Messages of users on the communicator are refused. Those of collectives and of pools go on, as
            other ranks wait for them: they have tags of their own.
    """
    if is_of_user and context.is_refused_for_messages:
        raise MpishareError(_REFUSED)
    if _dropped:
        with _releasing:
            for requests in list(_dropped):
                if mpi.Request.Testall(requests):
                    _dropped.remove(requests)
    advance_all()


def refuse_if_interrupted(context: Context, error: BaseException) -> None:
    """Refuses the communicator for messages if `error` came from outside, neither from mpishare nor from MPI.

    After a signal handler's exception the ranks no longer agree which messages have been sent. Nothing is repaired; the
    memory that MPI still reads or writes lives until the process ends (`comm.requests`).
    """
    if not isinstance(error, MpishareError | mpi.Exception | MemoryError):
        context.is_refused_for_messages = True


def finished(result: Any, status: mpi.Status | None, of_head: mpi.Status) -> Any:
    """What the caller gets of the array or `PickledObject` that a message brought. Fills in `status`."""
    if status is not None:
        arrays = result.arrays if isinstance(result, PickledObject) else [result]
        status.source, status.tag = of_head.source, of_head.tag
        status.Set_elements(mpi.BYTE, sum(array.nbytes for array in arrays))
    return unpickle_object(result) if isinstance(result, PickledObject) else result
