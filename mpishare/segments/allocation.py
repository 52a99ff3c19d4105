"""Where the memory of a new array comes from: a slot, a segment that was set aside, or the system."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from weakref import WeakSet

import numpy as np

from mpishare import loans, machine, mpi, plan
from mpishare.agreement import agree, any_rank
from mpishare.errors import MpishareError
from mpishare.segments.recycle import Lease, Wholes, after_fork_in_child, give_back
from mpishare.segments.registry import Obtained, obtain
from mpishare.segments.segment import Segment
from mpishare.segments.slots import Slot, Slots
from mpishare.topology import Topology

__all__ = ["allocate", "allocate_known", "is_refusal", "known_slots", "next_slots", "seal"]


_PATIENCE = 1000
"""For so many arrays no slab is asked for where the last one was refused."""


def allocate(topology: Topology, nbytes: int, *, backend: str | None, label: str, writable: bool) -> Segment:
    """A segment of `nbytes` on every node, with real pages behind it, whose contents are arbitrary.

    Args:
        topology: Where the ranks sit.
        nbytes: Bytes on each node.
        backend: Kinds that `check_backend` knows, or None.
        label: The call that asks, for reports.
        writable: Whether the ranks are going to write to it and see what the others write.

    Raises:
        CapacityError: No kind has room on this node, or, as a `PeerCapacityError`, on another.
        BackendError: No kind works on this node.
        PeerError: The same on another node.

    Collective:
        Over `topology.comm`.
    """
    pool = topology.pool
    if not isinstance(pool, _Pool):
        pool = topology.pool = _Pool(topology)
    return _segment(topology, pool.take(topology, nbytes or 1, backend, writable), nbytes, label)  # no map can be empty


def _segment(topology: Topology, memory: Slot | Lease, nbytes: int, label: str) -> Segment:
    topology.segments_made += 1
    key = topology.uid + topology.segments_made
    return Segment(memory, nbytes, memory.obtained.origin(label, topology.node_size), key)


def known_slots(topology: Topology, nbytes: int, backend: str | None) -> Slots | None:
    """Those of which a small array gets the next, if all ranks know it before they agree that there is an array.

    The root can then write there early: nobody else reads or writes it yet, and the agreement shows the bytes to all.
    None where the ranks must find a place together, or where the bytes must go to other nodes as well.
    """
    return next_slots(topology, nbytes, backend) if topology.n_nodes == 1 else None


def next_slots(topology: Topology, nbytes: int, backend: str | None) -> Slots | None:
    """The same for bytes that each node has of its own."""
    pool = topology.pool
    if nbytes > plan.LARGEST_SLOT_BYTES or not isinstance(pool, _Pool):
        return None
    slots = pool.slots.get((backend, plan.slot_bytes(nbytes)))
    return slots if slots is not None and slots.free else None


def allocate_known(topology: Topology, slots: Slots, nbytes: int, label: str) -> Segment:
    """The same as `allocate`, but for a slot that all ranks know. Local."""
    return _segment(topology, slots.take(), nbytes, label)


def seal(topology: Topology, segment: Segment, *, is_filled: bool = False) -> None:
    """Makes a segment read-only once the ranks of this node have filled it.

    Args:
        topology: Where the ranks sit.
        segment: What `allocate` gave.
        is_filled: Whether this rank need not wait for others of its node.

    Raises:
        BackendError: The kernel cannot protect the pages.
        PeerError: The same on another rank.

    Collective:
        Over `topology.comm`; over the node alone where nothing can fail.
    """
    if isinstance(segment.memory, Slot):
        if not is_filled:
            topology.node_channel.Barrier()
        segment.seal()
    else:
        with agree(topology.channel):
            segment.seal()


class _Pool:
    """The memory of the arrays over one communicator.

    Attributes:
        slots: Those for small arrays, by the kinds asked for and by size.
    """

    def __init__(self, topology: Topology) -> None:
        """Collective over `topology.comm`: the smallest node says how much may be kept."""
        limit = np.array(topology.config.recycle_bytes(machine.memory_bytes()), np.int64)
        topology.channel.Allreduce(mpi.IN_PLACE, limit, mpi.MIN)
        self._slab_bytes_left = int(limit) // 2
        self.slots: dict[tuple[str | None, int], Slots] = {}
        self._refused_until: dict[str | None, int] = {}  # counted in segments
        self._wholes = Wholes(int(limit) // 2)
        if limit:
            self._set_boards(topology)
        _pools.add(self)
        _watch_forks()

    def _set_boards(self, topology: Topology) -> None:
        """From here on the ranks of each node meet on boards, unless those of a node cannot."""
        from mpishare import bridge  # it imports mpi4py.MPI, which is safe by now

        nbytes = bridge.boards_bytes(topology)
        if any_rank(topology.channel, np.array([not nbytes])):
            return
        try:
            obtained = self._new(topology, nbytes, topology.config.backend, writable=True)
        except BaseException as error:
            if not is_refusal(topology, error):
                raise
            return
        if topology.is_leader:
            ctypes.memset(obtained.memory.address, 0, nbytes)
        topology.channel.Barrier()
        bridge.put_boards(topology, obtained.memory, obtained.memory.address)

    def retire(self) -> None:
        """No other array gets the memory that is lent now."""
        for slots in self.slots.values():
            slots.retire()
        self._wholes.retire()

    def take(self, topology: Topology, nbytes: int, backend: str | None, writable: bool) -> Slot | Lease:
        """Memory for one array. Collective over `topology.comm`."""
        if nbytes <= plan.LARGEST_SLOT_BYTES:
            slot = self._slot(topology, plan.slot_bytes(nbytes), backend)
            if slot is not None:
                return slot
        lease = self._wholes.take(topology, nbytes, backend)
        return lease or self._wholes.add(self._new(topology, nbytes, backend, writable), nbytes, backend)

    def _slot(self, topology: Topology, slot_bytes: int, backend: str | None) -> Slot | None:
        """A slot, None where there can be no further slab."""
        slots = self.slots.get((backend, slot_bytes))
        if slots is None:
            slots = self.slots[backend, slot_bytes] = Slots(slot_bytes)
        if not slots.free:
            wanted = slots.look(topology)
            is_due = topology.segments_made >= self._refused_until.get(backend, 0)
            if wanted and wanted <= self._slab_bytes_left and is_due:
                try:
                    slots.add(self._new(topology, wanted, backend, writable=True), wanted)
                    self._slab_bytes_left -= wanted
                except BaseException as error:
                    if not is_refusal(topology, error):
                        raise
                    # What is wrong is told when the array gets a segment of its own.
                    self._refused_until[backend] = topology.segments_made + _PATIENCE
        return slots.take() if slots.free else None

    def _new(self, topology: Topology, nbytes: int, backend: str | None, writable: bool) -> Obtained:
        """New memory on every node, or an error on every rank. Collective over `topology.comm`."""
        try:
            return _obtain(topology, nbytes, backend, writable)
        except BaseException as error:
            if not is_refusal(topology, error):
                raise
            given = sum([slots.give_back(topology) for slots in self.slots.values()])
            if not given:
                raise
        self._slab_bytes_left += given
        return _obtain(topology, nbytes, backend, writable)


def _obtain(topology: Topology, nbytes: int, backend: str | None, writable: bool) -> Obtained:
    """The same with what is free now."""
    with agree(topology.channel):
        return obtain(topology, nbytes, backend, writable, relieve=_relieve)


def _relieve() -> None:
    """Gives all that this process keeps for arrays to come to the system."""
    give_back()
    loans.give_back()


def is_refusal(topology: Topology, error: BaseException) -> bool:
    """Whether all ranks, each of which has an error, have one of ours, so that they may go on together.

    Not where this rank alone has one, from a signal's handler: the others do not ask.
    """
    if getattr(error, "known_to", 0) != topology.size:
        return False
    is_ours = np.array(isinstance(error, MpishareError), np.int8)
    topology.channel.Allreduce(mpi.IN_PLACE, is_ours, mpi.MIN)
    return bool(is_ours)


_pools: WeakSet[_Pool] = WeakSet()


@cache
def _watch_forks() -> None:
    """From here on, memory that a forked child can see is lent to no other array: the child may read it for long."""
    os.register_at_fork(before=_retire_all, after_in_parent=_retire_all, after_in_child=after_fork_in_child)


def _retire_all() -> None:
    for pool in list(_pools):
        pool.retire()
