"""How the arrays of all ranks are reduced to one on each node: step by step within a node, then between the nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays import slices
from mpishare.arrays.raw import Block, bytes_of
from mpishare.arrays.spec import Order, Spec
from mpishare.comm.context import Context
from mpishare.comm.topology import Topology
from mpishare.transfer import plan, ring_plan
from mpishare.transfer.link import link_of
from mpishare.transfer.node_fill import broadcast_in_node, fill
from mpishare.transfer.operations import Operation
from mpishare.transfer.pipeline import broadcast_chunks
from mpishare.transfer.ring import circulate, staging, swap

_STEP_BYTES = 1 << 20
"""Bytes that a rank shows the others of its node in a step: few enough to stay in caches, enough to be worth a barrier.
With more ranks than cores a barrier takes long: half as much made 64 MiB on 4 ranks a quarter slower, twice as much no
faster."""

_MAX_SCRATCH_BYTES = 32 << 20
"""Bytes that all ranks of a node show in a step, at most."""

_MAX_LEADER_BYTES = 64 << 10
"""Up to here, over all ranks of a node, the leader reduces alone: it takes no longer than a barrier."""

_MAX_WHOLE_BYTES = 64 << 10
"""Up to here they swap all, and both reduce it. Of more bytes each reduces its half: as many cross the link, in two
messages. Gain through shared memory: 1 MiB 0.18 to 0.16 ms, 2 MiB 0.52 to 0.39; a loss of 4 % at 64 KiB."""


class Plan(NamedTuple):
    """How arrays of one dtype and shape are reduced on one communicator, the same on all ranks but for two attributes.

    Attributes:
        spec: That of the array on this rank; the order may be another one on other ranks.
        call: What all ranks must give alike.
        is_ordered: Whether the result goes strictly from rank to rank, since the operation does not commute and the
            ranks of the nodes are not consecutive.
        is_small: Whether the leaders send all their bytes to all leaders in one call.
        is_swapped: Whether the leaders of two nodes swap their bytes.
        halves: The items that the first of two nodes reduces, and those of the second, where they are more than few.
        leader_reduces: Whether the leader of this node reduces the items of its ranks alone.
        can_repeat: Whether each rank may reduce everything itself, so that it need not wait for another rank: all write
            the same bytes to the same memory, which does no harm. It takes a deterministic operation, and few bytes, so
            that it takes less time than a barrier.
        can_show_early: Whether a rank may show its items before it knows those of the others: few of them, in C order.
        chunk_bytes: Bytes of a message between nodes in a ring or a chain.
        layout: Shape of each node's scratch memory: sides that take turns, rows for ranks, row bytes.
        scratch_bytes: Size of the scratch memory of each node; 0 where none is needed.
    """

    spec: Spec
    call: str
    is_ordered: bool
    is_small: bool
    is_swapped: bool
    halves: tuple[slice, slice]
    leader_reduces: bool
    can_repeat: bool
    can_show_early: bool
    chunk_bytes: int
    layout: tuple[int, int, int]
    scratch_bytes: int


class _Plans:
    """The plans of one communicator; see `plan_of`."""

    def __init__(self, context: Context) -> None:
        self.plan = lru_cache(maxsize=256)(partial(_plan, context.topology, context.config.chunk_bytes))


def plan_of(context: Context, operation: Operation, spec: Spec, backend: str | None) -> Plan:
    """The plan for an array of `spec`, which is kept. Local."""
    law = operation.name, operation.commutes, operation.is_deterministic
    return context.cached(_Plans).plan(spec.dtype, spec.shape, spec.order, *law, backend)


def _plan(
    topology: Topology,
    configured: int | None,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    order: Order,
    name: str,
    commutes: bool,
    is_deterministic: bool,
    backend: str | None,
) -> Plan:
    spec = Spec(dtype, shape, order)  # for which Python would take 0.3 us to find the plan
    nbytes, ranks = spec.nbytes, max(map(len, topology.placement.nodes))
    step = min(_STEP_BYTES, _MAX_SCRATCH_BYTES // ranks)
    layout = 2 if nbytes > step else 1, ranks, slices.round_up(min(nbytes, step), plan.LINE_BYTES)
    is_ordered = not commutes and not ring_plan.is_in_order(topology.placement)
    is_small = plan.is_small(topology.n_nodes * nbytes) and not is_ordered
    middle = slices.byte_slice(nbytes, 2, 0, grain=plan.LINE_BYTES).stop // dtype.itemsize
    scratch_bytes = math.prod(layout) if ranks > 1 and not is_ordered else 0
    leader_reduces = topology.node_size * nbytes <= _MAX_LEADER_BYTES
    is_on_one_node = topology.n_nodes == 1 and topology.node_size > 1
    return Plan(
        spec,
        f"allreduce({spec.dtype.str}{list(spec.shape)}, {name}, backend={backend})",
        is_ordered,
        is_small,
        is_swapped=topology.n_nodes == 2 and is_deterministic and nbytes <= ring_plan.MAX_SWAP_BYTES,
        halves=(slice(0, middle), slice(middle, nbytes // dtype.itemsize)),
        leader_reduces=leader_reduces,
        can_repeat=is_on_one_node and is_deterministic and leader_reduces,
        can_show_early=layout[0] == 1 and spec.order == "C" and scratch_bytes > 0,
        chunk_bytes=plan.ring_chunk_bytes(nbytes // topology.n_nodes, configured),
        layout=layout,
        scratch_bytes=scratch_bytes,
    )


class Reduction:
    """One reduction on one rank.

    Attributes:
        operation: The operation.
        spec: That of the array on each rank, and of the result.
        is_shown: Whether the ranks of each node have shown their items before they agreed to reduce; see `show`.
    """

    def __init__(self, context: Context, plan: Plan, operation: Operation, local: NDArray[Any]) -> None:
        """Allocates the memory that this rank needs for itself. Local; may raise MemoryError."""
        self.operation = operation
        self.spec = plan.spec
        self.is_shown = False
        self._context = context
        self._topology = context.topology
        self._plan = plan
        self._stages: Sequence[NDArray[Any]] = ()  # memory on a leader for what it receives and then reduces
        if self._topology.n_nodes > 1 and (self._topology.is_leader or plan.is_ordered):
            if plan.is_swapped:
                part = plan.halves[self._topology.node]
                is_whole = plan.spec.nbytes <= _MAX_WHOLE_BYTES
                self._stages = [np.empty(local.size if is_whole else part.stop - part.start, local.dtype)]
            elif plan.is_small:
                self._stages = [np.empty((self._topology.n_nodes, local.size), local.dtype)]
            else:
                self._stages = staging(min(plan.chunk_bytes, plan.spec.nbytes))
        self._copy = np.array(local, order="C") if plan.is_ordered else None
        self._private_rows: NDArray[Any] | None = None

    @property
    def is_repeated(self) -> bool:
        """Whether each rank reduces everything itself; see `Plan.can_repeat`."""
        return self._plan.can_repeat and self.is_shown

    def show(self, local: NDArray[Any], scratch: memoryview) -> None:
        """Writes this rank's items to its row of the node's scratch memory, which has one side."""
        start = self._topology.node_rank * self._plan.layout[2]
        fill(scratch[start : start + self.spec.nbytes], self.spec, local)

    def allocate_rows(self) -> None:
        """Allocates what replaces scratch memory where a node has none. Local; may raise MemoryError."""
        count = self._topology.node_size
        length = min(self.spec.nbytes, _STEP_BYTES // count) // self.spec.dtype.itemsize
        self._private_rows = np.empty((1, count, max(length, 1)), self.spec.dtype)

    def run(self, local: NDArray[Any], block: Block, is_shared: bool, scratch: Block | None) -> None:
        """Reduces the arrays of all ranks into `block` on each node.

        Args:
            local: This rank's array.
            block: The bytes of the result.
            is_shared: Whether `block` is the same memory on all ranks of this node; else each rank has its own.
            scratch: The scratch memory of the node; None on all nodes if one has none. Then `allocate_rows` was called.

        Collective:
            Over the communicator, but a rank may return before others have come.
        """
        if self._copy is not None:
            root = self._reduce_along(range(self._topology.size), bytes_of(self._copy), block)
        else:
            own = self._reduce_in_node(local, block, is_shared, scratch)
            if self._topology.n_nodes == 1:
                return
            if not self._plan.leader_reduces and self._topology.node_size > 1:
                self._context.node_collective_comm.barrier()
            root = self._reduce_between_nodes(own, block)
        if not is_shared:
            broadcast_in_node(self._context, root, block)

    def _reduce_in_node(
        self, local: NDArray[Any], block: Block, is_shared: bool, scratch: Block | None
    ) -> NDArray[Any]:
        """Reduces the arrays of this node's ranks, a step of items at a time.

        In each step every rank shows its items in a row, and reduces a part of the items of all rows. Steps use the
        sides in turn: once all ranks have come to a barrier, all have reduced the step before the last one.

        Returns:
            The items of this node: those of `block`, or those of `local` where they need no copy.
        """
        result = block.view(self.spec.dtype)
        array = local.T if self.spec.order == "F" else local
        if self._topology.node_size == 1:
            is_sent_whole = self._topology.n_nodes > 1 and (self._plan.is_small or self._plan.is_swapped)
            if is_sent_whole and array.flags.c_contiguous:
                return array.reshape(-1)
            np.copyto(self.spec.view(block), local)
            return result
        sides = self._rows(scratch)
        if self.is_repeated:
            reduced = np.empty_like(result)
            self.operation.fold(sides[0, :, : result.size], reduced)
            result[:] = reduced  # at once: a rank that has ended may read it already
            return result
        items = array.reshape(-1) if array.flags.c_contiguous else array.flat
        for number, step in enumerate(slices.chunks(result.size, sides.shape[-1])):
            rows, whole = sides[number % len(sides), :, : step.stop - step.start], result[step]
            if not self.is_shown:
                rows[self._topology.node_rank] = items[step]
                self._exchange_rows(rows, is_private=scratch is None)
            own = self._own_part(whole) if is_shared else slice(0, whole.size)
            if own.stop > own.start:
                self.operation.fold(rows[:, own], whole[own])
        return result

    def _rows(self, scratch: Block | None) -> NDArray[Any]:
        """The memory for a step of items of each rank of this node, shape (sides, ranks, items)."""
        if scratch is None:
            assert self._private_rows is not None
            return self._private_rows
        sides, ranks, _ = self._plan.layout
        return scratch.view(self.spec.dtype).reshape(sides, ranks, -1)[:, : self._topology.node_size]

    def _exchange_rows(self, rows: NDArray[Any], *, is_private: bool) -> None:
        """Returns when each rank of this node sees the rows of all."""
        if not is_private:
            self._context.node_collective_comm.barrier()
            return
        for node_rank, row in enumerate(rows):
            self._context.node_collective_comm.bcast(row.view(np.uint8), node_rank)

    def _own_part(self, whole: NDArray[Any]) -> slice:
        """The items that this rank reduces for its node."""
        if self._plan.leader_reduces:
            return slice(0, whole.size if self._topology.is_leader else 0)
        count, place = self._topology.node_size, self._topology.node_rank
        part = slices.byte_slice(whole.nbytes, count, place, grain=plan.LINE_BYTES)
        return slice(part.start // whole.itemsize, part.stop // whole.itemsize)

    def _reduce_between_nodes(self, own: NDArray[Any], block: Block) -> int:
        """Reduces `own` of the leaders to `block`; all of them have it. Returns the root for `broadcast_in_node`."""
        leader_comm, count = self._context.leader_comm, self._topology.n_nodes
        if self._plan.is_swapped or self._plan.is_small:
            if leader_comm is not None:
                (received,) = self._stages
                result = block.view(self.spec.dtype)
                if self._plan.is_swapped:
                    self._swap(own, received, result)
                else:
                    leader_comm.allgather(own, received)
                    self.operation.fold(received, result)
            return 0
        leaders = plan.chain(self._topology.placement, 0)
        if not self.operation.commutes:
            return self._reduce_along(leaders, block, block)
        if leader_comm is not None:
            ring = ring_plan.reduce_ring(block.nbytes, count, self._topology.node, self._plan.chunk_bytes)
            circulate(self._context, leaders, block, ring, self._combine, self._stages)
        return 0

    def _swap(self, own: NDArray[Any], received: NDArray[Any], result: NDArray[Any]) -> None:
        """Reduces `own` of this leader and of that of the other node, half k from node k on as in a ring."""
        context, node, halves = self._context, self._topology.node, self._plan.halves
        other, configured = self._topology.placement.leader(1 - node), context.config.chunk_bytes
        is_whole = own.nbytes <= _MAX_WHOLE_BYTES
        most_bytes = own.nbytes if is_whole else max(own[half].nbytes for half in halves)
        chunk_bytes = ring_plan.swap_chunk_bytes(most_bytes, link_of(context), configured)
        if not is_whole:
            half, other_half = halves[node], halves[1 - node]
            swap(context, other, own[other_half], received, chunk_bytes)
            self.operation.fold([own[half], received], result[half])
            swap(context, other, result[half], result[other_half], chunk_bytes)
            return
        swap(context, other, own, received, chunk_bytes)
        arrays = (received, own) if node else (own, received)
        if self._plan.is_small:
            self.operation.fold(arrays, result)
            return
        for half, inputs in zip(halves, (arrays, arrays[::-1]), strict=True):
            self.operation.fold([array[half] for array in inputs], result[half])

    def _reduce_along(self, path: Sequence[int], own: Block, block: Block) -> int:
        """Reduces `own` from each rank of `path` to the next, and sends the result to the `block` of each node.

        Returns:
            The last rank of `path`, which has the result and sends it.
        """
        if self._topology.rank in path:
            place = path.index(self._topology.rank)
            ring = ring_plan.reduce_chain(own.nbytes, len(path), place, self._plan.chunk_bytes)
            circulate(self._context, path, own, ring, self._combine, self._stages)
        if own is not block and self._topology.rank == path[-1]:
            block[:] = own
        broadcast_chunks(self._context, path[-1], block)
        return path[-1]

    def _combine(self, lower: Block, upper: Block) -> None:
        self.operation.into_upper(lower.view(self.spec.dtype), upper.view(self.spec.dtype))
