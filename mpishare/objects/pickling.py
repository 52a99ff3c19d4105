"""Objects full of arrays, taken apart into a skeleton and arrays, and put together again.

The skeleton is a pickle in which an empty buffer stands in the place of each array; a buffer that a class hands over by
itself (PEP 574) is an array of bytes. Arrays of Python objects stay in the skeleton.
"""

from __future__ import annotations

import array
import pickle
from contextlib import suppress
from functools import cache
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.dtypes import check_dtype
from mpishare.arrays.spec import PLAIN_CLASSES
from mpishare.errors import SpecError
from mpishare.objects.pickled import PickledObject
from mpishare.objects.unshared import Copies

_CANNOT = (pickle.PicklingError, TypeError, AttributeError, ValueError, BufferError, RecursionError)
"""What pickle raises where a part of an object cannot be pickled."""


def pickle_object(obj: object, copies: Copies | None = None) -> PickledObject:
    """The skeleton of `obj`, and its arrays as they lie in memory; `copies` notes what is in no array of bytes.

    cloudpickle, where it is installed, is used for what pickle refuses: lambdas, and functions and classes that a
    module does not have under their name.

    Raises:
        SpecError: A part of it cannot be pickled, or is of a subclass of ndarray that pickles its bytes.

    Source:
        PEP 574, "Pickle protocol 5 with out-of-band data".
    """
    try:
        return _taken_apart(_Pickler, obj, copies)
    except SpecError:
        raise
    except _CANNOT as error:
        cloud = _cloud_pickler()
        if cloud is None:
            cure = "Lambdas, and classes defined in functions, need cloudpickle: pip install cloudpickle."
            raise SpecError(f"{type(obj).__name__} cannot be pickled: {error}. {cure}") from error
    try:
        return _taken_apart(cloud, obj, copies)
    except SpecError:
        raise
    except _CANNOT as error:
        raise SpecError(f"{type(obj).__name__} cannot be pickled: {error}") from error


def _taken_apart(kind: type[_Pickler], obj: object, copies: Copies | None) -> PickledObject:
    if copies is not None:
        copies.begin()
    skeleton = BytesIO()
    pickler = kind(skeleton, copies)
    pickler.dump(obj)
    return PickledObject(skeleton.getvalue(), pickler.arrays())


def unpickle_object(parcel: PickledObject) -> Any:
    """The object, with the arrays of `parcel` in it as they are."""
    return pickle.loads(parcel.skeleton, buffers=parcel.arrays)  # noqa: S301 - it is of a rank of this job


class _Pickler(pickle.Pickler):
    """Leaves arrays out."""

    def __init__(self, file: BytesIO, copies: Copies | None) -> None:
        self._buffers: list[pickle.PickleBuffer] = []
        self._left_out: dict[int, NDArray[Any]] = {}
        self._copies = copies
        super().__init__(file, protocol=5, buffer_callback=self._buffers.append)

    def arrays(self) -> list[NDArray[Any]]:
        """Those that were left out, each once, with the bytes that other classes left out."""
        known = self._left_out
        return [known[id(one)] if id(one) in known else _bytes_in(one) for one in self._buffers]

    def reducer_override(self, obj: Any) -> Any:
        """How `obj` is pickled, where not in its own way. Not called for numbers, texts and containers."""
        if isinstance(obj, np.ndarray):
            way = self._way_of(obj)
        elif isinstance(obj, np.void) and not obj.dtype.hasobject:
            way = _item, (np.asarray(obj),)
        elif type(obj) is array.array and obj.typecode != "u":
            way = _array_of, (obj.typecode, np.frombuffer(obj, np.uint8))
            self._notice(obj)
        else:
            way = None
        if way is not None:
            return way
        self._notice(obj)
        return self._in_its_own_way(obj)

    def _notice(self, obj: object) -> None:
        if self._copies is not None:
            with suppress(Exception):  # what an object costs does not decide whether it can be shared
                self._copies.see(obj)

    def _in_its_own_way(self, obj: object) -> Any:
        return NotImplemented

    def _way_of(self, obj: Any) -> tuple[Any, ...] | None:
        kind = type(obj)
        if kind in PLAIN_CLASSES:
            return None if obj.dtype.hasobject else self._plain(obj)
        if obj is np.ma.masked:
            return None
        if kind is np.ma.MaskedArray:
            mask = None if obj.mask is np.ma.nomask else np.asarray(obj.mask)
            return _masked, (np.asarray(obj.data), mask, obj.fill_value, obj.hardmask)
        if not _pickles_itself(kind):
            # As state, so that what refers back to it finds it.
            return _viewed, (kind, np.asarray(obj)), getattr(obj, "__dict__", None) or None, None, None, _set_attributes
        name = f"{kind.__module__}.{kind.__qualname__}"
        raise SpecError(f"{name} cannot be shared: it pickles its own bytes. Use numpy.asarray(…) of it, or its parts.")

    def _plain(self, obj: NDArray[Any]) -> tuple[Any, ...]:
        try:
            check_dtype(obj.dtype)
        except SpecError:  # of another library than NumPy, whose dtypes can be pickled
            return _typed, (obj.view(np.dtype((np.void, obj.itemsize))), obj.dtype)
        place = pickle.PickleBuffer(bytearray())
        self._left_out[id(place)] = obj
        return _itself, (place,)


@cache
def _cloud_pickler() -> type[_Pickler] | None:
    try:
        import cloudpickle
    except ImportError:
        return None

    class CloudPickler(_Pickler, cloudpickle.Pickler):  # type: ignore[misc]
        """The same, for functions and classes by what they are instead of by their name."""

        def _in_its_own_way(self, obj: object) -> Any:
            return cloudpickle.Pickler.reducer_override(self, obj)

    return CloudPickler


def _bytes_in(buffer: pickle.PickleBuffer) -> NDArray[np.uint8]:
    raw = buffer.raw()
    return np.frombuffer(raw, np.uint8) if raw.nbytes else np.empty(0, np.uint8)


def _pickles_itself(kind: type[np.ndarray[Any, Any]]) -> bool:
    """Whether a subclass of ndarray has its own way to be pickled."""
    ways = ("__reduce__", "__reduce_ex__", "__setstate__", "__getstate__")
    return any(getattr(kind, way, None) is not getattr(np.ndarray, way, None) for way in ways)


def _itself(array: NDArray[Any]) -> NDArray[Any]:
    return array


def _typed(items: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    return items.view(dtype)


def _viewed(kind: type[np.ndarray[Any, Any]], array: NDArray[Any]) -> NDArray[Any]:
    return array.view(kind)


def _set_attributes(array: NDArray[Any], attributes: dict[str, Any]) -> None:
    array.__dict__.update(attributes)


def _masked(data: NDArray[Any], mask: NDArray[Any] | None, fill_value: Any, hard: bool) -> NDArray[Any]:
    found = np.ma.array(data, mask=np.ma.nomask if mask is None else mask, fill_value=fill_value, copy=False)
    return found.harden_mask() if hard else found


def _item(zero_dimensional: NDArray[Any]) -> Any:
    return zero_dimensional[()]


def _array_of(typecode: str, content: NDArray[np.uint8]) -> array.array[Any]:
    found = array.array(typecode)
    found.frombytes(content.data)
    return found
