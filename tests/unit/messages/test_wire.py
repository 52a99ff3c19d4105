"""Messages as bytes: what is encoded is decoded, compressed where it pays; and no bytes whatever break the decoder."""

import subprocess
import sys
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mpishare.comm.tags import Tag
from mpishare.errors import ArgumentError, BackendError, MpishareError, SpecError
from mpishare.messages import compression, wire
from mpishare.messages.compression import FRAME_BYTES, compress_frame, expand_frame, pays
from mpishare.messages.wire import (
    FIRST_TAG,
    HEAD_BYTES,
    LARGEST_CHUNK_BYTES,
    Message,
    chunks_of,
    decode,
    encode,
    travels_in_frames,
)
from mpishare.objects.pickling import pickle_object, unpickle_object
from tests.arrays import DTYPES, REPRESENTATIVES, bits

CONTEXT: Any = SimpleNamespace(topology=SimpleNamespace(host="host"), max_tag=1 << 20)
MAX_BUFFERS = 10_000


def messages_of(message):
    """What follows the head, each frame compressed where that is shorter."""
    sent = []
    for part in message.parts:
        if travels_in_frames(part.nbytes, message.has_frames):
            frames = [part[start : start + FRAME_BYTES] for start in range(0, part.nbytes, FRAME_BYTES)]
            sent += [np.frombuffer(compress_frame(frame), np.uint8) for frame in frames]
        else:
            sent += chunks_of(part)
    return sent


def received(message, out=None):
    """What the receiver makes of a message."""
    sent, decoding = messages_of(message), decode(CONTEXT, message.head, out)
    try:
        buffer, tag = next(decoding)
        while True:
            assert tag == message.tag
            block = sent.pop(0)
            buffer[: block.size] = block
            buffer, tag = decoding.send(block.size)
    except StopIteration as end:
        return end.value
    finally:
        assert not sent  # also where the message is lost


@pytest.mark.parametrize("name", REPRESENTATIVES)
@pytest.mark.parametrize("has_frames", [False, True])
def test_what_is_encoded_is_decoded(name, has_frames):
    small = REPRESENTATIVES[name]
    large = np.broadcast_to(small, (200, *small.shape))
    for array in (small, large, np.asfortranarray(large)):
        result = received(encode(CONTEXT, array, lambda _: has_frames))
        assert (result.dtype, result.shape, bits(result)) == (array.dtype, array.shape, bits(array))
        assert result.flags.writeable
        out = np.empty((2, *array.shape), array.dtype)[1, ...]
        assert received(encode(CONTEXT, array, lambda _: has_frames), out) is out
        assert bits(out) == bits(array)


@pytest.mark.parametrize("nbytes", [0, 4, 5, 3968, 3969, 4096, 3_000_000])
@pytest.mark.parametrize("has_frames", [False, True])
def test_where_the_bytes_are(nbytes, has_frames):
    array = np.arange(nbytes).astype(np.uint8)
    message = encode(CONTEXT, array, lambda _: has_frames)
    assert len(message.head) <= HEAD_BYTES == 4032
    assert bool(message.parts) == (nbytes > 3968)
    assert (received(message) == array).all()


def test_large_parts_travel_in_chunks():
    block = np.empty(2 * LARGEST_CHUNK_BYTES + 1, np.uint8)
    assert [chunk.nbytes for chunk in chunks_of(block)] == [64 << 20, 64 << 20, 1]
    assert next(chunks_of(block)).base is not None
    assert [travels_in_frames(nbytes, True) for nbytes in (9999, 10_000)] == [False, True]
    assert not travels_in_frames(10_000, False)


def test_a_contiguous_array_is_not_copied():
    for array in (np.ones((300, 300)), np.ones((300, 300), order="F"), np.ones((300, 300))[:100]):
        assert np.shares_memory(encode(CONTEXT, array).parts[0], array)
    out = np.empty(1000)
    buffer, _ = next(decode(CONTEXT, encode(CONTEXT, np.ones(1000)).head, out))
    assert np.shares_memory(buffer, out)


def test_tags_stay_within_what_mpi_allows():
    few: Any = SimpleNamespace(max_tag=Tag.FIRST_OF_MESSAGES + 3)
    tags = [wire.new_tag(few) for _ in range(9)]
    assert set(tags) == {Tag.FIRST_OF_MESSAGES + number for number in range(3)}
    assert all(first != second for first, second in pairwise(tags))


OBJECTS: dict[str, Any] = {
    "many arrays": [np.full(number % 50, number) for number in range(500)],
    "a long string": ["x" * 100_000, np.arange(3)],
    **{f"a string of {count}": ["x" * count, np.arange(3)] for count in range(3830, 3990, 10)},
    "no array": {"a": 1},
}


@pytest.mark.parametrize("name", OBJECTS)
def test_objects(name):
    obj = OBJECTS[name]
    for wants_frames in (lambda _: False, lambda _: True):
        message = encode(CONTEXT, pickle_object(obj), wants_frames)
        assert len(message.head) <= HEAD_BYTES
        assert str(unpickle_object(received(message))) == str(obj)


def test_small_arrays_travel_joined_and_large_ones_uncopied():
    arrays = [np.full(size, number) for number, size in enumerate([*[3] * 5_000, 0, 9000, 0, 5, 5000, 5000, 1])]
    message = encode(CONTEXT, pickle_object(arrays))
    assert len(message.parts) < 100
    assert any(np.shares_memory(part, arrays[5_001]) for part in message.parts)
    results = unpickle_object(received(message))
    assert [result.tobytes() for result in results] == [array.tobytes() for array in arrays]
    assert all(result.flags.aligned and result.flags.writeable for result in results)


@pytest.mark.parametrize("has_frames", [False, True])
@pytest.mark.parametrize("count", [3, 30_000])
def test_what_does_not_fit_is_received_and_lost(count, has_frames):
    array = np.zeros(count)
    for out in (np.zeros(count + 1), np.zeros(count, "i8"), np.zeros((count, 1))):
        with pytest.raises(SpecError, match="out has shape"):
            received(encode(CONTEXT, array, lambda _: has_frames), out)
    with pytest.raises(ArgumentError, match="Omit out"):
        received(encode(CONTEXT, pickle_object([array, "x" * 9000]), lambda _: has_frames), np.zeros(count))


def test_a_damaged_frame_does_not_disturb_the_next():
    message = encode(CONTEXT, np.zeros(3 << 20, np.uint8), lambda _: True)
    decoding = decode(CONTEXT, message.head, None)
    buffers = [next(decoding)[0], decoding.send(100)[0], decoding.send(100)[0]]
    assert [buffer.nbytes for buffer in buffers] == [FRAME_BYTES] * 3
    with pytest.raises(MpishareError, match="cannot be read"):
        decoding.send(FRAME_BYTES)


HEADS = [
    encode(CONTEXT, content).head  # type: ignore[arg-type]
    for content in (
        *(np.zeros(count, dtype) for dtype in ("i8", DTYPES["nested"]) for count in (3, 5000)),
        pickle_object({"a": np.arange(3), "b": [np.arange(9000)]}),
        pickle_object([np.zeros(1)] * 3 + [np.zeros((2, 1, 2, 1, 2))] * 100),
    )
]


def survives(head):
    """Decodes a head, whatever it is, with noise for what follows: it is decoded, or an error of mpishare."""
    decoding, noise = decode(CONTEXT, head, None), np.random.default_rng(1)
    try:
        buffer, _ = next(decoding)
        for _ in range(MAX_BUFFERS):
            if buffer.nbytes > 1 << 24:  # hypothesis would fill the memory
                return
            buffer[:] = noise.integers(0, 256, buffer.size, np.uint8)
            buffer, _ = decoding.send(buffer.nbytes)
    except (StopIteration, MpishareError):
        pass


@pytest.mark.parametrize("head", [*HEADS, b"MSH1" + bytes(296), b"MSP1" + bytes(296)])
def test_no_bytes_break_the_decoder(head):
    """Not a flipped bit, nor noise from any place on; a head that is cut is refused."""
    noise = np.random.default_rng(1).bytes(len(head))
    for place in range(min(len(head), 300)):
        for bit in range(8):
            survives(head[:place] + bytes([head[place] ^ 1 << bit]) + head[place + 1 :])
        survives(head[:place] + noise[place:])
        with pytest.raises(MpishareError):
            received(Message(head[:place]))


@pytest.mark.parametrize(("tag", "frames"), [(FIRST_TAG - 1, 0), (1 << 20, 0), (FIRST_TAG, 2)])
def test_heads_that_name_other_tags_are_refused(tag, frames):
    head = encode(CONTEXT, np.arange(5000)).head
    with pytest.raises(SpecError, match=f"names tag {tag}, frames {frames}"):
        received(Message(head[:64] + tag.to_bytes(4, "little") + bytes([frames])))


def test_memory_for_lost_messages_is_not_reserved_by_an_import():
    program = """if 1:
        import resource, numpy
        mapped = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + (48 << 20),) * 2)
        import mpishare.messages.wire"""
    subprocess.run([sys.executable, "-c", program], check=True)


ZEROS = np.zeros(3 * FRAME_BYTES, np.uint8)
NOISE = np.random.default_rng(1).integers(0, 256, 1 << 20, np.uint8)


def test_whether_it_pays():
    assert pays(ZEROS, 1e3)
    assert not pays(NOISE, 1e3)
    assert not pays(ZEROS, 1e15)
    assert not pays(ZEROS[:9999], 1e3)
    assert pays(ZEROS[:10_000], 1e3)
    assert pays(np.concatenate([NOISE[:200_000], ZEROS[:800_000]]), 1e3)  # one sample of five is noise
    assert pays(np.concatenate([ZEROS[:6000], NOISE]), 1e3)  # a tenth sooner, or it does not pay
    assert not pays(np.concatenate([ZEROS[:4000], NOISE]), 1e3)


WANTS_FRAMES = [
    (0, 1e3, True, [1 << 20], False),  # the same node
    (1, 1e3, False, [1 << 20], True),
    (1, 1e3, False, [9999], False),
    (1, 1e3, False, [9999, 10_000], True),
    (1, 1e15, True, [3 << 20], False),
    (1, None, True, [(2 << 20) + 1], True),
    (1, None, True, [2 << 20], False),
    (1, None, True, [10_000, 3 << 20], False),
    (1, None, False, [3 << 20], False),
]


@pytest.mark.parametrize(("node", "speed", "can_measure", "sizes", "expected"), WANTS_FRAMES)
def test_when_a_message_has_frames(node, speed, can_measure, sizes, expected):
    context: Any = SimpleNamespace(
        topology=SimpleNamespace(node=0, node_of=lambda rank: node),
        link_speeds={} if speed is None else {node: speed},
    )
    assert compression.wants_frames(context, 5, [ZEROS[:size] for size in sizes], can_measure=can_measure) == expected


def test_damaged_frames_are_errors():
    frame = np.zeros(10_000, np.uint8)
    frame[:100] = 255
    with pytest.raises(BackendError, match="cannot be read"):
        expand_frame(frame, 100)
    short = compress_frame(np.zeros(5000, np.uint8))
    frame[: len(short)] = np.frombuffer(short, np.uint8)
    with pytest.raises(BackendError, match="has 5000 bytes, not 10000"):
        expand_frame(frame, len(short))


def test_lz4_is_needed(monkeypatch):
    assert compression.check_compress("auto")
    monkeypatch.setitem(sys.modules, "lz4", None)
    assert not compression.check_compress(None)
    with pytest.raises(BackendError, match="needs lz4"):
        compression.check_compress("auto")
