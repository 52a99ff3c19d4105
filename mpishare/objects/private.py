"""An array or an object once more, around copy-on-write views of its node-shared arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from mpishare.arrays.raw import Place, address_of, arrays_inside, bytes_of
from mpishare.arrays.spec import PLAIN_CLASSES, describe
from mpishare.comm.context import warn_for_node
from mpishare.errors import SpecError
from mpishare.memory.mapping import MAX_KEPT
from mpishare.memory.segment import Segment, segment_at
from mpishare.objects.pickling import PickledObject, pickle_object, unpickle_object


def make_private(obj: Any, *, needs_shared: bool = True) -> Any:
    """`obj` with changes of its own. Local.

    Raises:
        SpecError: It has no array in node-shared memory, unless not `needs_shared`: then its arrays are copied.
    """
    if type(obj) in PLAIN_CLASSES:
        return _private_views(obj, [obj], needs_shared)[0]
    pickled = pickle_object(obj)
    return unpickle_object(PickledObject(pickled.skeleton, _private_views(obj, pickled.arrays, needs_shared)))


def _private_views(obj: Any, arrays: Sequence[NDArray[Any]], needs_shared: bool) -> list[NDArray[Any]]:
    """Copy-on-write views of node-shared arrays, where the kernel has them; copies of other arrays."""
    segments = [segment_at(array) for array in arrays]
    shared = {id(segment): segment for segment in segments if segment is not None and segment.key is not None}
    if needs_shared and not shared:
        raise _not_shared(obj, segments)
    twins = {number: segment.private() for number, segment in shared.items()}
    views, copied, inside = list(arrays), Counter[str](), arrays_inside(arrays)
    for number, (array, segment) in enumerate(zip(arrays, segments, strict=True)):
        twin = twins.get(id(segment))
        if segment is not None and twin is not None and array.nbytes:
            views[number] = Place.of(array, segment.address).view(twin.block())
        elif number not in inside:
            views[number] = array.copy(order="K")
            if segment is not None and id(segment) in shared:
                copied[segment.origin.backend] += array.nbytes
    for number, (outer, _) in inside.items():  # bytes of an array that was copied whole
        if views[number] is arrays[number]:
            views[number] = Place.of(arrays[number], address_of(arrays[outer])).view(bytes_of(views[outer]))
    for backend, nbytes in copied.items():
        if nbytes:
            warn_for_node(f"private(): {nbytes:,} bytes were copied: {reason_of_copy(backend)}")
    return views


def reason_of_copy(backend: str) -> str:
    """Why memory of a backend is copied where a descriptor of its file is needed, and what to do."""
    if backend.startswith(("memmap", "mapped")):
        return f"the file of this array is closed, as a rank keeps only the newest {MAX_KEPT} open"
    return f'memory of backend {backend!r} cannot be mapped again; memory of backend="memmap" can'


def _not_shared(obj: Any, segments: Sequence[Segment | None]) -> SpecError:
    given = f"array is {describe(obj)}, which"
    if any(segments):
        return SpecError(f"{given} is private to this rank already. Use array.copy() for another.")
    return SpecError(
        f"{given} cannot be traced to node-shared memory. Pass one from share, load, empty, zeros or full."
    )
