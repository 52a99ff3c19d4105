"""How the arrays of all ranks become one on each node: within the node part by part, then between the nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
from mpishare.transfer.ring import Combine, circulate, exchange, pass_along, staging
from mpishare.transfer.ring_plan import LINE_BYTES

_STEP_BYTES = 1 << 20
"""What a rank shows the others of its node at a time: little enough to stay in caches, enough to be worth a meeting.
With more ranks than cores a meeting takes long: half as much made 64 MiB on 4 ranks a quarter slower, twice as much no
faster."""

_SIDE_BYTES = 32 << 20
"""What all ranks of a node show at a time, at most."""

_ALONE_BYTES = 64 << 10
"""Up to here, all ranks of a node together, one rank reduces them in no more time than a meeting takes."""


@lru_cache(maxsize=64)
def _rooms(placement: Placement, nbytes: int) -> tuple[int, int, int]:
    """Scratch memory of each node: how many places each rank has, to use in turn, for how many ranks, of what size.

    It is the same on all nodes.
    """
    ranks = max(map(len, placement.nodes))
    step = min(_STEP_BYTES, _SIDE_BYTES // ranks)
    return 2 if nbytes > step else 1, ranks, -(-min(nbytes, step) // LINE_BYTES) * LINE_BYTES


@dataclass
class Reduction:
    """One reduction on one rank.

    Attributes:
        context: That of the communicator.
        operation: What puts two arrays together.
        spec: That of the array on each rank, and of the result.
        own: This rank's array in memory that may be overwritten, where each rank must come in its turn.
        stages: Memory for what comes from other nodes.
        room: Memory for what comes from others of this node, where they see none together.
        is_shown: Whether the ranks of each node have shown what they have, before they agreed that they reduce.
    """

    context: Context
    operation: Operation
    spec: Spec
    own: NDArray[Any] | None
    stages: Sequence[Block] = ()
    room: Block | None = None
    is_shown: bool = False

    @classmethod
    def of(cls, context: Context, operation: Operation, local: NDArray[Any], spec: Spec) -> Reduction:
        """Takes the memory that this rank needs for itself. Local, and may fail."""
        in_turn = not operation.commutes and not ring_plan.is_in_order(context.topology.placement)
        made = cls(context, operation, spec, np.array(local, order="C") if in_turn else None)
        if context.topology.n_nodes > 1 and not made.is_little:
            made.stages = staging(min(_piece_bytes(context, spec.nbytes), spec.nbytes))
        return made

    @property
    def scratch_bytes(self) -> int:
        """How much scratch memory each node takes; the same on all nodes, 0 where none needs any."""
        sides, ranks, room = _rooms(self.context.topology.placement, self.spec.nbytes)
        is_needed = ranks > 1 and self.own is None
        return sides * ranks * room if is_needed else 0

    @property
    def can_show_early(self) -> bool:
        """Whether this rank may show what it has before it knows what the others have: few bytes, in their order."""
        sides = _rooms(self.context.topology.placement, self.spec.nbytes)[0]
        return sides == 1 and self.spec.order == "C" and self.scratch_bytes > 0

    @property
    def is_little(self) -> bool:
        """Whether few bytes come from all nodes together."""
        return self.own is None and ring_plan.is_little(self.context.topology.n_nodes * self.spec.nbytes)

    @property
    def is_repeated(self) -> bool:
        """Whether each rank does all the work for itself, so that it need not wait for another to do it.

        All write the same bytes to the same place, which does no harm. It takes functions that are known to give the
        same on all ranks, and less time than a meeting.
        """
        is_on_one_node = self.context.topology.n_nodes == 1 and self.context.topology.node_size > 1
        return is_on_one_node and self.is_shown and self.operation.is_known and self._is_for_one

    @property
    def _is_for_one(self) -> bool:
        """Whether the leader reduces what its node has by itself."""
        return self.context.topology.node_size * self.spec.nbytes <= _ALONE_BYTES

    def take_room(self) -> None:
        """Takes what is needed where the ranks of a node see no scratch memory. Local, and may fail."""
        self.room = np.empty(min(self.spec.nbytes, _STEP_BYTES), np.uint8)

    def show(self, local: NDArray[Any], place: memoryview) -> None:
        """Writes this rank's items to scratch memory, where there is room for all of them."""
        start = self.context.topology.node_rank * _rooms(self.context.topology.placement, self.spec.nbytes)[2]
        fill(place[start : start + self.spec.nbytes], self.spec, local)

    def run(self, local: NDArray[Any], block: Block, is_shared: bool, scratch: Block | None) -> None:
        """Reduces the arrays of all ranks into `block` on each node.

        Args:
            local: This rank's array.
            block: The bytes of the result.
            is_shared: Whether the ranks of this node see one `block`, or each has its own.
            scratch: Memory that they all see; None where they have none, on all nodes.

        Collective:
            Over the communicator, but a rank may return before others have come.
        """
        if self.own is not None:
            root = self._in_turn(bytes_of(self.own), block)
        else:
            self._within(local, block, is_shared, scratch)
            if self.context.topology.n_nodes == 1:
                return
            if not self._is_for_one:
                self.context.node_collective_comm.barrier()
            root = self._between(block)
        if not is_shared:
            broadcast_in_node(self.context, root, block)

    def _within(self, local: NDArray[Any], block: Block, is_shared: bool, scratch: Block | None) -> None:
        """Reduces what the ranks of this node have."""
        if self.context.topology.node_size == 1:
            np.copyto(self.spec.view(block), local)
            return
        array = local.T if self.spec.order == "F" else local
        items = array.reshape(-1) if array.flags.c_contiguous else array.flat
        result = block.view(self.spec.dtype)
        if scratch is None:
            self._by_turns(items, result, is_shared)
        else:
            self._through(scratch, items, result, is_shared)

    def _through(self, scratch: Block, items: Any, result: NDArray[Any], is_shared: bool) -> None:
        """Each rank shows a part of its items at a time, in one of two places in turn, and reduces a part of that part.

        When all have come to a meeting, all have reduced what was shown before the meeting before.
        """
        count, ranks, room = _rooms(self.context.topology.placement, self.spec.nbytes)
        sides = scratch.view(result.dtype).reshape(count, ranks, -1)[:, : self.context.topology.node_size]
        for number, part in enumerate(slices.chunks(result.size, room // result.itemsize)):
            side, whole = sides[number % len(sides)], result[part]
            if not self.is_shown:
                side[self.context.topology.node_rank, : whole.size] = items[part]
                self.context.node_collective_comm.barrier()
            mine = self._mine(whole) if is_shared else slice(0, whole.size)
            if self.is_repeated:
                found = np.empty_like(whole)
                self.operation.fold(side[:, : whole.size], found)
                whole[:] = found  # in one step: what is on its way to it must not be seen
            elif mine.stop > mine.start:
                self.operation.fold(side[:, mine], whole[mine])

    def _mine(self, whole: NDArray[Any]) -> slice:
        """Which of these items this rank reduces for its node."""
        if self._is_for_one:
            return slice(0, whole.size if self.context.topology.is_leader else 0)
        count, place = self.context.topology.node_size, self.context.topology.node_rank
        part = slices.byte_slice(whole.nbytes, count, place, grain=LINE_BYTES)
        return slice(part.start // whole.itemsize, part.stop // whole.itemsize)

    def _by_turns(self, items: Any, result: NDArray[Any], is_shared: bool) -> None:
        """Each rank sends its items to all of the node."""
        assert self.room is not None
        room = self.room.view(result.dtype)
        for part in slices.chunks(result.size, room.size):
            piece = room[: part.stop - part.start]
            for number, rank in enumerate(self.operation.begin_with(self.context.topology.node_size)):
                if rank == self.context.topology.node_rank:
                    piece[:] = items[part]
                self.context.node_collective_comm.bcast(piece.view(np.uint8), rank)
                if is_shared and not self.context.topology.is_leader:
                    continue
                if number:
                    self.operation.add(piece, result[part])
                else:
                    result[part] = piece

    def _between(self, block: Block) -> int:
        """Reduces what the nodes have; the root from which it came to them, as for `broadcast_chunks`."""
        context, placement = self.context, self.context.topology.placement
        if self.is_little:
            if context.topology.is_leader:
                found = exchange(context, plan.chain(placement, 0), block, [block.nbytes] * context.topology.n_nodes)
                self.operation.fold([one.view(self.spec.dtype) for one in found], block.view(self.spec.dtype))
            return 0
        if not self.operation.commutes:
            return self._along([placement.leader(node) for node in range(context.topology.n_nodes)], block)
        if context.topology.is_leader:
            path = plan.chain(placement, 0)
            piece = _piece_bytes(context, block.nbytes)
            ring = ring_plan.reduce_ring(slice(0, block.nbytes), context.topology.n_nodes, context.topology.node, piece)
            circulate(context, path, block, ring, self._combine(), self.stages)
        return 0

    def _in_turn(self, own: Block, block: Block) -> int:
        """Reduces from each rank to the next; the last one, from which it came to the other nodes."""
        ranks = range(self.context.topology.size)
        self._along(ranks, own, into=block)
        return ranks[-1]

    def _along(self, path: Sequence[int], own: Block, into: Block | None = None) -> int:
        """Reduces from each rank of `path` to the next, and brings what comes of it to all nodes; the last of them."""
        context, last = self.context, path[-1]
        parts = list(slices.chunks(own.nbytes, _piece_bytes(context, own.nbytes)))
        pass_along(context, path, own, parts, self._combine(), self.stages)
        block = own if into is None else into
        if into is not None and context.topology.rank == last:
            into[:] = own
        broadcast_chunks(context, last, block)
        return last

    def _combine(self) -> Combine:
        dtype, operation = self.spec.dtype, self.operation

        def combine(lower: Block, upper: Block) -> None:
            operation.into_upper(lower.view(dtype), upper.view(dtype))

        return combine


def _piece_bytes(context: Context, nbytes: int) -> int:
    return ring_plan.piece_bytes(nbytes // context.topology.n_nodes, context.config.chunk_bytes)
