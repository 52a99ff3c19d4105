"""The arrays of a file with another dtype than they have there, converted tile by tile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.spec import Spec
from mpishare.errors import ArgumentError, place_in
from mpishare.files.formats import FormatReader
from mpishare.files.stored import Listing, Stored

NATIVE = "native"
"""What `load` takes for the dtype that an array has, in the byte order of this machine."""


def checked_dtype(dtype: Any) -> np.dtype[Any] | str | None:
    """`dtype` as one of NumPy, or as `NATIVE`, or None.

    Raises:
        SpecError: It is none of these, or has Python objects.
        ArgumentError: It is one of subarrays.
    """
    if dtype is None or (isinstance(dtype, str) and dtype == NATIVE):
        return dtype
    spec = Spec.make((), dtype)
    if spec.shape:
        raise ArgumentError(f"dtype {dtype!r} is one of subarrays. Give the dtype of their items, {spec.dtype}.")
    checked: np.dtype[Any] = np.dtype(dtype)
    return checked


def converted(
    reader: FormatReader, listing: Listing, dtype: np.dtype[Any] | str | None
) -> tuple[FormatReader, Listing]:
    """A reader that converts, and the listing of the file with the dtypes that its arrays get.

    Args:
        reader: What reads the file.
        listing: What it has found.
        dtype: What `checked_dtype` returned; None converts nothing.

    Raises:
        ArgumentError: An array cannot be converted without losing more than precision.
    """
    if dtype is None:
        return reader, listing
    arrays = [_converted(listing.path, array, dtype) for array in listing.arrays]
    return _ConvertedFile(reader, listing.arrays), listing._replace(arrays=arrays)


def _converted(path: str, stored: Stored, dtype: np.dtype[Any] | str) -> Stored:
    """An array as it is after its conversion."""
    wanted = stored.dtype.newbyteorder("=") if isinstance(dtype, str) else dtype
    if stored.reason or wanted == stored.dtype:
        return stored
    try:  # strings without a width, and times without a unit, get that which NumPy gives them
        wanted = np.empty(0, stored.dtype).astype(wanted, casting="same_kind").dtype
    except TypeError as error:
        place = place_in(path, stored.name)
        reason = f"{place} has dtype {stored.dtype}, which NumPy does not cast to {wanted} as same_kind."
        raise ArgumentError(reason) from error
    return replace(stored, spec=replace(stored.spec, dtype=wanted), offset=None)


class _ConvertedFile:
    """A file whose arrays are converted as they are read. It satisfies `FormatReader`."""

    def __init__(self, reader: FormatReader, arrays: Sequence[Stored]) -> None:
        self.file, self.listing, self.check = reader.file, reader.listing, reader.check
        self._reader = reader
        self._originals = {array.name: array for array in arrays}

    def read(self, stored: Stored, ranges: Sequence[range], out: NDArray[np.void]) -> None:
        """See `Reader`."""
        original = self._originals[stored.name]
        items = np.empty([*map(len, ranges)], f"V{original.itemsize}", order=original.spec.order)
        read = self._reader.read if original.offset is None else self.file.read
        read(original, ranges, items)
        inner = stored.shape[stored.ndim :]
        out.view(np.dtype((stored.dtype, inner)))[...] = items.view(np.dtype((original.dtype, inner)))
