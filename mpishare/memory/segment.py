"""A segment: the bytes of one array in the memory of this node, as the base of all its views."""

from __future__ import annotations

import os
from bisect import bisect_right
from functools import lru_cache
from threading import RLock
from typing import Any, cast
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.raw import Block, address_of
from mpishare.arrays.spec import Spec
from mpishare.comm.callsite import Place, place_of_call
from mpishare.errors import BackendError
from mpishare.memory.mapping import Origin
from mpishare.memory.pool import Slot, named, used_slots


@lru_cache
def _of_bytes(nbytes: int) -> Spec:
    return Spec(np.dtype(np.uint8), (nbytes,))


_PLACED_BYTES = 64 << 10
"""From this size on it is noted where an array was made: that takes 1 us, a tenth of what it takes to share 1 KiB."""

_OWN_FRAMES = 3
"""Where to look for the user's call: a segment is made by a function that a function of this package has called."""


class Segment:
    """The bytes of one array in a slot, as this rank sees them.

    It is the `base` of every view of them. So NumPy keeps it, and with it the slot, as long as there is a view.

    Attributes:
        nbytes: Bytes that the ranks of the node share.
        key: A number that differs between arrays and is the same on all ranks of the call that made it; None for
            memory of this rank alone.
        made_by: The public call that made it, for reports.
        place: Where the user made that call; None of a small array.
        spec: What the last view was made of; None before the first.
        slot: Where the bytes are.
        writable: Whether this rank may write.
        copied_bytes: What each rank holds for itself of the object whose arrays these bytes are; 0 for an array.
        rows_per_node: Of an array that is split over nodes, the number of rows on each of them; else empty.
        row_bytes: The bytes of each of these rows.
        unviewed_bytes: How many of the bytes no array is a view of, such as the pickle of the object; 0 for an array.
    """

    writable = True
    copied_bytes = 0
    unviewed_bytes = 0
    rows_per_node: tuple[int, ...] = ()
    row_bytes = 0
    place: Place | None = None
    spec: Spec | None = None
    _keeps: object = None

    def __init__(self, slot: Slot, nbytes: int, key: int | None, made_by: str) -> None:
        """Puts `slot` to use."""
        self.nbytes = nbytes
        self.key = key
        self.made_by = made_by
        self.slot = slot
        if nbytes >= _PLACED_BYTES:
            self.place = place_of_call(_OWN_FRAMES)
        slot.begin(self)
        _table[_NEWEST] = object()

    @property
    def origin(self) -> Origin:
        """Where the memory comes from."""
        return self.slot.origin

    @property
    def address(self) -> int:
        """Where the bytes begin."""
        return self.slot.write_address if self.writable else self.slot.read_address

    def block(self) -> Block:
        """A view of the bytes, shape (nbytes,), writable until `seal`."""
        spec, block = self.spec, self.view(_of_bytes(self.nbytes))
        self.spec = spec
        return block

    def view(self, spec: Spec, at: int = 0) -> NDArray[Any]:
        """The array that begins at byte `at`, writable until `seal`.

        Source:
            The NumPy reference, "The array interface protocol", version 3.
        """
        self.spec = spec
        if not spec.typestr or spec.order == "F":
            return spec.view(self.block()[at:])
        slot = self.slot
        data = (slot.write_address + at, False) if self.writable else (slot.read_address + at, True)
        with _viewing:
            self.__array_interface__ = {"data": data, "shape": spec.shape, "typestr": spec.typestr, "version": 3}
            return np.asarray(self)

    def seal(self, *, is_final: bool = True) -> None:
        """Makes every view from now on one of read-only pages. Earlier ones stay writable.

        Args:
            is_final: Whether no rank writes to the bytes from now on, which all ranks that have the key see alike.

        Raises:
            BackendError: The kernel cannot protect the pages.
        """
        slot = self.slot
        if slot.readable is None:
            try:
                slot.make_readable()
            except OSError as error:
                raise BackendError(f"pages of {self.origin.backend} cannot be made read-only: {error}") from error
            _table[_NEWEST] = object()
        self.writable = False
        if is_final and self.key is not None:
            slot.key = self.key
            named[self.key] = slot

    def private(self) -> Segment | None:
        """The same bytes as copy-on-write memory of this rank; None where the kernel has none."""
        memory = self.slot.copy_on_write()
        if memory is None:
            return None
        segment = Segment(Slot(memory, Origin("private", node_size=1), self.nbytes), self.nbytes, None, "private")
        segment._keeps = self  # keeps the shared segment alive: unchanged pages are its pages
        return segment


_viewing = RLock()
"""Held until NumPy has read what a segment says of a view, as another thread may make another view of it."""
os.register_at_fork(after_in_child=_viewing._at_fork_reinit)  # type: ignore[attr-defined]

_SORTED, _NEWEST = range(2)

_table: dict[int, Any] = {_SORTED: (None, [], []), _NEWEST: object()}
"""The addresses of all segments in rising order, and references to the segments, with what `_NEWEST` was before. There
is another object with each new segment or address. Nothing else is compared, as threads make segments at any time."""


def segment_of(array: NDArray[Any]) -> Segment | None:
    """The segment that holds the bytes of `array`; None for other memory."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base if isinstance(base, Segment) else None


def segment_at(array: NDArray[Any]) -> Segment | None:
    """The segment that holds the bytes of `array`, also of one that another library made, such as one of a tensor."""
    base: object = array
    while isinstance(base, np.ndarray):
        owner, base = base, base.base
    if isinstance(base, Segment) or owner.flags.owndata:
        return base if isinstance(base, Segment) else None
    newest, starts, segments = _table[_SORTED]
    if newest is not _table[_NEWEST]:
        starts, segments = _sorted_table()
    address = address_of(array)
    number = bisect_right(starts, address) - 1
    found = cast("Segment | None", segments[number]()) if number >= 0 else None
    return found if found is not None and address - starts[number] < found.nbytes else None


def _sorted_table() -> tuple[list[int], list[ref[object]]]:
    """Makes the table, which is kept until there is another segment."""
    newest = _table[_NEWEST]
    rows = {address: slot.lease for _, slot in used_slots() for address in (slot.write_address, slot.read_address)}
    starts = sorted(rows)
    segments = [rows[address] for address in starts]
    _table[_SORTED] = newest, starts, segments
    return starts, segments


def live_segments() -> list[Segment]:
    """The segments that this process views."""
    return [cast("Segment", segment) for segment, _ in used_slots()]
