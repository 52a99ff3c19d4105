"""An object apart from its arrays: a skeleton, the arrays, and the contents, which are the specs of the arrays."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from mpishare.arrays.header import HEADER_BYTES, extension_bytes
from mpishare.arrays.spec import Spec
from mpishare.errors import SpecError

_COUNT = struct.Struct("<I")
"""The number of arrays. Their headers follow, each with its extension."""


class PickledObject(NamedTuple):
    """An object that was pickled out of band (PEP 574).

    Attributes:
        skeleton: The pickle without the bytes of arrays.
        arrays: The arrays, in any layout, in the order in which the skeleton names them.
    """

    skeleton: bytes | memoryview
    arrays: Sequence[NDArray[Any]]


def pack_specs(specs: Sequence[Spec]) -> bytes:
    """The contents of an object with arrays of these specs, as bytes."""
    return _COUNT.pack(len(specs)) + b"".join(part for spec in specs for part in spec.packed)


def unpack_specs(contents: bytes) -> list[Spec]:
    """The specs that `pack_specs` packed.

    Raises:
        SpecError: The bytes are not such contents.
    """
    check_length(len(contents[: _COUNT.size]), _COUNT.size)
    (count,) = _COUNT.unpack_from(contents)
    end, specs = _COUNT.size, []
    for _ in range(count):
        start = end + HEADER_BYTES
        header = contents[end:start]
        end = start + extension_bytes(header)
        specs.append(Spec.unpack(header, contents[start:end]))
    check_length(len(contents), end)
    return specs


def check_length(length: int, expected: int) -> None:
    """Refuses bytes from another rank that are too short or too long.

    Raises:
        SpecError: `length` is not `expected`.
    """
    if length != expected:
        raise SpecError(f"a message from another rank cannot be read: it has {length:,} bytes, not {expected:,}")
