"""A message sent a frame at a time, each compressed while those before travel, over a link whose speed is found out.

What is on its way is bounded, however large the message. A message that an exception ends on this rank, such as a
signal's, goes on within later calls that wait for other ranks, so that its receiver gets all of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from mpishare.arrays import slices
from mpishare.arrays.raw import Block
from mpishare.comm import mpi, progress
from mpishare.comm.context import Context
from mpishare.comm.pending import start
from mpishare.comm.tags import Tag
from mpishare.messages.compression import FRAME_BYTES, SMALLEST_BYTES, packed, pays
from mpishare.messages.wire import IS_FRAMED, IS_TIMED, TIMED_BYTES, Message, is_timed, pieces

_WINDOW = 4
"""Frames on their way while the next is compressed."""


def choose(context: Context, dest: int, parts: Sequence[Block], *, can_wait: bool) -> int:
    """How to send `parts` to `dest` in the least time: compressed where that pays at the speed of the link.

    If the speed is not known and the sender can wait, the beginning of a large message finds it out.
    """
    large = [part for part in parts if part.nbytes >= SMALLEST_BYTES]
    if context.topology.node_of(dest) == context.topology.node or not large:
        return 0
    speed = context.link_speeds.get(context.topology.node_of(dest))
    if speed is not None:
        return IS_FRAMED if any(pays(part, speed) for part in large) else 0
    return IS_FRAMED | IS_TIMED if can_wait and large[0].nbytes > TIMED_BYTES else 0


class _Step(NamedTuple):
    """One message of a stream.

    Attributes:
        block: What to send, None for an answer to receive.
        rest: What is left of the part, where it is to be judged whether to compress it from here on.
        is_frame: Whether it may be compressed.
        ends_time: Whether a frame has been timed when this one begins.
        window: How many may be on their way when it begins.
    """

    block: Block | None
    rest: Block | None = None
    is_frame: bool = False
    ends_time: bool = False
    window: int = _WINDOW


def _steps(letter: Message) -> Iterator[_Step]:
    how = letter.how
    for part in letter.parts:
        if letter.is_framed(part):
            yield from _frames(part, how)
            how &= ~IS_TIMED
        else:
            yield from (_Step(piece) for piece in pieces(part))


def _frames(part: Block, how: int) -> Iterator[_Step]:
    """Those that are timed are awaited one by one: from one answer to the next, it is no matter who came late."""
    was_timed = False
    for frame in slices.chunks(part.nbytes, FRAME_BYTES):
        ends_time = was_timed and not is_timed(how, frame)
        is_judged = frame.start == 0 or ends_time
        window = 0 if was_timed else _WINDOW
        yield _Step(part[frame], part[frame.start :] if is_judged else None, True, ends_time, window)
        was_timed = is_timed(how, frame)
        if was_timed:
            yield _Step(None)


class Stream:
    """A message from this rank, begun by `wait`."""

    def __init__(self, context: Context, letter: Message, dest: int, tag: int) -> None:
        self._context = context
        self._letter = letter
        self._dest = dest
        self._tag = tag
        self._steps = list(_steps(letter))
        self._requests: list[mpi.Request] = []  # of the head, and of each step that has begun
        self._ended = 0
        self._does_pay = False
        self._timed_from = 0.0
        self._is_left = False
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Sends all."""
        try:
            while (request := self._begin()) is not None:
                self._context.wait_for_message(request, self._dest, "send to")
        except BaseException:
            if self._requests:
                self._is_left = True
                progress.add(self)
            raise

    def advance(self) -> None:
        """Sends what can be sent without waiting, after `wait` has raised."""
        if not self._lock.acquire(blocking=False):
            return  # another thread does
        try:
            if self._begin() is None:
                progress.remove(self)
        except mpi.Exception:  # the communicator was freed, so that nobody can receive the rest
            progress.remove(self)
        finally:
            self._lock.release()

    def _begin(self) -> mpi.Request | None:
        """Begins what may begin; what has to end before the next may, None when all has ended.

        An exception at any place leaves it to be called again: what has begun stands in `_requests` and nowhere else.
        """
        if not self._requests:
            self._put(self._context.head_comm.Isend, self._letter.head, self._tag)
        while (number := len(self._requests) - 1) < len(self._steps):
            step = self._steps[number]
            request = self._oldest(len(self._requests) - step.window)
            if request is not None:
                return request
            self._send(step)
        return self._oldest(len(self._requests))

    def _oldest(self, stop: int) -> mpi.Request | None:
        """The first of the requests before `stop` that has not ended."""
        while self._ended < stop:
            request = self._requests[self._ended]
            if not request.Test():
                return request
            self._ended += 1
        return None

    def _send(self, step: _Step) -> None:
        if step.block is None:
            self._put(self._context.data_comm.Irecv, bytearray(1), Tag.FRAME_ANSWER)
        else:
            self._judge(step)
            block = packed(step.block) if step.is_frame and self._does_pay else step.block
            self._put(self._context.data_comm.Isend, block, self._letter.tag)

    def _put(self, call: Callable[..., mpi.Request], content: Block | bytes | bytearray, tag: int) -> None:
        start(self._requests, call, [content, mpi.BYTE], self._dest, tag)

    def _judge(self, step: _Step) -> None:
        """Notes the speed of the link, where it has just been found out, and whether it pays to compress."""
        now, node = time.perf_counter(), self._context.topology.node_of(self._dest)
        if step.ends_time and not self._is_left:  # else this rank may have been elsewhere when the answer came
            self._context.link_speeds[node] = FRAME_BYTES / (now - self._timed_from)
        self._timed_from = now
        speed = self._context.link_speeds.get(node)
        if step.rest is not None:
            self._does_pay = speed is not None and pays(step.rest, speed)
