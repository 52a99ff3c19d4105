"""Where the memory of a new array comes from: a slot of a slab, a cached segment, or new memory of the node."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TypeAlias

import numpy as np

from mpishare.arrays.raw import Block
from mpishare.comm.agreement import Severity, agree, severity_of
from mpishare.comm.communicator import CollectiveComm
from mpishare.comm.context import Context
from mpishare.comm.live import LiveObjects
from mpishare.errors import MpishareError
from mpishare.memory.cache import Lease, SegmentCache
from mpishare.memory.kinds import NodeMemory
from mpishare.memory.segment import Segment
from mpishare.memory.selection import obtain
from mpishare.memory.slab import LARGEST_SLOT_BYTES, Slot, SlotPool, slot_bytes

Slots: TypeAlias = SlotPool[Segment]

_SEGMENTS_WITHOUT_SLAB = 1000
"""After a slab was refused, none is requested until so many segments have been made. Each refusal takes 60 us."""


@contextmanager
def node_memory(
    context: Context, nbytes: int, *, backend: str | None, made_by: str, writable: bool = False, scope: str = "all"
) -> Iterator[Segment]:
    """Node memory for a new array, which the block fills. Leaving the block agrees, and makes the pages read-only.

    The block is one agreement: an error of one rank within it is every rank's error.

    Args:
        context: The context of the communicator.
        nbytes: Bytes on each node.
        backend: What `check_backend` returned.
        made_by: The public call, for reports.
        writable: Whether the array stays writable, and the ranks of a node must see what the others write.
        scope: "node" where nothing in the block can fail on one node alone. Then only the ranks of a node wait for
            each other, unless pages must be made read-only, which can fail.

    Raises:
        CapacityError, BackendError, PeerError: See `allocate`; before the block.

    Collective:
        Over the communicator.
    """
    segment = allocate(context, nbytes, backend=backend, made_by=made_by, writable=writable)
    is_of_node = scope == "node" and (writable or isinstance(segment.memory, Slot))
    with agree(context.node_collective_comm if is_of_node else context.collective_comm):
        yield segment
        if not writable:
            segment.seal()


def free_slot(context: Context, nbytes: int, backend: str | None) -> memoryview | None:
    """The bytes of the slot that the next array of `nbytes` takes; None if the ranks know no free slot.

    A rank may fill it before the ranks agree that there is an array. Local.
    """
    slots = next_slots(context, nbytes, backend)
    return None if slots is None else slots.next_bytes(nbytes)


def take_slot(context: Context, nbytes: int, backend: str | None, made_by: str) -> Segment:
    """The memory of an array in the slot of `free_slot`, filled and sealed. Local, but all ranks must call it."""
    slots = next_slots(context, nbytes, backend)
    assert slots is not None  # so `free_slot` said on all ranks
    return allocate_known(context, slots, nbytes, made_by)


def allocate(context: Context, nbytes: int, *, backend: str | None, made_by: str, writable: bool) -> Segment:
    """A segment of `nbytes` on every node, with allocated pages and arbitrary contents.

    Args:
        context: The context of the communicator.
        nbytes: Bytes on each node.
        backend: Names of kinds that `check_backend` accepted, or None.
        made_by: The public call, for reports.
        writable: Whether the ranks will write to it and must see what the others write.

    Raises:
        CapacityError: No kind has room on this node, or, as a `PeerCapacityError`, on another.
        BackendError: No kind works on this node.
        PeerError: The same on another node.

    Collective:
        Over the communicator.
    """
    unit = context.cached(_Allocator).acquire(context, nbytes or 1, backend, writable)  # no map can be empty
    if isinstance(unit, Segment):
        unit.begin(nbytes, _next_key(context), made_by, writable=True)
        return unit
    return Segment(*unit.node_memory, nbytes, _next_key(context), made_by, unit)


def _next_key(context: Context) -> int:
    """A number for one array, the same on all ranks."""
    context.segment_count += 1
    return context.uid + context.segment_count


def next_slots(context: Context, nbytes: int, backend: str | None) -> Slots | None:
    """The slots of which an array of `nbytes` gets the next one; None if the ranks do not know a free slot.

    A rank may write to that slot before the ranks agree that there is an array: no array uses it, and all ranks know
    which slot comes next. The agreement then makes the bytes visible to its node. Local.
    """
    if nbytes > LARGEST_SLOT_BYTES:
        return None
    slots = context.cached(_Allocator).slots.get((backend, slot_bytes(nbytes)))
    return slots if slots is not None and slots.free else None


def allocate_known(context: Context, slots: Slots, nbytes: int, made_by: str) -> Segment:
    """Like `allocate`, for the next slot of `slots`, but sealed already. Local, but all ranks must call it."""
    segment = _take_slot(context, slots)
    segment.begin(nbytes, _next_key(context), made_by, writable=False)
    return segment


def _take_slot(context: Context, slots: Slots) -> Segment:
    """The segment of the next free slot. If few are left, the next agreement brings which ones are in use."""
    context.piggyback = slots
    return slots.acquire()


def allocate_block(
    context: Context, nbytes: int, *, backend: str | None, made_by: str, writable: bool = False
) -> tuple[Segment, Block]:
    """Like `allocate`, with the bytes to fill before `seal`. A slot that is known to be free takes the fewest steps."""
    slots = next_slots(context, nbytes, backend)
    if slots is None:
        segment = allocate(context, nbytes, backend=backend, made_by=made_by, writable=writable)
        return segment, segment.block()
    block: Block = np.ndarray((nbytes,), np.uint8, slots.next_bytes(nbytes))
    return allocate_known(context, slots, nbytes, made_by), block


def seal(context: Context, segment: Segment, *, is_filled: bool = False) -> None:
    """Makes a segment read-only once the ranks of this node have filled it.

    Args:
        context: The context of the communicator.
        segment: A segment from `allocate` or `allocate_block`.
        is_filled: Whether this rank knows already that the other ranks of its node have filled it.

    Raises:
        BackendError: The kernel cannot protect the pages.
        PeerError: The same on another rank.

    Collective:
        Over the communicator; over the node alone for a slot, where nothing can fail.
    """
    if isinstance(segment.memory, Slot):
        if not is_filled and context.topology.node_size > 1:
            context.node_collective_comm.barrier()
        segment.seal()
    else:
        with agree(context.collective_comm):
            segment.seal()


def comm_of_users(context: Context, segment: Segment) -> CollectiveComm:
    """The ranks that agree that a segment can be used: those of the node for a slot, where nothing can fail."""
    return context.node_collective_comm if isinstance(segment.memory, Slot) else context.collective_comm


class _Allocator:
    """The memory of the arrays over one communicator.

    Attributes:
        slots: The slots for small arrays, by requested kinds and size.
        cache: The segments of larger arrays.
    """

    def __init__(self, context: Context) -> None:
        self._slab_bytes_left = context.recycle_bytes // 2
        self.slots: dict[tuple[str | None, int], Slots] = {}
        self._refused_until: dict[str | None, int] = {}  # in segments made
        self.cache = SegmentCache(context.recycle_bytes // 2)
        _allocators.add(self)
        _watch_forks()

    def acquire(self, context: Context, nbytes: int, backend: str | None, writable: bool) -> Segment | Lease:
        """The segment of a slot, or other memory for one array. Collective over the communicator."""
        if nbytes <= LARGEST_SLOT_BYTES:
            segment = self._segment_of_slot(context, slot_bytes(nbytes), backend)
            if segment is not None:
                return segment
        lease = self.cache.acquire(context, nbytes, backend)
        return lease or self.cache.add(self._obtain(context, nbytes, backend, writable), nbytes, backend)

    def _segment_of_slot(self, context: Context, nbytes: int, backend: str | None) -> Segment | None:
        """The segment of a slot of `nbytes`; None if all are in use and there can be no further slab."""
        slots = self.slots.get((backend, nbytes))
        if slots is None:
            slots = self.slots[backend, nbytes] = SlotPool(nbytes, Segment.of_slot)
        if not slots.free:
            slots.update(context)
            self._add_slab(context, slots, slots.missing_bytes(), backend)
        return _take_slot(context, slots) if slots.free else None

    def _add_slab(self, context: Context, slots: Slots, nbytes: int, backend: str | None) -> None:
        """Adds a slab of `nbytes`, if that is not 0, within the limit and not refused."""
        is_due = context.segment_count >= self._refused_until.get(backend, 0)
        if not 0 < nbytes <= self._slab_bytes_left or not is_due:
            return
        try:
            slots.add(self._obtain(context, nbytes, backend, writable=True), nbytes)
            self._slab_bytes_left -= nbytes
        except MpishareError as error:
            if not is_refusal(context, error):
                raise
            # The array gets a segment of its own, or the error for that.
            self._refused_until[backend] = context.segment_count + _SEGMENTS_WITHOUT_SLAB

    def _obtain(self, context: Context, nbytes: int, backend: str | None, writable: bool) -> NodeMemory:
        """New memory on every node, or an error on every rank. Collective over the communicator."""
        try:
            with agree(context.collective_comm):
                return obtain(context, nbytes, backend, writable)
        except MpishareError as error:
            pools = self.slots.values() if is_refusal(context, error) else ()
            released = sum([slots.release(context) for slots in pools])
            if not released:
                raise
        self._slab_bytes_left += released
        return self._obtain(context, nbytes, backend, writable)


def is_refusal(context: Context, error: BaseException) -> bool:
    """Whether every rank has a `MpishareError`, so that all may continue with other memory."""
    return severity_of(error, context.topology.size) < Severity.FATAL


_allocators = LiveObjects[_Allocator]()


@cache
def _watch_forks() -> None:
    """From now on, no other array gets memory that a forked child can see: the child may read it for long."""
    os.register_at_fork(before=_retire, after_in_parent=_retire)


def _retire() -> None:
    """No other array gets the memory that is in use now."""
    for allocator in _allocators.all():
        for slots in list(allocator.slots.values()):
            slots.retire()
        allocator.cache.retire_used()
