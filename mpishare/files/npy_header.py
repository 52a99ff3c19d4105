"""The header of a .npy file that is written."""

from __future__ import annotations

import struct

from numpy.lib import format as npy

from mpishare.arrays.spec import Spec
from mpishare.errors import SpecError

_LARGEST_OF_VERSION_1 = 0xFFFF
_ALIGNED_BYTES = 64
"""The array begins at a multiple of it, so that it can be mapped."""


def header(spec: Spec) -> bytes:
    """What stands before the bytes of an array, in the oldest version of the format that can tell it.

    Raises:
        SpecError: The format cannot tell the dtype.

    Source:
        NumPy Enhancement Proposal 1, and the documentation of `numpy.lib.format`.
    """
    told = {"descr": _descr(spec), "fortran_order": spec.order == "F", "shape": spec.shape}
    text = repr(told)
    try:
        content, version = text.encode("latin-1"), (1, 0)
    except UnicodeEncodeError:
        content, version = text.encode(), (3, 0)
    if version == (1, 0) and len(content) + _ALIGNED_BYTES > _LARGEST_OF_VERSION_1:
        version = (2, 0)
    length = struct.Struct("<H" if version == (1, 0) else "<I")
    before = npy.magic(*version)
    content += b" " * (-(len(before) + length.size + len(content) + 1) % _ALIGNED_BYTES) + b"\n"
    return before + length.pack(len(content)) + content


def _descr(spec: Spec) -> object:
    """The dtype as the header tells it."""
    try:
        found: object = npy.dtype_to_descr(spec.dtype)
        again = npy.descr_to_dtype(found)  # type: ignore[arg-type]
    except (ValueError, TypeError) as error:
        raise SpecError(f"dtype {spec.dtype} cannot be stored in a .npy file: {error}") from error
    if again != spec.dtype:
        raise SpecError(f"dtype {spec.dtype} cannot be stored in a .npy file: it would come back as {again}")
    return found
