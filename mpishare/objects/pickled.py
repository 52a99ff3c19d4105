"""An object in transit: a skeleton, its arrays as they lie in memory, and a list that tells what these are."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from mpishare.arrays.header import HEADER_BYTES, extension_bytes
from mpishare.arrays.spec import Spec
from mpishare.errors import SpecError

_COUNT = struct.Struct("<I")
"""How many arrays there are. Their headers follow, each with its extension."""


class PickledObject(NamedTuple):
    """An object taken apart.

    Attributes:
        skeleton: What it is besides its arrays.
        arrays: Its arrays, in any layout, in the order in which the skeleton names them.
    """

    skeleton: bytes | memoryview
    arrays: Sequence[NDArray[Any]]


def pack_specs(arrays: Sequence[NDArray[Any]]) -> tuple[bytes, list[Spec]]:
    """The list of `arrays`, and what is in it.

    Raises:
        SpecError: An array is more than bytes of a fixed size.
    """
    specs = [Spec.of(array) for array in arrays]
    return b"".join((_COUNT.pack(len(specs)), *(piece for spec in specs for piece in spec.packed))), specs


def unpack_specs(contents: bytes) -> list[Spec]:
    """What `pack_specs` told.

    Raises:
        SpecError: It is no such list.
    """
    check_length(min(len(contents), _COUNT.size), _COUNT.size)
    (count,) = _COUNT.unpack_from(contents)
    at, specs = _COUNT.size, []
    for _ in range(count):
        header = contents[at : at + HEADER_BYTES]
        end = at + HEADER_BYTES + extension_bytes(header)
        check_length(min(len(contents), end), end)
        specs.append(Spec.unpack(header, contents[at + HEADER_BYTES : end]))
        at = end
    check_length(len(contents), at)
    return specs


def check_length(length: int, wanted: int) -> None:
    """Refuses what is not as long as it says.

    Raises:
        SpecError: It is shorter or longer.
    """
    if length != wanted:
        raise SpecError(f"a message from another rank cannot be read: it has {length:,} bytes, not {wanted:,}")
