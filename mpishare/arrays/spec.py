"""What an array is besides its bytes: dtype, shape and order, and their form in a message."""

from __future__ import annotations

import json
import math
import operator
import struct
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal, SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from mpishare.arrays.dtypes import BUILT_IN, check_dtype, describe, rebuild
from mpishare.errors import ArgumentError, SpecError

Order = Literal["C", "F"]
ShapeLike: TypeAlias = SupportsIndex | Iterable[SupportsIndex]
Block = NDArray[np.uint8]
"""One-dimensional uint8 array: the bytes themselves, whatever they mean."""

MAX_DIMS = 64 if int(np.__version__.split(".")[0]) >= 2 else 32  # NPY_MAXDIMS of NumPy 2 and of NumPy 1

# A fixed header of one cache line: magic, flags, number of dimensions, length of the extension, dtype.str, shape.
# A dtype or a shape that does not fit it travels as JSON in an extension, and the rest of the header is then empty.
_HEADER = struct.Struct("<4sBBxxIxxxx16s4q")
HEADER_BYTES = _HEADER.size
_EXTENSION = struct.Struct("<I")
_EXTENSION_AT = 8
_MAGIC = b"MSH1"
_IS_FORTRAN = 1
_HEADER_DTYPE_BYTES = 16
_HEADER_DIMS = 4
_MAX_EXTENSION_BYTES = 1 << 24  # a dtype of 100,000 columns takes 6 MB; more than this is a broken header

NUMBERS = "biufc"
"""Kinds of dtypes that are numbers."""

# Classes that are plain arrays in all but where their memory comes from.
PLAIN_CLASSES = (np.ndarray, np.memmap)


@dataclass(frozen=True)
class Spec:
    """The dtype, the shape and the memory order of an array whose items have a fixed size.

    Attributes:
        dtype: Any dtype without Python objects in it.
        shape: Lengths in items; empty for a 0-d array.
        order: "C" or "F", the order of the items in memory.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: Order = "C"

    @classmethod
    def of(cls, array: object) -> Spec:
        """Tells what `array` is.

        Raises:
            SpecError: `array` is not a plain ndarray, or its dtype cannot be shared.
        """
        if not isinstance(array, np.ndarray):
            raise SpecError(
                f"{type(array).__name__} cannot be shared: it is not a numpy.ndarray. Pass numpy.asarray(…) of it."
            )
        if type(array) not in PLAIN_CLASSES:
            raise SpecError(
                f"{type(array).__module__}.{type(array).__name__} cannot be shared: as a plain array it would lose "
                "what its class adds. Pass numpy.asarray(…) of it, or its parts one by one."
            )
        dtype, flags = array.dtype, array.flags
        check_dtype(dtype)
        order: Order = "F" if flags.f_contiguous and not flags.c_contiguous else "C"
        # Dtypes with columns can be equal and yet differ, in titles for example.
        return _plain_spec(dtype, array.shape, order) if dtype.names is None else cls(dtype, array.shape, order)

    @classmethod
    def make(cls, shape: ShapeLike, dtype: DTypeLike | None, order: str = "C") -> Spec:
        """Checks what a caller asks of a new array.

        Args:
            shape: One length, or lengths, in items.
            dtype: Anything that `numpy.dtype` takes; the lengths of a subarray dtype join the shape, as in NumPy.
            order: "C" or "F".

        Raises:
            SpecError: The shape is negative, too long or too large for an address, or the dtype cannot be shared.
            ArgumentError: `order` is neither "C" nor "F".
        """
        if not isinstance(order, str) or order not in ("C", "F"):
            raise ArgumentError(f"order {order!r} is unknown. Use 'C' or 'F'.")
        none = _no_items(dtype)
        check_dtype(none.dtype)
        return cls.checked((*_lengths(shape), *none.shape[1:]), none.dtype, "F" if order == "F" else "C")

    @classmethod
    def checked(cls, shape: tuple[int, ...], dtype: np.dtype[Any], order: Order = "C") -> Spec:
        """A spec that an array can have, of a dtype as it is.

        Raises:
            SpecError: The shape is too long or too large for an address.
        """
        spec = cls(dtype, shape, order)
        if len(shape) > MAX_DIMS:
            raise SpecError(f"shape has {len(shape)} dimensions; NumPy allows {MAX_DIMS}.")
        nbytes = math.prod(length for length in shape if length) * dtype.itemsize  # as NumPy counts those of no items
        if max(nbytes, *shape, 0) > sys.maxsize:
            raise SpecError(
                f"shape {shape} of {dtype} cannot be shared: its {nbytes:,} bytes or one of its lengths exceed "
                f"the address space of {sys.maxsize:,}."
            )
        return spec

    @property
    def count(self) -> int:
        """Number of items."""
        return math.prod(self.shape)

    @cached_property
    def nbytes(self) -> int:
        """Number of bytes, as a Python int that cannot overflow."""
        return self.count * self.dtype.itemsize

    @cached_property
    def typestr(self) -> str:
        """The dtype in NumPy's short form where that says all of it, as it does for NumPy's own numbers; else empty."""
        return self.dtype.str if self.dtype.isbuiltin == BUILT_IN else ""

    def view(self, block: Block | bytearray) -> NDArray[Any]:
        """The bytes of `block`, at least `nbytes` of them, as an array of this spec. No copy."""
        if self.dtype.itemsize or self.dtype.names is not None:
            return np.ndarray(self.shape, self.dtype, block, order=self.order)
        column = np.dtype([("item", self.dtype)])  # NumPy makes arrays of 'S0' and the like only as a column
        return np.ndarray(self.shape, column, block, order=self.order)["item"]

    @cached_property
    def packed(self) -> tuple[bytes, bytes]:
        """The header, `HEADER_BYTES` long, and its extension, mostly empty.

        Raises:
            SpecError: The dtype has more columns than an extension may describe.
        """
        flags = _IS_FORTRAN if self.order == "F" else 0
        name = self.dtype.str.encode()
        simple = self.dtype.names is None and len(name) <= _HEADER_DTYPE_BYTES
        if simple and len(self.shape) <= _HEADER_DIMS:
            padding = (0,) * (_HEADER_DIMS - len(self.shape))
            return _HEADER.pack(_MAGIC, flags, len(self.shape), 0, name, *self.shape, *padding), b""
        extension = json.dumps({"dtype": describe(self.dtype), "shape": self.shape}).encode()
        if len(extension) > _MAX_EXTENSION_BYTES:
            raise SpecError(
                f"the dtype takes {len(extension):,} bytes to describe; {_MAX_EXTENSION_BYTES:,} are allowed."
            )
        return _HEADER.pack(_MAGIC, flags, 0, len(extension), b"", *(0,) * _HEADER_DIMS), extension

    @classmethod
    @lru_cache(maxsize=256)
    def unpack(cls, header: bytes, extension: bytes = b"") -> Spec:
        """The spec that another rank told by `packed`.

        Raises:
            SpecError: The bytes are not a header of ours.
        """
        try:
            _, flags, ndim, _, name, *lengths = _HEADER.unpack(header)
            if ndim > _HEADER_DIMS or flags & ~_IS_FORTRAN:
                raise ValueError(f"{ndim} dimensions, flags {flags}")
            if extension:
                told = json.loads(extension)
                dtype, shape = rebuild(told["dtype"]), told["shape"]
            else:
                dtype, shape = rebuild(name.rstrip(b"\0").decode()), lengths[:ndim]
            return cls.checked(_lengths(shape), dtype, "F" if flags & _IS_FORTRAN else "C")
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError, struct.error) as error:
            raise SpecError(f"a header from another rank cannot be read: {error}") from error

    def __str__(self) -> str:
        dtype = self.dtype.str if self.dtype.names is None else self.dtype
        return f"shape={self.shape}, dtype={dtype}, order={self.order}"


@lru_cache(maxsize=256)
def _plain_spec(dtype: np.dtype[Any], shape: tuple[int, ...], order: Order) -> Spec:
    """A spec that is made once."""
    return Spec(dtype, shape, order)


@lru_cache(maxsize=256)
def extension_bytes(header: bytes) -> int:
    """How many bytes of extension follow `header`.

    Raises:
        SpecError: The bytes are not a header of ours.
    """
    if len(header) != HEADER_BYTES or header[:4] != _MAGIC:
        raise SpecError(f"a header from another rank cannot be read: it begins with {header[:4]!r}")
    length: int = _EXTENSION.unpack_from(header, _EXTENSION_AT)[0]
    if length > _MAX_EXTENSION_BYTES:
        raise SpecError(f"a header from another rank cannot be read: it announces {length:,} bytes of dtype")
    return length


def bytes_of(array: NDArray[Any]) -> Block:
    """The bytes of a C or Fortran contiguous array in memory order. No copy."""
    if array.nbytes == 0:
        return np.empty(0, np.uint8)
    return array.ravel(order="K").view(np.uint8)


def address_of(array: NDArray[Any]) -> int:
    """Where the first item lies in this process."""
    address: int = array.__array_interface__["data"][0]
    return address


def copy_bytes(target: NDArray[Any], source: NDArray[Any]) -> None:
    """Copies every byte of each item, padding included, between arrays of one dtype and shape and any strides."""
    if target.dtype.isbuiltin == BUILT_IN and target.dtype.kind in NUMBERS:  # which have no padding but their own
        np.copyto(target, source)
    elif target.nbytes:
        item = np.dtype((np.void, target.dtype.itemsize))
        np.copyto(target.view(item), source.view(item))


def zero(dtype: DTypeLike | None) -> NDArray[Any]:
    """One item of `dtype` with all bytes zero, as a 0-d array.

    Raises:
        SpecError: NumPy knows no such dtype.
    """
    return np.zeros((), _no_items(dtype).dtype)


def scalar(value: ArrayLike, dtype: DTypeLike | None) -> NDArray[Any]:
    """One value as a 0-d array of `dtype`, or of its own dtype when that is None.

    Raises:
        SpecError: `value` is no single item of `dtype`.
    """
    try:
        item = np.array(value, None if dtype is None else _no_items(dtype).dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise SpecError(f"fill value {value!r} is no item of dtype {dtype}: {error}") from error
    if item.ndim:
        raise SpecError(f"fill value of shape {item.shape} is not one item. Make an empty(…) and assign to it.")
    return item


def _no_items(dtype: DTypeLike | None) -> NDArray[Any]:
    """An empty array as NumPy allocates it: 'S' and 'U' get a length, and the lengths of a subarray join the shape."""
    try:
        return np.empty(0, dtype)
    except (TypeError, ValueError, SyntaxError) as error:  # numpy.dtype evaluates parts of a text
        raise SpecError(f"dtype {dtype!r} is not understood by NumPy: {error}") from error


def _lengths(shape: ShapeLike) -> tuple[int, ...]:
    try:
        lengths = _one_length(shape) or tuple(map(operator.index, shape))  # type: ignore[arg-type]
    except TypeError as error:
        raise SpecError(f"shape {shape!r} is not understood: give one integer or several.") from error
    if any(length < 0 for length in lengths):
        raise SpecError(f"shape {lengths} is negative. Give lengths of 0 or more.")
    return lengths


def _one_length(shape: object) -> tuple[int, ...] | None:
    """The shape that is one integer, of Python or NumPy; None for any other."""
    try:
        return (operator.index(shape),)  # type: ignore[arg-type]
    except TypeError:
        return None
