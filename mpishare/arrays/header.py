"""The form of a spec on the wire: a header of 64 bytes, and an extension for what does not fit in it.

The header has a magic number, the length of the extension, and the dtype, the shape and the order as JSON. If that text
is too long for the header, it is the extension.
"""

from __future__ import annotations

import json
import struct
from functools import lru_cache
from typing import Any

import numpy as np

from mpishare.arrays.dtypes import describe, rebuild
from mpishare.errors import SpecError

_TEXT_BYTES = 56
_HEADER = struct.Struct(f"<4sI{_TEXT_BYTES}s")
HEADER_BYTES = _HEADER.size
"""One cache line."""

_MAGIC = b"MSH2"
_MAX_EXTENSION_BYTES = 1 << 24
"""A dtype of 100,000 columns takes 6 MB; more than this is a broken header."""


def pack(dtype: np.dtype[Any], shape: tuple[int, ...], order: str) -> tuple[bytes, bytes]:
    """The header, `HEADER_BYTES` long, and the extension, which is empty for most arrays.

    Raises:
        SpecError: The dtype has more columns than an extension may describe.
    """
    text = json.dumps([describe(dtype), shape, order], separators=(",", ":")).encode()
    if len(text) > _MAX_EXTENSION_BYTES:
        raise SpecError(f"the dtype takes {len(text):,} bytes to describe; {_MAX_EXTENSION_BYTES:,} are allowed.")
    if len(text) <= _TEXT_BYTES:
        return _HEADER.pack(_MAGIC, 0, text), b""
    return _HEADER.pack(_MAGIC, len(text), b""), text


def unpack(header: bytes, extension: bytes) -> tuple[np.dtype[Any], Any, Any, str]:
    """The dtype, the shape and the order of an array on another rank. Shape and order are not checked.

    Where this rank lacks the module of the dtype, the dtype is of as many bytes, and a text says what is missing. Its
    bytes can be received then, so that no other rank waits.

    Raises:
        ValueError, TypeError, KeyError, RecursionError, struct.error: The bytes are not a header of mpishare.
    """
    text = extension or _HEADER.unpack(header)[2].rstrip(b"\0")
    description, shape, order = json.loads(text)
    try:
        return rebuild(description), shape, order, ""
    except SpecError as error:
        return np.dtype((np.void, description["itemsize"])), shape, order, str(error)


@lru_cache(maxsize=256)
def extension_bytes(header: bytes) -> int:
    """How many bytes of extension follow `header`.

    Raises:
        SpecError: The bytes are not a header of mpishare.
    """
    if len(header) != HEADER_BYTES or not header.startswith(_MAGIC):
        raise SpecError(f"a header from another rank cannot be read: it begins with {header[:4]!r}")
    length: int = _HEADER.unpack(header)[1]
    if length > _MAX_EXTENSION_BYTES:
        raise SpecError(f"a header from another rank cannot be read: it announces an extension of {length:,} bytes")
    return length
