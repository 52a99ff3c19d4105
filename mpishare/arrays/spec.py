"""What an array is besides its bytes: dtype, shape and order, and how these travel.

They travel as a header of 64 bytes, and an extension for what does not fit in it. The header has a magic number, the
length of the extension, and the dtype, the shape and the order as JSON. If that text is too long for the header, it is
the extension. The last byte of the header is 0: a call may send something of its own in it.
"""

from __future__ import annotations

import json
import math
import operator
import struct
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal, SupportsIndex, TypeAlias, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mpishare.arrays.dtypes import HAS_NUMPY_2, check_dtype, empty_array, is_native_number, rebuild
from mpishare.arrays.dtypes import describe as describe_dtype
from mpishare.arrays.raw import Block
from mpishare.errors import ArgumentError, SpecError

Order = Literal["C", "F"]
_T = TypeVar("_T")
ShapeLike: TypeAlias = SupportsIndex | Iterable[SupportsIndex]

MAX_DIMS = 64 if HAS_NUMPY_2 else 32
"""NPY_MAXDIMS of NumPy 2 and of NumPy 1."""

PLAIN_CLASSES = (np.ndarray, np.memmap)
"""Classes that are plain arrays in all but where their memory comes from."""

_TEXT_BYTES = 55
_HEADER = struct.Struct(f"<4sI{_TEXT_BYTES}sx")
HEADER_BYTES = _HEADER.size
"""One cache line."""

_MAGIC = b"MSH2"
_MAX_EXTENSION_BYTES = 1 << 24
"""A dtype of 100,000 columns takes 6 MB; more than this is a broken header."""

_PYTHON_CLASSES = {bool, int, float, complex, str, bytes}
_PROTOCOLS = ("__array__", "__array_function__", "__array_ufunc__")
"""What classes of other libraries that act as arrays define, some of them."""

_CURE = (
    "Pass plain arrays of it, such as the value of a Quantity, the data and the mask of a masked array, the columns of "
    "a table, the local of a Distributed."
)


@dataclass(frozen=True)
class Spec:
    """The dtype, the shape and the memory order of an array whose items have a fixed size.

    Attributes:
        dtype: Any dtype without Python objects in it.
        shape: Lengths in items; empty for a 0-d array.
        order: "C" or "F", the order of the items in memory.
        missing: Why this rank cannot make the array, whose dtype is then one of bytes; empty if it can.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: Order = "C"
    missing: str = ""

    @classmethod
    def of(cls, array: Any) -> Spec:
        """The spec of `array`; order C unless it is Fortran contiguous alone.

        Raises:
            SpecError: `array` is not a plain ndarray, or its dtype cannot be shared.
        """
        if type(array) not in PLAIN_CLASSES:
            raise _not_plain(array)
        # Dtypes with columns can be equal and yet differ, in titles for example.
        make = _plain_spec if array.dtype.names is None else _spec_of
        return make(array.dtype, array.shape, array.flags.fnc)

    @classmethod
    def make(cls, shape: ShapeLike, dtype: DTypeLike | None, order: str = "C") -> Spec:
        """The spec of a new array that a caller asks for.

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
        empty = empty_array(dtype)
        check_dtype(empty.dtype)
        return cls.checked((*_lengths(shape), *empty.shape[1:]), empty.dtype, "F" if order == "F" else "C")

    @classmethod
    def checked(cls, shape: tuple[int, ...], dtype: np.dtype[Any], order: Order = "C") -> Spec:
        """A spec that an array can have; `dtype` is known to be shareable.

        Raises:
            SpecError: The shape has too many dimensions or is too large for an address.
        """
        if len(shape) > MAX_DIMS:
            raise SpecError(f"shape has {len(shape)} dimensions; NumPy allows {MAX_DIMS}.")
        nbytes = math.prod(length for length in shape if length) * dtype.itemsize  # as NumPy counts empty arrays
        if max(nbytes, *shape, 0) > sys.maxsize:
            raise SpecError(
                f"shape {shape} of {dtype} cannot be shared: its {nbytes:,} bytes or one of its lengths exceed "
                f"the address space of {sys.maxsize:,}."
            )
        return cls(dtype, shape, order)

    @cached_property
    def nbytes(self) -> int:
        """Number of bytes, as a Python int that cannot overflow."""
        return math.prod(self.shape) * self.dtype.itemsize

    @cached_property
    def typestr(self) -> str:
        """dtype.str if it describes the dtype whole, as for NumPy's own numbers; else empty."""
        return self.dtype.str if is_native_number(self.dtype) else ""

    def view(self, block: Block | bytes | bytearray) -> NDArray[Any]:
        """The bytes of `block`, at least `nbytes` of them, as an array of this spec. No copy.

        Raises:
            SpecError: This rank cannot make it; see `missing`.
        """
        self.check()
        if self.dtype.itemsize or self.dtype.names is not None:
            return np.ndarray(self.shape, self.dtype, block, order=self.order)
        column = np.dtype([("item", self.dtype)])  # NumPy makes arrays of 'S0' and the like only as a column
        return np.ndarray(self.shape, column, block, order=self.order)["item"]

    def check(self) -> None:
        """Raises a SpecError if this rank cannot make the array."""
        if self.missing:
            raise SpecError(self.missing)

    def fits(self, array: NDArray[Any]) -> bool:
        """Whether `array` has this shape and dtype, in any order."""
        return array.shape == self.shape and array.dtype == self.dtype

    def is_order_of(self, array: NDArray[Any]) -> bool:
        """Whether `array` is contiguous in this order."""
        return array.flags.c_contiguous if self.order == "C" else array.flags.f_contiguous

    @cached_property
    def packed(self) -> tuple[bytes, bytes]:
        """The header, `HEADER_BYTES` long, and the extension, which is empty for most arrays.

        Raises:
            SpecError: The dtype has more columns than an extension may describe.
        """
        text = json.dumps([describe_dtype(self.dtype), self.shape, self.order], separators=(",", ":")).encode()
        if len(text) > _MAX_EXTENSION_BYTES:
            raise SpecError(f"the dtype takes {len(text):,} bytes to describe; {_MAX_EXTENSION_BYTES:,} are allowed.")
        if len(text) <= _TEXT_BYTES:
            return _HEADER.pack(_MAGIC, 0, text), b""
        return _HEADER.pack(_MAGIC, len(text), b""), text

    @classmethod
    @lru_cache(maxsize=256)
    def unpack(cls, header: bytes, extension: bytes = b"") -> Spec:
        """The spec that another rank sent as `packed`.

        Where this rank lacks the module of the dtype, it is `missing`: the bytes can be received all the same, so that
        no other rank waits.

        Raises:
            SpecError: The bytes are not a header of mpishare.
        """
        try:
            description, shape, order = json.loads(extension or _HEADER.unpack(header)[2].rstrip(b"\0"))
            try:
                dtype, missing = rebuild(description), ""
            except SpecError as error:
                dtype, missing = np.dtype((np.void, description["itemsize"])), str(error)
            spec = cls.checked(_lengths(shape), dtype, "F" if order == "F" else "C")
            return replace(spec, missing=missing) if missing else spec
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError, struct.error) as error:
            raise SpecError(f"a header from another rank cannot be read: {error}") from error

    def __str__(self) -> str:
        dtype = self.dtype.str if self.dtype.names is None else self.dtype
        return f"shape={self.shape}, dtype={dtype}, order={self.order}"


def _spec_of(dtype: np.dtype[Any], shape: tuple[int, ...], is_fortran: bool) -> Spec:
    check_dtype(dtype)
    return Spec(dtype, shape, "F" if is_fortran else "C")


_plain_spec = lru_cache(maxsize=256)(_spec_of)
"""A spec that is checked and made once, so that its cached properties are too."""


def describe(value: Any) -> str:
    """What a caller passed, for error messages."""
    if type(value) in PLAIN_CLASSES:
        return f"an array of shape {value.shape}"
    return "None" if value is None else f"an object of type {type(value).__name__}"


@lru_cache(maxsize=256)
def extension_bytes(header: bytes) -> int:
    """How many bytes of extension follow `header`.

    Raises:
        SpecError: The bytes are not a header of mpishare.
    """
    if len(header) != HEADER_BYTES or not header.startswith(_MAGIC):
        raise SpecError(f"a header from another rank cannot be read: it begins with {header[:4]!r}")
    length: int = _HEADER.unpack(header)[1]
    if length > _MAX_EXTENSION_BYTES:
        raise SpecError(f"a header from another rank cannot be read: it announces an extension of {length:,} bytes")
    return length


def plain(value: _T) -> _T:
    """A value that may be assigned to a plain array, as it is.

    NumPy assigns the items of any array, without their unit, mask or index. What offers DLPack has items alone.

    Raises:
        SpecError: It is an array of another class, or a list or tuple with one in it. Masked arrays may have no mask.
    """
    for leaf in leaves(value):
        kind = type(leaf)
        if isinstance(leaf, np.ndarray):
            is_plain = kind in PLAIN_CLASSES or (kind is np.ma.MaskedArray and not np.ma.is_masked(leaf))
        else:
            has_items_alone = isinstance(leaf, np.generic) or hasattr(kind, "__dlpack__")
            is_plain = has_items_alone or not any(hasattr(kind, name) for name in _PROTOCOLS)
        if not is_plain:
            raise _not_plain(leaf)
    return value


def leaves(value: object) -> Iterator[Any]:
    """What lists and tuples have in them, at any depth, but for items that are all of Python; else the value itself."""
    if isinstance(value, list | tuple):
        for item in () if set(map(type, value)) <= _PYTHON_CLASSES else value:
            yield from leaves(item)
    else:
        yield value


def _not_plain(array: object) -> SpecError:
    """The error for what is not a plain ndarray."""
    if array is None:
        return SpecError("None was given; expected a numpy.ndarray. Pass the array on this rank.")
    kind = f"{type(array).__module__}.{type(array).__name__}"
    if not isinstance(array, np.ndarray):
        cure = "Pass numpy.array(…) of it." if type(array) in (*_PYTHON_CLASSES, list, tuple) else _CURE
        return SpecError(f"{kind} was given; expected a numpy.ndarray. {cure}")
    reason = "as its bytes alone would lose what the class adds"
    return SpecError(f"{kind} was given; expected a plain numpy.ndarray, {reason}. {_CURE}")


def _lengths(shape: ShapeLike) -> tuple[int, ...]:
    """A shape as Python ints, of one integer or several, of Python or NumPy.

    Raises:
        SpecError: It is not a shape, or is negative.
    """
    try:
        lengths = tuple(map(operator.index, shape if np.iterable(shape) else (shape,)))
    except TypeError as error:
        raise SpecError(f"shape {shape!r} is not understood: give one integer or several.") from error
    if any(length < 0 for length in lengths):
        raise SpecError(f"shape {lengths} is negative. Give lengths of 0 or more.")
    return lengths
