"""Messages as bytes: what a letter says is what is read, and no bytes whatever break the reader."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mpishare.arrays import slices
from mpishare.errors import ArgumentError, BackendError, CapacityError, MpishareError
from mpishare.messages import compression
from mpishare.messages.wire import HEAD_BYTES, IS_FRAMED, Message, opened, pieces, simple_head, simple_spec, write
from mpishare.objects.pickling import pickle_object, unpickle_object
from tests.arrays import DTYPES, bits, layouts

HERE: Any = SimpleNamespace(host="here", largest_tag=1 << 20, loan_bytes=0)
MOST_PLACES = 10_000


def read(letter: Message, out: NDArray[Any] | None = None) -> Any:
    """What the receiver makes of a letter, the parts of which are put in the places that it names."""
    parts: list[NDArray[np.uint8]] = []
    for part in letter.parts:
        frames = slices.chunks(part.nbytes, compression.FRAME_BYTES) if letter.is_framed(part) else ()
        parts += [np.frombuffer(compression.packed(part[frame]), np.uint8) for frame in frames] or pieces(part)
    steps = opened(HERE, letter.head, out)
    try:
        place = next(steps)
        while True:
            for piece in place.pieces():
                part = parts.pop(0)
                piece[: part.size] = part
            place = steps.send(part.size)
    except StopIteration as end:
        assert not parts
        return end.value


@pytest.mark.parametrize("name", DTYPES)
def test_what_is_written_is_read(name: str) -> None:
    for array in layouts(DTYPES[name]).values():
        found = read(write(HERE, array))
        assert (found.dtype, found.shape, bits(found)) == (array.dtype, array.shape, bits(array))


@pytest.mark.parametrize("nbytes", [0, 4, 5, 3967, 3968, 3969, 4096, 3_000_000])
@pytest.mark.parametrize("how", [0, IS_FRAMED])
def test_where_the_bytes_are(nbytes: int, how: int) -> None:
    array = np.arange(nbytes).astype(np.uint8)
    letter = write(HERE, array, lambda _: how)
    assert len(letter.head) <= HEAD_BYTES
    assert bool(letter.parts) == (nbytes > 3968)
    assert (read(letter) == array).all()
    simple = simple_head(array.dtype, array.shape, "C")
    assert simple is not None
    header, length = simple
    assert (length, letter.head[: len(header)]) == (nbytes, header)
    spec = simple_spec(header)
    assert spec is not None
    assert (spec.shape, spec.dtype, spec.order) == (array.shape, array.dtype, "C")


def test_a_contiguous_array_is_not_copied() -> None:
    for array in (np.ones((300, 300)), np.ones((300, 300), order="F"), np.ones((300, 300))[:100]):
        assert np.shares_memory(write(HERE, array).parts[0], array)
    out = np.empty(1000)
    letter = write(HERE, np.ones(1000))
    steps = opened(HERE, letter.head, out)
    assert np.shares_memory(next(steps).block, out)


def test_parcels_of_many_arrays() -> None:
    obj = [np.full(number % 50, number) for number in range(500)]
    found = unpickle_object(read(write(HERE, pickle_object(obj))))
    assert all((one == other).all() for one, other in zip(obj, found, strict=True))


HEADS = [
    write(HERE, np.arange(5)).head,
    write(HERE, np.arange(5000)).head,
    write(HERE, np.zeros(3, DTYPES["nested"])).head,
    write(HERE, np.zeros(3000, DTYPES["nested"])).head,
    write(HERE, pickle_object({"a": np.arange(3), "b": [np.arange(9000)]})).head,
    write(HERE, pickle_object([np.zeros(1)] * 3 + [np.zeros((2, 1, 2, 1, 2))] * 100)).head,
]


def survives(head: bytes) -> None:
    """Reads a head, whatever it is, with noise for what follows: it is read, or an error of ours."""
    steps = opened(HERE, head, None)
    noise = np.random.default_rng(1)
    try:
        simple_spec(head[:64])
        place = next(steps)
        for _ in range(MOST_PLACES):
            if place.nbytes > 1 << 24:  # hypothesis would fill the memory
                steps.close()
                return
            for piece in place.pieces():
                piece[:] = noise.integers(0, 256, piece.size, np.uint8)
            place = steps.send(place.nbytes)
    except (StopIteration, MpishareError):
        pass


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_no_bytes_break_the_reader(head: bytes) -> None:
    survives(head)
    survives(b"MSH1" + head)
    survives(b"MSP1" + head)


@pytest.mark.parametrize("head", HEADS)
def test_no_turned_bit_breaks_the_reader(head: bytes) -> None:
    for place in range(min(len(head), 200)):
        for bit in range(8):
            survives(head[:place] + bytes([head[place] ^ 1 << bit]) + head[place + 1 :])


@pytest.mark.parametrize("head", HEADS)
def test_no_cut_breaks_the_reader(head: bytes) -> None:
    for length in range(min(len(head), 400)):
        with pytest.raises(MpishareError):
            read(Message(head[:length]))


def test_more_than_there_is_memory_for_is_an_error() -> None:
    letter = write(HERE, np.broadcast_to(np.uint8(0), 10_000))
    huge = letter.head[:32] + (1 << 62).to_bytes(8, "little") + letter.head[40:]
    steps = opened(HERE, huge, None)
    place = next(steps)
    assert (place.block, place.nbytes) == (None, 1 << 62)
    with pytest.raises(CapacityError):
        steps.send(0)


def test_whether_it_pays() -> None:
    zeros, noise = np.zeros(1 << 20, np.uint8), np.random.default_rng(1).integers(0, 256, 1 << 20, np.uint8)
    assert compression.pays(zeros, 1e6)
    assert not compression.pays(noise, 1e6)
    assert not compression.pays(zeros, 1e15)
    assert not compression.pays(zeros[:9999], 1e6)
    assert compression.pays(zeros[:10_000], 1e3)
    assert compression.packed(noise) is noise


def test_a_damaged_frame_is_an_error() -> None:
    frame = np.zeros(10_000, np.uint8)
    frame[:100] = 255
    with pytest.raises(BackendError):
        compression.unpack(frame, 100)
    short = compression.packed(np.zeros(5000, np.uint8))
    frame[: len(short)] = np.frombuffer(short, np.uint8)
    with pytest.raises(BackendError):
        compression.unpack(frame, len(short))


def test_what_is_asked_for() -> None:
    assert not compression.check_compress(None)
    assert compression.check_compress("auto")
    with pytest.raises(ArgumentError):
        compression.check_compress("gzip")
