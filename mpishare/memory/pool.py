"""Memory that arrays use one after the other: small ones the slots of a slab, each larger one a slot of its own."""

# Theory of operation: when memory may be used again, and what the root may write before the ranks agree.
#
# A pool belongs to one communicator, one request for backends and one size. It has slots, which all ranks number
# alike: small arrays share the memory of a slab; a larger array has memory of its own, which is one slot. On a rank a
# slot is
#   in use   an array of this rank has it: the referent of its lease, which is the base of all views, is alive;
#   idle     this rank has no view of it, any more or ever;
#   free     all ranks know that it is idle on all ranks;
#   gone     this rank uses it no more: it has given the memory back, or it forked while the slot was in use.
#
# The rules:
# 1. To become idle is local. The end of a lease notes it, at any time and in any thread, and waits for nobody.
# 2. To become free takes an agreement of all ranks. Rank 0 proposes slots that are idle there: those numbered near the
#    one that has been idle for longest, as many as a payload can name. Each rank answers which of them are in use or
#    gone on it; before it answers, it takes those that are idle out of its list, so that nothing gives them back
#    meanwhile. The slots to which no rank objects are free. All ranks drop what is gone on one of them.
# 3. Only collective calls take a slot from the free list, and only an agreement adds to it. So the list is the same on
#    all ranks between two calls, and all know which slot the next array of a size takes.
# 4. A slot of a slab stays free until it is taken. A slot with memory of its own is free only within the call that
#    asked for it; the others are idle again after it. A rank gives back the oldest idle ones when it keeps more bytes
#    than MPISHARE_RECYCLE allows, over all its communicators.
# 5. What is in use when the process forks is retired: it stays in use until its lease ends, and is gone then.
#
# Why a free slot may be written: its last lease ended on each rank before that rank answered, so no rank has a view,
# and no rank can get one but by taking the slot, which is collective. What a rank read in it came before its answer,
# and the agreement orders that before whatever any rank writes after it (see `comm.communicator`).
#
# Why the root of a share may fill the next free slot before the ranks agree on the call: by rule 3 it is the slot that
# the array takes if they agree, and nobody reads it until then. If they do not agree, it stays free, with other
# contents. The call's first agreement, which tells the ranks that there is an array, also makes the root's bytes
# visible on its node. The root need not tell whether it filled the slot: by rule 3 all ranks know whether there was
# one.
#
# What would break it: to add to a free list outside of an agreement, as the ranks would take different slots; to ask
# for free slots between the root's filling and the end of its call; a view whose base is not the lease's referent; to
# use again what a forked child may read, as no rank hears from the child; to count references, which a debugger, a
# profiler or a Python without a global lock may raise at any time.

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from itertools import count
from typing import Any, NamedTuple
from weakref import ref

from mpishare.arrays.slices import LINE_BYTES, round_up
from mpishare.comm.agreement import PAYLOAD_BYTES, agree
from mpishare.comm.context import Context
from mpishare.comm.live import LiveObjects
from mpishare.host import memory as host_memory
from mpishare.memory.mapping import Allocated, Mapping, Origin
from mpishare.memory.stray_stores import ReadOnlyRange

LARGEST_SLOT_BYTES = 2 << 20
"""A larger array has memory of its own, whose pages become read-only and writable again each time it is used. Up to
this size that costs more than a copy: each small page that becomes writable again takes a page fault."""

_FIRST_SLAB_BYTES = 64 << 10
_LARGEST_SLAB_BYTES = 2 << 20
_MOST_SLOTS_OF_SLAB = 1024
"""The first slab of a size is small. Each further one doubles the number of slots, up to these limits."""

_FEW_SLOTS_BYTES = 1 << 20
_LEAST_SLOTS, _MANY_SLOTS = 4, 16
"""A pool grows to 16 slots within 1 MiB, and to 4 in any case, so that the ranks seldom ask which are free."""

_SLOTS_PER_FREE_SLOT = 4
"""A slab is added when fewer than one slot in four is free, of those that a payload can name, for the same reason."""

_MAX_SIZE_RATIO = 1.25
"""How many times larger than an array its own memory may be."""

_LARGE_BYTES = 64 << 20
"""From this size on, the free memory is read before memory is kept. That takes 100 us."""

_PROPOSAL = struct.Struct("<Q23sQ23s?")
"""In the payload of rank 0's agreement: the first of 184 slots and which of them are idle; the first of 184 others and
which of them are gone. In that of each rank: whether it may have no further slab."""
_ANSWER = struct.Struct("<23s23s")
"""Which of the proposed slots are in use on a rank, and which are gone."""
_WINDOW = 8 * 23

_ages = count()


@lru_cache(maxsize=1024)
def slot_bytes(nbytes: int) -> int:
    """The size of the slot for an array of `nbytes`: whole cache lines, at most 63 bytes or a quarter too large."""
    return round_up(nbytes, max(LINE_BYTES, 1 << max(nbytes - 1, 1).bit_length() >> 3))


class Lease(ref[Any]):
    """A weak reference to the base of an array's views, which also knows the slot, so that its end can be noted."""

    __slots__ = ("slot",)
    slot: ref[Slot]


class _Slab(NamedTuple):
    """What the slots of a slab share: its bytes, its read-only map, or the writable one if there is none."""

    content: memoryview
    readable: Mapping
    origins: ReadOnlyRange

    @classmethod
    def of(cls, memory: Mapping, nbytes: int, slot_bytes: int) -> _Slab:
        """Where the kernel makes no second map that is read-only, arrays are read-only by NumPy's flag alone."""
        buffer = (ctypes.c_uint8 * nbytes).from_address(memory.address)
        buffer.memory = memory  # type: ignore[attr-defined]  # which is kept with every view of the bytes
        readable = memory.second_map()
        try:
            if readable is not None:
                readable.protect()
        except OSError:
            readable = None
        readable = readable or memory
        return cls(memoryview(buffer).cast("B"), readable, readable.read_only_range(slot_bytes))


class Slot:
    """Memory of this node, or a part of it, for one array after the other.

    Attributes:
        origin: Where the memory comes from.
        nbytes: How large an array may be.
        write_address: Where the bytes begin in the map that can be written.
        read_address: Where they begin in the map that is read-only after `protect`.
        number: Its number in its pool.
        lease: The lease of the last array.
        is_retired: Whether no other array gets it.
        age: A number that grows from use to use.
    """

    __slots__ = (
        "__weakref__", "_end", "_memory", "_offset", "_self", "_slab", "age", "is_retired", "lease", "nbytes", "number",
        "origin", "pool", "read_address", "write_address",
    )  # fmt: skip

    def __init__(
        self, memory: Mapping, origin: Origin, nbytes: int, slab: _Slab | None = None, offset: int = 0
    ) -> None:
        """Memory of its own; or the part of a slab at `offset`."""
        self._memory = memory
        self._slab = slab
        self._offset = offset
        self.write_address = memory.address + offset
        self.read_address = self.write_address if slab is None else slab.readable.address + offset
        self._self = ref(self)  # a lease that kept its slot would be in a circle with it, and keep the memory
        self._end: Callable[[Lease], object] | None = None
        self.origin = origin
        self.nbytes = nbytes
        self.number = -1
        self.pool: ref[Pool] | None = None
        self.lease: Lease | None = None
        self.is_retired = False
        self.age = 0
        _slots.add(self)

    def begin(self, base: object) -> None:
        """Puts the slot to use, until `base` is deleted."""
        if self._slab is None:
            self.age = next(_ages)
        lease = Lease(base, self._end)
        lease.slot = self._self
        self.lease = lease

    def end_with(self, note: Callable[[Lease], object], number: int, pool: ref[Pool]) -> None:
        """Makes it slot `number` of a pool, which notes the end of each lease by a function."""
        self._end, self.number, self.pool = note, number, pool

    def take(self) -> None:
        """Takes the slot, which is the next one, from the free list of its pool."""
        pool = None if self.pool is None else self.pool()
        assert pool is not None
        taken = pool.free.pop()
        assert taken is self

    def fits(self, nbytes: int) -> bool:
        """Whether an array of `nbytes` may use it, in which 0 is any array of the pool."""
        return not nbytes or nbytes <= self.nbytes <= nbytes * _MAX_SIZE_RATIO

    @property
    def is_in_use(self) -> bool:
        """Whether this rank has a view of its array."""
        return self.lease is not None and self.lease() is not None

    @property
    def has_own_pages(self) -> bool:
        """Whether no other array lies on its pages, so that their protection changes, which can fail."""
        return self._slab is None

    @property
    def can_protect(self) -> bool:
        """Whether `protect` makes its pages read-only."""
        return self._slab is None or self._slab.readable is not self._memory

    def protect(self) -> None:
        """Makes pages of its own read-only; those of a slab are mapped read-only already.

        Raises:
            OSError: The kernel cannot split the map.
        """
        if self._slab is None:
            self._memory.protect()

    def name(self, made_by: str) -> None:
        """Notes which call has made the read-only array here, for who stores into it."""
        if self._slab is None:
            self._memory.read_only_range(self.nbytes).name(0, made_by)
        elif self._slab.readable is not self._memory:
            self._slab.origins.name(self._offset // self.nbytes, made_by)

    def unprotect(self) -> None:
        """Makes pages of its own writable again. Raises OSError like `protect`."""
        self._memory.unprotect()

    def content(self, nbytes: int) -> memoryview:
        """The first bytes of a slot in a slab, writable."""
        assert self._slab is not None
        return self._slab.content[self._offset : self._offset + nbytes]

    def copy_on_write(self) -> Mapping | None:
        """A private map of the memory, from the slot on; None where the kernel has none."""
        mapping = self._memory.copy_on_write()
        if mapping is not None:
            mapping.address += self._offset
        return mapping


_slots = LiveObjects[Slot]()


def used_slots() -> list[Slot]:
    """The slots of which this process has views."""
    return [slot for slot in _slots.all() if slot.is_in_use]


class Pool:
    """The slots of one size over one communicator, or those with memory of their own.

    Attributes:
        free: The slots that all ranks know to be free; the last one is taken next.
        may_grow: Whether all ranks may have a further slab, as they said when they were asked last.
    """

    def __init__(self, slot_bytes: int | None, limit: int) -> None:
        """Slots of `slot_bytes` in slabs, or of any size if that is None. A rank keeps up to `limit` bytes of each."""
        self.slot_bytes = slot_bytes
        self.limit = limit
        self.free: list[Slot] = []
        self.may_grow = True
        self.slab_bytes = 0
        self.idle: dict[int, Slot] = {}
        self.gone: dict[int, None] = {}
        self._slots: dict[int, Slot] = {}
        self._ended: list[Lease] = []  # noted, and not yet among the idle
        self._count = 0  # of all slots that ever were
        _pools.add(self)
        _watch_forks()

    def cut(self, allocated: Allocated, nbytes: int) -> list[Slot]:
        """Cuts new memory of `nbytes` into slots. What can fail of `add_slab`, so that it stands in an agreement."""
        size = self.slot_bytes or nbytes
        slab = _Slab.of(allocated.memory, nbytes, size)
        return [Slot(*allocated, size, slab, offset) for offset in range(0, nbytes, size)]

    def add_slab(self, slots: list[Slot]) -> None:
        """Adds the slots of a slab, which are free."""
        for slot in slots:
            self._number(slot, self._ended.append)
        self.slab_bytes += len(slots) * slots[0].nbytes
        self.free = [*reversed(slots), *self.free]

    def add(self, allocated: Allocated, nbytes: int) -> Slot:
        """A slot of new memory, in use at once."""
        slot = Slot(*allocated, nbytes)
        slot.is_retired = not slot.origin.is_shared
        if nbytes <= self.limit:
            self._number(slot, _end)
        return slot

    def _number(self, slot: Slot, end: Callable[[Lease], object]) -> None:
        slot.end_with(end, self._count, ref(self))
        self._slots[self._count] = slot
        self._count += 1

    @property
    def _n_known(self) -> int:
        """The number of slots in slabs that all ranks know; a rank may have given some of them up already."""
        return self.slab_bytes // (self.slot_bytes or 1)

    def wanted_bytes(self) -> int:
        """The size of the next slab; the same on all ranks."""
        size = self.slot_bytes or 1
        wanted = max(self._n_known, _FIRST_SLAB_BYTES // size, 1)
        return min(wanted, _LARGEST_SLAB_BYTES // size, _MOST_SLOTS_OF_SLAB) * size

    @property
    def is_short(self) -> bool:
        """Whether the pool should grow; the same on all ranks."""
        least = max(_LEAST_SLOTS, min(_MANY_SLOTS, _FEW_SLOTS_BYTES // (self.slot_bytes or 1)))
        count = self._n_known
        return count < least or len(self.free) * _SLOTS_PER_FREE_SLOT < min(count, _WINDOW)

    def find_free(self, context: Context, nbytes: int = 0) -> list[Slot]:
        """Slots that no rank uses, for arrays of `nbytes`; the same on all ranks. See the theory of operation.

        Collective:
            Over the communicator.
        """
        comm = context.collective_comm
        self._note_ends()
        with agree(comm) as agreement:
            agreement.payload = self._proposal(nbytes if comm.rank == 0 else None).ljust(PAYLOAD_BYTES, b"\0")
        first, idle, first_gone, gone, is_full = _PROPOSAL.unpack_from(agreement.payload)
        self.may_grow = not is_full
        for number in _numbers(first_gone, gone):
            self._drop(number)
        proposed = _numbers(first, idle)
        if not proposed:
            return []
        held = {number: self.idle.pop(number, None) for number in proposed}
        used = [number for number, slot in held.items() if slot is None and number not in self.gone]
        try:
            with agree(comm) as agreement:
                answer = _ANSWER.pack(_mask(first, used), _mask(first, list(self.gone)))
                agreement.payload = answer.ljust(PAYLOAD_BYTES, b"\0")
        except BaseException:
            self.idle.update((number, slot) for number, slot in held.items() if slot is not None)
            raise
        in_use, gone = (set(_numbers(first, mask)) for mask in _ANSWER.unpack_from(agreement.payload))
        for number, slot in held.items():
            if number in gone:
                self._drop(number)
            elif slot is not None and number in in_use:
                self.idle[number] = slot
        return [slot for number, slot in held.items() if slot is not None and number not in in_use | gone]

    def _proposal(self, nbytes: int | None) -> bytes:
        """What this rank gives to the first agreement of `find_free`; nothing is proposed if `nbytes` is None."""
        total = sum(pool.slab_bytes for pool in pools())
        is_full = self.slot_bytes is not None and total + self.wanted_bytes() > self.limit
        fitting = [] if nbytes is None else [number for number, slot in list(self.idle.items()) if slot.fits(nbytes)]
        gone = [] if nbytes is None else list(self.gone)
        first, first_gone = (next(iter(numbers), 0) // _WINDOW * _WINDOW for numbers in (fitting, gone))
        return _PROPOSAL.pack(first, _mask(first, fitting), first_gone, _mask(first_gone, gone), is_full)

    def _note_ends(self) -> None:
        """Makes idle the slots of a slab whose leases have ended, and gives up those that are retired."""
        while self._ended:
            slot = self._ended.pop().slot()
            if slot is None:
                continue
            if slot.is_retired:
                self.give_up(slot)
            elif self.has(slot):
                self.idle[slot.number] = slot

    def take_free(self, context: Context, nbytes: int) -> Slot | None:
        """The smallest slot with memory of its own that no rank uses; None if there is none.

        Collective:
            Over the communicator.
        """
        found = self.find_free(context, nbytes) if self._count else []
        taken = min(found, key=lambda slot: slot.nbytes, default=None)
        self.idle.update((slot.number, slot) for slot in found if slot is not taken)
        return taken

    def has(self, slot: Slot) -> bool:
        """Whether a later array may get the slot."""
        return slot.number in self._slots

    def give_up(self, slot: Slot) -> None:
        """No array gets the slot any more. Its memory is freed with its last lease."""
        self.idle.pop(slot.number, None)
        if self._slots.pop(slot.number, None) is not None:
            self.gone[slot.number] = None

    def _drop(self, number: int) -> None:
        """Retires a slot that all ranks know to be gone on one of them."""
        slot = self._slots.pop(number, None)
        if slot is not None:
            slot.is_retired = True
        self.idle.pop(number, None)
        self.gone.pop(number, None)
        self.slab_bytes -= self.slot_bytes or 0


_pools = LiveObjects[Pool]()


def pools() -> list[Pool]:
    """The pools of this process, over all its communicators."""
    return _pools.all()


def free_idle() -> None:
    """Gives back all memory of this process that is kept for later arrays, but for slabs. Local."""
    _trim(0)


def _end(lease: Lease, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
    """Keeps memory of its own for a later array, writable, so that its next use cannot fail; or gives it back."""
    slot = None if is_finalizing() else lease.slot()
    pool = None if slot is None or slot.pool is None else slot.pool()
    if slot is None or pool is None:
        return
    try:
        slot.unprotect()
    except OSError:
        slot.is_retired = True
    if slot.is_retired or not pool.has(slot):
        pool.give_up(slot)
        return
    pool.idle[slot.number] = slot
    is_short = slot.nbytes >= _LARGE_BYTES and host_memory.memory_room().free < pool.limit
    _trim(0 if is_short else pool.limit)


def _trim(limit: int) -> None:
    """Gives back the oldest idle memory, by its last use, until at most `limit` bytes are kept over all pools."""
    alone = [pool for pool in pools() if pool.slot_bytes is None]
    oldest_first = sorted((slot.age, slot, pool) for pool in alone for slot in list(pool.idle.values()))
    total = sum(slot.nbytes for _, slot, _ in oldest_first)
    for _, slot, pool in oldest_first:
        if total <= limit:
            return
        if pool.idle.pop(slot.number, None) is not None:  # else the ranks are choosing from it
            pool.give_up(slot)
            total -= slot.nbytes


@cache
def _watch_forks() -> None:
    """From now on, no other array gets memory that a forked child can see: the child may read it for long."""
    os.register_at_fork(before=_retire, after_in_parent=_retire)


def _retire() -> None:
    """No other array gets the memory that is in use now."""
    for slot in used_slots():
        slot.is_retired = True


def _mask(first: int, numbers: Iterable[int]) -> bytes:
    """Those of `numbers` that are in the window from `first` on, as bits."""
    bits = sum(1 << number - first for number in numbers if 0 <= number - first < _WINDOW)
    return bits.to_bytes(_WINDOW // 8, "little")


def _numbers(first: int, mask: bytes) -> list[int]:
    """The numbers whose bits are set in a mask of the window from `first` on."""
    bits = int.from_bytes(mask, "little")
    return [first + place for place in range(bits.bit_length()) if bits >> place & 1]
