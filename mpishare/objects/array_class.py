"""The class of an array apart from its items, so that calls that move items keep what a subclass of ndarray adds."""

from __future__ import annotations

import pickle
from functools import cached_property
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.dtypes import check_dtype
from mpishare.arrays.spec import PLAIN_CLASSES
from mpishare.errors import SpecError
from mpishare.objects.pickling import PickledObject, pickle_object, unpickle_object


class ArrayClass(NamedTuple):
    """What the class of an array adds to its items, such as the unit of astropy's Quantity.

    Attributes:
        name: The class and its attributes, in a few words; empty for a plain array.
        skeleton: The pickle of the array without its items; empty for a plain array.
    """

    name: str = ""
    skeleton: bytes = b""

    @property
    def text(self) -> str:
        """What an agreement of the ranks compares, the same wherever the array was made; empty for a plain array."""
        return f", class={self.name} #{crc32(self.skeleton):x}" if self.name else ""

    def around(self, items: NDArray[Any]) -> NDArray[Any]:
        """An array of this class around a plain array of items. No copy.

        Raises:
            SpecError: This rank does not have the class, or the class raises.
        """
        if not self.name:
            return items
        array: NDArray[Any] = unpickle_object(PickledObject(self.skeleton, [items]))
        return array

    def check_result(self, operation: np.ufunc, items: NDArray[Any], n_ranks: int, name: str) -> None:
        """Checks that the results of an operation have this class, as the larger ones of two arrays have.

        They must also have the items that plain arrays give. Some of this rank's are tried, as if all ranks had them.

        Args:
            operation: A function of two arrays.
            items: The items of this rank, as a plain array.
            n_ranks: The number of ranks.
            name: The name of the operation in errors.

        Raises:
            SpecError: The results have another class or other attributes, as the product of two lengths has, or other
                items, as a sum modulo 7 has.
        """
        if not self.name:
            return
        plain = items.flat[:_TRIED] if items.size else np.ones(1, items.dtype)  # a copy
        one = self.around(plain)
        try:
            kept = _skeleton(operation(one, one)) == _skeleton(np.maximum(one, one))
            results = (_folded(operation, array, n_ranks) for array in (one, plain))
            equal = not kept or np.array_equal(next(results), next(results), equal_nan=True)  # long doubles have gaps
        except Exception as error:  # user classes may raise anything
            raise SpecError(f"{name} is not defined for {self.name}: {error}. {_CURE}") from error
        if not kept:
            raise SpecError(f"{name} of {self.name} would have another class or other attributes. {_CURE}")
        if not equal:
            raise SpecError(f"{name} of {self.name} differs from that of plain items. {_CURE}")


PLAIN = ArrayClass()

_CURE = "Pass numpy.asarray(…) of it."
_TRIED = 1000
"""Items of which an operation is tried."""
_PROPERTIES = (property, cached_property)


def take_apart(array: Any) -> tuple[Any, ArrayClass]:
    """The items of an array as a plain array, which is a view, and its class. What is no array is left as it is.

    Raises:
        SpecError: No view can be made of the class, or it adds arrays of its own, such as a mask.
    """
    if not isinstance(array, np.ndarray) or type(array) in PLAIN_CLASSES:
        return array, PLAIN
    check_dtype(array.dtype)
    kind = f"{type(array).__module__}.{type(array).__qualname__}"
    items = np.ndarray.view(array, np.ndarray)
    skeleton, arrays = pickle_object(array)
    if len(arrays) != 1 or arrays[0].__array_interface__ != items.__array_interface__:
        raise SpecError(f"{kind} has more than its items, such as a mask. Pass its parts, each as a plain array.")
    again = unpickle_object(PickledObject(skeleton, [items]))
    for name in _cached(again):
        del again.__dict__[name]
    return items, ArrayClass(f"{kind}{_attributes(again)}", _skeleton(again))


def _cached(obj: Any) -> set[str]:
    """The attributes that an object has cached, and those that a descriptor has made when they were read first."""
    kind, attributes = type(obj), {} if isinstance(obj, type) else getattr(obj, "__dict__", {})
    return {
        name
        for name, value in attributes.items()
        if "cache" in name or isinstance(getattr(kind, name, None), _PROPERTIES) or _is_empty(value)
    }


def _is_empty(value: Any) -> bool:
    """Whether it is a descriptor without a state, such as the `info` of astropy's arrays until it gets a name."""
    return hasattr(type(value), "__set__") and not any(value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)[2:])


def items_of_out(out: Any, kind: ArrayClass) -> Any:
    """The items of an array into which results of class `kind` go; None without one.

    Raises:
        SpecError: It has another class or other attributes.
    """
    items, own = take_apart(out)
    if out is not None and own.skeleton != kind.skeleton:
        given, expected = (one.name or "a plain array" for one in (own, kind))
        raise SpecError(f"out is {given}, but the items are of {expected}. Pass both of one class.")
    return items


def _skeleton(array: Any) -> bytes:
    """The pickle without items. Of an array that was unpickled, it is the same wherever the array was made."""
    return bytes(pickle_object(array, reduce=_without_caches).skeleton)


def _folded(operation: Any, array: NDArray[Any], n_ranks: int) -> NDArray[Any]:
    """The items of the result, if all ranks have the array: of the next power of 2 of ranks, in few operations."""
    result = array
    with np.errstate(all="ignore"):
        for _ in range((n_ranks - 1).bit_length()):
            result = operation(result, result)
    return np.ndarray.view(result, np.ndarray).astype(array.dtype)


def _without_caches(obj: Any) -> Any:
    """How to pickle an object without what it has cached: what its properties keep, and what is named a cache.

    Ranks cache different things. A unit of astropy does so when a rank reads its `si`, or converts it.
    """
    cached = _cached(obj)
    if not cached:
        return NotImplemented
    reduced = obj.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    if len(reduced) < 3 or not isinstance(reduced[2], dict):
        return reduced
    make, args, state, *rest = reduced
    return make, args, {name: value for name, value in state.items() if name not in cached}, *rest


def _attributes(array: NDArray[Any]) -> str:
    """The attributes of an array for error messages, shortened. Texts with an address differ between ranks."""
    texts = (f"{name.strip('_')}={value}" for name, value in getattr(array, "__dict__", {}).items())
    text = ", ".join(text for text in texts if " at 0x" not in text)
    return f"({text[:80]})" if text else ""
