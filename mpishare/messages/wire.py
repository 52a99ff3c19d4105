"""The format of a message: a head, which describes it and has the bytes of a small one; then chunks with the others.

The head of an array of numbers is its header and then its bytes, or the tag of the chunks. Any other message is an
object. It begins with a prefix: the specs of its arrays, the pickle of the object around them, and its small arrays.
The large arrays follow. An array that is not of numbers has no pickle. The head of an object has the tag, the number of
chunks, the sizes, and the prefix if that fits. No other message between the two ranks has the tag at the time.

What does not fit on the receiver is received all the same and lost, so that the next message is not disturbed.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Generator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import count
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.dtypes import is_native_number
from mpishare.arrays.raw import Block, bytes_of, copy_bytes
from mpishare.arrays.slices import chunks
from mpishare.arrays.spec import HEADER_BYTES, Spec, extension_bytes
from mpishare.comm import mpi
from mpishare.comm.context import Context
from mpishare.comm.in_flight import Tag
from mpishare.errors import ArgumentError, BackendError, MpishareError, SpecError
from mpishare.host.memory import allocate_buffer
from mpishare.objects.pickling import PickledObject, check_length, lay_out, pack_contents, unpack_contents

Message: TypeAlias = tuple[bytes, int, Sequence[NDArray[Any]]]
"""The head, the tag of the chunks, and the chunks."""

Decoding: TypeAlias = Generator[tuple[NDArray[Any], int], int, Any]
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

_OBJECT = struct.Struct("<4sI?xxxIQQQ")
"""What the head of an object begins with: magic number, tag, whether there are frames, number of chunks, bytes of
specs, of pickle and of prefix."""
_OBJECT_MAGIC = b"MSP2"

_LARGEST_PREFIX_IN_HEAD = HEAD_BYTES - _OBJECT.size

_LOST = "The message is lost; the next one is not. Send less at a time."
"""What a receiver without memory for a message is told."""

_FIRST_TAG = int(Tag.FIRST_OF_MESSAGES)

_LARGE_BYTES = 64 << 10
"""Smaller arrays of an object travel in its prefix. As 100,000 messages they take 27 s between two ranks of a node, as
MPI looks through all that wait; together they take less than 2 s."""

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
    contents = pack_contents(specs, {})
    text = np.frombuffer(b"".join((contents, skeleton)), np.uint8)
    offsets, prefix_bytes, _ = lay_out(text.nbytes, specs, {}, _LARGE_BYTES)
    prefix, parts = np.zeros(prefix_bytes, np.uint8), list[Block]()
    prefix[: text.nbytes] = text
    for array, spec, start in zip(arrays, specs, offsets, strict=True):
        if spec.nbytes < _LARGE_BYTES:
            prefix[start : start + spec.nbytes] = _contiguous_bytes(array, spec)
        else:
            parts.append(_contiguous_bytes(array, spec))
    is_in_head = prefix_bytes <= _LARGEST_PREFIX_IN_HEAD
    chunks = [chunk for part in (parts if is_in_head else [prefix, *parts]) for chunk in _chunks_of(part, has_frames)]
    tag = new_tag(context)
    head = _OBJECT.pack(_OBJECT_MAGIC, tag, has_frames, len(chunks), len(contents), len(skeleton), prefix_bytes)
    return head + prefix.tobytes() if is_in_head else head, tag, chunks


def new_tag(context: Context) -> int:
    """A tag for the chunks of a message, which no other message between two ranks has at the time."""
    return _FIRST_TAG + next(_message_numbers) % (context.max_tag - _FIRST_TAG)


def _chunks_of(array: NDArray[Any], has_frames: bool) -> list[NDArray[Any]]:
    """The bytes of a contiguous array as chunks."""
    largest = _largest_chunk(has_frames)
    if 0 < array.nbytes <= largest:
        return [array]
    block = bytes_of(array)
    return [block[chunk] for chunk in chunks(block.nbytes, largest)]


def _largest_chunk(has_frames: bool) -> int:
    return FRAME_BYTES if has_frames else CHUNK_BYTES


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


@lru_cache(256)
def _numbers_in(header: bytes) -> Spec | None:
    """The spec of the array of numbers whose head begins with `header`; None for any other message."""
    with suppress(MpishareError):
        spec = None if extension_bytes(header) else Spec.unpack(header)
        return spec if spec is not None and is_native_number(spec.dtype) else None
    return None


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
        self._view_of = lru_cache(256)(self._new_view)

    def small_array(self, out: NDArray[Any] | None) -> NDArray[Any] | None:
        """The array of numbers whose bytes are in this head, in fewer steps than by `decode`; None for any other.

        A small message takes a microsecond; each call and each attribute takes a twentieth of it.
        """
        view = self._view_of(self._header.tobytes())
        if view is None or self.status.count != HEADER_BYTES + view.nbytes:
            return None
        if out is None:
            return view.__copy__()  # which keeps the order
        if out.shape != view.shape or out.dtype != view.dtype:
            return None
        out[...] = view
        return out

    def large_array(self, out: NDArray[Any] | None) -> tuple[NDArray[Any], int] | None:
        """Where to receive the array of numbers that follows in one chunk, and its tag; None for any other message.

        By `decode` an array of 8 KiB takes 8 us instead of 5.
        """
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

    def _new_view(self, header: bytes) -> NDArray[Any] | None:
        spec = _numbers_in(header)
        if spec is None or spec.nbytes > INLINE_BYTES:
            return None
        return np.ndarray(spec.shape, spec.dtype, self.buffer, HEADER_BYTES, order=spec.order)


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
    is_in_head = spec.nbytes <= INLINE_BYTES
    check_length(len(head), HEADER_BYTES + (spec.nbytes if is_in_head else _TAG.size))
    if is_in_head:
        return _array_of(np.frombuffer(head, np.uint8)[HEADER_BYTES:].copy(), spec, out)
    tag, has_frames = _TAG.unpack_from(head, HEADER_BYTES)
    incoming = _Incoming(context, tag, has_frames, -(-spec.nbytes // _largest_chunk(has_frames)))
    return (yield from incoming.lose_on_error(incoming.receive_array(spec, out)))


def _decode_object(context: Context, head: bytes, out: NDArray[Any] | None) -> Decoding:
    check_length(min(len(head), _OBJECT.size), _OBJECT.size)
    magic, tag, has_frames, n_chunks, contents_bytes, skeleton_bytes, prefix_bytes = _OBJECT.unpack_from(head)
    if magic != _OBJECT_MAGIC:
        raise SpecError(f"a message from another rank cannot be read: it begins with {magic!r}")
    in_head = np.frombuffer(head, np.uint8)[_OBJECT.size :]
    check_length(in_head.nbytes, prefix_bytes if prefix_bytes <= _LARGEST_PREFIX_IN_HEAD else 0)
    incoming = _Incoming(context, tag, has_frames, n_chunks)
    sizes = contents_bytes, skeleton_bytes, prefix_bytes
    return (yield from incoming.lose_on_error(incoming.receive_object(in_head, sizes, out)))


class _Incoming:
    """The chunks of one message, in their order."""

    def __init__(self, context: Context, tag: int, has_frames: bool, n_chunks: int) -> None:
        if not _FIRST_TAG <= tag < context.max_tag:
            raise SpecError(f"a message from another rank cannot be read: it names tag {tag}")
        self._host = context.topology.host
        self._tag = tag
        self._has_frames = has_frames
        self._n_left = n_chunks

    def lose_on_error(self, decoding: Decoding) -> Decoding:
        """What `decoding` returns. Where it raises, the chunks that are left are received and lost."""
        try:
            return (yield from decoding)
        except MpishareError:
            for _ in range(self._n_left):
                yield _SINK[: _largest_chunk(self._has_frames)], self._tag
            raise

    def receive_object(self, in_head: Block, sizes: tuple[int, int, int], out: NDArray[Any] | None) -> Decoding:
        """Receives an object with parts of these `sizes`. The prefix is `in_head` unless that is empty."""
        contents_bytes, skeleton_bytes, prefix_bytes = sizes
        prefix = in_head.copy() if in_head.size else allocate_buffer(self._host, prefix_bytes, _LOST)
        if not in_head.size:
            yield from self._fill(prefix)
        specs, _ = unpack_contents(prefix[:contents_bytes].data)
        text_bytes = contents_bytes + skeleton_bytes
        offsets, expected_bytes, _ = lay_out(text_bytes, specs, {}, _LARGE_BYTES)
        check_length(prefix_bytes, expected_bytes)
        is_array = not skeleton_bytes and len(specs) == 1
        if out is not None and not is_array:
            raise ArgumentError("out is for an array, but the message is an object with arrays in it. Omit out.")
        arrays = []
        for spec, start in zip(specs, offsets, strict=True):
            if spec.nbytes < _LARGE_BYTES:
                arrays.append(_array_of(prefix[start : start + spec.nbytes], spec, out))
            else:
                arrays.append((yield from self.receive_array(spec, out)))
        return arrays[0] if is_array else PickledObject(prefix[contents_bytes:text_bytes].data, arrays)

    def receive_array(self, spec: Spec, out: NDArray[Any] | None) -> Decoding:
        """Receives an array, into `out` if it fits."""
        spec.check()
        if out is not None:
            _check_fit(spec, out)
            if spec.is_order_of(out):
                yield from self._fill(out)
                return out
        block = allocate_buffer(self._host, spec.nbytes, _LOST)
        yield from self._fill(block)
        return _array_of(block, spec, out)

    def _fill(self, array: NDArray[Any]) -> Generator[tuple[NDArray[Any], int], int, None]:
        """Fills a contiguous array with the next chunks."""
        for chunk in _chunks_of(array, self._has_frames):
            length = yield chunk, self._tag
            self._n_left -= 1
            if length < chunk.nbytes:
                _expand(bytes_of(chunk), length)


def _array_of(block: Block, spec: Spec, out: NDArray[Any] | None) -> NDArray[Any]:
    """The array whose bytes are `block`; `out`, if it is given, with these bytes."""
    array = spec.view(block)
    if out is None:
        return array
    _check_fit(spec, out)
    copy_bytes(out, array)
    return out


def _check_fit(spec: Spec, out: NDArray[Any]) -> None:
    """Raises a SpecError if an array of `spec` cannot be received into `out`."""
    if not spec.fits(out):
        raise SpecError(
            f"out has shape {out.shape} and dtype {out.dtype}, but the message has {spec.shape} and {spec.dtype}. It "
            "is lost; the next message is not. Receive without out where the sender may choose."
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
