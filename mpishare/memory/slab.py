"""Slots for small arrays: equal parts of larger memory (slabs), each used by one array after the other.

All ranks must know which slots are free, although each deletes its views when it likes, without a message. So each rank
counts the references to the segments of its slots, and the ranks combine what they find: a slot may be used again when
no rank has a view in it. They do so with the first agreement of a call when one slot is left that is known to be free;
when there is none, by an agreement for that alone, `SlotPool.update`. The ranks take free slots in the same order, so
that from there on each knows what the others take.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from mpishare.arrays.slices import LINE_BYTES, round_up
from mpishare.comm.agreement import PIGGYBACK_BYTES, any_rank
from mpishare.comm.context import Context
from mpishare.memory.kinds import NodeMemory
from mpishare.memory.mapping import Mapping

LARGEST_SLOT_BYTES = 2 << 20
"""A larger array has a segment of its own, whose pages become read-only and writable again each time it is used. Up to
this size that costs more than a copy: each small page that becomes writable again takes a page fault."""

_FIRST_SLAB_BYTES = 64 << 10
_LARGEST_SLAB_BYTES = 2 << 20
"""The first slab of a size is small. Each further one doubles the number of slots, up to this size."""

_MIN_SLOTS = 4
"""Slabs are added until there are so many slots of a size: with one slot the ranks count for each array, and many do
not stay in a core's cache. Measured on 2 nodes of 1, against 8 slots: 1 MiB 0.28 to 0.22 ms, 64 KiB the same time; with
1 slot 64 KiB take 1.5 times as long."""

_SLOTS_PER_FREE_SLOT = 4
"""A slab is added when fewer than one slot in so many is free, so that the ranks seldom count."""

_OWN_REFERENCES = 2
"""References to a segment without views, as `sys.getrefcount` counts them: from its pool, and from the count itself.

Source:
    numpy.ndarray.resize, which finds views by the same count.
"""

_Segment = TypeVar("_Segment")


@lru_cache(maxsize=1024)
def slot_bytes(nbytes: int) -> int:
    """The size of the slot for an array of `nbytes`: whole cache lines, at most 63 bytes or a quarter too large."""
    return round_up(nbytes, max(LINE_BYTES, 1 << max(nbytes - 1, 1).bit_length() >> 3))


@lru_cache(maxsize=1024)
def _unneeded(needed: bytes, count: int, known: int) -> list[int]:
    """The numbers from `count` - 1 down to 0 that are not set in `needed`, without `known`."""
    bits = int.from_bytes(needed, "little")
    return [number for number in range(count - 1, -1, -1) if not bits >> number & 1 and number != known]


class SlotPool(Generic[_Segment]):
    """The slots of one size over one communicator.

    Each has a segment, which is made with its first array and stays for the next ones: to make one and to note its end
    for each array took a seventh of `share` for 1 KiB.

    Attributes:
        free: The numbers of the slots that all ranks know to be free; the last one is taken next.
    """

    def __init__(self, slot_bytes: int, make: Callable[[Slot], _Segment]) -> None:
        """`make` makes the segment of a slot."""
        self._slot_bytes = slot_bytes
        self._make = make
        self._places: dict[int, tuple[Slab, int]] = {}  # slab and offset by slot number
        self._segments: dict[int, _Segment] = {}
        self._gone: list[int] = []  # slots that no other array gets
        self._count = 0  # of all slots that ever were
        self.free: list[int] = []

    def update(self, context: Context) -> None:
        """Sets `free` from what all ranks count. Collective over the communicator."""
        if self._count:
            needed = np.zeros(self._count, np.bool_)
            needed[self._used()] = True
            needed[self._gone] = True
            # The rule: a slot may be used again if no rank has a view in it.
            self.free = np.flatnonzero(~any_rank(context.collective_comm, needed))[::-1].tolist()

    @property
    def is_due(self) -> bool:
        """Whether the next agreement brings which slots are in use. It must not change whether any is known to be free.

        The root of a share fills the next slot before the ranks agree if it knows one, and the others must know the
        same after it.
        """
        return len(self.free) == 1 and self._count <= 8 * PIGGYBACK_BYTES

    def contribution(self) -> bytes:
        """Which slots this rank needs, as bits; see `comm.agreement.Piggyback`."""
        needed = 0
        for number in (*self._used(), *self._gone):
            needed |= 1 << number
        return needed.to_bytes(PIGGYBACK_BYTES, "little")

    def combine(self, result: bytes) -> None:
        """Adds the slots that no rank needs to `free`, behind the one that all know already."""
        self.free = [*_unneeded(result, self._count, self.free[0]), self.free[0]]

    def _used(self) -> list[int]:
        """The slots of which this rank has views."""
        segments = self._segments
        counts = map(sys.getrefcount, segments.values())  # in C, so that there is no reference of a local variable
        return [number for number, count in zip(segments, counts, strict=True) if count > _OWN_REFERENCES]

    def missing_bytes(self) -> int:
        """The size of the slab to add; 0 if enough slots are free."""
        count = len(self._places)
        if count >= _MIN_SLOTS and len(self.free) * _SLOTS_PER_FREE_SLOT >= count:
            return 0
        wanted = max(count, _FIRST_SLAB_BYTES // self._slot_bytes, 1)
        return min(wanted, _LARGEST_SLAB_BYTES // self._slot_bytes) * self._slot_bytes

    def add(self, node_memory: NodeMemory, nbytes: int) -> None:
        """Divides new memory of `nbytes` into slots."""
        slab = Slab.of(node_memory, nbytes, self._slot_bytes)
        first, count = self._count, nbytes // self._slot_bytes
        self._places |= {first + number: (slab, number * self._slot_bytes) for number in range(count)}
        self._count += count
        self.free = [*range(first + count - 1, first - 1, -1), *self.free]

    def release(self, context: Context) -> int:
        """Releases the slabs whose slots are all free; returns their bytes. Collective over the communicator."""
        self.update(context)
        free = set(self.free)
        used = {id(slab) for number, (slab, _) in self._places.items() if number not in free}
        released = [number for number, (slab, _) in self._places.items() if id(slab) not in used]
        for number in released:
            del self._places[number]
            self._segments.pop(number, None)
        self._gone += released
        self.free = [number for number in self.free if number in self._places]
        return len(released) * self._slot_bytes

    def retire(self) -> None:
        """No other array gets the slots that are in use now."""
        used = set(self._used())
        self._gone = [*self._gone, *used]
        self._segments = {number: segment for number, segment in list(self._segments.items()) if number not in used}

    def next_bytes(self, nbytes: int) -> memoryview:
        """The first `nbytes` of the slot that `acquire` will take, writable."""
        slab, offset = self._places[self.free[-1]]
        return slab.content[offset : offset + nbytes]

    def acquire(self) -> _Segment:
        """The segment of the next free slot."""
        number = self.free.pop()
        segment = self._segments.get(number)
        if segment is None:
            segment = self._segments[number] = self._make(Slot(*self._places[number]))
        return segment


class Slab(NamedTuple):
    """Memory for slots.

    Attributes:
        node_memory: The memory, writable.
        content: Its bytes.
        readable: The same pages read-only; the memory itself where they cannot be mapped again.
        slot_bytes: The size of a slot.
    """

    node_memory: NodeMemory
    content: memoryview
    readable: Mapping
    slot_bytes: int

    @classmethod
    def of(cls, node_memory: NodeMemory, nbytes: int, slot_bytes: int) -> Slab:
        """The first `nbytes` of `node_memory`. No error, as it would be one of this rank alone."""
        memory = node_memory.memory
        buffer = (ctypes.c_uint8 * nbytes).from_address(memory.address)
        buffer.memory = memory  # type: ignore[attr-defined]  # which is kept with every view of the bytes
        content = memoryview(buffer).cast("B")
        readable = memory.second_map()
        try:
            if readable is not None:
                readable.protect()
        except OSError:
            readable = None
        return cls(node_memory, content, readable or memory, slot_bytes)


class Slot:
    """A part of a slab, the memory of one array after the other.

    Attributes:
        address: Where the bytes begin in this process.
        node_memory: The memory of the slab.
    """

    __slots__ = ("_offset", "_slab", "address", "node_memory")

    def __init__(self, slab: Slab, offset: int) -> None:
        self._slab = slab
        self._offset = offset
        self.node_memory = slab.node_memory
        self.address = slab.node_memory.memory.address + offset

    def protect(self) -> None:
        """Moves `address` to the read-only map of the slab."""
        self.address = self._slab.readable.address + self._offset

    def name(self, made_by: str) -> None:
        """Notes which call made the array here; see `Mapping.name`."""
        if self.can_protect:
            self._slab.readable.name(made_by, offset=self._offset, slot_bytes=self._slab.slot_bytes)

    def unprotect(self) -> None:
        """Moves `address` to the writable map of the slab."""
        self.address = self.node_memory.memory.address + self._offset

    @property
    def can_protect(self) -> bool:
        """Whether the slab has a read-only map."""
        return self._slab.readable is not self._slab.node_memory.memory

    def copy_on_write(self) -> Mapping | None:
        """A private map of the slab, from the slot on."""
        mapping = self.node_memory.memory.copy_on_write()
        if mapping is not None:
            mapping.address += self._offset
        return mapping
