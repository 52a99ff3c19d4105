"""Messages of arrays: sent and received, at once or later, as their own bytes and all of them once.

The first part of each goes over `Topology.mail` with the caller's tag, the rest over `Topology.parts` with a tag that
the first part names. So threads may send and receive at the same time, and whoever receives from any rank gets the rest
from the right one.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays import slices
from mpishare.arrays.header import HEADER_BYTES
from mpishare.arrays.raw import Block
from mpishare.arrays.spec import Spec
from mpishare.comm import mpi, progress
from mpishare.comm.context import Context
from mpishare.comm.pending import keep_alive, start
from mpishare.comm.progress import pending
from mpishare.comm.tags import Tag
from mpishare.errors import CapacityError, MpishareError, StallError
from mpishare.messages.compression import FRAME_BYTES, packed
from mpishare.messages.frames import Stream
from mpishare.messages.wire import (
    HEAD_BYTES,
    INLINE_BYTES,
    TAG,
    TAGGED_BYTES,
    Message,
    Steps,
    array_for,
    fits,
    is_run_of,
    new_tag,
    opened,
    pieces,
    simple_head,
    simple_spec,
)
from mpishare.transfer import plan

_heads: list[_Head] = []
"""Memory for heads, to be used again. As many as there were threads in `receive` at a time."""

_Known: TypeAlias = tuple[int, Spec | None, NDArray[Any] | None]
"""What a header tells of an array of plain numbers: the length of a head that begins with it, the array's spec, and the
array as it lies behind the header, or None if it comes by itself. (0, None, None) for anything else."""

_headers: dict[tuple[np.dtype[Any], tuple[int, ...], bool], tuple[bytes, int]] = {}
"""The header and the bytes of arrays that were sent before, by dtype, shape, and whether they are C contiguous."""

_MOST_KNOWN = 256
"""Headers that are remembered, here and with each head."""

_ways: dict[int, _Way] = {}
"""All that is on its way from this rank, by id, from before MPI hears of it: no signal can lose what MPI reads."""

_dropped: list[_Way] = []
"""Of these, what nobody holds any more."""

_sweeping = threading.RLock()
"""Held by the thread that looks at them, so that it need not take one out of the list, where a signal could lose it."""


def send(context: Context, letter: Message, dest: int, tag: int) -> None:
    """Sends, and returns when the bytes may be changed."""
    if dest == context.topology.rank:  # MPI would wait for a receive that cannot come
        parts = [part.copy() for part in letter.parts]
        Sending(context, letter._replace(parts=parts), dest, tag)
    elif letter.how:
        Stream(context, letter, dest, tag).wait()
    else:
        Sending(context, letter, dest, tag).wait()


def send_quickly(context: Context, array: object, dest: object, tag: object) -> bool:
    """Sends an array of plain numbers in the fewest steps; whether it did. What else there is, `send` does or refuses.

    A small message is sent in a microsecond, of which each call and each look at an attribute is a twentieth.
    """
    if not (type(array) is np.ndarray and type(dest) is int is type(tag)) or pending or context.is_watched:
        return False
    if not (0 <= dest < context.topology.size and 0 <= tag <= context.max_tag) or dest == context.topology.rank:
        return False
    flags = array.flags
    is_c = flags.c_contiguous
    simple = _headers.get((array.dtype, array.shape, is_c)) or _header(array)
    if simple is None or not (is_c or flags.f_contiguous):
        return False
    header, nbytes = simple
    if nbytes <= INLINE_BYTES:
        context.head_comm.Send([header + array.tobytes("A"), mpi.BYTE], dest, tag)
        return True
    rest = new_tag(context)
    head, message = [header + TAG.pack(rest, 0), mpi.BYTE], [array, mpi.BYTE]
    requests: list[mpi.Request] = []
    try:
        context.head_comm.Send(head, dest, tag)
        start(requests, context.data_comm.Isend, message, dest, rest)  # while the receiver reads the head
        requests[0].Wait()
    except mpi.Exception:
        raise
    except BaseException:  # a signal: where the head has left, the receiver waits for the rest
        if not requests:
            start(requests, context.data_comm.Isend, message, dest, rest)
        keep_alive(requests)
        raise
    return True


def _header(array: NDArray[Any]) -> tuple[bytes, int] | None:
    """The header and the bytes of an array of plain numbers that is sent in one or two messages; None for any other."""
    simple = simple_head(array.dtype, array.shape, "C" if array.flags.c_contiguous else "F")
    if simple is None or simple[1] > plan.LARGEST_MESSAGE_BYTES:
        return None
    if len(_headers) >= _MOST_KNOWN:
        _headers.clear()
    _headers[array.dtype, array.shape, array.flags.c_contiguous] = simple
    return simple


class _Head:
    """Where the head of a message arrives.

    Attributes:
        known: What headers tell that came before, as `read` returns it.
    """

    __slots__ = ("content", "header", "known", "message", "status")

    def __init__(self) -> None:
        self.known: dict[bytes, _Known] = {}
        self.content = bytearray(HEAD_BYTES)
        self.header = memoryview(self.content)[:HEADER_BYTES]
        self.message = [self.content, mpi.BYTE]
        self.status = mpi.Status()

    def read(self, header: bytes) -> _Known:
        """What the header tells that has come, to be told again where the same one comes."""
        if len(self.known) >= _MOST_KNOWN:
            self.known.clear()
        spec = simple_spec(header)
        known: _Known = (0, None, None)
        if spec is not None and spec.nbytes <= INLINE_BYTES:
            inside = np.ndarray(spec.shape, spec.dtype, self.content, HEADER_BYTES, order=spec.order)
            known = HEADER_BYTES + spec.nbytes, spec, inside
        elif spec is not None and spec.nbytes <= plan.LARGEST_MESSAGE_BYTES:
            known = TAGGED_BYTES, spec, None
        if spec is not None:  # of other things than arrays no two headers are the same
            self.known[header] = known
        return known


def receive(context: Context, source: int, tag: int, out: NDArray[Any] | None, status: mpi.Status | None) -> Any:
    """Waits for a message; the array, or the `Parcel`, that it brought. Raises what `letters.opened` does."""
    try:
        head = _heads.pop()
    except IndexError:
        head = _Head()
    content, filled = head.content, head.status if status is None else status
    content[0] = 0
    found: NDArray[Any] | None = None
    try:
        if context.is_watched or pending:
            _wait_or_cancel(context, head, source, tag, filled)
        else:
            context.head_comm.Recv(head.message, source, tag, filled)
        header = head.header.tobytes()
        length, spec, inside = head.known.get(header) or head.read(header)
        if length == filled.count and spec is not None and (out is None or fits(spec, out)):  # the fewest steps
            if inside is None:
                found = _rest(context, content, spec, out, filled.source)
            elif out is None:
                found = inside.copy("K")
            else:
                out[...] = inside
                found = out
    except BaseException:
        if content[0]:  # a signal came with the head: what follows it must not keep the sender waiting
            Receiving.after(context, bytes(content[: filled.count]), None, filled.source)
        raise
    if found is not None:
        _heads.append(head)
        return found
    came = bytes(content[: filled.count])
    _heads.append(head)
    return Receiving.after(context, came, out, filled.source).wait()


def _rest(
    context: Context, content: bytearray, spec: Spec, out: NDArray[Any] | None, source: int
) -> NDArray[Any] | None:
    """Receives the bytes that follow a head in one message; None where it takes more."""
    tag, how = TAG.unpack_from(content, HEADER_BYTES)
    if how or not Tag.FIRST_OF_MESSAGES <= tag < context.max_tag or pending or context.is_watched:
        return None
    if out is not None and not is_run_of(out, spec):
        return None
    try:
        array = array_for(context, spec) if out is None else out
    except (CapacityError, MemoryError):
        return None
    content[0] = 0  # from here on nothing follows
    context.data_comm.Recv([array, mpi.BYTE], source, tag)
    return array


def _wait_or_cancel(context: Context, head: _Head, source: int, tag: int, status: mpi.Status) -> None:
    """Waits for a head; where an exception ends that, what comes later is for the next receive."""
    requests: list[mpi.Request] = []
    try:
        start(requests, context.head_comm.Irecv, head.message, source, tag)
        context.wait_for_message(requests[0], source, "recv from", status)
    except BaseException:
        _cancel(requests, status)
        raise


def _cancel(requests: list[mpi.Request], status: mpi.Status) -> None:
    """Gives up receives that have not ended."""
    for request in requests:
        if request != mpi.REQUEST_NULL:
            request.Cancel()
            request.Wait(status)


def _all_pieces(letter: Message) -> Iterator[Block | bytes]:
    """All that follows the head, the frames compressed."""
    for part in letter.parts:
        if letter.is_framed(part):
            yield from (packed(part[frame]) for frame in slices.chunks(part.nbytes, FRAME_BYTES))
        else:
            yield from pieces(part)


class Request:
    """A message on its way, from `isend` or `irecv`. It keeps the bytes that MPI reads or writes.

    A large message is received in several steps, which are made within all calls that wait for other ranks. One that is
    dropped before its end goes on in the same way: what was sent arrives, and what comes is received and lost.
    """

    def wait(self) -> Any:
        """Waits for the end.

        Returns:
            What was received; None for a message that was sent.

        Raises:
            What `recv` does.

        Collective:
            No; with the rank at the other end.
        """
        raise NotImplementedError

    def test(self) -> tuple[bool, Any]:
        """Lets the message go on, without waiting.

        Returns:
            Whether it has ended, and if so what `wait` returns.

        Raises:
            What `recv` does.

        Collective:
            No, local.
        """
        raise NotImplementedError

    def cancel(self) -> bool:
        """Gives up a receive for which nothing has come yet.

        Returns:
            Whether it was given up. A message that was sent, or has begun to come, is not: MPI does not call it back.

        Collective:
            No, local.

        Source:
            MPI 4.1, section 3.8.4 (MPI_Cancel), which deprecates to cancel what was sent.
        """
        return False


class Sent(Request):
    """What has ended before it began: a message to or from no rank."""

    def __init__(self, found: Any = None) -> None:
        self._found = found

    def wait(self) -> Any:
        """See `Request.wait`."""
        return self._found

    def test(self) -> tuple[bool, Any]:
        """See `Request.test`."""
        return True, self._found


class _Way(weakref.ref["Sending"]):
    """What MPI does for a `Sending`, which may go before it has been done.

    Attributes:
        requests: MPI's.
        held: What has the bytes.
    """

    requests: Sequence[mpi.Request] = ()
    held: Sequence[object] = ()

    def has_ended(self) -> bool:
        """Whether all has left, without waiting."""
        if not mpi.Request.Testall(self.requests):
            return False
        self.end()
        return True

    def end(self) -> None:
        """All has left."""
        self.requests = self.held = ()
        _ways.pop(id(self), None)


class Sending(Request):
    """A message from this rank."""

    def __init__(self, context: Context, letter: Message, dest: int, tag: int) -> None:
        """Begins to send, the head last, so that where it comes all else comes too."""
        _sweep()
        self._context = context
        self._dest = dest
        way = _Way(self, _dropped.append)  # called by the interpreter itself, where no signal comes between
        self._way: _Way | None = way  # until all has left
        requests: list[mpi.Request] = []
        held: list[object] = [letter]
        way.requests, way.held = requests, held
        _ways[id(way)] = way
        for piece in _all_pieces(letter):
            held.append(piece)
            start(requests, context.data_comm.Isend, [piece, mpi.BYTE], dest, letter.tag)
        start(requests, context.head_comm.Isend, [letter.head, mpi.BYTE], dest, tag)

    def wait(self) -> None:
        """See `Request.wait`."""
        way = self._way
        if way is not None:
            for request in way.requests:
                self._context.wait_for_message(request, self._dest, "send to")
            way.end()
            self._way = None

    def test(self) -> tuple[bool, None]:
        """See `Request.test`."""
        way = self._way
        if way is not None and way.has_ended():
            self._way = None
        return self._way is None, None


_LOST = "an exception from outside, such as a signal's, ended this receive in its midst. Its message is lost."


class Receiving(Request):
    """A message to this rank. It goes on within each call that waits for other ranks, not only its own."""

    def __init__(
        self, context: Context, source: int, out: NDArray[Any] | None, finish: Callable[[Any, mpi.Status], Any]
    ) -> None:
        """`finish` makes what `wait` returns of what `receive` would; see `begun` and `after`."""
        self._context = context
        self._source = source
        self._out = out
        self._finish = finish
        self._status = mpi.Status()
        self._last = mpi.Status()
        self._head = bytearray(HEAD_BYTES)
        self._coming: Iterator[tuple[Block, int]] | None = None  # from when the head has come
        self._is_done = False
        self._has_found = self._is_finished = False
        self._found: Any = None
        self._result: Any = None
        self._error: BaseException | None = None
        self._request: mpi.Request = mpi.REQUEST_NULL
        self._lock = threading.Lock()

    @classmethod
    def begun(
        cls, context: Context, source: int, tag: int, out: NDArray[Any] | None, finish: Callable[[Any, mpi.Status], Any]
    ) -> Receiving:
        """Begins to receive."""
        _sweep()
        self = cls(context, source, out, finish)
        requests: list[mpi.Request] = []
        try:
            start(requests, context.head_comm.Irecv, [self._head, mpi.BYTE], source, tag)
            self._request = requests[0]
            progress.add(self)
        except BaseException:
            progress.remove(self)
            _cancel(requests, self._status)
            raise
        return self

    @classmethod
    def after(cls, context: Context, head: bytes, out: NDArray[Any] | None, source: int) -> Receiving:
        """Goes on with a message whose head has come from `source`."""
        self = cls(context, source, out, lambda found, _: found)
        self._coming = self._pieces(opened(context, head, out))
        with self._lock:  # other threads let go on what is open
            progress.add(self)
            self._go_on()
        return self

    def wait(self) -> Any:
        """See `Request.wait`."""
        while not self._is_done:
            with self._lock:
                if not self._is_done:
                    try:
                        if self._request != mpi.REQUEST_NULL:  # else a signal came when it had ended
                            self._context.wait_for_message(self._request, self._source, "recv from", self._state, self)
                    except (StallError, mpi.Exception) as error:
                        self._end_with(error)
                    else:
                        self._go_on()
        return self._end()

    def test(self) -> tuple[bool, Any]:
        """See `Request.test`."""
        self.advance()
        return (True, self._end()) if self._is_done else (False, None)

    def advance(self) -> None:
        """Lets it go on, without waiting, unless another thread does."""
        if not self._is_done and self._lock.acquire(blocking=False):
            try:
                while not self._is_done and (self._request == mpi.REQUEST_NULL or self._request.Test(self._state)):
                    self._go_on()
            except mpi.Exception as error:  # which concerns whoever waits for this one, and no other call
                self._end_with(error)
            finally:
                self._lock.release()

    def cancel(self) -> bool:
        """See `Request.cancel`."""
        with self._lock:
            if self._is_done or self._coming is not None:
                return False
            self._request.Cancel()
            self._request.Wait(self._status)
            if self._status.Is_cancelled():
                self._end_with(None)
                return True
            self._go_on()
            return False

    @property
    def _state(self) -> mpi.Status:
        """What to fill in: the head says who sent and with which tag, the parts only how many bytes they are."""
        return self._status if self._coming is None else self._last

    def _go_on(self) -> None:
        """What was waited for has come: begins to receive the next."""
        requests: list[mpi.Request] = []
        try:
            if self._coming is None:
                self._source = self._status.source
                self._coming = self._pieces(opened(self._context, bytes(self._head[: self._status.count]), self._out))
            piece, tag = next(self._coming)
            start(requests, self._context.data_comm.Irecv, [piece, mpi.BYTE], self._source, tag)
            self._request = requests[0]  # which keeps the piece
        except StopIteration:
            self._end_with(None if self._has_found else MpishareError(_LOST))
        except Exception as error:
            keep_alive(requests)  # where it is one that a signal's handler raised
            self._end_with(error)
        except BaseException:  # from outside, such as a KeyboardInterrupt
            keep_alive(requests)
            self._end_with(MpishareError(_LOST))
            raise

    def _pieces(self, steps: Steps) -> Iterator[tuple[Block, int]]:
        """Each piece that is to come, and its tag."""
        try:
            place = next(steps)
            while True:
                for piece in place.pieces():
                    yield piece, place.tag
                if place.answer:
                    self._context.data_comm.Send([b"", mpi.BYTE], self._source, Tag.FRAME_ANSWER)
                place = steps.send(self._last.count)
        except StopIteration as end:
            self._found, self._has_found = end.value, True

    def _end_with(self, error: BaseException | None) -> None:
        self._is_done, self._error = True, error
        progress.remove(self)

    def _end(self) -> Any:
        """What `wait` returns. Objects are put together here, in the caller's own call, and again if that was ended."""
        if self._error is not None:
            raise self._error
        with self._lock:
            if self._has_found and not self._is_finished:
                self._result = self._finish(self._found, self._status)
                self._is_finished, self._found = True, None
        return self._result


def _sweep() -> None:
    """Lets go of messages that have been sent meanwhile, and lets those go on that are to come."""
    with _sweeping:
        for way in list(_dropped):
            try:
                has_ended = way.has_ended()
            except mpi.Exception:  # of a message that nobody waits for
                has_ended = True
            if has_ended:
                with suppress(ValueError):  # the handler of a signal has swept
                    _dropped.remove(way)
    progress.advance_all()
