"""Compression of large arrays for slow links: whether it pays, and one frame at a time.

A sample decides, as in "Fast Message Serialization" by M. Rocklin (2016): five pieces of 10 kB show what the whole
would shrink to, and how long that takes. lz4 compresses, and is imported at its first use.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from mpishare.arrays.raw import Block
from mpishare.comm.context import Context
from mpishare.errors import ArgumentError, BackendError

SMALLEST_BYTES = 10_000
"""Smaller arrays are not compressed."""

FRAME_BYTES = 1 << 20
"""Compressed at a time, while earlier frames travel."""

MEASURED_FRAMES = 2
"""The first frames to a node, which are sent without compression: the time of the last one is the speed of the link."""

_SAMPLES = 5
_SAMPLE_BYTES = 10_000
_GAIN = 1.1
"""How much sooner the bytes must arrive to be worth the work of two cores."""


def check_compress(compress: str | None) -> bool:
    """Whether the caller asks for compression.

    Raises:
        ArgumentError: `compress` is neither None nor "auto".
        BackendError: lz4 is not installed.
    """
    if compress is None:
        return False
    if compress != "auto":
        raise ArgumentError(f"compress {compress!r} is unknown. Use None or 'auto'.")
    _lz4()
    return True


def wants_frames(context: Context, dest: int, parts: Sequence[Block], *, can_measure: bool) -> bool:
    """Whether to send the large ones of `parts` in frames: compression pays at the speed of the link, or may pay.

    Args:
        context: That of the communicator.
        dest: The rank to send to. Nothing is compressed inside a node.
        parts: The blocks of the message.
        can_measure: Whether the sender can wait for the first frames, where the speed is not known.
    """
    node = context.topology.node_of(dest)
    large = [part for part in parts if part.nbytes >= SMALLEST_BYTES]
    if node == context.topology.node or not large:
        return False
    speed = context.link_speeds.get(node)
    if speed is None:
        return can_measure and large[0].nbytes > MEASURED_FRAMES * FRAME_BYTES
    return any(pays(part, speed) for part in large)


def pays(block: Block, bytes_per_s: float) -> bool:
    """Whether `block` would arrive sooner over a link of that speed if it were compressed, judged by a sample."""
    if block.nbytes < SMALLEST_BYTES:
        return False
    step = max((block.nbytes - _SAMPLE_BYTES) // (_SAMPLES - 1), 0)
    samples = [block[start : start + _SAMPLE_BYTES] for start in range(0, _SAMPLES * step or 1, step or 1)]
    start = time.perf_counter()
    after = sum(len(_lz4().compress(sample.data, store_size=False)) for sample in samples)
    seconds = time.perf_counter() - start
    before = sum(sample.nbytes for sample in samples)
    return min(before / seconds, bytes_per_s * before / after) > bytes_per_s * _GAIN


def compress_frame(frame: Block) -> Block | bytes:
    """The frame compressed; the frame itself if that is no shorter."""
    shorter: bytes = _lz4().compress(frame.data, store_size=False)
    return shorter if len(shorter) < frame.nbytes else frame


def expand_frame(frame: Block, length: int) -> None:
    """Expands the first `length` bytes of `frame` to fill it.

    Raises:
        BackendError: lz4 is not installed on this rank, or the bytes are damaged.
    """
    lz4 = _lz4()
    try:
        whole = lz4.decompress(frame[:length].tobytes(), uncompressed_size=frame.nbytes)
    except (lz4.LZ4BlockError, ValueError) as error:
        raise BackendError(f"a compressed message from another rank cannot be read: {error}") from error
    if len(whole) != frame.nbytes:
        raise BackendError(f"a compressed message from another rank has {len(whole)} bytes, not {frame.nbytes}")
    frame.data[:] = whole


def _lz4() -> Any:
    try:
        import lz4.block
    except ImportError as error:
        raise BackendError("compress='auto' needs lz4: pip install 'mpishare[lz4]', on all ranks.") from error
    return lz4.block
