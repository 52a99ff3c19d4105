"""What a message of arrays looks like: a first part with all that there is to know, and the bytes of each array.

The first part, the head, is a header with the bytes behind it where both fit in `HEAD_BYTES`. A larger one names a tag
of its own, which no other message between the two ranks has at the time, and with which the rest follows.

On the receiver it is a generator that yields the places for what is to come. Where something does not fit, it yields
places all the same, in which the rest is lost, and raises at the end: the next message is not disturbed. Where there is
no memory for the list of hundreds of arrays, or for a dtype of kilobytes, it does not know the rest and leaves it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import lru_cache
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays import slices
from mpishare.arrays.dtypes import is_native_number
from mpishare.arrays.header import HEADER_BYTES, extension_bytes
from mpishare.arrays.raw import Block, bytes_of, copy_bytes
from mpishare.arrays.spec import Order, Spec
from mpishare.comm.context import Context
from mpishare.comm.tags import Tag
from mpishare.errors import ArgumentError, CapacityError, MpishareError, SpecError
from mpishare.host import memory as host_memory
from mpishare.memory.buffer_pool import SMALLEST_BYTES as SMALLEST_LOAN_BYTES
from mpishare.memory.buffer_pool import acquire
from mpishare.memory.mapping import SINK_BYTES, Mapping
from mpishare.memory.segment import Origin, Segment
from mpishare.messages.compression import FRAME_BYTES, SMALLEST_BYTES, unpack
from mpishare.objects.pickled import PickledObject, check_length, listed, write_list
from mpishare.transfer import plan

HEAD_BYTES = 4096 - 64
"""The largest first message: what Open MPI sends at once through shared memory, and what is copied in no time."""

INLINE_BYTES = HEAD_BYTES - HEADER_BYTES

TAG = struct.Struct("<IB")
"""The tag of the rest, and how it comes."""
TAGGED_BYTES = HEADER_BYTES + TAG.size

IS_FRAMED, IS_TIMED = 1, 2
"""How the rest comes: large arrays in frames, each as it is or compressed; and the sender wants to hear when each frame
of the first `TIMED_BYTES` has come."""
TIMED_BYTES = 2 * FRAME_BYTES

_PARCEL = struct.Struct("<4sIBQQ")
"""Magic, the tag of the rest and how it comes, and the bytes of the list of contents and of the skeleton."""
_PARCEL_MAGIC = b"MSP1"

_numbers = count()


class Message(NamedTuple):
    """A message as it leaves.

    Attributes:
        head: The first message.
        tag: Of the others.
        parts: What is not in the head: of an object its list of contents and its skeleton, and the bytes of each array
            that has some.
        how: `IS_FRAMED` and `IS_TIMED`, or 0.
    """

    head: bytes
    tag: int = 0
    parts: Sequence[Block] = ()
    how: int = 0

    def is_framed(self, part: Block) -> bool:
        """Whether that part travels in frames."""
        return bool(self.how) and part.nbytes >= SMALLEST_BYTES


class Place(NamedTuple):
    """Where the next part goes; nowhere if `block` is None. With `answer`, the sender hears that it has come."""

    tag: int
    nbytes: int
    block: Block | None
    answer: bool = False

    def pieces(self) -> Iterator[Block]:
        """The same as MPI can send it."""
        return pieces(self.block) if self.block is not None else _sinks(self.nbytes)


Steps = Generator[Place, int, Any]
"""Is sent how many bytes came for each place, fewer than it has where they are compressed."""


Choose = Callable[[Sequence[Block]], int]
"""Says of the parts of a message how they are to be sent."""


@lru_cache(maxsize=256)
def simple_head(dtype: np.dtype[Any], shape: tuple[int, ...], order: Order) -> tuple[bytes, int] | None:
    """The header and the bytes of an array of plain numbers; None for any other."""
    if not is_native_number(dtype):
        return None
    spec = Spec(dtype, shape, order)
    header, extension = spec.packed
    return None if extension else (header, spec.nbytes)


@lru_cache(maxsize=256)
def simple_spec(header: bytes) -> Spec | None:
    """What `simple_head` told of; None for any other header."""
    if header.startswith(_PARCEL_MAGIC) or len(header) < HEADER_BYTES or extension_bytes(header):
        return None
    spec = Spec.unpack(header)
    return spec if is_native_number(spec.dtype) else None


def write(context: Context, content: NDArray[Any] | PickledObject, choose: Choose | None = None) -> Message:
    """The message that brings `content`, whose bytes it shows where they are one run.

    Raises:
        SpecError: It is an array that is more than bytes of a fixed size.
    """
    if isinstance(content, PickledObject):
        return _write_parcel(context, content, choose)
    return _write_array(context, content, choose)


def _write_array(context: Context, array: NDArray[Any], choose: Choose | None) -> Message:
    spec = Spec.of(array)
    header, extension = spec.packed
    if HEADER_BYTES + len(extension) + spec.nbytes <= HEAD_BYTES:
        content = array.tobytes("A") if array.flags.forc else bytes(_run_of(context, array, spec))
        return Message(header + extension + content if extension else header + content)
    tag = new_tag(context)
    parts = [np.frombuffer(extension, np.uint8)] if extension else []
    parts += [_run_of(context, array, spec)] if spec.nbytes else []
    how = 0 if choose is None else choose(parts)
    return Message(header + TAG.pack(tag, how), tag, parts, how)


def _write_parcel(context: Context, parcel: PickledObject, choose: Choose | None) -> Message:
    headers, specs = write_list(parcel.arrays)
    texts = headers, parcel.skeleton
    inside = _inside(len(headers), len(parcel.skeleton))
    outside = [text for text, is_inside in zip(texts, inside, strict=True) if not is_inside]
    parts = [np.frombuffer(text, np.uint8) for text in outside]
    parts += [_run_of(context, array, spec) for array, spec in zip(parcel.arrays, specs, strict=True) if spec.nbytes]
    tag, how = new_tag(context), 0 if choose is None else choose(parts)
    head = _PARCEL.pack(_PARCEL_MAGIC, tag, how, len(headers), len(parcel.skeleton))
    return Message(b"".join((head, *texts[: sum(inside)])), tag, parts, how)


def _inside(list_bytes: int, skeleton_bytes: int) -> tuple[bool, bool]:
    """Whether the list of contents and the skeleton are in the head."""
    room = HEAD_BYTES - _PARCEL.size
    return list_bytes <= room, list_bytes + skeleton_bytes <= room


def _run_of(context: Context, array: NDArray[Any], spec: Spec) -> Block:
    """The bytes of `array` in the order of `spec`: its own where they are one run, else a copy.

    A copy is faster than a derived datatype, which leaves the path on which a message is copied once
    (benchmarks/results/messages.json).
    """
    if array.flags.forc:
        return bytes_of(array)
    block = acquire(spec.nbytes, context.buffer_pool_bytes)
    copy_bytes(spec.view(block), array)
    return block


def new_tag(context: Context) -> int:
    """A tag for what follows a head, which no other message between two ranks has at the time."""
    return Tag.FIRST_OF_MESSAGES + next(_numbers) % (context.max_tag - Tag.FIRST_OF_MESSAGES)


def pieces(block: Block) -> Iterator[Block]:
    """The bytes as MPI can send them."""
    if block.nbytes <= plan.LARGEST_MESSAGE_BYTES:
        return iter((block,))
    return (block[part] for part in slices.chunks(block.nbytes, plan.LARGEST_MESSAGE_BYTES))


def _sinks(nbytes: int) -> Iterator[Block]:
    """The pieces of what is to be lost, all in the same memory: MPI knows no message that is received to nowhere."""
    length = min(nbytes, plan.LARGEST_MESSAGE_BYTES)
    if length <= SINK_BYTES:
        sink: Block = np.empty(length, np.uint8)
    else:
        sink = Segment(Mapping.sink(length), length, Origin("sink", "recv", node_size=1), key=None).block()
    return (sink[: part.stop - part.start] for part in slices.chunks(nbytes, length))


def opened(context: Context, head: bytes, out: NDArray[Any] | None) -> Steps:
    """Reads the message that began with `head`: yields places, returns the array or the `Parcel`.

    Raises:
        SpecError: It does not fit `out`, or is no message of ours.
        ArgumentError: It is an object, for which there is no `out`.
        CapacityError: This process gets no memory for it.
    """
    if head.startswith(_PARCEL_MAGIC):
        return (yield from _opened_parcel(context, head, out))
    header, rest = head[:HEADER_BYTES], head[HEADER_BYTES:]
    length = extension_bytes(header)
    is_whole = len(rest) != TAG.size if length else Spec.unpack(header).nbytes <= INLINE_BYTES
    if is_whole:
        spec = Spec.unpack(header, rest[:length])
        check_length(len(rest), length + spec.nbytes)
        return _put(spec, bytearray(rest[length:]), out)
    check_length(len(rest), TAG.size)
    tag, how = TAG.unpack(rest)
    _check_tag(context, tag, how)
    extension = b""
    if length:
        extension = (yield from _coming(context, _bytes(length), tag, how, None)).tobytes()
        how = _after(how, length)
    return (yield from _coming(context, Spec.unpack(header, extension), tag, how, out))


def _opened_parcel(context: Context, head: bytes, out: NDArray[Any] | None) -> Steps:
    check_length(min(len(head), _PARCEL.size), _PARCEL.size)
    _, tag, how, list_bytes, skeleton_bytes = _PARCEL.unpack_from(head)
    _check_tag(context, tag, how)
    has_list, has_skeleton = _inside(list_bytes, skeleton_bytes)
    check_length(len(head) - _PARCEL.size, has_list * list_bytes + has_skeleton * skeleton_bytes)
    headers, skeleton = head[_PARCEL.size : _PARCEL.size + list_bytes], head[_PARCEL.size + list_bytes :]
    if not has_list:
        headers = (yield from _coming(context, _bytes(list_bytes), tag, how, None)).tobytes()
        how = _after(how, list_bytes)
    specs = listed(headers)
    error: MpishareError | None = None
    if out is not None:
        error = ArgumentError("out is for an array, but what came is an object with arrays in it. Leave out away.")
    found: list[NDArray[Any]] = []
    for spec in specs if has_skeleton else [_bytes(skeleton_bytes), *specs]:
        if error is None:
            try:
                found.append((yield from _coming(context, spec, tag, how, None)))
            except MpishareError as lack:
                error = lack
        else:
            yield from _lost(spec.nbytes, tag, how)
        how = _after(how, spec.nbytes)
    if error is not None:
        raise error
    return PickledObject(skeleton if has_skeleton else found.pop(0).data, found)


def _bytes(length: int) -> Spec:
    """What is no array, as one."""
    return Spec(np.dtype(np.uint8), (length,))


def _after(how: int, nbytes: int) -> int:
    """How parts come after one of so many bytes: the sender wants to hear of the first large one only."""
    return how & ~IS_TIMED if nbytes >= SMALLEST_BYTES else how


def _coming(context: Context, spec: Spec, tag: int, how: int, out: NDArray[Any] | None) -> Steps:
    """Receives the bytes of one array into memory of their own, or into `out`."""
    if not spec.nbytes:
        return _put(spec, bytearray(), out)
    try:
        if out is not None:
            _check_fit(spec, out)
        is_direct = out is not None and is_run_of(out, spec)
        block = bytes_of(out) if out is not None and is_direct else memory_for(context, spec.nbytes)
    except MpishareError:
        yield from _lost(spec.nbytes, tag, how)
        raise
    if how and spec.nbytes >= SMALLEST_BYTES:
        yield from _framed(block, tag, how)
    else:
        yield Place(tag, spec.nbytes, block)
    return out if is_direct else _put(spec, block, out)


def _framed(block: Block, tag: int, how: int) -> Steps:
    """Receives frames into `block`, each where its bytes go, and expands those that are compressed."""
    error: MpishareError | None = None
    for part in slices.chunks(block.nbytes, FRAME_BYTES):
        frame = block[part]
        length = yield Place(tag, frame.nbytes, frame, answer=is_timed(how, part))
        if length != frame.nbytes:
            try:
                unpack(frame, length)
            except MpishareError as damage:
                error = damage
    if error is not None:
        raise error


def is_timed(how: int, part: slice) -> bool:
    """Whether the sender wants to hear when this frame of the first large array has come."""
    return bool(how & IS_TIMED) and part.stop <= TIMED_BYTES


def _lost(nbytes: int, tag: int, how: int) -> Steps:
    """Receives what has no place."""
    if how and nbytes >= SMALLEST_BYTES:
        for part in slices.chunks(nbytes, FRAME_BYTES):
            yield Place(tag, part.stop - part.start, None, answer=is_timed(how, part))
    elif nbytes:
        yield Place(tag, nbytes, None)


def is_run_of(out: NDArray[Any], spec: Spec) -> bool:
    """Whether the bytes that `spec` tells of, in the order in which they come, are those of `out` in memory."""
    return out.flags.c_contiguous if spec.order == "C" else out.flags.f_contiguous


def _put(spec: Spec, block: Block | bytearray, out: NDArray[Any] | None) -> NDArray[Any]:
    """The array of these bytes; `out` with them in it if there is one."""
    array = spec.view(block)
    if out is None:
        return array
    _check_fit(spec, out)
    copy_bytes(out, array)
    return out


def fits(spec: Spec, out: NDArray[Any]) -> bool:
    """Whether what `spec` tells of may go into `out`."""
    return out.shape == spec.shape and out.dtype == spec.dtype


def _check_fit(spec: Spec, out: NDArray[Any]) -> None:
    if not fits(spec, out):
        raise SpecError(
            f"out has shape {out.shape} and dtype {out.dtype}, but what came has {spec.shape} and {spec.dtype}. It is "
            "lost; the next message is not. Receive without out where the sender may choose."
        )


def memory_for(context: Context, nbytes: int) -> Block:
    """Fresh memory for an array.

    Raises:
        CapacityError: There is none.
    """
    try:
        return acquire(nbytes, context.buffer_pool_bytes)
    except (MemoryError, ValueError, OverflowError) as error:
        cure = "The message is lost; the next one is not. Send less at a time."
        free = host_memory.memory_room().free
        raise CapacityError(context.topology.host, "the memory of this process", nbytes, free, cure) from error


def array_for(context: Context, spec: Spec) -> NDArray[Any]:
    """A fresh array of plain numbers.

    Raises:
        CapacityError, MemoryError: This process gets no memory for it.
    """
    if spec.nbytes < SMALLEST_LOAN_BYTES:
        return np.empty(spec.shape, spec.dtype, spec.order)
    return spec.view(memory_for(context, spec.nbytes))


def _check_tag(context: Context, tag: int, how: int) -> None:
    if not Tag.FIRST_OF_MESSAGES <= tag < context.max_tag or how not in (0, IS_FRAMED, IS_FRAMED | IS_TIMED):
        raise SpecError(f"a message from another rank cannot be read: it names tag {tag}, kind {how}")
