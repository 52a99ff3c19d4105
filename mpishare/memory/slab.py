"""Slots for small arrays: equal parts of larger memory (slabs), each used by one array after the other.

All ranks must know which slots are free, although each deletes its views when it likes, without a message. So a rank
only notes the slots whose views it has deleted. When no slot is known to be free, `SlotPool.update` combines the notes:
a slot may be used again when no rank needs it. The ranks take free slots in the same order, so that from there on each
knows what the others take.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from mpishare.arrays.slices import round_up
from mpishare.comm.agreement import any_rank
from mpishare.comm.context import Context
from mpishare.memory.kinds import NodeMemory
from mpishare.memory.mapping import Mapping

LARGEST_SLOT_BYTES = 2 << 20
"""A larger array has a segment of its own, whose pages become read-only and writable again each time it is used. Up to
this size that costs more than a copy: each small page that becomes writable again takes a page fault."""

_CACHE_LINE_BYTES = 64
_FIRST_SLAB_BYTES = 64 << 10
_LARGEST_SLAB_BYTES = 2 << 20
"""The first slab of a size is small. Each further one doubles the number of slots, up to this size."""

_MIN_SLOTS = 8
"""Slabs are added until there are so many slots of a size: with one slot the notes are combined for each array."""

_SLOTS_PER_FREE_SLOT = 4
"""A slab is added when fewer than one slot in so many is free, so that notes are seldom combined."""


@lru_cache(maxsize=1024)
def slot_bytes(nbytes: int) -> int:
    """The size of the slot for an array of `nbytes`: whole cache lines, at most 63 bytes or a quarter too large."""
    return round_up(nbytes, max(_CACHE_LINE_BYTES, 1 << max(nbytes - 1, 1).bit_length() >> 3))


class SlotPool:
    """The slots of one size over one communicator.

    Attributes:
        free: The numbers of the slots that all ranks know to be free; the last one is taken next.
    """

    def __init__(self, slot_bytes: int) -> None:
        self._slot_bytes = slot_bytes
        self._places: dict[int, tuple[Slab, int]] = {}  # slab and offset by slot number
        self._dropped = bytearray()  # by slot number; 1 where this rank has no view
        self.free: list[int] = []

    def update(self, context: Context) -> None:
        """Sets `free` from the notes of all ranks. Collective over the communicator."""
        if self._dropped:
            # The rule: a slot may be used again if no rank has a view in it.
            is_needed = any_rank(context.collective_comm, np.frombuffer(bytes(self._dropped), np.uint8) == 0)
            self.free = np.flatnonzero(~is_needed)[::-1].tolist()

    def missing_bytes(self) -> int:
        """The size of the slab to add; 0 if enough slots are free."""
        count = len(self._places)
        if count >= _MIN_SLOTS and len(self.free) * _SLOTS_PER_FREE_SLOT >= count:
            return 0
        wanted = max(count, _FIRST_SLAB_BYTES // self._slot_bytes, 1)
        return min(wanted, _LARGEST_SLAB_BYTES // self._slot_bytes) * self._slot_bytes

    def add(self, node_memory: NodeMemory, nbytes: int) -> None:
        """Divides new memory of `nbytes` into slots."""
        slab, first, count = Slab.of(node_memory, nbytes), len(self._dropped), nbytes // self._slot_bytes
        self._places |= {first + number: (slab, number * self._slot_bytes) for number in range(count)}
        self._dropped.extend(b"\1" * count)
        self.free = [*range(first + count - 1, first - 1, -1), *self.free]

    def release(self, context: Context) -> int:
        """Releases the slabs whose slots are all free; returns their bytes. Collective over the communicator."""
        self.update(context)
        free = set(self.free)
        used = {id(slab) for number, (slab, _) in self._places.items() if number not in free}
        released = [number for number, (slab, _) in self._places.items() if id(slab) not in used]
        for number in released:
            del self._places[number]
            self._dropped[number] = 0
        self.free = [number for number in self.free if number in self._places]
        return len(released) * self._slot_bytes

    def retire(self) -> None:
        """No other array gets the slots that are in use now: they note in the old bytearray that they are dropped."""
        self._dropped = bytearray(self._dropped)

    def next_bytes(self, nbytes: int) -> memoryview:
        """The first `nbytes` of the slot that `acquire` will return, writable."""
        slab, offset = self._places[self.free[-1]]
        return slab.content[offset : offset + nbytes]

    def acquire(self) -> Slot:
        """The next free slot."""
        number = self.free.pop()
        self._dropped[number] = 0
        slab, offset = self._places[number]
        return Slot(slab, offset, self._dropped, number)


class Slab(NamedTuple):
    """Memory for slots.

    Attributes:
        node_memory: The memory, writable.
        content: Its bytes.
        readable: The same pages read-only; the memory itself where they cannot be mapped again.
    """

    node_memory: NodeMemory
    content: memoryview
    readable: Mapping

    @classmethod
    def of(cls, node_memory: NodeMemory, nbytes: int) -> Slab:
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
        return cls(node_memory, content, readable or memory)


class Slot:
    """A part of a slab, in use by one array.

    Attributes:
        address: Where the bytes begin in this process.
        node_memory: The memory of the slab.
    """

    __slots__ = ("_dropped", "_number", "_offset", "_slab", "address", "node_memory")

    def __init__(self, slab: Slab, offset: int, dropped: bytearray, number: int) -> None:
        self._slab = slab
        self._offset = offset
        self._dropped = dropped
        self._number = number
        self.node_memory = slab.node_memory
        self.address = slab.node_memory.memory.address + offset

    def __del__(self) -> None:
        self._dropped[self._number] = 1

    def protect(self) -> None:
        """Moves `address` to the read-only map of the slab."""
        self.address = self._slab.readable.address + self._offset

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
