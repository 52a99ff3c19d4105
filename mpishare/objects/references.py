"""References: what the ranks hold in node memory already is named in a pickle, and neither sent nor stored again."""

# Theory of operation: what a reference names, and why it never dangles and never finds another array.
#
# A pickle of ours is read by all ranks of a call, or by one. A reference in it stands for an array in node memory, or
# for an object that `share` returned. It is the key of the segment, and of an array its place in that.
#
# The rules:
# 1. A key names bytes, not memory. All ranks of the call that makes an array draw the same key, and no other array of
#    the job gets it (`memory.allocation`), also where it gets the same slot. A rank finds its segment by the key as
#    long as it has a view of it, and only if nobody writes to the bytes any more (`Segment.seal`).
# 2. A rank that pickles refers to each array whose segment has such a key. It does not know who else has the array. It
#    holds the array until the call has ended, as it holds what it has pickled.
# 3. A rank that unpickles first takes all that the pickle refers to (`Referring.hold`): the segments and the objects,
#    on its own node. Then it says what it lacks: in an agreement, or to the rank that sent results or a single call.
#    Only if nobody lacks anything are classes of users called to make the object.
# 4. If a rank lacks something, all make the call once more, without references to that or to what was lacking before.
#    Something else may be lacking then, such as an array of an object that was referred to. Each time it is more that
#    is not referred to, so that this ends.
# 5. An object that `share` returned is referred to where the rank that pickles has not bound one of its attributes
#    anew. The others use their own. An object that is itself passed to `share` is pickled: so its changes reach all.
#
# Why this suffices: by 3 a reference is resolved to what this rank holds itself, so that nothing can dangle; there is
# no message that says who has what, and no count of views, to come too late. By 1 what it finds has the same bytes
# on all ranks. So it does not matter how a rank came to the array, over which communicator, whether that was freed,
# which placement or backend the nodes have, or what a rank dropped: it has the array, or it travels as bytes. Whoever
# has it by a handle, as memory of its own (`private`), or as an array that ranks may write to, has no key of it.
#
# Why no digest of the keys that each rank has, in the first agreement of each call: a rank may drop an array between
# that agreement and the pickle that refers to it, as where it is part of a cycle which Python collects at any time. And
# where the ranks hold different arrays, as most programs do, the digests differ although each has what is referred to.
# The agreement of rule 3 is made only in calls that have references.
#
# What would break it: a key that is used again; to name memory that is written after it was sealed; a class of a user
# that is called before the agreement of rule 3, as it may make calls of its own, which ranks that lack something would
# not come to; to unpickle a part on its own, such as an item of a map, that refers to what nobody has taken.
#
# The weakest point: rule 5. A change deep within a shared object, such as of an item of a list in it, is not seen, and
# stays that rank's own. And files that are mapped on each node (`load`) are taken to have the same contents.

from __future__ import annotations

import pickle
from copyreg import _slotnames  # type: ignore[attr-defined]
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakValueDictionary, ref

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.raw import Place
from mpishare.comm.agreement import PAYLOAD_BYTES
from mpishare.memory.pool import segment_with
from mpishare.memory.segment import Segment, segment_at
from mpishare.objects.pickling import PickledObject, pickle_object, unpickle_object
from mpishare.objects.unshared import UnsharedParts

_IS_HEAP_TYPE = 1 << 9
"""Py_TPFLAGS_HEAPTYPE, the flag of classes that are defined in Python, and of some others."""

_PICKLING = {
    name: getattr(object, name, None)
    for name in ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__")
}
"""The methods by which a class says how it is pickled, as Python has them for all classes."""

_BITS = PAYLOAD_BYTES * 8
"""What is lacking has a bit each. With more references, some are left out that nobody lacks."""


@dataclass
class Referring:
    """What a pickle that refers is pickled to once more. `unpickle` makes the object, after `hold`.

    Attributes:
        skeleton: That of the object.
        parts: Its arrays; in the place of an array that is referred to, the key of its segment and its place.
        numbers: The keys of the objects that the skeleton refers to.
    """

    skeleton: bytes
    parts: list[Any]
    numbers: list[int]

    @property
    def names(self) -> list[int]:
        """What is referred to, each once: the keys of segments, and those of objects with a minus."""
        keys = [part[0] for part in self.parts if type(part) is tuple]
        return [*dict.fromkeys(keys), *(-number for number in self.numbers)]

    def hold(self) -> bytes:
        """Takes what is referred to. Returns what this rank lacks, as the payload of an agreement."""
        self._held = {name: segment_with(name) if name > 0 else _objects.get(-name) for name in self.names}
        lacking = [number % _BITS for number, held in enumerate(self._held.values()) if held is None]
        return sum(1 << bit for bit in set(lacking)).to_bytes(PAYLOAD_BYTES, "little")

    def unpickle(self) -> Any:
        """The object.

        Raises:
            SpecError: See `unpickle_object`.
        """
        blocks = {name: held.block() for name, held in self._held.items() if isinstance(held, Segment) and name > 0}
        arrays = [part[1].view(blocks[part[0]]) if type(part) is tuple else part for part in self.parts]
        return unpickle_object(PickledObject(self.skeleton, arrays))


def resolved(obj: Any) -> Any:
    """An object of another rank, made if it came as a `Referring`; None if this rank lacks what that refers to."""
    if not isinstance(obj, Referring):
        return obj
    return None if any(obj.hold()) else obj.unpickle()


def named_by(names: list[int], lacking: bytes) -> frozenset[int]:
    """Those of `names` that some rank lacks; see `Referring`."""
    bits = int.from_bytes(lacking, "little")
    return frozenset(name for number, name in enumerate(names) if bits >> number % _BITS & 1)


def pickle_referring(
    obj: object,
    unshared: UnsharedParts | None = None,
    excluded: frozenset[int] = frozenset(),
    *,
    names_objects: bool = True,
) -> tuple[PickledObject, list[int]]:
    """Pickles an object apart from its arrays, with references where this rank has names for its parts.

    Args:
        obj: Any object that can be pickled.
        unshared: See `pickle_object`.
        excluded: Names that are not to be used.
        names_objects: Whether to refer to objects, too. Not in results, which are the state that a task has left.

    Returns:
        The pickle, which may be that of a `Referring`, and the names that it uses.

    Raises:
        SpecError: See `pickle_object`.
    """
    numbers: dict[int, None] = {}

    def reduce(part: Any) -> Any:
        number = None if part is obj else _number_of(part)
        if number is None or -number in excluded:
            return NotImplemented
        numbers[number] = None
        return _object_with, (number,)

    pickled = pickle_object(obj, unshared, reduce if names_objects else None)
    parts = [_part_of(array, excluded) for array in pickled.arrays]
    if not numbers and tuple not in map(type, parts):
        return pickled, []
    arrays = [part for part in parts if type(part) is not tuple]
    # A buffer in the place of each of these, writable so that pickle puts the array itself there, and no view of it.
    places = [part if type(part) is tuple else pickle.PickleBuffer(bytearray()) for part in parts]
    referring = Referring(bytes(pickled.skeleton), places, list(numbers))
    return PickledObject(pickle.dumps(referring, protocol=5, buffer_callback=lambda _: None), arrays), referring.names


def segment_to_name(array: NDArray[Any]) -> Segment | None:
    """The segment of an array that can be referred to; None of one that travels as bytes."""
    segment = segment_at(array) if array.nbytes else None
    is_named = segment is not None and segment.key is not None and segment_with(segment.key) is segment
    return segment if is_named else None


def _part_of(array: NDArray[Any], excluded: frozenset[int]) -> Any:
    """What stands for an array in `Referring.parts`."""
    segment = segment_to_name(array)
    return array if segment is None or segment.key in excluded else (segment.key, Place.of(array, segment.address))


class _Shared(NamedTuple):
    """An object that `share` returned.

    Attributes:
        obj: A reference to it.
        kind: Its class.
        key: That of the segment with its arrays, by which all ranks know it.
        attributes: What its attributes were: a reference, or the value itself where there can be none.
    """

    obj: ref[Any]
    kind: type
    key: int
    attributes: dict[str, Any]


_shared: dict[int, _Shared] = {}
"""By id."""

_objects: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""The same objects, by key."""


def note_shared(obj: Any, key: int) -> None:
    """Notes an object that `share` has returned with this key on all ranks, if its state is in its attributes."""
    if not _has_attributes_only(obj):
        return
    attributes = {name: _reference(value) for name, value in vars(obj).items()}
    # What allows no weak reference is kept itself. If that led to the object, both would stay for ever.
    if all(type(kept) is ref or _is_closed(kept) for kept in attributes.values()):
        _shared[id(obj)] = _Shared(ref(obj, partial(_forget, id(obj))), type(obj), key, attributes)
        _objects[key] = obj


def _forget(number: int, _: object) -> None:
    _shared.pop(number, None)


def _has_attributes_only(obj: Any) -> bool:
    """Whether an object is of a Python class that leaves pickling to Python, and has its state in `__dict__` alone."""
    kind = type(obj)
    builtin = next(base for base in kind.__mro__ if not base.__flags__ & _IS_HEAP_TYPE)
    is_plain = builtin is object and all(getattr(kind, name, None) is method for name, method in _PICKLING.items())
    return is_plain and hasattr(obj, "__dict__") and hasattr(obj, "__weakref__") and not _slotnames(kind)


_ATOMS = frozenset({bool, int, float, complex, str, bytes, type(None)})
"""Classes of values that lead to no other object."""


def _is_closed(value: Any, depth: int = 4) -> bool:
    """Whether a value is made of numbers, texts and arrays alone, and so leads to no object that may have it."""
    if type(value) in _ATOMS or isinstance(value, np.generic):
        return True
    if type(value) is np.ndarray:
        return not value.dtype.hasobject
    if type(value) not in (dict, list, tuple, set, frozenset):
        return False
    parts = [*value, *value.values()] if type(value) is dict else value
    return {*map(type, parts)} <= _ATOMS or (depth > 0 and all(_is_closed(part, depth - 1) for part in parts))


def _reference(value: Any) -> Any:
    """A reference to a value, so that it may be freed; the value itself where there can be none, such as a number."""
    try:
        return ref(value)
    except TypeError:
        return value


def _number_of(obj: Any) -> int | None:
    """The key of an object that `share` returned, with the attributes that it had; None of any other."""
    shared = _shared.get(id(obj))
    if shared is None or shared.obj() is not obj or type(obj) is not shared.kind:
        return None
    attributes = vars(obj)
    is_same = attributes.keys() == shared.attributes.keys() and all(
        attributes[name] is old or (type(old) is ref and attributes[name] is not None and old() is attributes[name])
        for name, old in shared.attributes.items()
    )
    return shared.key if is_same else None


def _object_with(key: int) -> Any:
    """This rank's object of that key, which `Referring.hold` has taken."""
    return _objects[key]
