"""Slots for small arrays: parts of one size of larger memory, each lent to one array after the other.

What is free must be known alike on all ranks, although each drops its views when it likes and tells nobody. A rank only
notes what it has dropped. When no slot is left that is known to be free, the ranks put their notes together, and what
all have dropped is free. They take slots in the same order, so from there on each knows what the others take.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from mpishare.arrays.slices import round_up
from mpishare.comm.agreement import any_rank
from mpishare.comm.context import Context
from mpishare.memory.kinds import Backing, Memory
from mpishare.memory.selection import Obtained

LARGEST_SLOT_BYTES = 2 << 20
"""A larger array has a segment of its own, whose pages become read-only and writable again each time it is used. Up to
this size that costs more than a copy: each small page that becomes writable again takes a page fault."""

_CACHE_LINE_BYTES = 64

_SLAB_BYTES = 2 << 20
"""The largest slab. Slots of a size begin with a small one and double until slabs are so large."""
_FIRST_SLAB_BYTES = 64 << 10
_SPARE = 4
"""A slab is added when fewer than one slot in so many is free, so that notes are put together seldom."""


@lru_cache(maxsize=1024)
def slot_bytes(nbytes: int) -> int:
    """The size of the slot for an array of `nbytes`: whole cache lines, at most 63 bytes or a quarter too large."""
    return round_up(nbytes, max(_CACHE_LINE_BYTES, 1 << max(nbytes - 1, 1).bit_length() >> 3))


class Slab:
    """The slots of one size over one communicator.

    Attributes:
        free: The numbers of those that all ranks know to be free, the next to take last.
    """

    def __init__(self, slot_bytes: int) -> None:
        self._slot_bytes = slot_bytes
        self._places: list[tuple[_Slab, int] | None] = []  # None where a slab was given back
        self._dropped = bytearray()  # for each slot 1 where this rank has no view in it
        self._retired: set[int] = set()
        self.free: list[int] = []

    def look(self, context: Context) -> int:
        """Finds the free slots; the bytes of a slab to add, 0 where enough are free. Collective over all ranks."""
        self._find(context)
        total = sum(place is not None for place in self._places)
        if total and len(self.free) * _SPARE >= total:
            return 0
        wanted = max(total, _FIRST_SLAB_BYTES // self._slot_bytes, 1)
        return min(wanted, _SLAB_BYTES // self._slot_bytes) * self._slot_bytes

    def _find(self, context: Context) -> None:
        """Puts the notes of all ranks together."""
        if self._places:
            needed = np.frombuffer(bytes(self._dropped), np.uint8) == 0
            needed[list(self._retired)] = True
            self.free = np.flatnonzero(~any_rank(context.collective_comm, needed))[::-1].tolist()

    def give_back(self, context: Context) -> int:
        """Gives those slabs to the system in which all slots are free; their bytes. Collective over all ranks."""
        self._find(context)
        free = set(self.free)
        numbers: dict[int, list[int]] = {}
        for number, place in enumerate(self._places):
            if place is not None:
                numbers.setdefault(id(place[0]), []).append(number)
        given = [number for slab in numbers.values() if free.issuperset(slab) for number in slab]
        for number in given:
            self._places[number] = None
            self._dropped[number] = 0
        self.free = [number for number in self.free if self._places[number] is not None]
        return len(given) * self._slot_bytes

    def add(self, obtained: Obtained, nbytes: int) -> None:
        """Cuts new memory into slots."""
        readable = _readable(obtained.memory)
        at = obtained.memory.address
        readable_at = at if readable is None else readable.address
        slab = _Slab(obtained, readable, at, readable_at, _content(obtained.memory, nbytes))
        first, last = len(self._places), len(self._places) + nbytes // self._slot_bytes
        self._places += [(slab, (number - first) * self._slot_bytes) for number in range(first, last)]
        self._dropped.extend(bytes([1]) * (last - first))
        self.free = [*range(last - 1, first - 1, -1), *self.free]

    def retire(self) -> None:
        """No other array gets the slots that are taken now."""
        self._retired |= {number for number, dropped in enumerate(self._dropped) if not dropped}

    def next_place(self, nbytes: int) -> memoryview:
        """The bytes of the slot that is taken next, writable."""
        slab, offset = self._place(self.free[-1])
        return slab.content[offset : offset + nbytes]

    def _place(self, number: int) -> tuple[_Slab, int]:
        place = self._places[number]
        assert place is not None, "a slot of a slab that was given back is never free"
        return place

    def take(self) -> Slot:
        """The next free slot."""
        number = self.free.pop()
        self._dropped[number] = 0
        slab, offset = self._place(number)
        return Slot(slab, offset, self._dropped, number)


@dataclass(frozen=True)
class _Slab:
    """Memory for slots, writable, and the same read-only where it can be mapped once more."""

    obtained: Obtained
    readable: Memory | None
    address: int
    readable_address: int
    content: memoryview


def _readable(memory: Memory) -> Memory | None:
    """The same pages read-only; None where this rank cannot have them so, and has no error that others would share."""
    twin = memory.second()
    try:
        if twin is not None:
            twin.protect()
    except OSError:
        return None
    return twin


def _content(memory: Memory, nbytes: int) -> memoryview:
    """The bytes of a slab, which must outlive them."""
    return memoryview((ctypes.c_uint8 * nbytes).from_address(memory.address)).cast("B")


class Slot:
    """A part of a slab, lent to one array. It satisfies `Backing`.

    Attributes:
        address: Where the bytes begin in this process.
    """

    __slots__ = ("_dropped", "_number", "_offset", "_slab", "address")
    lifetime = "goes to another array after its last view"

    def __init__(self, slab: _Slab, offset: int, dropped: bytearray, number: int) -> None:
        self._slab = slab
        self._offset = offset
        self._dropped = dropped
        self._number = number
        self.address = slab.address + offset

    @property
    def obtained(self) -> Obtained:
        """The slab, and how it was had."""
        return self._slab.obtained

    def __del__(self) -> None:
        self._dropped[self._number] = 1

    def protect(self) -> None:
        """Goes over to the read-only map of the slab."""
        self.address = self._slab.readable_address + self._offset

    def private(self) -> Backing | None:
        """The slot within a copy-on-write map of the slab."""
        twin = self.obtained.memory.private()
        return None if twin is None else _Part(twin, twin.address + self._offset)


class _Part:
    """A part of a map, with the map behind it. It satisfies `Backing`."""

    lifetime = "goes with its last view"

    def __init__(self, memory: Backing, address: int) -> None:
        self._memory = memory
        self.address = address

    def protect(self) -> None:
        """Makes all of the map read-only."""
        self._memory.protect()

    def private(self) -> None:
        """None: it is private already."""
