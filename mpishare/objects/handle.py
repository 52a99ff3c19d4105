"""handle: a small object that brings node-shared arrays to processes that are not ranks, as views of one memory."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from multiprocessing.context import get_spawning_popen
from threading import RLock
from typing import Any, Generic, TypeAlias, TypeVar
from weakref import WeakValueDictionary

from numpy.typing import NDArray

from mpishare.arrays.raw import Place, address_of, arrays_inside
from mpishare.arrays.spec import Spec
from mpishare.comm.context import warn_for_node
from mpishare.errors import SpecError
from mpishare.memory import processes
from mpishare.memory.processes import FilePart
from mpishare.memory.segment import Segment, segment_at
from mpishare.objects.packing import OWN_PLACE_BYTES
from mpishare.objects.pickling import PickledObject, lay_out, pickle_object, unpickle_object
from mpishare.objects.private import reason_of_copy
from mpishare.objects.unshared import LARGE_BYTES, UnsharedParts, describe
from mpishare.transfer.node_fill import fill

_T = TypeVar("_T")

_OWN = "they are not node-shared; share them before"
"""Why arrays of one rank are copied, and what to do."""

_View: TypeAlias = tuple[int, Place]
"""An array: the number of the part of a file, and the place in it."""


class Handle(Generic[_T]):
    """What `handle` returns. It can be pickled for processes of the same host and user."""

    _obj: _T

    def __init__(self, token: int, skeleton: bytes, views: Sequence[_View], parts: Sequence[FilePart]) -> None:
        """A handle of an object whose arrays lie in files.

        Args:
            token: A number that is the same in all processes.
            skeleton: See `PickledObject`.
            views: The arrays.
            parts: The parts of files that are mapped.
        """
        self._state = token, skeleton, views, parts
        self._pid = -1

    def get(self) -> _T:
        """The object; in other processes than the one that made the handle, around read-only views of its arrays.

        Returns:
            The same object each time.

        Raises:
            BackendError: This process cannot have the memory: it is on another host, belongs to another user or is in
                another container, or the memory is gone.
            SpecError: The object cannot be unpickled in this process.

        Collective:
            No, local. It needs no MPI.
        """
        if self._pid == os.getpid():
            return self._obj
        with _getting:
            if self._pid == os.getpid():  # by another thread, meanwhile
                return self._obj
            token, skeleton, views, parts = self._state
            blocks = [part.map(token) for part in parts]
            arrays = [place.view(blocks[number]) for number, place in views]
            self._obj = unpickle_object(PickledObject(skeleton, arrays))
            self._pid = os.getpid()
            return self._obj

    def __reduce__(self) -> Any:
        """Another process gets the parts. A process that is being started keeps the handle here until it has them."""
        if (popen := get_spawning_popen()) is not None:
            # Process.start drops its arguments before the child has read them. The child's object lives longer.
            vars(popen).setdefault("mpishare_handles", []).append(self)
        return _unpickled, self._state


_getting = RLock()
"""Held while an object is made, as another thread must get the same one. An object may have handles in it."""
os.register_at_fork(after_in_child=_getting._at_fork_reinit)  # type: ignore[attr-defined]

_handles: WeakValueDictionary[int, Handle[Any]] = WeakValueDictionary()
"""The handles that this process has made, by token, so that one that comes back is the same one."""


def _unpickled(token: int, *state: Any) -> Handle[Any]:
    return _handles.get(token) or Handle(token, *state)


def handle(obj: _T) -> Handle[_T]:
    """Makes a small object that brings an array to processes that are not ranks, such as workers of a pool.

    It can be pickled. In another process of this host and user, `get()` returns the object with read-only views of the
    same memory. So it does in a child that a rank has started by spawn, forkserver or fork, in a worker of
    multiprocessing, concurrent.futures, loky or a DataLoader, and in a child of these. In the process that made it,
    `get()` returns `obj` itself. It needs no MPI. A process that has such a handle is not a rank: it must not call
    mpishare's collectives.

    Keep the handle until all others have it: it holds the memory open for them. The memory lives as long as any process
    holds a handle. Nothing is left when all have ended.

    An array of `backend="memmap"` is not copied, nor is an array that is mapped where it lies (`load(map=True)`), while
    its rank keeps the file open: it does so for the newest 64 segments. Any other read-only array is moved into such a
    file, once on each node, where its rank's own views see it too. Small ones and arrays of this rank alone are copied.
    From 1 MiB on, a `RuntimeWarning` on the lowest rank of the node reports how many bytes were moved or copied.

    Args:
        obj: A node-shared array, a view of one, or an object with such arrays in it, such as a DataFrame or a dict.

    Returns:
        The handle. It takes one descriptor of a file for each node-shared segment in `obj`, and a second one for each
        that is moved.

    Raises:
        SpecError: `obj` cannot be pickled, or ranks may write to an array of it that is not in a file.
        CapacityError: There is no room for bytes that are moved or copied.
        BackendError: The kernel refuses the file, or is not Linux.

    Collective:
        No, local.

    Source:
        proc_pid_fd(5); memfd_create(2).

    Example:
        >>> import mpishare as ms, numpy as np, pickle
        >>> table = ms.share(np.arange(6.0), backend="memmap")
        >>> table_handle = ms.handle(table)
        >>> len(pickle.dumps(table_handle)) < 1024, table_handle.get() is table
        (True, True)
    """
    parts = UnsharedParts()
    pickled = pickle_object(obj, parts)
    if parts.parts:
        warn_for_node(f"handle(): {describe(parts.parts).replace('on each rank', 'in each process')}")
    token, files = int.from_bytes(os.urandom(7), "little"), _Files()
    made: Handle[_T] = Handle(token, bytes(pickled.skeleton), files.views_of(pickled.arrays), files.parts)
    for reason, nbytes in files.copied.items():
        if nbytes >= LARGE_BYTES:
            warn_for_node(f"handle(): {nbytes:,} bytes were copied into a nameless file: {reason}")
    made._obj, made._pid = obj, os.getpid()
    _handles[token] = made
    return made


class _Files:
    """The files of a handle, as they are found or made.

    Attributes:
        parts: The files, and their parts that are mapped.
        copied: How many bytes were moved or copied, by the reason.
    """

    def __init__(self) -> None:
        self.parts: list[FilePart] = []
        self.copied: Counter[str] = Counter()
        self._numbers: dict[Segment, int] = {}

    def views_of(self, arrays: Sequence[NDArray[Any]]) -> list[_View]:
        """The arrays as views of files."""
        views = [self._view_of(array) for array in arrays]
        copies = iter(self._copies([array for array, view in zip(arrays, views, strict=True) if view is None]))
        return [view or next(copies) for view in views]

    def _view_of(self, array: NDArray[Any]) -> _View | None:
        """The array in the file of its segment; None if it must be copied."""
        segment = segment_at(array)
        if segment is None or segment.key is None or not array.nbytes:
            self.copied[_OWN] += array.nbytes
            return None
        if segment not in self._numbers:
            slot, reason = segment.slot, reason_of_copy(segment.origin.backend)
            found = slot.memory.file(slot.write_address)
            if found is None and segment.writable:
                cure = f'{reason}. Make it with backend="memmap", or pass a copy.'
                raise SpecError(f"array of {segment.made_by}: other processes would not see what ranks write: {cure}")
            if found is None:
                self.copied[reason] += segment.nbytes if slot.owns_memory else array.nbytes
            if found is None and not slot.owns_memory:
                return None
            file, start = found or processes.move_into_file(segment)
            slot.retire()
            self._numbers[segment] = len(self.parts)
            self.parts.append(FilePart(file, slice(start, start + segment.nbytes)))
        return self._numbers[segment], Place.of(array, segment.address)

    def _copies(self, arrays: Sequence[NDArray[Any]]) -> list[_View]:
        """Copies of arrays in one new file."""
        if not arrays:
            return []
        specs, inside = [Spec.of(array) for array in arrays], arrays_inside(arrays)
        offsets, _, nbytes = lay_out(0, specs, inside, OWN_PLACE_BYTES)
        file = processes.new_file(nbytes or 1)  # no map can be empty
        block, views = processes.reserved_block(file, nbytes or 1), list[_View]()
        for number, (spec, start, array) in enumerate(zip(specs, offsets, arrays, strict=True)):
            part = block[start : start + spec.nbytes]
            if number not in inside:
                fill(part.data, spec, array)
            views.append((len(self.parts), Place.of(spec.view(part), address_of(block))))
        self.parts.append(FilePart(file, slice(0, block.nbytes)))
        return views
