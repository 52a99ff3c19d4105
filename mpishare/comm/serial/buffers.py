"""Memory as the calls of mpi4py take it: an object, or a list of it, a count, a displacement and a datatype."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpishare.arrays.raw import Block, bytes_of
from mpishare.comm.serial.constants import BOTTOM, ERR_TRUNCATE, ORDER_C, Exception


class Datatype:
    """Which bytes of an item of memory are sent and received.

    Attributes:
        extent: Bytes from one item to the next.
        size: Bytes of an item that are sent and received.
    """

    def __init__(self, offsets: NDArray[np.intp], extent: int) -> None:
        """The bytes at `offsets` from where an item begins, in the order in which they are sent."""
        self.offsets, self.extent, self.size = offsets, extent, offsets.size
        self.is_dense = np.array_equal(offsets, np.arange(extent))

    @staticmethod
    def fromcode(code: Any) -> Datatype:
        """The datatype of a dtype of NumPy or its code, such as "d", or of a code of the buffer protocol."""
        try:
            dtype = np.dtype(_COMPLEX.get(code, code))
            if dtype.kind in "biufc" or dtype == "S1":
                return _basic(dtype.itemsize, dtype.char)
        except TypeError:
            pass
        raise KeyError(f"cannot map {code!r} to MPI datatype")

    def Get_size(self) -> int:
        """The bytes of an item that are sent."""
        return self.size

    def Get_extent(self) -> tuple[int, int]:
        """Where the bytes of an item begin, and how many bytes lie between two items."""
        return int(self.offsets.min(initial=self.extent)), self.extent

    def Create_contiguous(self, count: int) -> Datatype:
        """Items that follow each other."""
        return self._at(np.arange(count))

    def Create_vector(self, count: int, blocklength: int, stride: int) -> Datatype:
        """Blocks of items at regular distances, in items."""
        return self.Create_indexed_block(blocklength, np.arange(count) * stride)

    def Create_indexed_block(self, blocklength: int, displacements: ArrayLike) -> Datatype:
        """Blocks of items of one length at `displacements`, in items."""
        return self._at(np.add.outer(np.asarray(displacements, np.intp), np.arange(blocklength)))

    def Create_indexed(self, blocklengths: Sequence[int], displacements: Sequence[int]) -> Datatype:
        """Blocks of items of several lengths at `displacements`, in items."""
        blocks = zip(blocklengths, displacements, strict=True)
        return self._at(np.concatenate([np.arange(0), *(np.arange(start, start + length) for length, start in blocks)]))

    def Create_subarray(
        self, sizes: Sequence[int], subsizes: Sequence[int], starts: Sequence[int], order: Any = ORDER_C
    ) -> Datatype:
        """A part of an array of shape `sizes`, over which it extends."""
        region = tuple(slice(start, start + size) for start, size in zip(starts, subsizes, strict=True))
        count = math.prod(sizes)
        numbers: NDArray[np.intp] = np.arange(count).reshape(tuple(sizes), order=order)[region]
        return self._at(numbers.ravel(order=order)).Create_resized(0, count * self.extent)

    def Create_resized(self, lb: int, extent: int) -> Datatype:
        """The same bytes with another distance from one item to the next."""
        return Datatype(self.offsets, extent)

    def Commit(self) -> Datatype:
        """Itself."""
        return self

    def Free(self) -> None:
        """Does nothing."""

    def _at(self, places: NDArray[np.intp]) -> Datatype:
        """Items at some places, counted in items."""
        offsets = np.add.outer(places.ravel() * self.extent, self.offsets).ravel()
        return Datatype(offsets, int(np.ptp(places) + 1) * self.extent if places.size else 0)


@cache
def _basic(itemsize: int, _char: str) -> Datatype:
    return Datatype(np.arange(itemsize), itemsize)


_COMPLEX = {"Zf": "F", "Zd": "D", "Zg": "G"}
"""Codes of the buffer protocol that NumPy's dtype does not know."""

DATATYPE_NULL = Datatype(np.arange(0), 0)
BOOL = C_BOOL = Datatype.fromcode("?")
CHAR, SIGNED_CHAR, BYTE = (Datatype.fromcode(code) for code in "cbB")
UNSIGNED_CHAR = BYTE
SHORT, INT, LONG, LONG_LONG = (Datatype.fromcode(code) for code in "hilq")
UNSIGNED_SHORT, UNSIGNED, UNSIGNED_LONG, UNSIGNED_LONG_LONG = (Datatype.fromcode(code) for code in "HILQ")
INT8_T, INT16_T, INT32_T, INT64_T = (Datatype.fromcode(f"i{size}") for size in (1, 2, 4, 8))
UINT8_T, UINT16_T, UINT32_T, UINT64_T = (Datatype.fromcode(f"u{size}") for size in (1, 2, 4, 8))
FLOAT, DOUBLE, LONG_DOUBLE = (Datatype.fromcode(code) for code in "fdg")
COMPLEX, DOUBLE_COMPLEX, C_LONG_DOUBLE_COMPLEX = (Datatype.fromcode(code) for code in "FDG")
UNSIGNED_INT, C_FLOAT_COMPLEX, C_DOUBLE_COMPLEX = UNSIGNED, COMPLEX, DOUBLE_COMPLEX


@dataclass(frozen=True)
class Buffer:
    """Items in memory, of which the first begins at byte `start`."""

    memory: Block
    start: int
    count: int
    datatype: Datatype

    def read(self) -> Block:
        """The bytes to send; a view if they follow each other."""
        return self.memory[self._where()]

    def write(self, data: Block) -> None:
        """Receives bytes, which may be fewer than there is memory for.

        Raises:
            Exception: They are more.
        """
        if data.size > self.count * self.datatype.size:
            raise Exception("MPI_ERR_TRUNCATE: the message is longer than the memory for it", ERR_TRUNCATE)
        where = self._where()
        if isinstance(where, slice):
            self.memory[where][: data.size] = data
        else:
            self.memory[where[: data.size]] = data

    def _where(self) -> slice | NDArray[np.intp]:
        datatype = self.datatype
        if datatype.is_dense:
            return slice(self.start, self.start + self.count * datatype.extent)
        return (self.start + np.add.outer(np.arange(self.count) * datatype.extent, datatype.offsets)).ravel()


def simple(spec: Any) -> Buffer:
    """The argument of a call that takes one count and one displacement, in items."""
    return _buffer(*_unpacked(spec))


def vector(spec: Any) -> Buffer:
    """The argument of a call that takes a count and a displacement for each rank, in items."""
    memory, counts, displs, datatype = _unpacked(spec)
    # A number for all ranks is a count, or the distance between two ranks' items.
    return _buffer(memory, _of_rank(counts), _of_rank(displs) if np.ndim(displs) else None, datatype)


def bytewise(spec: Any) -> Buffer:
    """The argument of a call that takes a count, a displacement in bytes and a datatype for each rank."""
    *others, datatypes = spec
    memory, counts, displs, datatype = _unpacked([*others, _of_rank(datatypes)])
    if (counts is None) != (displs is None):
        raise ValueError("message: expecting counts and displacements, or neither")
    count = 1 if counts is None else _of_rank(counts)
    return _buffer(memory, count, _of_rank(displs), datatype, displ_bytes=1)


def reduced(sendbuf: Any, recvbuf: Any) -> tuple[Buffer, Buffer]:
    """The arguments of a reduction, which have the same items.

    Raises:
        ValueError: They differ in number or datatype.
    """
    source, target = simple(sendbuf), simple(recvbuf)
    if source.count != target.count or source.datatype is not target.datatype:
        raise ValueError(
            f"message: sendbuf has {source.count} items of {source.datatype.size} bytes, and recvbuf {target.count} of "
            f"{target.datatype.size}; expected the same number and datatype"
        )
    return source, target


def _of_rank(values: Any) -> Any:
    """What a list has for the one rank."""
    if isinstance(values, Datatype) or not np.ndim(values):
        return values
    (value,) = values
    return value


def _unpacked(spec: Any) -> tuple[Any, Any, Any, Any]:
    """The memory, count, displacement and datatype of an argument; None for what it leaves out."""
    if not isinstance(spec, list | tuple):
        return spec, None, None, None
    if not 2 <= len(spec) <= 4:
        raise ValueError("message: expecting 2 to 4 items")
    memory, *others = spec
    datatype = others.pop() if len(others) > 1 or isinstance(others[0], str | Datatype) else None
    if len(others) == 1 and isinstance(others[0], list | tuple) and len(others[0]) == 2:
        others = [*others[0]]
    count, displ = [*others, None, None][:2]
    return memory, count, displ, datatype


def _buffer(memory: Any, count: Any, displ: Any, code: Any, displ_bytes: int = 0) -> Buffer:
    """The items of an object, as many as follow `displ` if there is no `count`. `displ` counts items, or bytes.

    Raises:
        ValueError: They do not fit into the object.
        BufferError: The object has another byte order, and there is no `code`.
    """
    array = _array_of(memory)
    if code is None and not array.dtype.isnative:
        raise BufferError(f"message: dtype {array.dtype.str!r} has not the byte order of this machine")
    datatype = code if isinstance(code, Datatype) else Datatype.fromcode(array.dtype if code is None else code)
    block, extent = bytes_of(array), datatype.extent
    if extent <= 0 and (displ or (count is None and block.size)):
        raise ValueError(f"message: a datatype of extent {extent} needs a count, and no displacement")
    start = operator.index(displ or 0) * (displ_bytes or extent)
    rest = block.size - start
    if start < 0 or rest < 0:
        raise ValueError(f"message: displacement {displ} lies outside the memory of {block.size} bytes")
    if count is None:
        if rest and rest % extent:
            raise ValueError(f"message: {rest} bytes are not a multiple of the datatype's extent of {extent}")
        count = rest and rest // extent
    buffer = Buffer(block, start, operator.index(count), datatype)
    if count < 0 or (count and (count - 1) * extent + datatype.offsets.max(initial=-1) >= rest):
        raise ValueError(f"message: {count} items of {extent} bytes do not fit into the memory of {rest} bytes")
    return buffer


def _array_of(memory: Any) -> NDArray[Any]:
    """The array whose items are the memory of an object. No copy.

    Raises:
        BufferError: Its items do not follow each other.
        TypeError: It is no memory.
    """
    if memory is None or memory is BOTTOM:
        return np.empty(0, np.uint8)
    if isinstance(memory, np.ndarray):
        array = memory
    else:
        array = np.from_dlpack(memory) if hasattr(memory, "__dlpack__") else np.asarray(memoryview(memory))
    if not array.flags.forc:
        raise BufferError("message: the items of the array do not follow each other")
    return array
