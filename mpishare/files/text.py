"""Strings of variable length in a file, which become bytes as wide as the longest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.dtypes import describe, is_native_number, rebuild
from mpishare.files.stored import Stored


@runtime_checkable
class TextReader(Protocol):
    """A reader of a format that has strings of any length."""

    def text_dtype(self, stored: Stored) -> np.dtype[Any]:
        """The dtype of what `strings` returns: with objects in the place of strings."""

    def strings(self, stored: Stored, ranges: Sequence[range]) -> NDArray[Any]:
        """The stored items of these indices along each axis, with strings as bytes of Python.

        Raises:
            FileError: They cannot be read, or are damaged.
        """


def read_text(reader: TextReader, stored: Stored, ranges: Sequence[range], out: NDArray[np.void]) -> None:
    """Fills `out` with items whose strings are as wide as `stored` says. See `tiles.Reader`."""
    strings = reader.strings(stored, ranges).astype(stored.dtype)
    out[...] = strings.reshape(-1).view(out.dtype).reshape(out.shape)


def with_widths(dtype: np.dtype[Any], widths: Iterator[int]) -> np.dtype[Any]:
    """A dtype without its metadata, and with bytes of the next of `widths` for each string."""
    if is_native_number(dtype):
        return np.dtype(dtype.str)
    if not dtype.hasobject:
        return rebuild(describe(dtype))
    if dtype.subdtype is not None:
        return np.dtype((with_widths(dtype.base, widths), dtype.shape))
    if dtype.names is None:
        return np.dtype(f"S{next(widths)}")
    return np.dtype([(name, with_widths(dtype[name], widths)) for name in dtype.names])


def strings_in(items: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """The strings of an array, or of each of its columns that has some."""
    if items.dtype.kind == "O":
        yield items
    for name in items.dtype.names or ():
        yield from strings_in(items[name])
