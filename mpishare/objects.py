"""Objects full of arrays, taken apart into a skeleton and arrays, and put together again.

The skeleton is a pickle in which a number stands in the place of each array. Object arrays and what else is no run of
bytes stay in it, as the Python objects that they are.
"""

from __future__ import annotations

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
    skeleton = BytesIO()
    pickler = _Pickler(skeleton)
    try:
        pickler.dump(obj)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise SpecError(f"{type(obj).__name__} cannot be sent: {error}") from error
    return Parcel(skeleton.getvalue(), pickler.arrays, pickler.buffers)


def put_together(parcel: Parcel) -> Any:
    """The object, with the arrays of `parcel` in it."""
    return _Unpickler(parcel.skeleton, parcel.arrays, parcel.buffers).load()


class _Pickler(pickle.Pickler):
    """Leaves arrays out.

    Attributes:
        arrays: Those that were left out, each once.
        buffers: What the classes of other libraries hand over as buffers, by protocol 5 (PEP 574).
    """

    def __init__(self, file: BytesIO) -> None:
        super().__init__(file, protocol=5, buffer_callback=self._keep)
        self.arrays: list[NDArray[Any]] = []
        self.buffers: list[NDArray[np.uint8]] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        if type(obj) not in PLAIN_CLASSES or obj.dtype.hasobject:
            return None
        number = self._numbers.setdefault(id(obj), len(self.arrays))
        if number == len(self.arrays):
            self.arrays.append(obj)  # kept, so that no other object gets its id
        return number

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, np.ndarray) or type(obj) is np.ndarray:
            return NotImplemented
        if isinstance(obj, np.ma.MaskedArray) and type(obj).__reduce__ is np.ma.MaskedArray.__reduce__:
            mask = None if obj.mask is np.ma.nomask else np.asarray(obj.mask)
            return _masked, (type(obj), np.asarray(obj.data), mask, obj.fill_value, obj.hardmask)
        if type(obj).__reduce__ is np.ndarray.__reduce__:
            return _viewed, (type(obj), np.asarray(obj), getattr(obj, "__dict__", {}))
        name = f"{type(obj).__module__}.{type(obj).__qualname__}"
        raise SpecError(f"{name} cannot be sent: it pickles its own bytes. Send numpy.asarray(…) of it, or its parts.")

    def _keep(self, buffer: pickle.PickleBuffer) -> None:
        self.buffers.append(np.frombuffer(buffer.raw(), np.uint8))


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


def _masked(
    kind: type[np.ma.MaskedArray[Any, Any]],
    data: NDArray[Any],
    mask: NDArray[Any] | None,
    fill_value: Any,
    hard: bool,
) -> NDArray[Any]:
    found = kind(data, np.ma.nomask if mask is None else mask, fill_value=fill_value, copy=False)
    return found.harden_mask() if hard else found
