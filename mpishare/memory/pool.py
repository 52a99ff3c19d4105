"""Memory that arrays use one after the other: small ones the slots of a slab, each larger one a slot of its own."""

# Theory of operation: when memory may be used again, and what the root may write before the ranks agree.
#
# A pool belongs to one communicator, one request for backends and one size. It has slots, which all ranks number
# alike: small arrays share the memory of a slab; a larger array has memory of its own, which is one slot. On a rank a
# slot is
#   in use   an array of this rank has it: its segment, which is the base of all views, is alive;
#   idle     this rank has no view of it, any more or ever;
#   free     all ranks know that it is idle on all ranks;
#   gone     this rank uses it no more: it has given the memory back, or another process may read it that is no rank.
#
# The rules:
# 1. To become idle is local. The end of a lease notes it, at any time and in any thread, and waits for nobody.
# 2. To become free takes a collective call. Each rank tells of each slot whether it is idle there; before it does, it
#    takes the idle ones out of its list, so that nothing gives them back meanwhile. The slots that are idle on all
#    ranks are free. Each rank also tells which slots are gone: all ranks drop these, and use their numbers again.
# 3. Only collective calls take a slot from the free list, and only rule 2 adds to it. So the list is the same on all
#    ranks between two calls, and all know which slot the next array of a size takes.
# 4. A slot of a slab stays free until it is taken. A slot with memory of its own is free only within the call that
#    asked for it; the others are idle again after it. A rank gives back the oldest idle ones when it keeps more bytes
#    than MPISHARE_RECYCLE allows, over all its communicators.
# 5. What is in use when the process forks or makes a handle of it is gone at once. Its memory is freed with its lease.
#
# Why a free slot may be written: its last lease ended on each rank before that rank told so, so no rank has a view,
# and no rank can get one but by taking the slot, which is collective. What a rank read in it came before it told, and
# the collective call orders that before whatever any rank writes after it (see `comm.communicator`).
#
# Why the root of a share may fill the next free slot before the ranks agree on the call (`allocation.Reservation`): by
# rule 3 it is the slot that the array takes if they agree, and nobody reads it until then. If they do not agree, it
# stays free, with other contents. The call's first agreement, which tells the ranks that there is an array, also makes
# the root's bytes visible on its node. The root need not tell whether it filled the slot: by rule 3 all ranks know
# whether there was one.
#
# Why a slot has two maps of its pages, one to write and one that is read-only: so no page's protection changes when an
# array begins or ends, and no page is faulted in a second time, which costs more than copying it. Views of a finished
# array are of the read-only map, so that a stray write ends its process. The second map takes page tables, 8 bytes for
# each page that is read, and one of the maps of the process (vm.max_map_count, 65,530 by default). Where the kernel
# makes none, the only map becomes read-only for good, and no other array gets the slot.
#
# What would break it: to add to a free list outside of a collective call, as the ranks would take different slots; to
# ask for free slots between the root's filling and `commit`; a view whose base is not the segment; to use
# again what a child of a rank may read, as no rank hears from the child; to count references, which a debugger, a
# profiler or a Python without a global lock may raise at any time.

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import lru_cache
from itertools import count
from weakref import WeakValueDictionary, ref

from mpishare.arrays.slices import LINE_BYTES, round_up
from mpishare.comm.agreement import PAYLOAD_BYTES, agree
from mpishare.comm.context import Context
from mpishare.errors import BackendError
from mpishare.host import memory as host_memory
from mpishare.memory.mapping import Mapping, OpenFile, Origin

LARGEST_SLOT_BYTES = 2 << 20
"""A larger array has memory of its own, which a rank can give back without the others."""

_FIRST_SLAB_BYTES = 64 << 10
_LARGEST_SLAB_BYTES = 2 << 20
_MOST_SLOTS_OF_SLAB = 1024
"""The first slab of a size is small. Each further one doubles the number of slots, up to these limits."""

_FEW_SLOTS_BYTES = 1 << 20
_LEAST_SLOTS, _MANY_SLOTS = 4, 16
"""A pool grows to 16 slots within 1 MiB, and to 4 in any case, so that the ranks seldom ask which are free."""

_SLOTS_PER_FREE_SLOT = 4
"""A slab is added when fewer than one slot in four is free, for the same reason."""

_MAX_SIZE_RATIO = 1.25
"""How many times larger than an array its own memory may be."""

_LEAST_CHECKED_BYTES = 64 << 20
"""Before memory of this size or more is kept, the free memory is read. Reading it takes 100 us."""

_ages = count()


@lru_cache(maxsize=1024)
def slot_bytes(nbytes: int) -> int:
    """The size of the slot for an array of `nbytes`: whole cache lines, at most 63 bytes or a quarter too large."""
    return round_up(nbytes, max(LINE_BYTES, 1 << max(nbytes - 1, 1).bit_length() >> 3))


class Slot:
    """Memory of this node, or a part of it, for one array after the other.

    Attributes:
        memory: The map that can be written.
        readable: The read-only map of the same pages; None until the first array in memory of its own is sealed.
        origin: Where the memory comes from.
        nbytes: How large an array may be.
        write_address: Where the bytes begin in `memory`.
        read_address: Where they begin in `readable`.
        owns_memory: Whether it is the whole of its memory, and no part of a slab.
        content: The bytes of a slot in a slab, writable; none of a slot with memory of its own.
        pool: A reference to its pool; None if no other array gets it.
        number: Its number in its pool.
        lease: A reference to the segment that uses it, or has used it last.
        key: Where all ranks know the array in it by a number, that number; see `segment_with`.
        age: A number that grows from use to use.
    """

    __slots__ = (
        "age", "content", "key", "lease", "memory", "nbytes", "number", "origin", "owns_memory", "pool",
        "read_address", "readable", "write_address",
    )  # fmt: skip

    def __init__(self, memory: Mapping, origin: Origin, nbytes: int, readable: Mapping | None = None) -> None:
        """Memory of its own. It is `readable` itself if nothing writes to it."""
        self.memory = memory
        self.readable = readable
        self.origin = origin
        self.nbytes = nbytes
        self.write_address = self.read_address = memory.address
        self.owns_memory = True
        self.content = memoryview(b"")
        self.pool: ref[SlotPool] | None = None
        self.number = self.key = self.age = 0

    def make_readable(self) -> None:
        """Makes the read-only map, which stays as long as the slot. Without a second map, the first becomes read-only.

        Raises:
            OSError: The kernel cannot protect the pages.
        """
        try:
            self.readable = self.memory.read_only_twin()
        except OSError:
            self.memory.protect()
            self.readable = self.memory
            self.retire()
        self.read_address = self.readable.address

    def begin(self, segment: object) -> None:
        """Puts the slot to use, until `segment` is deleted."""
        self.lease = lease = ref(segment, _end)
        _leases[lease] = self

    def fits(self, nbytes: int) -> bool:
        """Whether an array of `nbytes` may use it."""
        return nbytes <= self.nbytes <= nbytes * _MAX_SIZE_RATIO

    def retire(self) -> None:
        """No other array gets the memory any more. It is freed with the lease."""
        pool = None if self.pool is None else self.pool()
        if pool is not None:
            pool.give_up(self)

    def move_to(self, file: OpenFile, nbytes: int) -> None:
        """Puts the pages of a file in place of the read-only ones, and gives the others back; see `Mapping.move_to`."""
        assert self.readable is not None
        self.readable.move_to(file, nbytes)
        self.memory, self.write_address = self.readable, self.read_address

    def copy_on_write(self) -> Mapping | None:
        """A private map of the memory, from the slot on; None where the kernel has none."""
        return self.memory.copy_on_write(self.write_address - self.memory.address)


_leases: dict[ref[object], Slot] = {}
"""The slots that this process uses, by a reference to the segment. One dict operation each, as any thread ends one."""


named: dict[int, Slot] = {}
"""Those of these slots whose segments `segment_with` finds, by the key. It is removed with the lease."""


def segment_with(key: int) -> object:
    """The segment that this process views by the name `key`; None if it has none."""
    slot = named.get(key)
    segment = None if slot is None else slot.lease()
    return segment if getattr(segment, "key", None) == key else None  # in between, another array may have got the slot


def used_slots() -> list[tuple[object, Slot]]:
    """The segments that this process views, and their slots."""
    return [(segment, slot) for lease, slot in list(_leases.items()) if (segment := lease()) is not None]


class SlotPool:
    """The slots of one size over one communicator, or those with memory of their own.

    Attributes:
        slot_bytes: The size of the slots of slabs; None for slots with memory of their own.
        limit: How many bytes a rank keeps for all pools of a kind.
        free: The slots that all ranks know to be free; the last one is taken next.
        idle: The slots that are idle on this rank, the one idle for longest first.
        may_grow: Whether all ranks may have a further slab, as they said when they were asked last.
    """

    def __init__(self, slot_bytes: int | None, limit: int) -> None:
        self.slot_bytes = slot_bytes
        self.limit = limit
        self.free: list[Slot] = []
        self.idle: dict[Slot, None] = {}
        self.may_grow = True
        self._slots: dict[int, Slot] = {}
        self._gone: dict[int, None] = {}
        self._count = 0  # of all numbers that ever were
        self._unused: list[int] = []  # numbers of slots that all ranks have dropped
        _pools[id(self)] = self

    @property
    def n_known(self) -> int:
        """The number of slots that all ranks know; a rank may have given some of them up already."""
        return self._count - len(self._unused)

    @property
    def slab_bytes(self) -> int:
        """The bytes of all slots in slabs; the same on all ranks."""
        return self.n_known * (self.slot_bytes or 0)

    def cut(self, memory: Mapping, origin: Origin, nbytes: int) -> list[Slot]:
        """Cuts new memory of `nbytes` into slots. What can fail of `add_slab`, so that it stands in an agreement.

        Raises:
            BackendError: The memory cannot be mapped a second time, to be read.
        """
        try:
            readable = memory.read_only_twin()
        except OSError as error:
            raise BackendError(f"{origin.backend} has no second, read-only map for small arrays: {error}") from error
        content, size, slots = memory.content(nbytes), self.slot_bytes or nbytes, list[Slot]()
        for start in range(0, nbytes, size):
            slots.append(slot := Slot(memory, origin, size, readable))
            slot.owns_memory = False
            slot.write_address, slot.read_address = memory.address + start, readable.address + start
            slot.content = content[start : start + size]
        return slots

    def add_slab(self, slots: list[Slot]) -> None:
        """Adds the slots of a slab, which are free."""
        for slot in slots:
            self.add(slot)
        self.free = [*reversed(slots), *self.free]

    def add(self, slot: Slot) -> None:
        """Adds a slot, which is free or in use. Local, but all ranks must call it."""
        slot.pool = ref(self)
        if self._unused:
            slot.number = self._unused.pop()
        else:
            slot.number = self._count
            self._count += 1
        self._slots[slot.number] = slot

    def wanted_bytes(self) -> int:
        """The size of the next slab; the same on all ranks."""
        size = self.slot_bytes or 1
        wanted = max(self.n_known, _FIRST_SLAB_BYTES // size, 1)
        return min(wanted, _LARGEST_SLAB_BYTES // size, _MOST_SLOTS_OF_SLAB) * size

    @property
    def is_short(self) -> bool:
        """Whether the pool should grow; the same on all ranks."""
        least = max(_LEAST_SLOTS, min(_MANY_SLOTS, _FEW_SLOTS_BYTES // (self.slot_bytes or 1)))
        return self.n_known < least or len(self.free) * _SLOTS_PER_FREE_SLOT < self.n_known

    def find_free(self, context: Context, nbytes: int = 0) -> list[Slot]:
        """Slots that no rank uses, the same on all ranks; see the theory of operation.

        Args:
            context: The context of the communicator.
            nbytes: The bytes of the array that is to fit; 0 for any array of the pool.

        Collective:
            Over the communicator.
        """
        idle, slots = self.idle, self._slots
        fitting = [slot for slot in list(idle) if slot.fits(nbytes)] if nbytes else list(idle)
        held = {
            slot.number: slot for slot in fitting if idle.pop(slot, slot) is None and slots.get(slot.number) is slot
        }
        is_used, is_gone = bytearray(b"\1" * self._count), bytearray(self._count)
        for number in held:
            is_used[number] = 0
        for number in list(self._gone):
            is_gone[number] = 1
        is_full = False
        if self.slot_bytes is not None:
            is_full = sum(pool.slab_bytes for pool in pools()) + self.wanted_bytes() > self.limit
        agreement = agree(context.collective_comm)
        agreement.payload = b"".join((is_used, is_gone, bytes([is_full]))).ljust(PAYLOAD_BYTES, b"\0")
        try:
            agreement.exchange()
            told = agreement.payload
            free = [held.pop(number) for number in sorted(held) if not told[number]]
        finally:
            idle.update(dict.fromkeys(held.values()))
        self.may_grow = not told[2 * self._count]
        for number in range(self._count):
            if told[self._count + number]:
                self._drop(number)
        return free

    def reused(self, context: Context, nbytes: int) -> Slot | None:
        """The smallest slot with memory of its own that no rank uses; None if there is none.

        Collective:
            Over the communicator.
        """
        found = self.find_free(context, nbytes) if self.n_known else []
        taken = min(found, key=lambda slot: slot.nbytes, default=None)
        self.idle.update(dict.fromkeys(slot for slot in found if slot is not taken))
        return taken

    def has(self, slot: Slot) -> bool:
        """Whether a later array may get the slot."""
        return self._slots.get(slot.number) is slot

    def give_up(self, slot: Slot) -> None:
        """No array gets the slot any more. Its memory is freed with its lease."""
        if self.has(slot):
            self._gone[slot.number] = None
            self._slots.pop(slot.number, None)

    def _drop(self, number: int) -> None:
        """Forgets a slot that all ranks know to be gone on one of them."""
        slot = self._slots.pop(number, None)
        if slot is not None:
            self.idle.pop(slot, None)
        self._gone.pop(number, None)
        self._unused.append(number)


_pools: WeakValueDictionary[int, SlotPool] = WeakValueDictionary()
"""By id. To list its references is one operation; to go through it fails where another thread adds a pool meanwhile."""


def pools() -> list[SlotPool]:
    """The pools of this process, over all its communicators."""
    return [pool for pool in (reference() for reference in _pools.valuerefs()) if pool is not None]


def _end(lease: ref[object], is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
    """Keeps a slot for a later array, or gives its memory back."""
    slot = None if is_finalizing() else _leases.pop(lease, None)
    if slot is None:
        return
    named.pop(slot.key, None)
    pool = None if slot.pool is None else slot.pool()
    if pool is None:
        return
    if not slot.owns_memory:
        pool.idle[slot] = None
        return
    if slot.nbytes > pool.limit:  # which would displace all that is kept
        pool.give_up(slot)
    if not pool.has(slot):
        return
    slot.age = next(_ages)
    pool.idle[slot] = None
    is_short = slot.nbytes >= _LEAST_CHECKED_BYTES and host_memory.memory_room().free < pool.limit
    free_idle(0 if is_short else pool.limit)


def free_idle(limit: int = 0) -> None:
    """Gives back the memory that is idle for longest, but for slabs, until at most `limit` bytes are kept. Local.

    They are counted over all pools of this process.
    """
    idle = [(slot, pool) for pool in pools() if pool.slot_bytes is None for slot in list(pool.idle)]
    total = sum(slot.nbytes for slot, _ in idle)
    for slot, pool in sorted(idle, key=lambda pair: pair[0].age):
        if total <= limit:
            return
        if pool.idle.pop(slot, slot) is None:  # else the ranks are choosing from it
            pool.give_up(slot)
            total -= slot.nbytes


def _retire() -> None:
    """No other array gets the memory that is in use now: a forked child can see it, and may read it for long."""
    for _, slot in used_slots():
        slot.retire()


os.register_at_fork(before=_retire, after_in_parent=_retire)
