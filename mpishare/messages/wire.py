"""The format of a message: a head, which describes it and has the bytes of a small one; then chunks with the others.

The head of an array of numbers is its header and then its bytes, or the tag of the chunks. Any other message is an
object: a sequence of parts, which are the specs of its arrays, the pickle of the object around them, and the bytes of
the arrays, of which small ones share a part. An array that is not of numbers has no pickle. The head of an object has
the tag, the sizes of the first two parts, and all parts that fit up to the first that does not. No other message
between the two ranks has the tag at the time.

What does not fit on the receiver is received all the same and lost, so that the next message is not disturbed. Only
where memory is short for the specs of the arrays, the rest is not received: its length is unknown.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import accumulate, count, repeat
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.dtypes import is_native_number
from mpishare.arrays.raw import Block, bytes_of, copy_bytes
from mpishare.arrays.slices import LINE_BYTES, chunks, round_up
from mpishare.arrays.spec import HEADER_BYTES, Spec, extension_bytes
from mpishare.comm import mpi
from mpishare.comm.context import Context
from mpishare.comm.in_flight import Tag
from mpishare.errors import ArgumentError, BackendError, MpishareError, SpecError
from mpishare.host.memory import allocate_buffer
from mpishare.objects.pickling import PickledObject, check_length, pack_specs, unpack_specs

Message: TypeAlias = tuple[bytes, int, Sequence[NDArray[Any]]]
"""The head, the tag of the chunks, and the chunks."""

Decoding: TypeAlias = Generator[tuple[Block, int], int, Any]
"""Yields each buffer to receive into and its tag, is sent how many bytes came, returns the array or `PickledObject`."""

HEAD_BYTES = 4096 - 64
"""The largest head: what Open MPI sends at once through shared memory, and what is copied in no time."""

CHUNK_BYTES = 16 << 20
"""The largest chunk. A chunk that is lost takes a buffer of this size."""

FRAME_BYTES = 1 << 20
"""The largest chunk of a message in frames, each of which may be compressed while earlier ones travel."""

COMPRESSIBLE_BYTES = 10_000
"""Smaller chunks are not compressed."""

INLINE_BYTES = HEAD_BYTES - HEADER_BYTES
"""The largest array of numbers that is in its head."""

_TAG = struct.Struct("<I?")
"""The tag of the chunks, and whether they are frames."""

_OBJECT = struct.Struct("<4sI?xxxIQ")
"""What the head of an object begins with: magic number, tag, whether there are frames, bytes of specs and of pickle."""
_OBJECT_MAGIC = b"MSP2"

_LOST = "The message is lost; the next one is not. Send less at a time."
"""What a receiver without memory for a message is told."""

_MAX_VIEWS = 256

_FIRST_TAG = int(Tag.FIRST_OF_MESSAGES)

_JOINED_BYTES = 64 << 10
"""Small arrays of an object share parts of up to this size. As 100,000 messages they take 27 s between two ranks of a
node, as MPI looks through all that wait; together they take less than 2 s."""

_SAMPLES, _SAMPLE_BYTES = 5, 10_000
_GAIN = 1.1
"""How much sooner the bytes must arrive to be worth the work of two cores."""

_SINK = np.empty(CHUNK_BYTES, np.uint8)
"""Memory for the bytes of lost messages, as MPI cannot receive to nowhere. It takes none until it is used."""

_message_numbers = count()


def encode(context: Context, content: NDArray[Any] | PickledObject, *, has_frames: bool = False) -> Message:
    """The message of an array or an object. Its chunks are views of the arrays that are contiguous.

    Args:
        context: The context of the communicator.
        content: A plain array, or an object apart from its arrays.
        has_frames: Whether the chunks are frames.

    Raises:
        SpecError: An array is not of bytes of a fixed size.
    """
    if isinstance(content, PickledObject):
        return _encode_object(context, *content, has_frames)
    header, spec = _header_of_numbers(content.dtype, content.shape, content.flags.fnc)
    if not header:
        return _encode_object(context, b"", [content], has_frames)
    if spec.nbytes <= INLINE_BYTES:
        return header + content.tobytes("A"), 0, ()
    tag = new_tag(context)
    array = content if content.flags.forc else _contiguous_bytes(content, spec)
    return header + _TAG.pack(tag, has_frames), tag, _chunks_of(array, has_frames)


@lru_cache(256)
def _header_of_numbers(dtype: np.dtype[Any], shape: tuple[int, ...], is_fortran: bool) -> tuple[bytes, Spec]:
    """The header of an array of numbers, and its spec; no header for an array that is sent as an object."""
    spec = Spec(dtype, shape, "F" if is_fortran else "C")
    header, extension = spec.packed if is_native_number(dtype) else (b"", b"")
    return b"" if extension else header, spec


def _encode_object(
    context: Context, skeleton: bytes | memoryview, arrays: Sequence[NDArray[Any]], has_frames: bool
) -> Message:
    specs = [Spec.of(array) for array in arrays]
    contents, blocks = pack_specs(specs), list(map(_contiguous_bytes, arrays, specs))
    parts = [np.frombuffer(contents, np.uint8), np.frombuffer(skeleton, np.uint8)]
    parts += [_joined(blocks[numbers], starts, nbytes) for numbers, starts, nbytes in _array_parts(specs)]
    tag = new_tag(context)
    start = _OBJECT.pack(_OBJECT_MAGIC, tag, has_frames, len(contents), len(skeleton))
    ends = accumulate((part.nbytes for part in parts), initial=len(start))
    in_head = sum(end <= HEAD_BYTES for end in ends) - 1
    head = b"".join((start, *(part.data for part in parts[:in_head])))
    return head, tag, [chunk for part in parts[in_head:] for chunk in _chunks_of(part, has_frames)]


def new_tag(context: Context) -> int:
    """A tag for the chunks of a message, which no other message between two ranks has at the time."""
    return _FIRST_TAG + next(_message_numbers) % (context.max_tag - _FIRST_TAG)


def _chunks_of(array: NDArray[Any], has_frames: bool) -> list[NDArray[Any]]:
    """The bytes of a contiguous array as chunks."""
    largest = FRAME_BYTES if has_frames else CHUNK_BYTES
    if 0 < array.nbytes <= largest:
        return [array]
    block = bytes_of(array)
    return [block[chunk] for chunk in chunks(block.nbytes, largest)]


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


def _array_parts(specs: Sequence[Spec]) -> Iterator[tuple[slice, list[int], int]]:
    """For each part with arrays, which arrays it has, where each begins there, and the bytes of it."""
    first, end, starts = 0, 0, list[int]()
    for number, spec in enumerate(specs):
        start = round_up(end, LINE_BYTES)
        if starts and start + spec.nbytes > _JOINED_BYTES:
            yield slice(first, number), starts, end
            first, start, starts = number, 0, []
        starts.append(start)
        end = start + spec.nbytes
    if starts:
        yield slice(first, len(specs)), starts, end


def _joined(blocks: Sequence[Block], starts: Sequence[int], nbytes: int) -> Block:
    """The one block itself, or a copy of several in one."""
    if len(blocks) == 1:
        return blocks[0]
    joined = np.zeros(nbytes, np.uint8)
    for block, start in zip(blocks, starts, strict=True):
        joined[start : start + block.nbytes] = block
    return joined


class Head:
    """Memory for the heads of messages, one after the other.

    Attributes:
        buffer: The memory.
        status: What MPI says of the head that was received.
    """

    def __init__(self) -> None:
        self.buffer = bytearray(HEAD_BYTES)
        self.status = mpi.Status()
        self._header = memoryview(self.buffer)[:HEADER_BYTES]
        self._views: dict[bytes, NDArray[Any]] = {}

    def small_array(self, out: NDArray[Any] | None) -> NDArray[Any] | None:
        """The array of numbers whose bytes are in this head, in fewer steps than by `decode`; None for any other.

        A small message takes a microsecond; each call and each attribute takes a twentieth of it.
        """
        header = self._header.tobytes()
        view = self._views.get(header)
        if view is None:
            spec = _numbers_in(header)
            if spec is None or spec.nbytes > INLINE_BYTES:
                return None
            if len(self._views) >= _MAX_VIEWS:
                self._views.clear()
            view = self._views[header] = np.ndarray(spec.shape, spec.dtype, self.buffer, HEADER_BYTES, order=spec.order)
        if self.status.count != HEADER_BYTES + view.nbytes:
            return None
        if out is None:
            return view.__copy__()  # which keeps the order
        if out.shape != view.shape or out.dtype != view.dtype:
            return None
        out[...] = view
        return out

    def large_array(self, out: NDArray[Any] | None) -> tuple[NDArray[Any], int] | None:
        """Where to receive the array of numbers that follows in one chunk, and its tag; None for any other message."""
        spec = _numbers_in(self._header.tobytes())
        if spec is None or spec.nbytes > CHUNK_BYTES or self.status.count != HEADER_BYTES + _TAG.size:
            return None
        tag, has_frames = _TAG.unpack_from(self.buffer, HEADER_BYTES)
        if has_frames or spec.nbytes <= INLINE_BYTES:
            return None
        if out is not None:
            return (out, tag) if spec.fits(out) and spec.is_order_of(out) else None
        with suppress(MemoryError):
            return np.empty(spec.shape, spec.dtype, spec.order), tag
        return None


@lru_cache(256)
def _numbers_in(header: bytes) -> Spec | None:
    """The spec of the array of numbers whose head begins with `header`; None for any other message."""
    with suppress(MpishareError):
        spec = None if extension_bytes(header) else Spec.unpack(header)
        return spec if spec is not None and is_native_number(spec.dtype) else None
    return None


def decode(context: Context, head: bytes, out: NDArray[Any] | None) -> Decoding:
    """Receives the message that began with `head`, into `out` if that is an array.

    Raises:
        SpecError: It does not fit `out`, or is not a message of mpishare.
        ArgumentError: It is an object, and `out` is an array.
        CapacityError: This process has no memory for it.
        BackendError: A compressed chunk is damaged, or lz4 is not installed on this rank.
    """
    spec = _numbers_in(head[:HEADER_BYTES])
    if spec is None:
        return (yield from _decode_object(context, head, out))
    in_head = spec.nbytes if spec.nbytes <= INLINE_BYTES else _TAG.size
    check_length(len(head), HEADER_BYTES + in_head)
    if in_head == spec.nbytes:
        return (yield from _receive_array(_Incoming(context, head, HEADER_BYTES), spec, out))
    tag, has_frames = _TAG.unpack_from(head, HEADER_BYTES)
    return (yield from _receive_array(_Incoming(context, head, HEAD_BYTES, tag, has_frames), spec, out))


def _decode_object(context: Context, head: bytes, out: NDArray[Any] | None) -> Decoding:
    check_length(min(len(head), _OBJECT.size), _OBJECT.size)
    magic, tag, has_frames, contents_bytes, skeleton_bytes = _OBJECT.unpack_from(head)
    if magic != _OBJECT_MAGIC:
        raise SpecError(f"a message from another rank cannot be read: it begins with {magic!r}")
    incoming = _Incoming(context, head, _OBJECT.size, tag, has_frames)
    contents = yield from incoming.receive_bytes(contents_bytes)
    incoming.raise_error()
    specs = unpack_specs(contents.tobytes())
    if not skeleton_bytes and len(specs) == 1:
        return (yield from _receive_array(incoming, specs[0], out))
    if out is not None:
        incoming.error = ArgumentError("out is for an array, but the message is an object with arrays in it. Omit out.")
    skeleton = yield from incoming.receive_bytes(skeleton_bytes)
    places: list[tuple[Spec, Block, int]] = []
    for numbers, starts, nbytes in _array_parts(specs):
        block = yield from incoming.receive_bytes(nbytes)
        places += zip(specs[numbers], repeat(block), starts)
    incoming.raise_error()
    arrays = [spec.view(block[start : start + spec.nbytes]) for spec, block, start in places]
    return PickledObject(skeleton.data, arrays)


def _receive_array(incoming: _Incoming, spec: Spec, out: NDArray[Any] | None) -> Decoding:
    """Receives the last part, an array, into `out` if that fits."""
    incoming.error = _misfit(spec, out)
    if out is None or incoming.error is not None or not spec.is_order_of(out):
        block = yield from incoming.receive_bytes(spec.nbytes)
        incoming.raise_error()
        array = spec.view(block)
        if out is None:
            return array
        copy_bytes(out, array)
    else:
        yield from incoming.receive(out)
        incoming.raise_error()
    return out


class _Incoming:
    """The parts of one message, in their order. Those in its head come first.

    Attributes:
        error: Why the parts from here on are lost; None if they are not.
    """

    def __init__(self, context: Context, head: bytes, end: int, tag: int = 0, has_frames: bool = False) -> None:
        """The first part begins at `end` in `head`, if that is not past the largest head."""
        self._context = context
        self._head = head
        self._end = end
        self._tag = tag
        self._has_frames = has_frames
        self.error: MpishareError | None = None

    def raise_error(self) -> None:
        """Raises why parts were lost, if any were."""
        if self.error is not None:
            raise self.error

    def receive_bytes(self, nbytes: int) -> Generator[tuple[NDArray[Any], int], int, Block]:
        """The next part in memory of its own; no bytes if they are lost."""
        try:
            self.raise_error()
            block = allocate_buffer(self._context.topology.host, nbytes, _LOST)
        except MpishareError as error:
            self.error, block = error, np.empty(0, np.uint8)
        if block.nbytes == nbytes:
            yield from self.receive(block)
        elif self._take(nbytes) is None:
            for chunk in chunks(nbytes, FRAME_BYTES if self._has_frames else CHUNK_BYTES):
                yield _SINK[: chunk.stop - chunk.start], self._tag
        return block

    def receive(self, array: NDArray[Any]) -> Generator[tuple[NDArray[Any], int], int, None]:
        """Fills a contiguous array with the next part."""
        part = self._take(array.nbytes)
        if part is not None:
            bytes_of(array)[:] = np.frombuffer(part, np.uint8)
            return
        for chunk in _chunks_of(array, self._has_frames):
            length = yield chunk, self._tag
            if length < chunk.nbytes and self.error is None:
                try:
                    _expand(bytes_of(chunk), length)
                except MpishareError as error:
                    self.error = error

    def _take(self, nbytes: int) -> bytes | None:
        """The next part if it is in the head; None if it follows in chunks."""
        start, self._end = self._end, self._end + nbytes
        if self._end <= HEAD_BYTES:
            check_length(len(self._head[start : self._end]), nbytes)
            return self._head[start : self._end]
        if not _FIRST_TAG <= self._tag < self._context.max_tag:
            raise SpecError(f"a message from another rank cannot be read: it names tag {self._tag}")
        return None


def _misfit(spec: Spec, out: NDArray[Any] | None) -> SpecError | None:
    """Why an array of `spec` cannot be received into `out`; None if it can."""
    if out is None or spec.fits(out):
        return None
    return SpecError(
        f"out has shape {out.shape} and dtype {out.dtype}, but the message has {spec.shape} and {spec.dtype}. It is "
        "lost; the next message is not. Receive without out where the sender may choose."
    )


def compressed(chunk: NDArray[Any], bytes_per_s: float) -> NDArray[Any] | bytes:
    """The chunk, compressed if it arrives sooner over a link of that speed then."""
    block = bytes_of(chunk)
    if block.nbytes < COMPRESSIBLE_BYTES or not _pays(block, bytes_per_s):
        return chunk
    shorter: bytes = lz4().compress(block.data, store_size=False)
    return shorter if len(shorter) < block.nbytes else chunk


def _pays(block: Block, bytes_per_s: float) -> bool:
    """Whether `block` would arrive sooner over a link of that speed if it were compressed, judged by a sample.

    Source:
        M. Rocklin, "Fast Message Serialization", 2016: five pieces of 10 kB show what the whole would shrink to, and
        how long that takes.
    """
    step = max((block.nbytes - _SAMPLE_BYTES) // (_SAMPLES - 1), 1)
    samples = [block[start : start + _SAMPLE_BYTES] for start in range(0, _SAMPLES * step, step)]
    start_s = time.perf_counter()
    after = sum(len(lz4().compress(sample.data, store_size=False)) for sample in samples)
    seconds = time.perf_counter() - start_s
    before = sum(sample.nbytes for sample in samples)
    return min(before / seconds, bytes_per_s * before / after) > bytes_per_s * _GAIN


def _expand(chunk: Block, length: int) -> None:
    """Expands the first `length` bytes of a chunk to fill it.

    Raises:
        BackendError: lz4 is not installed on this rank, or the bytes are damaged.
    """
    library = lz4()
    try:
        chunk.data[:] = library.decompress(chunk[:length].tobytes(), uncompressed_size=chunk.nbytes)
    except (library.LZ4BlockError, ValueError) as error:
        raise BackendError(f"a compressed message from another rank cannot be read: {error}") from error


def lz4() -> Any:
    """The module lz4.block.

    Raises:
        BackendError: It is not installed.
    """
    try:
        import lz4.block
    except ImportError as error:
        raise BackendError("compress='auto' needs lz4: pip install lz4, on all ranks.") from error
    return lz4.block
