"""Arrays of subclasses of ndarray: a plain array of the items, and apart from it what their class adds.

What a class adds is what it pickles itself, but of an array without items, so that no item is pickled. A class that
does not define how it is pickled adds its attributes and slots. An array that cannot be made so is pickled whole.
"""

from __future__ import annotations

import copy
import copyreg
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.objects.unshared import Copied, UnsharedPart

_PICKLED_BY = ("__reduce__", "__reduce_ex__", "__setstate__", "__getstate__")


def reduce_subclass(array: NDArray[Any]) -> tuple[Any, ...] | Copied:
    """How to pickle an array of a subclass of ndarray: as a view of a plain array, completed by what its class adds.

    The additions are state, so that what refers back to the array finds it. Whether the class can be completed around
    a read-only view is tried here, on the rank that pickles: where it cannot, the array is pickled with its items.

    Source:
        The NumPy user guide, "Subclassing ndarray": view casting, and new from template, for which a class defines
        `__array_finalize__`.
    """
    try:
        return _reduced_around_view(array)
    except Exception as error:  # user classes may raise anything
        kind = type(array)
        description = (
            f"an array of {kind.__module__}.{kind.__qualname__}, as no view can be made of that class ({error})"
        )
        part = UnsharedPart(description, array.nbytes, "its parts as plain arrays")
        return Copied(part, array.__reduce_ex__(5) if _pickles_itself(kind) else _reduced_with_items(array))


def _reduced_around_view(array: NDArray[Any]) -> tuple[Any, ...]:
    """How to pickle the array as a view of its items. It raises where the class does not allow that."""
    kind = type(array)
    items = np.ndarray.view(array, np.ndarray)  # not by a method that the class may have replaced
    trial = items[...]
    trial.flags.writeable = False
    trial = np.ndarray.view(trial, kind)
    if _pickles_itself(kind):
        template, parts = _additions(array)
        _complete(trial, (copy.copy(template), parts))
        return np.ndarray.view, (items, kind), (template, parts), None, None, _complete
    state = _attributes_and_slots(array)
    _set_state(trial, state)
    return np.ndarray.view, (items, kind), state if any(state) else None, None, None, _set_state


def _reduced_with_items(array: NDArray[Any]) -> tuple[Any, ...]:
    """How NumPy pickles an array of a class that does not define it, with the attributes, which NumPy leaves out."""
    make, args, items = tuple(np.ndarray.__reduce__(array))
    return make, args, (items, *_attributes_and_slots(array)), None, None, _set_whole_state


class _Template:
    """Pickles an array of a subclass of ndarray in the way of its class, because `reduce_subclass` uses another."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._reduced = array.__reduce_ex__(5)

    def __reduce_ex__(self, _: Any) -> Any:
        return self._reduced


def _additions(array: NDArray[Any]) -> tuple[_Template, dict[str, Any]]:
    """An array without items as its class pickles it, and the attributes that the class pickles as they are.

    These are apart from it as some depend on the items, such as a mask. The array without items has what it was made
    with in their place.
    """
    template, own = _part(array if array.ndim else _part(array, np.newaxis), slice(0)), _attributes(array)
    if isinstance(array, np.ma.MaskedArray):  # which pickles its mask as bytes
        _attributes(template).update({**own, "_mask": np.ma.make_mask_none(template.shape, template.dtype)})
        return _Template(template), {name: own[name] for name in ("_mask", "_hardmask")}
    made = dict(_attributes(template))
    _attributes(template).update(own)
    pickled = set(map(id, parts_of(template.__reduce_ex__(5))))
    parts = {name: value for name, value in own.items() if id(value) in pickled}
    _attributes(template).update({name: made[name] for name in parts if name in made})
    return _Template(template), parts


def _part(array: NDArray[Any], key: Any) -> NDArray[Any]:
    """A part of an array, as NumPy takes it, or else as the class does."""
    try:
        part: NDArray[Any] = np.ndarray.__getitem__(array, key)
    except Exception:  # user classes may raise anything
        part = array[key]
    if type(part) is not type(array):
        raise TypeError(f"a part of it is of type {type(part).__name__}")
    return part


def parts_of(value: Any) -> Iterator[Any]:
    """What a class gives to pickle: in tuples, and in a dict of its attributes."""
    yield value
    if isinstance(value, tuple):
        for part in value:
            yield from parts_of(part)
    elif isinstance(value, dict):
        yield from value.values()


def _complete(array: NDArray[Any], state: tuple[Any, dict[str, Any]]) -> None:
    """Adds to a view of the items what the class has pickled of the array without items."""
    template, parts = state
    _attributes(array).update(parts)  # for classes that take from the template what the array does not have
    array.__array_finalize__(template)
    _attributes(array).update({**_attributes(template), **parts})


def _pickles_itself(kind: type[np.ndarray[Any, Any]]) -> bool:
    """Whether a subclass of ndarray defines how it is pickled. Masked arrays have all that they add in attributes."""
    base = np.ma.MaskedArray if issubclass(kind, np.ma.MaskedArray) else np.ndarray
    return any(getattr(kind, name, None) is not getattr(base, name, None) for name in _PICKLED_BY)


def _attributes(array: Any) -> dict[str, Any]:
    """The attributes that an array has of its own, to read and to set."""
    attributes: dict[str, Any] = getattr(array, "__dict__", {})
    return attributes


def _set_state(array: NDArray[Any], state: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Sets the attributes and the slots of an array whose class does not define how it is pickled."""
    attributes, slots = state
    _attributes(array).update(attributes)
    for name, value in slots.items():
        object.__setattr__(array, name, value)


def _attributes_and_slots(array: NDArray[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    names = [name for name in copyreg._slotnames(type(array)) if hasattr(array, name)]  # type: ignore[attr-defined]
    return _attributes(array), {name: getattr(array, name) for name in names}


def _set_whole_state(array: NDArray[Any], state: tuple[Any, dict[str, Any], dict[str, Any]]) -> None:
    items, *additions = state
    np.ndarray.__setstate__(array, items)
    _set_state(array, (additions[0], additions[1]))
