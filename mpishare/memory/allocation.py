"""Where the memory of a new array comes from: a slot, a segment that was set aside, or the system."""

from __future__ import annotations

import os
from functools import cache
from weakref import WeakSet

from mpishare.comm.agreement import Severity, agree, severity_of
from mpishare.comm.context import Context
from mpishare.memory import buffer_pool
from mpishare.memory.cache import CachedLease, SegmentCache, after_fork_in_child, give_back
from mpishare.memory.segment import Segment
from mpishare.memory.selection import Obtained, obtain
from mpishare.memory.slab import LARGEST_SLOT_BYTES, Slab, Slot, slot_bytes

_PATIENCE = 1000
"""For so many arrays no slab is asked for where the last one was refused."""


def allocate(context: Context, nbytes: int, *, backend: str | None, label: str, writable: bool) -> Segment:
    """A segment of `nbytes` on every node, with real pages behind it, whose contents are arbitrary.

    Args:
        context: That of the communicator.
        nbytes: Bytes on each node.
        backend: Kinds that `check_backend` knows, or None.
        label: The call that asks, for reports.
        writable: Whether the ranks are going to write to it and see what the others write.

    Raises:
        CapacityError: No kind has room on this node, or, as a `PeerCapacityError`, on another.
        BackendError: No kind works on this node.
        PeerError: The same on another node.

    Collective:
        Over the communicator.
    """
    pool = context.keep(_Pool)
    return _segment(context, pool.take(context, nbytes or 1, backend, writable), nbytes, label)  # no map can be empty


def _segment(context: Context, memory: Slot | CachedLease, nbytes: int, label: str) -> Segment:
    context.segment_count += 1
    key = context.uid + context.segment_count
    return Segment(memory, nbytes, memory.obtained.origin(label, context.topology.node_size), key)


def known_slots(context: Context, nbytes: int, backend: str | None) -> Slab | None:
    """Those of which a small array gets the next, if all ranks know it before they agree that there is an array.

    The root can then write there early: nobody else reads or writes it yet, and the agreement shows the bytes to all.
    None where the ranks must find a place together, or where the bytes must go to other nodes as well.
    """
    return next_slots(context, nbytes, backend) if context.topology.n_nodes == 1 else None


def next_slots(context: Context, nbytes: int, backend: str | None) -> Slab | None:
    """The same for bytes that each node has of its own."""
    if nbytes > LARGEST_SLOT_BYTES:
        return None
    slots = context.keep(_Pool).slots.get((backend, slot_bytes(nbytes)))
    return slots if slots is not None and slots.free else None


def allocate_known(context: Context, slots: Slab, nbytes: int, label: str) -> Segment:
    """The same as `allocate`, but for a slot that all ranks know. Local."""
    return _segment(context, slots.take(), nbytes, label)


def seal(context: Context, segment: Segment, *, is_filled: bool = False) -> None:
    """Makes a segment read-only once the ranks of this node have filled it.

    Args:
        context: That of the communicator.
        segment: What `allocate` gave.
        is_filled: Whether this rank need not wait for others of its node.

    Raises:
        BackendError: The kernel cannot protect the pages.
        PeerError: The same on another rank.

    Collective:
        Over the communicator; over the node alone where nothing can fail.
    """
    if isinstance(segment.memory, Slot):
        if not is_filled:
            context.node_collective_comm.barrier()
        segment.seal()
    else:
        with agree(context.collective_comm):
            segment.seal()


class _Pool:
    """The memory of the arrays over one communicator.

    Attributes:
        slots: Those for small arrays, by the kinds asked for and by size.
    """

    def __init__(self, context: Context) -> None:
        self._slab_bytes_left = context.recycle_bytes // 2
        self.slots: dict[tuple[str | None, int], Slab] = {}
        self._refused_until: dict[str | None, int] = {}  # counted in segments
        self._wholes = SegmentCache(context.recycle_bytes // 2)
        _pools.add(self)
        _watch_forks()

    def retire(self) -> None:
        """No other array gets the memory that is lent now."""
        for slots in self.slots.values():
            slots.retire()
        self._wholes.retire()

    def take(self, context: Context, nbytes: int, backend: str | None, writable: bool) -> Slot | CachedLease:
        """Memory for one array. Collective over the communicator."""
        if nbytes <= LARGEST_SLOT_BYTES:
            slot = self._slot(context, slot_bytes(nbytes), backend)
            if slot is not None:
                return slot
        lease = self._wholes.take(context, nbytes, backend)
        return lease or self._wholes.add(self._new(context, nbytes, backend, writable), nbytes, backend)

    def _slot(self, context: Context, slot_bytes: int, backend: str | None) -> Slot | None:
        """A slot, None where there can be no further slab."""
        slots = self.slots.get((backend, slot_bytes))
        if slots is None:
            slots = self.slots[backend, slot_bytes] = Slab(slot_bytes)
        if not slots.free:
            wanted = slots.look(context)
            is_due = context.segment_count >= self._refused_until.get(backend, 0)
            if wanted and wanted <= self._slab_bytes_left and is_due:
                try:
                    slots.add(self._new(context, wanted, backend, writable=True), wanted)
                    self._slab_bytes_left -= wanted
                except BaseException as error:
                    if not is_refusal(context, error):
                        raise
                    # What is wrong is told when the array gets a segment of its own.
                    self._refused_until[backend] = context.segment_count + _PATIENCE
        return slots.take() if slots.free else None

    def _new(self, context: Context, nbytes: int, backend: str | None, writable: bool) -> Obtained:
        """New memory on every node, or an error on every rank. Collective over the communicator."""
        try:
            return _obtain(context, nbytes, backend, writable)
        except BaseException as error:
            if not is_refusal(context, error):
                raise
            given = sum([slots.give_back(context) for slots in self.slots.values()])
            if not given:
                raise
        self._slab_bytes_left += given
        return _obtain(context, nbytes, backend, writable)


def _obtain(context: Context, nbytes: int, backend: str | None, writable: bool) -> Obtained:
    """The same with what is free now."""
    with agree(context.collective_comm):
        return obtain(context, nbytes, backend, writable, relieve=_relieve)


def _relieve() -> None:
    """Gives all that this process keeps for arrays to come to the system."""
    give_back()
    buffer_pool.give_back()


def is_refusal(context: Context, error: BaseException) -> bool:
    """Whether all ranks have an error and each of them is one of ours, so that they may go on with other memory."""
    return severity_of(error, context.topology.size) < Severity.FATAL


_pools: WeakSet[_Pool] = WeakSet()


@cache
def _watch_forks() -> None:
    """From here on, memory that a forked child can see is lent to no other array: the child may read it for long."""
    os.register_at_fork(before=_retire_all, after_in_parent=_retire_all, after_in_child=after_fork_in_child)


def _retire_all() -> None:
    for pool in list(_pools):
        pool.retire()
