"""Memory as the calls of mpi4py take it: an object, or a list of it, a count, a displacement and a datatype."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.raw import Block, bytes_of
from mpishare.comm.serial.constants import BOTTOM, ERR_TRUNCATE, Exception


class Datatype:
    """The items of memory that are sent and received.

    Attributes:
        size: Bytes of an item.
    """

    def __init__(self, size: int) -> None:
        self.size = size

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
        return 0, self.size

    def Commit(self) -> Datatype:
        """Itself."""
        return self

    def Free(self) -> None:
        """Does nothing."""


@cache
def _basic(itemsize: int, _char: str) -> Datatype:
    return Datatype(itemsize)


_COMPLEX = {"Zf": "F", "Zd": "D", "Zg": "G"}
"""Codes of the buffer protocol that NumPy's dtype does not know."""

DATATYPE_NULL = Datatype(0)
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
        """The bytes to send, as a view."""
        return self.memory[self.start : self.start + self.count * self.datatype.size]

    def write(self, data: Block) -> None:
        """Receives bytes, which may be fewer than there is memory for.

        Raises:
            Exception: They are more.
        """
        if data.size > self.count * self.datatype.size:
            raise Exception("MPI_ERR_TRUNCATE: the message is longer than the memory for it", ERR_TRUNCATE)
        self.read()[: data.size] = data


def simple(spec: Any) -> Buffer:
    """The argument of a call that takes one count and one displacement, in items."""
    return _buffer(*_unpacked(spec))


def vector(spec: Any) -> Buffer:
    """The argument of a call that takes a count and a displacement for each rank, in items."""
    memory, counts, displs, datatype = _unpacked(spec)
    # A number for all ranks is a count, or the distance between two ranks' items.
    return _buffer(memory, _of_rank(counts), _of_rank(displs) if np.ndim(displs) else None, datatype)


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


def _buffer(memory: Any, count: Any, displ: Any, code: Any) -> Buffer:
    """The items of an object, as many as follow `displ`, in items, if there is no `count`.

    Raises:
        ValueError: They do not fit into the object.
        BufferError: The object has another byte order, and there is no `code`.
    """
    array = _array_of(memory)
    if code is None and not array.dtype.isnative:
        raise BufferError(f"message: dtype {array.dtype.str!r} has not the byte order of this machine")
    datatype = code if isinstance(code, Datatype) else Datatype.fromcode(array.dtype if code is None else code)
    block, size = bytes_of(array), datatype.size
    if not size and (displ or (count is None and block.size)):
        raise ValueError("message: a datatype of no bytes needs a count, and no displacement")
    start = operator.index(displ or 0) * size
    rest = block.size - start
    if start < 0 or rest < 0:
        raise ValueError(f"message: displacement {displ} lies outside the memory of {block.size} bytes")
    if count is None:
        if rest and rest % size:
            raise ValueError(f"message: {rest} bytes are not a multiple of the datatype's size of {size}")
        count = rest and rest // size
    buffer = Buffer(block, start, operator.index(count), datatype)
    if count < 0 or count * size > rest:
        raise ValueError(f"message: {count} items of {size} bytes do not fit into the memory of {rest} bytes")
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
