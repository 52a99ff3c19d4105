"""Messages that are sent and received at once, arrays of numbers in the fewest steps."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.dtypes import is_native_number
from mpishare.arrays.header import HEADER_BYTES, extension_bytes
from mpishare.arrays.spec import Spec
from mpishare.comm import mpi
from mpishare.comm.context import Context
from mpishare.comm.requests import keep_alive, pending, waits
from mpishare.errors import MpishareError
from mpishare.messages.requests import refuse_if_interrupted
from mpishare.messages.wire import (
    FIRST_TAG,
    HEAD_BYTES,
    INLINE_BYTES,
    LARGEST_CHUNK_BYTES,
    PARTS_FOLLOW,
    decode,
    new_tag,
)

_MAX_KNOWN = 256
"""Headers that are remembered by `_header` and by each head."""

_Known: TypeAlias = tuple[int, Spec | None, NDArray[Any] | None]
"""The length of a head with this header, the array's spec, and a view of its bytes behind the header, or None if these
follow as a part. (0, None, None) for everything but an array of numbers."""

_heads: list[_Head] = []
"""Heads to be used again: as many as there were threads in `receive_fast` at a time."""


def send_fast(context: Context, array: object, dest: object, tag: object) -> bool:
    """Sends an array of numbers in the fewest steps; whether it did. Everything else, `SendRequest` sends or refuses.

    A small message takes a microsecond, of which each call and each attribute is a twentieth.
    """
    if not (type(array) is np.ndarray and type(dest) is int is type(tag) and context.has_fast_messages) or pending:
        return False
    facts = context.topology
    if not (0 <= dest < facts.size and 0 <= tag <= context.max_tag) or dest == facts.rank:
        return False
    known = _header(array.dtype, array.shape, array.strides)
    if known is None:
        return False
    header, nbytes = known
    waits[0] += 1
    try:
        if nbytes <= INLINE_BYTES:
            context.head_comm.Send((header + array.tobytes("A"), mpi.BYTE), dest, tag)
        else:
            data_tag = new_tag(context)
            context.head_comm.Send((header + PARTS_FOLLOW.pack(data_tag, 0), mpi.BYTE), dest, tag)
            context.data_comm.Isend((array, mpi.BYTE), dest, data_tag).Wait()  # it begins while the head is read
    except BaseException as error:
        keep_alive([array])
        refuse_if_interrupted(context, error)
        raise
    return True


@lru_cache(_MAX_KNOWN)
def _header(dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[bytes, int] | None:
    """The header and the bytes of an array of numbers that takes at most two messages; None for any other.

    A large one is contiguous.
    """
    if not is_native_number(dtype):
        return None
    flags = np.lib.stride_tricks.as_strided(np.empty(1, dtype), shape, strides).flags
    spec = Spec(dtype, shape, "F" if flags.fnc else "C")
    if spec.nbytes > (LARGEST_CHUNK_BYTES if flags.forc else INLINE_BYTES):
        return None
    header, extension = spec.packed
    return None if extension else (header, spec.nbytes)


class _Head:
    """Memory for the head of a message.

    Attributes:
        known: What earlier headers said, as `read` returns it.
    """

    __slots__ = ("content", "header", "known", "message", "status")

    def __init__(self) -> None:
        self.known: dict[bytes, _Known] = {}
        self.content = bytearray(HEAD_BYTES)
        self.header = memoryview(self.content)[:HEADER_BYTES]
        self.message = (self.content, mpi.BYTE)
        self.status = mpi.Status()

    def read(self, header: bytes) -> _Known:
        """What the header of this head says. It is remembered if it is of an array of numbers."""
        spec = None
        with suppress(MpishareError):  # of an object, or not of a message of mpishare
            spec = None if extension_bytes(header) else Spec.unpack(header)
        if spec is None or not is_native_number(spec.dtype) or spec.nbytes > LARGEST_CHUNK_BYTES:
            return 0, None, None
        length, inside = HEADER_BYTES + PARTS_FOLLOW.size, None
        if spec.nbytes <= INLINE_BYTES:
            length = HEADER_BYTES + spec.nbytes
            inside = np.ndarray(spec.shape, spec.dtype, self.content, HEADER_BYTES, order=spec.order)
        if len(self.known) >= _MAX_KNOWN:
            self.known.clear()
        self.known[header] = length, spec, inside
        return self.known[header]


def receive_fast(context: Context, source: int, tag: int, out: NDArray[Any] | None, status: mpi.Status | None) -> Any:
    """Waits for a message; the array, or the `PickledObject`, that it brought.

    Only where nothing is pending and `context.has_fast_messages`, as it advances nothing else and knows no time limit.

    Raises:
        SpecError, ArgumentError, CapacityError, BackendError: See `decode`.
    """
    try:
        head = _heads.pop()
    except IndexError:
        head = _Head()
    head_status = head.status if status is None else status
    waits[0] += 1
    try:
        context.head_comm.Recv(head.message, source, tag, head_status)
        header = head.header.tobytes()
        length, spec, inside = head.known.get(header) or head.read(header)
        if length == head_status.count and spec is not None and (out is None or spec.fits(out)):
            if inside is None:
                array = _receive_part(context, head.content, spec, out, head_status.source)
            elif out is None:
                array = inside.__copy__()  # which keeps the order
            else:
                out[...] = inside
                array = out
            if array is not None:
                _heads.append(head)
                return array
        content = bytes(head.content[: head_status.count])
        _heads.append(head)
        return _receive_parts(context, content, out, head_status.source)
    except BaseException as error:
        refuse_if_interrupted(context, error)
        raise


def _receive_part(
    context: Context, content: bytearray, spec: Spec, out: NDArray[Any] | None, source: int
) -> NDArray[Any] | None:
    """Receives an array that follows its head in one message; None where it takes more steps."""
    tag, has_frames = PARTS_FOLLOW.unpack_from(content, HEADER_BYTES)
    if has_frames or not FIRST_TAG <= tag < context.max_tag or not (out is None or spec.is_order_of(out)):
        return None
    try:
        array = np.empty(spec.shape, spec.dtype, spec.order) if out is None else out
    except MemoryError:
        return None
    context.data_comm.Recv((array, mpi.BYTE), source, tag)
    return array


def _receive_parts(context: Context, head: bytes, out: NDArray[Any] | None, source: int) -> Any:
    """Receives what follows a head, in any number of steps."""
    status, decoding = mpi.Status(), decode(context, head, out)
    try:
        buffer, tag = next(decoding)
        while True:
            context.data_comm.Recv([buffer, mpi.BYTE], source, tag, status)
            buffer, tag = decoding.send(status.count)
    except StopIteration as end:
        return end.value
