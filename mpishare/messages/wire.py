"""The format of a message: a head that describes it, and the bytes of each array in parts.

The head of a small array is its header with the bytes behind it. Every other head names a tag, which no other message
between the two ranks has at the time; the parts follow with that tag, in chunks of up to `LARGEST_CHUNK_BYTES`. Small
arrays of an object share a part.

What does not fit on the receiver is received all the same and lost, so that the next message is not disturbed. Only
where memory is short for the list of an object's arrays, or for a dtype of kilobytes, the rest is not received: its
length is unknown.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import cache
from itertools import count, repeat
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.header import HEADER_BYTES, extension_bytes
from mpishare.arrays.raw import Block, bytes_of, copy_bytes
from mpishare.arrays.slices import LINE_BYTES, chunks, round_up
from mpishare.arrays.spec import Spec
from mpishare.comm.context import Context
from mpishare.comm.tags import Tag
from mpishare.errors import ArgumentError, MpishareError, SpecError
from mpishare.memory.buffers import allocate_buffer
from mpishare.messages.compression import FRAME_BYTES, SMALLEST_BYTES, expand_frame
from mpishare.objects.pickled import PickledObject, check_length, pack_specs, unpack_specs

HEAD_BYTES = 4096 - 64
"""The largest head: what Open MPI sends at once through shared memory, and what is copied in no time."""

INLINE_BYTES = HEAD_BYTES - HEADER_BYTES

LARGEST_CHUNK_BYTES = 64 << 20
"""The largest message. One that is lost takes a buffer of this size."""

FIRST_TAG = int(Tag.FIRST_OF_MESSAGES)
"""The smallest tag of the parts of messages. As a plain integer: to look up a member of an enum takes 0.1 us."""

PARTS_FOLLOW = struct.Struct("<IB")
"""What follows the header of an array that is not in the head: the tag of its parts, and whether they have frames."""

_OBJECT_HEAD = struct.Struct("<4sIBQQ")
"""Magic number, the tag of the parts, whether they have frames, and the bytes of the contents and of the skeleton."""
_OBJECT_MAGIC = b"MSP1"

_JOINED_BYTES = 64 << 10
"""Small arrays of an object travel together in parts of up to so many bytes. As 100,000 messages they take 27 s between
two ranks of a node, as MPI looks through all that wait; together they take less than 2 s."""

_message_numbers = count()

Decoding: TypeAlias = Generator[tuple[Block, int], int, Any]
"""Yields each buffer to receive into and its tag, is sent how many bytes came, returns the array or `PickledObject`."""

WantsFrames: TypeAlias = Callable[[Sequence[Block]], bool]


class Message(NamedTuple):
    """A message as it is sent.

    Attributes:
        head: The first message.
        tag: That of the parts.
        parts: What is not in the head: the extension of a header, or the contents and the skeleton of an object, and
            the bytes of the arrays, the small ones together.
        has_frames: Whether large parts travel in frames, each compressed or not.
    """

    head: bytes
    tag: int = 0
    parts: Sequence[Block] = ()
    has_frames: bool = False


def chunks_of(block: Block) -> Iterator[Block]:
    """The bytes of `block` as messages."""
    return (block[chunk] for chunk in chunks(block.nbytes, LARGEST_CHUNK_BYTES))


def travels_in_frames(nbytes: int, has_frames: bool) -> bool:
    """Whether a part of so many bytes travels in frames, if the message has any."""
    return has_frames and nbytes >= SMALLEST_BYTES


def new_tag(context: Context) -> int:
    """A tag for the parts of a message, which no other message between two ranks has at the time."""
    return FIRST_TAG + next(_message_numbers) % (context.max_tag - FIRST_TAG)


def encode(context: Context, content: NDArray[Any] | PickledObject, wants_frames: WantsFrames | None = None) -> Message:
    """The message of an array or an object. Its parts are views of the arrays that are contiguous.

    Args:
        context: That of the communicator.
        content: An array, or an object apart from its arrays.
        wants_frames: Whether the parts that it is called with are to travel in frames; none do when None.

    Raises:
        SpecError: An array is not of bytes of a fixed size.
    """
    if isinstance(content, PickledObject):
        return _encode_object(context, content, wants_frames)
    spec = Spec.of(content)
    header, extension = spec.packed
    block = _contiguous_bytes(content, spec)
    if HEADER_BYTES + len(extension) + spec.nbytes <= HEAD_BYTES:
        return Message(b"".join((header, extension, block.tobytes())))
    parts = [part for part in (np.frombuffer(extension, np.uint8), block) if part.nbytes]
    tag, has_frames = new_tag(context), wants_frames is not None and wants_frames(parts)
    return Message(header + PARTS_FOLLOW.pack(tag, has_frames), tag, parts, has_frames)


def _encode_object(context: Context, pickled: PickledObject, wants_frames: WantsFrames | None) -> Message:
    contents, specs = pack_specs(pickled.arrays)
    streams = contents, pickled.skeleton
    in_head = sum(_are_in_head(len(contents), len(pickled.skeleton)))
    parts = [np.frombuffer(text, np.uint8) for text in streams[in_head:]]
    blocks = list(map(_contiguous_bytes, pickled.arrays, specs))
    parts += [_joined(blocks[arrays], offsets, nbytes) for arrays, offsets, nbytes in _parts_of(specs) if nbytes]
    tag, has_frames = new_tag(context), wants_frames is not None and wants_frames(parts)
    head = _OBJECT_HEAD.pack(_OBJECT_MAGIC, tag, has_frames, len(contents), len(pickled.skeleton))
    return Message(b"".join((head, *streams[:in_head])), tag, parts, has_frames)


def _parts_of(specs: Sequence[Spec]) -> Iterator[tuple[slice, list[int], int]]:
    """For each part with arrays of an object, which arrays it has, where each begins there, and the bytes of it."""
    first, end, offsets = 0, 0, list[int]()
    for number, spec in enumerate(specs):
        start = round_up(end, LINE_BYTES)
        if offsets and start + spec.nbytes > _JOINED_BYTES:
            yield slice(first, number), offsets, end
            first, start, offsets = number, 0, []
        offsets.append(start)
        end = start + spec.nbytes
    if offsets:
        yield slice(first, len(specs)), offsets, end


def _joined(blocks: Sequence[Block], offsets: Sequence[int], nbytes: int) -> Block:
    """The one block itself, or a copy of several in one."""
    if len(blocks) == 1:
        return blocks[0]
    joined = np.zeros(nbytes, np.uint8)
    for block, start in zip(blocks, offsets, strict=True):
        joined[start : start + block.nbytes] = block
    return joined


def _are_in_head(contents_bytes: int, skeleton_bytes: int) -> tuple[bool, bool]:
    """Whether the contents, and the skeleton behind them, are in the head of an object."""
    room = HEAD_BYTES - _OBJECT_HEAD.size
    return contents_bytes <= room, contents_bytes + skeleton_bytes <= room


def _contiguous_bytes(array: NDArray[Any], spec: Spec) -> Block:
    """The bytes of `array` in the order of `spec`: a view if it is contiguous, else a copy.

    Within a node a derived datatype takes half the time for 8 MiB, but its bytes could not be compressed, nor cut at
    any place.
    """
    if array.flags.forc:
        return bytes_of(array)
    block = np.empty(spec.nbytes, np.uint8)
    copy_bytes(spec.view(block), array)
    return block


def decode(context: Context, head: bytes, out: NDArray[Any] | None) -> Decoding:
    """Receives the message that began with `head`, into `out` if that is an array.

    Raises:
        SpecError: It does not fit `out`, or is not a message of mpishare.
        ArgumentError: It is an object, and `out` is an array.
        CapacityError: This process has no memory for it.
        BackendError: A compressed frame is damaged, or lz4 is not installed on this rank.
    """
    if head.startswith(_OBJECT_MAGIC):
        return (yield from _decode_object(context, head, out))
    header, rest = head[:HEADER_BYTES], head[HEADER_BYTES:]
    length = extension_bytes(header)
    is_in_head = len(rest) != PARTS_FOLLOW.size if length else Spec.unpack(header).nbytes <= INLINE_BYTES
    if is_in_head:
        spec = Spec.unpack(header, rest[:length])
        check_length(len(rest), length + spec.nbytes)
        error = _misfit(spec, out)
        if error is not None:
            raise error
        return _placed(spec, bytearray(rest[length:]), out)
    check_length(len(rest), PARTS_FOLLOW.size)
    parts = _IncomingParts(context, *PARTS_FOLLOW.unpack(rest))
    spec = Spec.unpack(header, (yield from parts.receive_bytes(length)))
    parts.error = _misfit(spec, out)
    has_place = out is not None and parts.error is None and spec.is_order_of(out)
    block = yield from parts.receive(spec.nbytes, bytes_of(out) if out is not None and has_place else None)
    parts.raise_error()
    return out if has_place else _placed(spec, block, out)


def _decode_object(context: Context, head: bytes, out: NDArray[Any] | None) -> Decoding:
    check_length(min(len(head), _OBJECT_HEAD.size), _OBJECT_HEAD.size)
    _, tag, has_frames, contents_bytes, skeleton_bytes = _OBJECT_HEAD.unpack_from(head)
    parts, rest = _IncomingParts(context, tag, has_frames), head[_OBJECT_HEAD.size :]
    has_contents, has_skeleton = _are_in_head(contents_bytes, skeleton_bytes)
    check_length(len(rest), has_contents * contents_bytes + has_skeleton * skeleton_bytes)
    contents = rest[:contents_bytes] if has_contents else (yield from parts.receive_bytes(contents_bytes))
    specs = unpack_specs(contents)
    if out is not None:
        parts.error = ArgumentError("out is for an array, but the message is an object with arrays in it. Omit out.")
    skeleton: bytes | memoryview = rest[contents_bytes:]
    if not has_skeleton:
        skeleton = (yield from parts.receive(skeleton_bytes)).data
    places: list[tuple[Spec, Block, int]] = []
    for arrays, offsets, nbytes in _parts_of(specs):
        block = yield from parts.receive(nbytes)
        places += zip(specs[arrays], repeat(block), offsets)
    parts.raise_error()
    return PickledObject(skeleton, [spec.view(block[start : start + spec.nbytes]) for spec, block, start in places])


class _IncomingParts:
    """The parts of one message, in the order in which they come.

    Attributes:
        error: Why the parts from here on are lost; None if they are not.
    """

    def __init__(self, context: Context, tag: int, has_frames: int) -> None:
        if not FIRST_TAG <= tag < context.max_tag or has_frames not in (0, 1):
            raise SpecError(f"a message from another rank cannot be read: it names tag {tag}, frames {has_frames}")
        self._context = context
        self._tag = tag
        self._has_frames = bool(has_frames)
        self.error: MpishareError | None = None

    def raise_error(self) -> None:
        """Raises why parts were lost, if any were."""
        if self.error is not None:
            raise self.error

    def receive_bytes(self, nbytes: int) -> Generator[tuple[Block, int], int, bytes]:
        """The next part, without which the rest cannot be received."""
        block = yield from self.receive(nbytes)
        self.raise_error()
        return block.tobytes()

    def receive(self, nbytes: int, block: Block | None = None) -> Generator[tuple[Block, int], int, Block]:
        """The bytes of the next part, in `block` or in memory of their own; no bytes if they are lost."""
        try:
            self.raise_error()
            block = _memory_for(self._context, nbytes) if block is None else block
        except MpishareError as error:
            self.error = error
        has_frames = travels_in_frames(nbytes, self._has_frames)
        for chunk in chunks(nbytes, FRAME_BYTES if has_frames else LARGEST_CHUNK_BYTES):
            buffer = _sink()[: chunk.stop - chunk.start] if block is None else block[chunk]
            length = yield buffer, self._tag
            if has_frames and length != buffer.nbytes and self.error is None:
                try:
                    expand_frame(buffer, length)
                except MpishareError as error:
                    self.error = error
        return np.empty(0, np.uint8) if block is None else block


def _misfit(spec: Spec, out: NDArray[Any] | None) -> SpecError | None:
    """Why an array of `spec` cannot be received into `out`; None if it can."""
    if out is None or spec.fits(out):
        return None
    return SpecError(
        f"out has shape {out.shape} and dtype {out.dtype}, but the message has {spec.shape} and {spec.dtype}. It is "
        "lost; the next message is not. Receive without out where the sender may choose."
    )


def _placed(spec: Spec, block: Block | bytearray, out: NDArray[Any] | None) -> NDArray[Any]:
    """The bytes as an array of `spec`; copied to `out` if there is one, which is returned."""
    array = spec.view(block)
    if out is None:
        return array
    copy_bytes(out, array)
    return out


def _memory_for(context: Context, nbytes: int) -> Block:
    """Fresh memory for an array.

    Raises:
        CapacityError: There is none.
    """
    cure = "The message is lost; the next one is not. Send less at a time."
    return allocate_buffer(context, nbytes, cure, before=_sink)  # reserved while there is memory


@cache
def _sink() -> Block:
    """Memory for the bytes of lost messages, the same for all, as MPI cannot receive to nowhere.

    It is reserved before the memory of the first large array, and takes none until it is used.
    """
    return np.empty(LARGEST_CHUNK_BYTES, np.uint8)
