"""How the arrays of all ranks are reduced to one on each node: step by step within a node, then between the nodes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays import slices
from mpishare.arrays.raw import Block, bytes_of
from mpishare.arrays.spec import Spec
from mpishare.comm.context import Context
from mpishare.comm.placement import Placement
from mpishare.transfer import plan, ring_plan
from mpishare.transfer.node_fill import broadcast_in_node, fill
from mpishare.transfer.operations import Operation
from mpishare.transfer.pipeline import broadcast_chunks
from mpishare.transfer.ring import circulate, exchange, staging

_STEP_BYTES = 1 << 20
"""Bytes that a rank shows the others of its node in a step: few enough to stay in caches, enough to be worth a barrier.
With more ranks than cores a barrier takes long: half as much made 64 MiB on 4 ranks a quarter slower, twice as much no
faster."""

_MAX_SCRATCH_BYTES = 32 << 20
"""Bytes that all ranks of a node show in a step, at most."""

_MAX_LEADER_BYTES = 64 << 10
"""Up to here, over all ranks of a node, the leader reduces alone: it takes no longer than a barrier."""


@lru_cache(maxsize=64)
def _scratch_layout(placement: Placement, nbytes: int) -> tuple[int, int, int]:
    """Shape of each node's scratch memory, the same on all nodes: sides that take turns, rows for ranks, row bytes."""
    ranks = max(map(len, placement.nodes))
    step = min(_STEP_BYTES, _MAX_SCRATCH_BYTES // ranks)
    return 2 if nbytes > step else 1, ranks, slices.round_up(min(nbytes, step), plan.LINE_BYTES)


class Reduction:
    """One reduction on one rank.

    Attributes:
        operation: The operation.
        spec: That of the array on each rank, and of the result.
        is_ordered: Whether the result goes strictly from rank to rank, since the operation does not commute and the
            ranks of the nodes are not consecutive.
        is_shown: Whether the ranks of each node have shown their items before they agreed to reduce; see `show`.
    """

    def __init__(self, context: Context, operation: Operation, local: NDArray[Any], spec: Spec) -> None:
        """Allocates the memory that this rank needs for itself. Local; may raise MemoryError."""
        topology = context.topology
        self.operation = operation
        self.spec = spec
        self.is_ordered = not operation.commutes and not ring_plan.is_in_order(topology.placement)
        self.is_shown = False
        self._context = context
        self._topology = topology
        self._is_small = plan.is_small(topology.n_nodes * spec.nbytes) and not self.is_ordered
        self._leader_reduces = topology.node_size * spec.nbytes <= _MAX_LEADER_BYTES
        self._chunk_bytes = plan.ring_chunk_bytes(spec.nbytes // topology.n_nodes, context.config.chunk_bytes)
        has_chunks = topology.n_nodes > 1 and not self._is_small
        self._stages = staging(min(self._chunk_bytes, spec.nbytes)) if has_chunks else []
        self._copy = np.array(local, order="C") if self.is_ordered else None
        self._layout = _scratch_layout(topology.placement, spec.nbytes)
        self._private_rows: NDArray[Any] | None = None

    @property
    def scratch_bytes(self) -> int:
        """Size of the scratch memory of each node, the same on all nodes; 0 where none is needed."""
        sides, ranks, row_bytes = self._layout
        return sides * ranks * row_bytes if ranks > 1 and not self.is_ordered else 0

    @property
    def can_show_early(self) -> bool:
        """Whether this rank may `show` its items before it knows those of the others: few of them, in C order."""
        return self._layout[0] == 1 and self.spec.order == "C" and self.scratch_bytes > 0

    @property
    def is_repeated(self) -> bool:
        """Whether each rank reduces everything itself, so that it need not wait for another rank.

        All write the same bytes to the same memory, which does no harm. It takes a deterministic operation, and few
        bytes, so that it takes less time than a barrier.
        """
        is_on_one_node = self._topology.n_nodes == 1 and self._topology.node_size > 1
        return is_on_one_node and self.is_shown and self.operation.is_deterministic and self._leader_reduces

    def show(self, local: NDArray[Any], scratch: memoryview) -> None:
        """Writes this rank's items to its row of the node's scratch memory, which has one side."""
        start = self._topology.node_rank * self._layout[2]
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
            self._reduce_in_node(local, block, is_shared, scratch)
            if self._topology.n_nodes == 1:
                return
            if not self._leader_reduces:
                self._context.node_collective_comm.barrier()
            root = self._reduce_between_nodes(block)
        if not is_shared:
            broadcast_in_node(self._context, root, block)

    def _reduce_in_node(self, local: NDArray[Any], block: Block, is_shared: bool, scratch: Block | None) -> None:
        """Reduces the arrays of this node's ranks, a step of items at a time.

        In each step every rank shows its items in a row, and reduces a part of the items of all rows. Steps use the
        sides in turn: once all ranks have come to a barrier, all have reduced the step before the last one.
        """
        if self._topology.node_size == 1:
            np.copyto(self.spec.view(block), local)
            return
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

    def _rows(self, scratch: Block | None) -> NDArray[Any]:
        """The memory for a step of items of each rank of this node, shape (sides, ranks, items)."""
        if scratch is None:
            assert self._private_rows is not None
            return self._private_rows
        sides, ranks, _ = self._layout
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
        if self._leader_reduces:
            return slice(0, whole.size if self._topology.is_leader else 0)
        count, place = self._topology.node_size, self._topology.node_rank
        part = slices.byte_slice(whole.nbytes, count, place, grain=plan.LINE_BYTES)
        return slice(part.start // whole.itemsize, part.stop // whole.itemsize)

    def _reduce_between_nodes(self, block: Block) -> int:
        """Reduces the blocks of the leaders; all of them have the result. Returns the root for `broadcast_in_node`."""
        leaders = plan.chain(self._topology.placement, 0)
        if not self._is_small and not self.operation.commutes:
            return self._reduce_along(leaders, block, block)
        if self._topology.is_leader and self._is_small:
            inputs = exchange(self._context, leaders, block, [block.nbytes] * len(leaders))
            self.operation.fold([part.view(self.spec.dtype) for part in inputs], block.view(self.spec.dtype))
        elif self._topology.is_leader:
            ring = ring_plan.reduce_ring(block.nbytes, len(leaders), self._topology.node, self._chunk_bytes)
            circulate(self._context, leaders, block, ring, self._combine, self._stages)
        return 0

    def _reduce_along(self, path: Sequence[int], own: Block, block: Block) -> int:
        """Reduces `own` from each rank of `path` to the next, and sends the result to the `block` of each node.

        Returns:
            The last rank of `path`, which has the result and sends it.
        """
        if self._topology.rank in path:
            place = path.index(self._topology.rank)
            ring = ring_plan.reduce_chain(own.nbytes, len(path), place, self._chunk_bytes)
            circulate(self._context, path, own, ring, self._combine, self._stages)
        if own is not block and self._topology.rank == path[-1]:
            block[:] = own
        broadcast_chunks(self._context, path[-1], block)
        return path[-1]

    def _combine(self, lower: Block, upper: Block) -> None:
        self.operation.into_upper(lower.view(self.spec.dtype), upper.view(self.spec.dtype))
