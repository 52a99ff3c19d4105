"""Whether compression pays, and frames that are damaged."""

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mpishare.errors import BackendError
from mpishare.messages import compression
from mpishare.messages.compression import FRAME_BYTES, compress_frame, expand_frame, pays

ZEROS = np.zeros(3 * FRAME_BYTES, np.uint8)
NOISE = np.random.default_rng(1).integers(0, 256, 1 << 20, np.uint8)


def test_whether_it_pays():
    assert pays(ZEROS, 1e6)
    assert not pays(NOISE, 1e6)
    assert not pays(ZEROS, 1e15)
    assert not pays(ZEROS[:9999], 1e3)
    assert pays(ZEROS[:10_000], 1e3)
    assert pays(np.concatenate([NOISE[:200_000], ZEROS[:800_000]]), 1e3)  # one sample of five is noise
    assert pays(np.concatenate([ZEROS[:6000], NOISE]), 1e3)  # a tenth sooner, or it does not pay
    assert not pays(np.concatenate([ZEROS[:4000], NOISE]), 1e3)


@pytest.mark.parametrize(
    ("node", "speed", "can_measure", "sizes", "expected"),
    [
        (0, 1e3, True, [1 << 20], False),  # the same node
        (1, 1e3, False, [1 << 20], True),
        (1, 1e3, False, [9999], False),
        (1, 1e3, False, [9999, 10_000], True),
        (1, 1e15, True, [3 << 20], False),
        (1, None, True, [(2 << 20) + 1], True),
        (1, None, True, [2 << 20], False),
        (1, None, True, [10_000, 3 << 20], False),
        (1, None, False, [3 << 20], False),
    ],
)
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
