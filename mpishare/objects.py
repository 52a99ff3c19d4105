"""Objects full of arrays, taken apart into a skeleton and arrays, and put together again.

The skeleton is a pickle in which a number stands in the place of each array. Object arrays and what else is no run of
bytes stay in it, as the Python objects that they are.
"""

from __future__ import annotations

import array
import pickle
from collections.abc import Sequence
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.errors import SpecError
from mpishare.letters import Parcel
from mpishare.spec import PLAIN_CLASSES

__all__ = ["put_together", "take_apart"]


def take_apart(obj: object) -> Parcel:
    """The skeleton of `obj`, and its arrays as they lie in memory.

    Raises:
        SpecError: A part of it cannot be pickled, or is of a subclass of ndarray that pickles its bytes.
    """
    skeleton, buffers = BytesIO(), list[pickle.PickleBuffer]()
    pickler = _Pickler(skeleton, protocol=5, buffer_callback=buffers.append)
    try:
        pickler.dump(obj)
    except (pickle.PicklingError, TypeError, AttributeError, ValueError, BufferError, RecursionError) as error:
        if isinstance(error, SpecError):
            raise
        raise SpecError(f"{type(obj).__name__} cannot be sent: {error}") from error
    return Parcel(skeleton.getvalue(), pickler.arrays, [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers])


def put_together(parcel: Parcel) -> Any:
    """The object, with the arrays of `parcel` in it."""
    return _Unpickler(parcel.skeleton, parcel.arrays, parcel.buffers).load()


class _Pickler(pickle.Pickler):
    """Leaves arrays out.

    Attributes:
        arrays: Those that were left out, each once. Other libraries hand over buffers of their own (PEP 574).
    """

    def __init__(self, *words: Any, **options: Any) -> None:
        super().__init__(*words, **options)
        self.arrays: list[NDArray[Any]] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        if type(obj) not in PLAIN_CLASSES or obj.dtype.hasobject:
            return None
        number = self._numbers.setdefault(id(obj), len(self.arrays))
        if number == len(self.arrays):
            self.arrays.append(obj)  # kept, so that no other object gets its id
        return number

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, np.void) and not obj.dtype.hasobject:
            return _item, (np.asarray(obj),)
        if type(obj) is array.array and obj.typecode != "u":
            return _array_of, (obj.typecode, np.frombuffer(obj, np.uint8))
        if not isinstance(obj, np.ndarray) or type(obj) is np.ndarray or obj is np.ma.masked:
            return NotImplemented
        if type(obj) is np.ma.MaskedArray:
            mask = None if obj.mask is np.ma.nomask else np.asarray(obj.mask)
            return _masked, (np.asarray(obj.data), mask, obj.fill_value, obj.hardmask)
        if not _pickles_itself(type(obj)):
            return _viewed, (type(obj), np.asarray(obj), getattr(obj, "__dict__", {}))
        name = f"{type(obj).__module__}.{type(obj).__qualname__}"
        raise SpecError(f"{name} cannot be sent: it pickles its own bytes. Send numpy.asarray(…) of it, or its parts.")


def _pickles_itself(kind: type[np.ndarray[Any, Any]]) -> bool:
    """Whether a subclass of ndarray has its own way to be pickled."""
    ways = ("__reduce__", "__reduce_ex__", "__setstate__", "__getstate__")
    return any(getattr(kind, way, None) is not getattr(np.ndarray, way, None) for way in ways)


class _Unpickler(pickle.Unpickler):
    """Puts arrays in."""

    def __init__(self, skeleton: bytes, arrays: Sequence[Any], buffers: Sequence[Any]) -> None:
        super().__init__(BytesIO(skeleton), buffers=buffers)
        self._arrays = arrays

    def persistent_load(self, number: int) -> Any:
        return self._arrays[number]


def _viewed(kind: type[np.ndarray[Any, Any]], array: NDArray[Any], attributes: dict[str, Any]) -> NDArray[Any]:
    found = array.view(kind)
    if attributes:
        found.__dict__.update(attributes)
    return found


def _masked(data: NDArray[Any], mask: NDArray[Any] | None, fill_value: Any, hard: bool) -> NDArray[Any]:
    found = np.ma.array(data, mask=np.ma.nomask if mask is None else mask, fill_value=fill_value, copy=False)
    return found.harden_mask() if hard else found


def _item(zero_dimensional: NDArray[Any]) -> Any:
    return zero_dimensional[()]


def _array_of(typecode: str, content: NDArray[np.uint8]) -> array.array[Any]:
    found = array.array(typecode)
    found.frombytes(content.data)
    return found
