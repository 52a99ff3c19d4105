"""What calls of mpi4py take and fill in: constants, datatypes, memory, statuses and operations."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.raw import Block, bytes_of

IN_PLACE, BOTTOM, INFO_NULL = object(), None, None
ANY_SOURCE, ANY_TAG, PROC_NULL, UNDEFINED = -1, -1, -2, -32766
COMM_TYPE_SHARED, ERRORS_RETURN, TAG_UB = range(3)
THREAD_SINGLE, THREAD_FUNNELED, THREAD_SERIALIZED, THREAD_MULTIPLE = range(4)
SUCCESS, ERR_TAG, ERR_RANK, ERR_ROOT, ERR_TRUNCATE, ERR_OTHER = range(6)
LARGEST_TAG = (1 << 31) - 1

handles = itertools.count(1)
"""Handles that have not been used."""


def getter(name: str) -> Callable[..., Any]:
    """The call that returns an attribute."""
    return lambda of: getattr(of, name)


class Exception(RuntimeError):  # noqa: A001 - the name in mpi4py
    """An error of MPI."""

    def __init__(self, text: str, error_class: int = ERR_OTHER) -> None:
        super().__init__(text)
        self._error_class = error_class

    Get_error_class = Get_error_code = getter("_error_class")
    Get_error_string = RuntimeError.__str__


@dataclass(frozen=True)
class Datatype:
    """The items of memory that are sent and received.

    Attributes:
        size: Bytes of an item.
        code: NumPy's code of its type.
    """

    size: int
    code: str

    @staticmethod
    def fromcode(code: Any) -> Datatype:
        """The datatype of a dtype of NumPy or its code, such as "d"."""
        with suppress(TypeError):
            dtype = np.dtype(code)
            if dtype.kind in "biufc" or dtype == "S1":
                return Datatype(dtype.itemsize, dtype.char)
        raise KeyError(f"cannot map {code!r} to MPI datatype")

    Get_size = getter("size")


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


class Buffer(NamedTuple):
    """Items in memory."""

    block: Block
    datatype: Datatype

    def write(self, data: Block) -> None:
        """Receives bytes, which may be fewer than there is memory for.

        Raises:
            Exception: They are more.
        """
        if data.size > self.block.size:
            raise Exception("MPI_ERR_TRUNCATE: the message is longer than the memory for it", ERR_TRUNCATE)
        self.block[: data.size] = data


def simple(spec: Any) -> Buffer:
    """The argument of a call that takes one count and one displacement, in items."""
    return _buffer(*_unpacked(spec))


def vector(spec: Any) -> Buffer:
    """The argument of a call that takes a count and a displacement for each rank, in items."""
    memory, counts, displs, datatype = _unpacked(spec)
    # A number for all ranks is a count, or the distance between two ranks' items.
    return _buffer(memory, _of_rank(counts), _of_rank(displs) if np.ndim(displs) else None, datatype)


def _of_rank(values: Any) -> Any:
    """What a list has for the one rank."""
    if np.ndim(values):
        (values,) = values
    return values


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
    start = operator.index(displ or 0) * size
    if count is None:
        count, rest = divmod(block.size - start, size)
        if rest:
            raise ValueError(f"message: {block.size} bytes are not a multiple of the datatype's size of {size}")
    end = start + operator.index(count) * size
    if not 0 <= start <= end <= block.size:
        raise ValueError(f"message: bytes {start} to {end} lie outside the memory of {block.size} bytes")
    return Buffer(block[start:end], datatype)


def _array_of(memory: Any) -> NDArray[Any]:
    """The array whose items are the memory of an object. No copy.

    Raises:
        BufferError: Its items do not follow each other.
        TypeError: It is no memory.
    """
    if memory is None:
        return np.empty(0, np.uint8)
    if isinstance(memory, np.ndarray):
        array = memory
    else:
        array = np.from_dlpack(memory) if hasattr(memory, "__dlpack__") else np.asarray(memoryview(memory))
    if not array.flags.forc:
        raise BufferError("message: the items of the array do not follow each other")
    return array


@dataclass(kw_only=True)
class Status:
    """What is known of a message: the rank that sent it, its tag, its bytes, and whether it was cancelled."""

    source: int = ANY_SOURCE
    tag: int = ANY_TAG
    error: int = SUCCESS
    count: int = 0
    cancelled: bool = False

    Get_source, Get_tag, Get_error = getter("source"), getter("tag"), getter("error")
    Is_cancelled = getter("cancelled")

    def Get_count(self, datatype: Datatype = BYTE) -> int:
        """Its items, UNDEFINED where its bytes are no multiple of theirs."""
        return UNDEFINED if self.count % datatype.size else self.count // datatype.size

    Get_elements = Get_count

    def Set_elements(self, datatype: Datatype, count: int) -> None:
        """Says that it has `count` items."""
        self.count = count * datatype.size


class Op:
    """An operation. Its result over one rank is what that rank gave."""

    def __init__(self) -> None:
        self.handle = next(handles)

    @staticmethod
    def Create(function: Callable[..., Any], commute: bool = False) -> Op:  # noqa: ARG004
        """An operation of the program's own, as mpi4py calls it."""
        return Op()

    def Free(self) -> None:
        """Does nothing."""


OP_NULL, REPLACE, NO_OP, SUM, PROD, MAX, MIN, MAXLOC, MINLOC = (Op() for _ in range(9))
LAND, LOR, LXOR, BAND, BOR, BXOR = (Op() for _ in range(6))
