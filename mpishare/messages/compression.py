"""Bytes for slow links made fewer: whether that pays, and a frame at a time.

A sample decides, as in "Fast Message Serialization" by M. Rocklin (2016): five pieces of 10 kB tell what the whole
would shrink to, and how long that takes. lz4 does the work, and is imported when it is first asked for.
"""

from __future__ import annotations

import time
from typing import Any

from mpishare.arrays.raw import Block
from mpishare.errors import ArgumentError, BackendError

SMALLEST_BYTES = 10_000
"""Below it nothing is compressed."""

FRAME_BYTES = 1 << 20
"""Compressed at a time, while the frames before travel."""

_SAMPLES = 5
_SAMPLE_BYTES = 10_000
_GAIN = 1.1
"""How much sooner the bytes must be there to be worth the work of two cores."""


def check_compress(compress: str | None) -> bool:
    """Whether the caller asks for compression.

    Raises:
        ArgumentError: `compress` is neither None nor "auto".
        BackendError: lz4 is not installed.
    """
    if compress is None:
        return False
    if compress != "auto":
        raise ArgumentError(f"compress {compress!r} is unknown. Use None, or 'auto' for what a sample says.")
    _lz4()
    return True


def pays(block: Block, bytes_per_s: float) -> bool:
    """Whether compressed bytes would be sooner at the other end of a link of that speed, by a sample of them."""
    if block.nbytes < SMALLEST_BYTES:
        return False
    step = max((block.nbytes - _SAMPLE_BYTES) // (_SAMPLES - 1), 0)
    samples = [block[start : start + _SAMPLE_BYTES] for start in range(0, _SAMPLES * step or 1, step or 1)]
    start = time.perf_counter()
    after = sum(len(_compressed(sample)) for sample in samples)
    seconds = time.perf_counter() - start
    before = sum(sample.nbytes for sample in samples)
    return min(before / seconds, bytes_per_s * before / after) > bytes_per_s * _GAIN


def packed(frame: Block) -> Block | bytes:
    """The frame compressed; itself where that is no shorter."""
    shorter = _compressed(frame)
    return shorter if len(shorter) < frame.nbytes else frame


def unpack(frame: Block, length: int) -> None:
    """Expands the first `length` bytes of `frame` to all of it.

    Raises:
        BackendError: lz4 is not installed here, or the bytes are damaged.
    """
    lz4 = _lz4()
    try:
        whole = lz4.decompress(frame[:length].tobytes(), uncompressed_size=frame.nbytes)
    except (lz4.LZ4BlockError, ValueError) as error:
        raise BackendError(f"a compressed message from another rank cannot be read: {error}") from error
    if len(whole) != frame.nbytes:
        raise BackendError(f"a compressed message from another rank has {len(whole)} bytes, not {frame.nbytes}")
    frame.data[:] = whole


def _compressed(block: Block) -> bytes:
    found: bytes = _lz4().compress(block.data, store_size=False)
    return found


def _lz4() -> Any:
    try:
        import lz4.block
    except ImportError as error:
        raise BackendError("compress='auto' needs lz4: pip install 'mpishare[lz4]', on all ranks.") from error
    return lz4.block
