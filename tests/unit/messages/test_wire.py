"""Messages as bytes: what is encoded is decoded, compressed where it pays; and no bytes whatever break the decoder."""

import sys
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mpishare.arrays.raw import bytes_of
from mpishare.comm.in_flight import Tag
from mpishare.errors import ArgumentError, BackendError, MpishareError, SpecError
from mpishare.messages import wire
from mpishare.messages.wire import FRAME_BYTES, HEAD_BYTES, compressed, decode, encode
from mpishare.objects.pickling import pickle_object, unpickle_object
from tests.arrays import DTYPES, REPRESENTATIVES, bits

CONTEXT: Any = SimpleNamespace(topology=SimpleNamespace(host="host"), max_tag=1 << 20)
MAX_BYTES = 1 << 24
SLOW, FAST = 1e3, 1e15
"""Links, in bytes a second."""


def received(message, out=None, bytes_per_s=None):
    """What the receiver makes of a message, whose chunks are compressed where that pays on a link."""
    head, expected_tag, chunks = message
    sent, decoding = [chunk if bytes_per_s is None else compressed(chunk, bytes_per_s) for chunk in chunks], None
    try:
        decoding = decode(CONTEXT, head, out)
        buffer, tag = next(decoding)
        while True:
            assert tag == expected_tag
            chunk = sent.pop(0)
            block = np.frombuffer(chunk, np.uint8) if isinstance(chunk, bytes) else bytes_of(chunk)
            bytes_of(buffer)[: block.size] = block
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
        for out in (None, np.empty((2, *array.shape), array.dtype)[1, ...]):
            result = received(encode(CONTEXT, array, has_frames=has_frames), out, SLOW if has_frames else None)
            assert (result.dtype, result.shape, bits(result)) == (array.dtype, array.shape, bits(array))
            assert result.flags.writeable if out is None else result is out


def test_a_contiguous_array_is_not_copied():
    for array in (np.ones((300, 300)), np.ones((300, 300), order="F"), np.ones((300, 300))[:100]):
        assert np.shares_memory(encode(CONTEXT, array)[2][0], array)
    out = np.empty(1000)
    buffer, _ = next(decode(CONTEXT, encode(CONTEXT, np.ones(1000))[0], out))
    assert np.shares_memory(buffer, out)


def test_tags_stay_within_what_mpi_allows():
    few: Any = SimpleNamespace(max_tag=Tag.FIRST_OF_MESSAGES + 3)
    tags = [wire.new_tag(few) for _ in range(9)]
    assert set(tags) == {Tag.FIRST_OF_MESSAGES + number for number in range(3)}
    assert all(first != second for first, second in pairwise(tags))


OBJECTS: dict[str, Any] = {
    "many arrays": [np.full(number % 50, number) for number in range(500)],
    "a long string": ["x" * 100_000, np.arange(3)],
    **{f"a string of {count}": ["x" * count, np.arange(3)] for count in range(3780, 3990, 10)},
    "no array": {"a": 1},
}


@pytest.mark.parametrize("name", OBJECTS)
def test_objects(name):
    obj = OBJECTS[name]
    for has_frames in (False, True):
        message = encode(CONTEXT, pickle_object(obj), has_frames=has_frames)
        assert len(message[0]) <= HEAD_BYTES
        assert str(unpickle_object(received(message))) == str(obj)


def test_small_arrays_travel_joined_and_large_ones_uncopied():
    arrays = [np.full(size, number) for number, size in enumerate([*[3] * 5_000, 0, 9000, 0, 5, 5000, 5000, 1])]
    _, _, chunks = message = encode(CONTEXT, pickle_object(arrays))
    assert len(chunks) < 100
    assert any(np.shares_memory(chunk, arrays[5_001]) for chunk in chunks)
    results = unpickle_object(received(message))
    assert [result.tobytes() for result in results] == [array.tobytes() for array in arrays]
    assert all(result.flags.aligned and result.flags.writeable for result in results)


@pytest.mark.parametrize("speed", [None, SLOW])
@pytest.mark.parametrize("dtype", ["f8", DTYPES["struct"]])
@pytest.mark.parametrize("count", [3, 300_000])
def test_what_does_not_fit_is_received_and_lost(count, dtype, speed):
    array = np.zeros(count, dtype)
    for out in (np.zeros(count + 1, dtype), np.zeros(count, "i8"), np.zeros((count, 1), dtype)):
        with pytest.raises(SpecError, match="out has shape"):
            received(encode(CONTEXT, array, has_frames=speed is not None), out, speed)
    with pytest.raises(ArgumentError, match="Omit out"):
        received(encode(CONTEXT, pickle_object([array, "x" * 9000])), np.zeros(count))


def test_a_damaged_frame_does_not_disturb_the_next():
    """Nor does one that expands to fewer bytes, of which the receiver is told fewer."""
    short = np.frombuffer(compressed(np.zeros(20_000, np.uint8), SLOW), np.uint8)
    for damaged in (np.full(100, 255, np.uint8), short):
        head, _, frames = encode(CONTEXT, np.zeros(3 << 20, np.uint8), has_frames=True)
        decoding = decode(CONTEXT, head, None)
        buffer, _ = next(decoding)
        assert [frame.nbytes for frame in frames] == [FRAME_BYTES] * 3
        buffer[: damaged.size] = damaged
        for length in (damaged.size, damaged.size):
            assert decoding.send(length)[0].nbytes == FRAME_BYTES
        with pytest.raises(BackendError, match="cannot be read"):
            decoding.send(FRAME_BYTES)


HEADS = [
    encode(CONTEXT, content)[0]  # type: ignore[arg-type]
    for content in (
        *(np.zeros(count, dtype) for dtype in ("i8", DTYPES["nested"]) for count in (3, 5000)),
        pickle_object({"a": np.arange(3), "b": [np.arange(9000)]}),
        pickle_object([np.zeros(1)] * 3 + [np.zeros((2, 1, 2, 1, 2))] * 100),
    )
]


def survives(head):
    """Decodes a head, whatever it is, with noise for what follows: it is decoded, or an error of mpishare."""
    decoding, noise, left = decode(CONTEXT, head, None), np.random.default_rng(1), MAX_BYTES
    try:
        buffer, _ = next(decoding)
        while left > buffer.nbytes:
            left -= buffer.nbytes
            bytes_of(buffer)[:] = noise.integers(0, 256, buffer.nbytes, np.uint8)
            buffer, _ = decoding.send(buffer.nbytes)
    except (StopIteration, MpishareError):
        pass


@pytest.mark.parametrize("head", [*HEADS, b"MSH2" + bytes(296), b"MSP2" + bytes(296)])
def test_no_bytes_break_the_decoder(head):
    """Not a flipped bit, nor noise from any place on; a head that is cut is refused."""
    noise = np.random.default_rng(1).bytes(len(head))
    for place in range(min(len(head), 300)):
        for bit in range(8):
            survives(head[:place] + bytes([head[place] ^ 1 << bit]) + head[place + 1 :])
        survives(head[:place] + noise[place:])
        with pytest.raises(MpishareError):
            received((head[:place], 0, ()))


@pytest.mark.parametrize("tag", [Tag.FIRST_OF_MESSAGES - 1, 1 << 20])
def test_heads_that_name_other_tags_are_refused(tag):
    head = encode(CONTEXT, np.arange(5000))[0]
    with pytest.raises(SpecError, match=f"names tag {tag}"):
        received((head[:64] + int(tag).to_bytes(4, "little") + head[68:], 0, ()))


ZEROS = np.zeros(FRAME_BYTES, np.uint8)
NOISE = np.random.default_rng(1).integers(0, 256, FRAME_BYTES, np.uint8)
FRAMES = [
    (ZEROS, SLOW, True),
    (ZEROS, FAST, False),
    (NOISE, SLOW, False),
    (ZEROS[:9999], SLOW, False),
    (ZEROS[:10_000], SLOW, True),
    (np.concatenate([NOISE[:200_000], ZEROS[:800_000]]), SLOW, True),  # one sample of five is noise
    (np.concatenate([ZEROS[:6000], NOISE]), SLOW, True),  # a tenth sooner, or it does not pay
    (np.concatenate([ZEROS[:4000], NOISE]), SLOW, False),
]


@pytest.mark.parametrize(("frame", "speed", "pays"), FRAMES)
def test_a_frame_is_compressed_where_that_pays(frame, speed, pays):
    result = compressed(frame, speed)
    assert len(result) < frame.nbytes if pays else result is frame


def test_lz4_is_needed(monkeypatch):
    monkeypatch.setitem(sys.modules, "lz4", None)
    with pytest.raises(BackendError, match="needs lz4"):
        wire.lz4()
