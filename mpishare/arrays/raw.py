"""The bytes of an array: viewed, copied, and made of one value."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from mpishare.arrays import slices
from mpishare.arrays.dtypes import empty_array, is_native_number
from mpishare.errors import SpecError

Block = NDArray[np.uint8]
"""One-dimensional uint8 array: bytes, whatever they mean."""

_THREAD_CHUNK_BYTES = 4 << 20
"""What a thread copies at a time: 0.3 ms."""


def bytes_of(array: NDArray[Any]) -> Block:
    """The bytes of a C or Fortran contiguous array in memory order, shape (nbytes,). No copy."""
    if array.nbytes == 0:
        return np.empty(0, np.uint8)
    return array.ravel(order="K").view(np.uint8)


def address_of(array: NDArray[Any]) -> int:
    """The address of the first item in this process."""
    address: int = array.__array_interface__["data"][0]
    return address


class Place(NamedTuple):
    """Where the items of an array lie in a block of bytes."""

    start: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, array: NDArray[Any], address: int) -> Place:
        """The place of an array in the block that begins at `address`."""
        return cls(address_of(array) - address, array.shape, array.dtype, array.strides)

    def view(self, block: Block) -> NDArray[Any]:
        """The array at this place of a block."""
        return np.ndarray(self.shape, self.dtype, block, self.start, self.strides)


def overlap(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether two arrays have items in common, as far as that is found in a short time."""
    try:
        return np.shares_memory(one, other, max_work=10_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return False


def copy_bytes(target: NDArray[Any], source: NDArray[Any]) -> None:
    """Copies every byte of each item, padding included, between arrays of one dtype and shape and any strides."""
    if is_native_number(target.dtype):  # NumPy copies padding of these, as in 'g', too
        target[...] = source
    elif target.nbytes:
        item = np.dtype((np.void, target.dtype.itemsize))
        target.view(item)[...] = source.view(item)


def copy_by_threads(target: Block, source: Block, count: int, cores: Collection[int]) -> None:
    """Copies `source` to `target`, of as many bytes, by `count` threads: NumPy lets others run while it copies.

    The threads run on `cores`, also where this one is bound to fewer.
    """
    from concurrent.futures import ThreadPoolExecutor

    def spread() -> None:
        with suppress(OSError, AttributeError):  # some containers allow no other cores, and macOS has no such call
            os.sched_setaffinity(0, cores)  # of the calling thread alone: sched_setaffinity(2)

    def copy_chunk(chunk: slice) -> None:
        target[chunk] = source[chunk]

    try:
        with ThreadPoolExecutor(count, initializer=spread) as threads:
            for _ in threads.map(copy_chunk, slices.chunks(target.nbytes, _THREAD_CHUNK_BYTES)):
                pass  # which raises what a thread has raised
    except RuntimeError:  # this process may have no more threads
        target[:] = source


def zero(dtype: DTypeLike | None) -> NDArray[Any]:
    """One item of `dtype` with all bytes zero, as a 0-d array.

    Raises:
        SpecError: NumPy does not know the dtype.
    """
    return np.zeros((), empty_array(dtype).dtype)


def scalar(value: ArrayLike, dtype: DTypeLike | None) -> NDArray[Any]:
    """One value as a 0-d array of `dtype`, or of its own dtype if that is None.

    Raises:
        SpecError: NumPy does not know the dtype, or `value` is not a single item of it.
    """
    item_dtype = None if dtype is None else empty_array(dtype).dtype
    try:
        item = np.array(value, item_dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise SpecError(f"fill value {value!r} is not an item of dtype {dtype}: {error}") from error
    if item.ndim:
        raise SpecError(f"fill value of shape {item.shape} is not one item. Make an empty(…) and assign to it.")
    return item


def arrays_inside(arrays: Sequence[NDArray[Any]]) -> dict[int, tuple[int, int]]:
    """The arrays whose bytes are all bytes of another of `arrays`, such as views of it.

    Returns:
        For the number of each, the number of the other one, and where it begins there.
    """
    contiguous = [number for number, array in enumerate(arrays) if array.nbytes and array.flags.forc]
    inside, outer, outer_start, outer_end = dict[int, tuple[int, int]](), -1, 0, 0
    for start, nbytes, number in sorted((address_of(arrays[n]), -arrays[n].nbytes, n) for n in contiguous):
        if start - nbytes <= outer_end:
            inside[number] = outer, start - outer_start
        else:
            outer, outer_start, outer_end = number, start, start - nbytes
    return inside
