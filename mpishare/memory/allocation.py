"""Where the memory of a new array comes from: a slot that no rank uses any more, or new memory of the node."""

from __future__ import annotations

import numpy as np

from mpishare.arrays.raw import Block
from mpishare.comm.agreement import PAYLOAD_BYTES, Agreement, Severity, agree, severity_of
from mpishare.comm.context import Context
from mpishare.errors import MpishareError
from mpishare.host import memory as host_memory
from mpishare.memory.backends import check_backend, obtain
from mpishare.memory.mapping import Mapping, Origin
from mpishare.memory.pool import LARGEST_SLOT_BYTES, Slot, SlotPool, slot_bytes
from mpishare.memory.segment import Segment

_ARRAYS_WITHOUT_SLAB = 1000
"""After a slab was refused, none is requested until this number of arrays was made. Each refusal takes 60 us."""

_NOT_SHARED = b"\1".ljust(PAYLOAD_BYTES, b"\0")
"""The payload of a rank whose node has a copy for each rank."""


class node_memory(Agreement):  # noqa: N801 - used as `with node_memory(…) as segment:`
    """Node memory for a new array, as an agreement whose block gets the segment and fills it.

    Leaving the block makes the array read-only, and agrees. So an error of one rank within it is every rank's error.
    """

    __slots__ = ("_is_final", "_segment")

    def __init__(
        self,
        context: Context,
        nbytes: int,
        *,
        backend: str | None,
        made_by: str,
        writable: bool = False,
        scope: str = "all",
    ) -> None:
        """Obtains the memory. Collective over the communicator.

        Args:
            context: The context of the communicator.
            nbytes: Bytes on each node.
            backend: What `check_backend` returned.
            made_by: The public call, for reports.
            writable: Whether the array stays writable, and the ranks of a node must see what the others write.
            scope: "node" where nothing in the block can fail on one node alone. Then only the ranks of a node wait for
                each other, unless pages must be made read-only, which can fail.

        Raises:
            CapacityError: No backend has room on this node, or, as a `PeerCapacityError`, on another.
            BackendError: No backend works on this node; or, at the end, the kernel cannot protect the pages.
            PeerError: The same on another node.
        """
        slot = context.cached(_Pools).slot_for(context, nbytes or 1, backend, writable)  # no map can be empty
        self._segment = Segment(slot, nbytes, context.new_keys(), made_by)
        self._is_final = not writable
        is_of_node = scope == "node" and (writable or not slot.owns_memory)
        super().__init__(context.node_collective_comm if is_of_node else context.collective_comm)

    def __enter__(self) -> Segment:  # type: ignore[override]
        super().__enter__()
        return self._segment

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            if error is None and self._is_final:
                self._segment.seal()
        except BaseException as failure:
            super().__exit__(kind, failure, traceback)
            raise
        super().__exit__(kind, error, traceback)


class Reservation:
    """A free slot that the next array takes, if the ranks agree that there is one.

    It is offered before they agree, so that a rank may fill it: see the theory of operation in `memory.pool`. The slot
    stays free until all ranks `commit`. To drop a reservation takes nothing.

    Attributes:
        nbytes: The size of the array.
        content: The bytes of the array, writable.
    """

    __slots__ = ("_backend", "_context", "_pool", "content", "nbytes")

    def __init__(self, context: Context, pool: SlotPool, nbytes: int, backend: str | None) -> None:
        self._context = context
        self._pool = pool
        self._backend = backend
        self.nbytes = nbytes
        self.content = pool.free[-1].content[:nbytes]

    def commit(self, made_by: str) -> Segment:
        """The memory of the array, filled and read-only. Collective over the communicator."""
        context, pool = self._context, self._pool
        segment = Segment(pool.free.pop(), self.nbytes, context.new_keys(), made_by)
        segment.seal()
        if not pool.free:  # so that the next call, too, has a slot that its root may fill
            context.cached(_Pools).refill(context, pool, self._backend)
        return segment


def offered(context: Context, nbytes: int, backend: str | None) -> Reservation | None:
    """A reservation for the next array of `nbytes`, which is read-only; None if the ranks know no free slot. Local."""
    pool = context.cached(_Pools).pools.get((backend, slot_bytes(nbytes)))
    return Reservation(context, pool, nbytes, backend) if pool is not None and pool.free else None


def kept_memory(context: Context, nbytes: int) -> Block | None:
    """Memory of each node that no array gets, to which its ranks may write; None where there is none, or none is kept.

    Collective:
        Over the communicator.
    """
    pools, backend = context.cached(_Pools), check_backend(None, context)
    if not pools.keeps:
        return None
    try:
        memory, _, is_shared = pools.obtain(context, nbytes, backend, writable=True)
    except MpishareError as error:
        if severity_of(error, context.topology.size) == Severity.FATAL:
            raise
        return None
    return np.frombuffer(memory.content(nbytes), np.uint8) if is_shared else None


class _Pools:
    """The memory of the arrays over one communicator.

    Attributes:
        pools: By the request for backends and the size of slots; None is the size of slots with memory of their own.
        keeps: Whether memory is kept; the same on all ranks, whatever memory they have.
    """

    def __init__(self, context: Context) -> None:
        self.pools: dict[tuple[str | None, int | None], SlotPool] = {}
        self._limit = context.config.recycle_bytes(host_memory.memory_bytes()) // 2
        self.keeps = context.config.recycle_bytes(1 << 40) > 0
        self._count = 0  # of the arrays made
        self._refused_until: dict[str | None, int] = {}  # in arrays made

    def _pool(self, backend: str | None, size: int | None) -> SlotPool:
        pool = self.pools.get((backend, size))
        if pool is None:
            pool = self.pools[backend, size] = SlotPool(size, self._limit)
        return pool

    def slot_for(self, context: Context, nbytes: int, backend: str | None, writable: bool) -> Slot:
        """A slot for an array of `nbytes`. Collective over the communicator."""
        self._count += 1
        if nbytes <= LARGEST_SLOT_BYTES and self.keeps:
            pool = self._pool(backend, slot_bytes(nbytes))
            if not pool.free:
                self.refill(context, pool, backend)
                pool = self._pool(backend, pool.slot_bytes)  # another one if memory was short
            if pool.free:
                return pool.free.pop()
        slot = self._pool(backend, None).reused(context, nbytes)
        if slot is None:
            memory, origin, is_shared = self.obtain(context, nbytes, backend, writable)
            slot = Slot(memory, origin, nbytes)
            if is_shared and self.keeps:
                self._pool(backend, None).add(slot)
        return slot

    def refill(self, context: Context, pool: SlotPool, backend: str | None) -> None:
        """Finds free slots. Adds a slab where slots are short, within the limit of all ranks, unless one was refused.

        Collective:
            Over the communicator.
        """
        pool.free = pool.find_free(context)[::-1]
        is_due = self._count >= self._refused_until.get(backend, 0)
        if not (pool.is_short and pool.may_grow and is_due):
            return
        nbytes = pool.wanted_bytes()
        try:
            memory, origin, _ = self.obtain(context, nbytes, backend, writable=True)
            with agree(context.collective_comm):
                slots = pool.cut(memory, origin, nbytes)
            self._pool(backend, pool.slot_bytes).add_slab(slots)
        except MpishareError as error:
            if severity_of(error, context.topology.size) == Severity.FATAL:
                raise
            # The array gets memory of its own, or raises that allocation's error.
            self._refused_until[backend] = self._count + _ARRAYS_WITHOUT_SLAB

    def obtain(
        self, context: Context, nbytes: int, backend: str | None, writable: bool
    ) -> tuple[Mapping, Origin, bool]:
        """New memory on every node, or an error on every rank; and whether the ranks share it on all nodes.

        Only such memory is used again: a pool has the same slots on all ranks.

        Collective:
            Over the communicator.
        """
        try:
            with agree(context.collective_comm) as agreement:
                memory, origin = obtain(context, nbytes, backend, writable)
                if not origin.is_shared:
                    agreement.payload = _NOT_SHARED
            return memory, origin, agreement.payload != _NOT_SHARED
        except MpishareError as error:
            if not self.pools or severity_of(error, context.topology.size) != Severity.NO_ROOM:
                raise
        # Where memory is short, all slots that no array uses are given back, and the pools begin anew.
        self.pools.clear()
        return self.obtain(context, nbytes, backend, writable)
