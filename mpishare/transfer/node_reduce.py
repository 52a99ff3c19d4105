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
from mpishare.arrays.spec import Spec
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

_MAX_SWAP_BYTES = 2 << 20
"""Up to here the leaders of two nodes send each other all their bytes, and reduce them both: as many bytes cross the
link as in a ring, in one step instead of two. Gain through shared memory: 64 KiB 117 to 71 us, 1 MiB 0.99 to 0.75 ms;
at 400 Mbit/s a tenth up to 1 MiB."""


class _Plan(NamedTuple):
    """How arrays of one size are reduced on one communicator, the same on all ranks but for `leader_reduces`.

    Attributes:
        is_ordered: Whether the result goes strictly from rank to rank, since the operation does not commute and the
            ranks of the nodes are not consecutive.
        is_small: Whether the leaders send all their bytes to all leaders in one call.
        is_swapped: Whether the leaders of two nodes swap their bytes.
        leader_reduces: Whether the leader of this node reduces the items of its ranks alone.
        chunk_bytes: Bytes of a message between nodes in a ring or a chain.
        layout: Shape of each node's scratch memory: sides that take turns, rows for ranks, row bytes.
        scratch_bytes: Size of the scratch memory of each node; 0 where none is needed.
    """

    is_ordered: bool
    is_small: bool
    is_swapped: bool
    leader_reduces: bool
    chunk_bytes: int
    layout: tuple[int, int, int]
    scratch_bytes: int

    def allocate_stages(self, n_nodes: int, nbytes: int) -> list[Block]:
        """Memory on a leader for what it receives and then reduces."""
        if self.is_small or self.is_swapped:
            return [np.empty(n_nodes * nbytes if self.is_small else nbytes, np.uint8)]
        return staging(min(self.chunk_bytes, nbytes))


class _Plans:
    """The plans of one communicator, by the size of the array and by two attributes of the operation; see `_plan`."""

    def __init__(self, context: Context) -> None:
        self.plan = lru_cache(maxsize=256)(partial(_plan, context.topology, context.config.chunk_bytes))


def _plan(topology: Topology, configured: int | None, nbytes: int, commutes: bool, is_deterministic: bool) -> _Plan:
    ranks = max(map(len, topology.placement.nodes))
    step = min(_STEP_BYTES, _MAX_SCRATCH_BYTES // ranks)
    layout = 2 if nbytes > step else 1, ranks, slices.round_up(min(nbytes, step), plan.LINE_BYTES)
    is_ordered = not commutes and not ring_plan.is_in_order(topology.placement)
    is_small = plan.is_small(topology.n_nodes * nbytes) and not is_ordered
    is_swapped = topology.n_nodes == 2 and not is_small and is_deterministic and nbytes <= _MAX_SWAP_BYTES
    return _Plan(
        is_ordered,
        is_small,
        is_swapped,
        leader_reduces=topology.node_size * nbytes <= _MAX_LEADER_BYTES,
        chunk_bytes=plan.ring_chunk_bytes(nbytes // topology.n_nodes, configured),
        layout=layout,
        scratch_bytes=math.prod(layout) if ranks > 1 and not is_ordered else 0,
    )


class Reduction:
    """One reduction on one rank.

    Attributes:
        operation: The operation.
        spec: That of the array on each rank, and of the result.
        is_ordered: See `_Plan`.
        is_swapped: See `_Plan`.
        scratch_bytes: See `_Plan`.
        is_shown: Whether the ranks of each node have shown their items before they agreed to reduce; see `show`.
    """

    def __init__(self, context: Context, operation: Operation, local: NDArray[Any], spec: Spec) -> None:
        """Allocates the memory that this rank needs for itself. Local; may raise MemoryError."""
        self.operation = operation
        self.spec = spec
        self.is_shown = False
        self._context = context
        self._topology = context.topology
        self._plan = context.keep(_Plans).plan(spec.nbytes, operation.commutes, operation.is_deterministic)
        self.is_ordered, self.is_swapped = self._plan.is_ordered, self._plan.is_swapped
        self.scratch_bytes = self._plan.scratch_bytes
        self._stages: Sequence[Block] = ()
        if self._topology.n_nodes > 1 and (self._topology.is_leader or self.is_ordered):
            self._stages = self._plan.allocate_stages(self._topology.n_nodes, spec.nbytes)
        self._copy = np.array(local, order="C") if self.is_ordered else None
        self._private_rows: NDArray[Any] | None = None

    @property
    def can_show_early(self) -> bool:
        """Whether this rank may `show` its items before it knows those of the others: few of them, in C order."""
        return self._plan.layout[0] == 1 and self.spec.order == "C" and self.scratch_bytes > 0

    @property
    def is_repeated(self) -> bool:
        """Whether each rank reduces everything itself, so that it need not wait for another rank.

        All write the same bytes to the same memory, which does no harm. It takes a deterministic operation, and few
        bytes, so that it takes less time than a barrier.
        """
        is_on_one_node = self._topology.n_nodes == 1 and self._topology.node_size > 1
        return is_on_one_node and self.is_shown and self.operation.is_deterministic and self._plan.leader_reduces

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

    def _reduce_in_node(self, local: NDArray[Any], block: Block, is_shared: bool, scratch: Block | None) -> Block:
        """Reduces the arrays of this node's ranks, a step of items at a time.

        In each step every rank shows its items in a row, and reduces a part of the items of all rows. Steps use the
        sides in turn: once all ranks have come to a barrier, all have reduced the step before the last one.

        Returns:
            The bytes of this node: `block`, or those of `local` where they need no copy.
        """
        if self._topology.node_size == 1:
            if self._stages and (self._plan.is_small or self._plan.is_swapped) and self.spec.is_order_of(local):
                return bytes_of(local)
            np.copyto(self.spec.view(block), local)
            return block
        array = local.T if self.spec.order == "F" else local
        items = array.reshape(-1) if array.flags.c_contiguous else array.flat
        result = block.view(self.spec.dtype)
        sides = self._rows(scratch)
        for number, step in enumerate(slices.chunks(result.size, sides.shape[-1])):
            rows, whole = sides[number % len(sides), :, : step.stop - step.start], result[step]
            if not self.is_shown:
                rows[self._topology.node_rank] = items[step]
                self._exchange_rows(rows, is_private=scratch is None)
            own = self._own_part(whole) if is_shared else slice(0, whole.size)
            if self.is_repeated:
                reduced = np.empty_like(whole)
                self.operation.fold(rows, reduced)
                whole[:] = reduced  # at once: a rank that has ended may read it already
            elif own.stop > own.start:
                self.operation.fold(rows[:, own], whole[own])
        return block

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

    def _reduce_between_nodes(self, own: Block, block: Block) -> int:
        """Reduces `own` of the leaders to `block`; all of them have it. Returns the root for `broadcast_in_node`."""
        leader_comm, count = self._context.leader_comm, self._topology.n_nodes
        if leader_comm is not None and self._plan.is_small:
            leader_comm.allgather(own, self._stages[0])
            self.operation.fold(self._stages[0].view(self.spec.dtype).reshape(count, -1), block.view(self.spec.dtype))
        elif leader_comm is not None and self._plan.is_swapped:
            self._swap(own, block)
        elif not self._plan.is_small and not self._plan.is_swapped:
            leaders = plan.chain(self._topology.placement, 0)
            if not self.operation.commutes:
                return self._reduce_along(leaders, block, block)
            if leader_comm is not None:
                ring = ring_plan.reduce_ring(block.nbytes, count, self._topology.node, self._plan.chunk_bytes)
                circulate(self._context, leaders, block, ring, self._combine, self._stages)
        return 0

    def _swap(self, own: Block, block: Block) -> None:
        """Reduces `own` of this leader and of that of the other node to `block`, part k from node k on as in a ring."""
        node, dtype = self._topology.node, self.spec.dtype
        (received,) = self._stages
        configured = self._context.config.chunk_bytes
        chunk_bytes = ring_plan.swap_chunk_bytes(block.nbytes, link_of(self._context), configured)
        swap(self._context, self._topology.placement.leader(1 - node), own, received, chunk_bytes)
        arrays = (own, received) if node == 0 else (received, own)
        for number in range(2):
            part = slices.byte_slice(block.nbytes, 2, number, grain=plan.LINE_BYTES)
            inputs = [arrays[number][part].view(dtype), arrays[1 - number][part].view(dtype)]
            self.operation.fold(inputs, block[part].view(dtype))

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
