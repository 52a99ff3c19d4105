"""The form of a spec on the wire: a header of 64 bytes, and an extension for what does not fit in it.

The header has a magic number, flags, the number of dimensions, the length of the extension, dtype.str and the shape. A
dtype or a shape that does not fit travels in the extension, as JSON; these fields of the header are then empty.
"""

from __future__ import annotations

import json
import struct
from functools import lru_cache
from typing import Any

import numpy as np

from mpishare.arrays.dtypes import describe, rebuild
from mpishare.errors import SpecError

_HEADER = struct.Struct("<4sBBxxIxxxx16s4q")
HEADER_BYTES = _HEADER.size
"""One cache line."""

_MAGIC = b"MSH1"
_IS_FORTRAN = 1
_DTYPE_BYTES = 16
_MAX_DIMS = 4
_MAX_EXTENSION_BYTES = 1 << 24
"""A dtype of 100,000 columns takes 6 MB; more than this is a broken header."""


def pack(dtype: np.dtype[Any], shape: tuple[int, ...], *, is_fortran: bool) -> tuple[bytes, bytes]:
    """The header, `HEADER_BYTES` long, and the extension, which is empty for most arrays.

    Raises:
        SpecError: The dtype has more columns than an extension may describe.
    """
    flags = _IS_FORTRAN if is_fortran else 0
    description = describe(dtype)
    if isinstance(description, str) and len(description) <= _DTYPE_BYTES and len(shape) <= _MAX_DIMS:
        padding = (0,) * (_MAX_DIMS - len(shape))
        return _HEADER.pack(_MAGIC, flags, len(shape), 0, description.encode(), *shape, *padding), b""
    extension = json.dumps({"dtype": description, "shape": shape}).encode()
    if len(extension) > _MAX_EXTENSION_BYTES:
        raise SpecError(f"the dtype takes {len(extension):,} bytes to describe; {_MAX_EXTENSION_BYTES:,} are allowed.")
    return _HEADER.pack(_MAGIC, flags, 0, len(extension), b"", *(0,) * _MAX_DIMS), extension


def unpack(header: bytes, extension: bytes) -> tuple[np.dtype[Any], Any, bool, str]:
    """The dtype, the shape, and whether the order is Fortran, of an array on another rank. The shape is not checked.

    Where this rank lacks the module of the dtype, the dtype is of as many bytes, and a text says what is missing. Its
    bytes can be received then, so that no other rank waits.

    Raises:
        ValueError, TypeError, KeyError, RecursionError, struct.error: The bytes are not a header of mpishare.
    """
    _, flags, ndim, _, name, *lengths = _HEADER.unpack(header)
    if ndim > _MAX_DIMS or flags & ~_IS_FORTRAN:
        raise ValueError(f"{ndim} dimensions, flags {flags}")
    if not extension:
        return rebuild(name.rstrip(b"\0").decode()), lengths[:ndim], bool(flags), ""
    description = json.loads(extension)
    try:
        return rebuild(description["dtype"]), description["shape"], bool(flags), ""
    except SpecError as error:
        as_bytes = np.dtype((np.void, description["dtype"]["itemsize"]))
        return as_bytes, description["shape"], bool(flags), str(error)


@lru_cache(maxsize=256)
def extension_bytes(header: bytes) -> int:
    """How many bytes of extension follow `header`.

    Raises:
        SpecError: The bytes are not a header of mpishare.
    """
    if len(header) != HEADER_BYTES or not header.startswith(_MAGIC):
        raise SpecError(f"a header from another rank cannot be read: it begins with {header[:4]!r}")
    length: int = _HEADER.unpack(header)[3]
    if length > _MAX_EXTENSION_BYTES:
        raise SpecError(f"a header from another rank cannot be read: it announces an extension of {length:,} bytes")
    return length
