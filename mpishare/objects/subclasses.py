"""Arrays of subclasses of ndarray: a plain array of the items, and apart from it what their class adds.

What a class adds is what it pickles itself, but of an array without items, so that no item is pickled. A class that
does not define how it is pickled adds its attributes and slots.
"""

from __future__ import annotations

import copy
import copyreg
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.errors import SpecError

_PICKLED_BY = ("__reduce__", "__reduce_ex__", "__setstate__", "__getstate__")


def reduce_subclass(array: NDArray[Any]) -> tuple[Any, ...]:
    """How to pickle an array of a subclass of ndarray: as a view of a plain array, completed by what its class adds.

    The additions are state, so that what refers back to the array finds it.

    Raises:
        SpecError: The class cannot make or pickle an array without items, or then loses an attribute.

    Source:
        The NumPy user guide, "Subclassing ndarray": view casting, and new from template, for which a class defines
        `__array_finalize__`.
    """
    kind = type(array)
    items = np.ndarray.view(array, np.ndarray)  # not by a method that the class may have replaced
    if not _pickles_itself(kind):
        names = [name for name in copyreg._slotnames(kind) if hasattr(array, name)]  # type: ignore[attr-defined]
        state = _attributes(array), {name: getattr(array, name) for name in names}
        return np.ndarray.view, (items, kind), state if any(state) else None, None, None, _set_state
    try:
        template, parts = _Template(_without_items(array)), _mask_attributes(array)
        _check_template(array, template)
    except Exception as error:  # user classes may raise anything
        name = f"{kind.__module__}.{kind.__qualname__}"
        cure = "Use numpy.asarray(…) of it, or its parts."
        raise SpecError(f"{name} cannot be shared: it cannot be pickled without items: {error}. {cure}") from error
    return np.ndarray.view, (items, kind), (template, parts), None, None, _complete


class _Template:
    """Pickles an array of a subclass of ndarray in the way of its class, for `reduce_subclass` does it in another."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._reduced = array.__reduce_ex__(5)
        if not isinstance(self._reduced, tuple):
            raise TypeError(f"its __reduce_ex__ returns {self._reduced!r}, not a tuple")

    def __reduce_ex__(self, _: Any) -> Any:
        return self._reduced


def _without_items(array: NDArray[Any]) -> NDArray[Any]:
    """An array of the same class and with the same attributes, but without items."""
    rows = array if array.ndim else np.ndarray.reshape(array, 1)
    template: NDArray[Any] = np.ndarray.__getitem__(rows, slice(0))  # the class copies what it adds, slots as well
    _set_attributes(template, _attributes(array))
    if isinstance(template, np.ma.MaskedArray):
        _set_attributes(template, {"_mask": np.ma.make_mask_none(template.shape, template.dtype)})
    return template


def _check_template(array: NDArray[Any], template: _Template) -> None:
    """Raises ValueError if an attribute that the class pickles is lost for want of items.

    The class makes what it has pickled again, around the same attributes. Only if one of them differs then, it does so
    with all items too, a copy: what differs there as well is not for want of items.
    """
    attributes = {} if isinstance(array, np.ma.MaskedArray) else _attributes(array)
    received = _attributes(copy.copy(template)) if attributes else {}
    lost = [name for name, value in attributes.items() if _differ(received.get(name), value)]
    pickled = set(map(id, _parts(template.__reduce_ex__(5)))) if lost else ()
    lost = [name for name in lost if id(attributes[name]) in pickled]
    whole = _attributes(copy.copy(_Template(array))) if lost else {}
    lost = [name for name in lost if _differ(received.get(name), whole.get(name))]
    if lost:
        raise ValueError(f"its class would lose or change the attributes {', '.join(lost)}")


def _parts(value: Any) -> Iterator[Any]:
    """What a class gives to pickle: in tuples, and in a dict of its attributes."""
    yield value
    if isinstance(value, tuple):
        for part in value:
            yield from _parts(part)
    elif isinstance(value, dict):
        yield from value.values()


def _differ(value: Any, other: Any) -> bool:
    """Whether two attributes certainly differ."""
    if value is other or type(value) is not type(other):
        return value is not other
    if type(value).__eq__ is object.__eq__:  # type: ignore[comparison-overlap]
        return False
    try:
        return not np.array_equal(value, other) if isinstance(value, np.ndarray) else value != other
    except Exception:  # user classes may raise anything
        return False


def _mask_attributes(array: NDArray[Any]) -> dict[str, Any]:
    """Attributes that a class pickles as bytes, or not at all, and that NumPy does not derive from the items."""
    names = ("_mask", "_hardmask") if isinstance(array, np.ma.MaskedArray) else ()
    return {name: _attributes(array)[name] for name in names}


def _complete(array: NDArray[Any], state: tuple[NDArray[Any], dict[str, Any]]) -> None:
    """Adds to a view of the items what the class has pickled of the array without items."""
    template, parts = state
    array.__array_finalize__(template)
    _set_attributes(array, {**_attributes(template), **parts})


def _pickles_itself(kind: type[np.ndarray[Any, Any]]) -> bool:
    """Whether a subclass of ndarray defines how it is pickled. Masked arrays have all that they add in attributes."""
    base = np.ma.MaskedArray if issubclass(kind, np.ma.MaskedArray) else np.ndarray
    return any(getattr(kind, name, None) is not getattr(base, name, None) for name in _PICKLED_BY)


def _attributes(array: Any) -> dict[str, Any]:
    attributes: dict[str, Any] = getattr(array, "__dict__", {})
    return attributes


def _set_state(array: NDArray[Any], state: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Sets the attributes and the slots of an array whose class does not define how it is pickled."""
    attributes, slots = state
    _set_attributes(array, attributes)
    for name, value in slots.items():
        object.__setattr__(array, name, value)


def _set_attributes(array: NDArray[Any], attributes: dict[str, Any]) -> None:
    _attributes(array).update(attributes)
