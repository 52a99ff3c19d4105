"""Reduces the arrays of all ranks to one on each node: the ranks of a node reduce slices, then the leaders do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays import slices
from mpishare.arrays.dtypes import is_native_number
from mpishare.arrays.raw import Block
from mpishare.arrays.slices import LINE_BYTES
from mpishare.arrays.spec import Spec
from mpishare.comm import mpi
from mpishare.comm.agreement import Deferred
from mpishare.comm.communicator import CollectiveComm
from mpishare.comm.context import Context
from mpishare.errors import ArgumentError, SpecError
from mpishare.memory.segment import Segment
from mpishare.transfer.between_nodes import LARGEST_MESSAGE_BYTES, broadcast
from mpishare.transfer.node_fill import broadcast_in_node

Array = NDArray[Any]

_STEP_BYTES, _MAX_SCRATCH_BYTES = 1 << 20, 32 << 20
"""Bytes that a rank shows the others of its node in a step, and that all of them show at most. A step fits in a cache,
and is worth a barrier."""

_MAX_LEADER_BYTES = 64 << 10
"""Up to this size, over all ranks of a node, the leader reduces alone: that takes no longer than a barrier."""

_MAX_GATHERED_BYTES = 32 << 10
"""Up to this size, over all nodes, each leader gets the items of all leaders: one message in place of two."""

_PART_BYTES, _MAX_PIECE_BYTES = 1 << 20, 64 << 20
"""Bytes that a leader reduces at a time, and that all of them do at most."""

_KINDS = {"b": "bool", "i": "integers", "u": "unsigned integers", "f": "floats", "c": "complex numbers"}


class Operation(Protocol):
    """An operation on arrays of one shape and dtype.

    Attributes:
        name: What all ranks must give alike.
        op: The operation as MPI has it.
        commutes: Whether the ranks may be taken in any order.
    """

    name: str
    op: mpi.Op
    commutes: bool

    def check(self, dtype: np.dtype[Any]) -> None:
        """Raises a `SpecError` if the operation does not fit `dtype`."""

    def fold(self, inputs: Sequence[Array] | Array, out: Array) -> None:
        """Reduces `inputs`, at least one, into `out`, which overlaps none of them."""


@dataclass
class _Function:
    """One of MPI's operations by a NumPy function, which takes the inputs from first to last. Satisfies `Operation`."""

    name: str
    op: mpi.Op
    function: np.ufunc
    kinds: str
    commutes: bool = True

    def check(self, dtype: np.dtype[Any]) -> None:
        """By the table of MPI 3.1, section 5.9.2, with bool among the kinds that have bits."""
        if dtype.kind not in self.kinds:
            known = ", ".join(_KINDS[kind] for kind in self.kinds)
            raise SpecError(f"{self.name} does not fit dtype {dtype}: it takes {known}. {_cure(dtype)}")

    def fold(self, inputs: Sequence[Array] | Array, out: Array) -> None:
        """See `Operation`. An overflow is a value, as in MPI; a warning could be an error.

        NumPy takes one item that is its own result for a reduction: it swaps the operands, and a complex product is
        then rounded in another way.
        """
        result, *others = inputs
        if not others:
            out[:] = result
        with np.errstate(all="ignore"):
            for array in others:
                if out.size == 1:
                    out[:] = self.function(result, array)
                else:
                    self.function(result, array, out=out)
                result = out


@dataclass
class _UserFunction:
    """An operation made by MPI.Op.Create. It satisfies `Operation`.

    It takes the inputs from last to first, as MPI_Reduce_local writes the result over the upper input.
    """

    name: str
    op: mpi.Op
    commutes: bool

    def check(self, dtype: np.dtype[Any]) -> None:
        """The operation gets an MPI datatype, so MPI must have one."""
        if not is_native_number(dtype):
            raise SpecError(f"{self.name} does not fit dtype {dtype}: it takes numbers in this machine's byte order.")
        try:
            mpi.Datatype.fromcode(dtype.char)
        except (ValueError, KeyError) as error:
            raise SpecError(
                f"{self.name} does not fit dtype {dtype}: MPI has no type for it. Use .astype('f4')."
            ) from error

    def fold(self, inputs: Sequence[Array] | Array, out: Array) -> None:
        """See `Operation`."""
        out[:] = inputs[-1]
        for array in inputs[-2::-1]:
            self.op.Reduce_local(np.ascontiguousarray(array), out)


def operation_of(op: mpi.Op) -> Operation:
    """The operation that `op` stands for.

    Raises:
        ArgumentError: `op` is not an operation, or not one on arrays of numbers.
    """
    if not isinstance(op, mpi.Op):
        raise ArgumentError(f"op is {op!r}. Give an operation of mpi4py, such as MPI.SUM, or one of MPI.Op.Create.")
    known = _known_operations().get(mpi.handle_of(op))
    if known is not None:
        return known
    if op == mpi.OP_NULL or op.is_predefined:
        names = ", ".join(operation.name for operation in _known_operations().values())
        raise ArgumentError(f"op does not reduce arrays of numbers. Use {names}, or one of MPI.Op.Create.")
    law = "commutes" if op.is_commutative else "does not commute"  # handles differ between ranks, so the name has none
    return _UserFunction(f"an operation of the user's that {law}", op, op.is_commutative)


@cache
def _known_operations() -> dict[int, _Function]:
    """MPI's own operations, by handle."""
    table = {
        "SUM": (np.add, "iufc"),
        "PROD": (np.multiply, "iufc"),
        "MIN": (np.minimum, "iuf"),
        "MAX": (np.maximum, "iuf"),
        "LAND": (np.logical_and, "biu"),
        "LOR": (np.logical_or, "biu"),
        "LXOR": (np.logical_xor, "biu"),
        "BAND": (np.bitwise_and, "biu"),
        "BOR": (np.bitwise_or, "biu"),
        "BXOR": (np.bitwise_xor, "biu"),
    }
    ops = {name: getattr(mpi, name) for name in table}
    return {mpi.handle_of(op): _Function(f"MPI.{name}", op, *table[name]) for name, op in ops.items()}


def _cure(dtype: np.dtype[Any]) -> str:
    if dtype.names is not None:
        return "Reduce its columns one by one."
    if dtype.kind == "b":
        return "Use MPI.LOR or MPI.LAND, or count with .astype('i8')."
    return "Use another operation, or another dtype by .astype."


class Scratch(NamedTuple):
    """Memory in which the ranks of a node show one another their items.

    Attributes:
        block: The bytes.
        is_shared: Whether all ranks of the node see the same bytes; else each rank has its own.
    """

    block: Block
    is_shared: bool


class Reduction:
    """One reduction on one rank.

    Attributes:
        is_in_rank_order: Whether the ranks are taken strictly in their order, as the operation does not commute and the
            ranks of the nodes are not consecutive.
    """

    def __init__(self, context: Context, operation: Operation, local: Array) -> None:
        """Allocates what the leader of this node receives from the other leaders. Local; may raise MemoryError."""
        topology = context.topology
        self._context, self._operation, self._dtype, self._nbytes = context, operation, local.dtype, local.nbytes
        ranks = [rank for ranks in topology.placement.nodes for rank in ranks]
        self.is_in_rank_order = not operation.commutes and ranks != list(range(topology.size))
        self._copy = np.array(local, order="C").reshape(-1) if self.is_in_rank_order else None
        self._piece_bytes = min(topology.n_nodes * _PART_BYTES, _MAX_PIECE_BYTES)
        most = min(topology.n_nodes * self._nbytes, self._piece_bytes) + topology.n_nodes * LINE_BYTES
        self._received = np.empty(most if topology.is_leader and topology.n_nodes > 1 else 0, np.uint8)
        self._deferred = Deferred()
        rows = max(map(len, topology.placement.nodes))
        step = slices.round_up(min(self._nbytes, _STEP_BYTES, _MAX_SCRATCH_BYTES // rows), LINE_BYTES)
        # of the scratch memory of a node: sides that take turns, rows for ranks, bytes of a step
        self._layout = 2 if self._nbytes > step else 1, rows, step

    @property
    def scratch_bytes(self) -> int:
        """The bytes of each node in which its ranks show one another their items; the same on all ranks."""
        return 0 if self._layout[1] == 1 or self.is_in_rank_order else math.prod(self._layout)

    def run(self, local: Array, spec: Spec, segment: Segment, scratch: Scratch) -> None:
        """Reduces the arrays of all ranks into the segment of each node. An agreement of all ranks must follow.

        Args:
            local: This rank's array.
            spec: The spec of the result.
            segment: The memory of the result.
            scratch: Memory of `scratch_bytes`.

        Collective:
            Over the communicator, but a rank may return before others have come.
        """
        context, block, is_shared = self._context, segment.block(), segment.origin.is_shared
        result = block.view(self._dtype)
        if self._copy is not None:
            for piece in slices.chunks(result.size, LARGEST_MESSAGE_BYTES // result.itemsize):
                context.collective_comm.reduce(self._copy[piece], result[piece], self._operation.op, 0)
            broadcast(context, 0, block)
            if not is_shared:
                broadcast_in_node(context, 0, block)
            return
        items = local.T if spec.order == "F" else local
        self._reduce_in_node(items.reshape(-1) if items.flags.c_contiguous else items.flat, result, is_shared, scratch)
        if context.leader_comm is not None and context.topology.n_nodes > 1:
            for part in slices.chunks(block.nbytes, self._piece_bytes):
                self._reduce_between_nodes(context.leader_comm, block[part])
        if context.topology.n_nodes > 1 and not is_shared:
            broadcast_in_node(context, 0, block)
        self._deferred.raise_first()

    def _reduce_in_node(self, items: Any, result: Array, is_shared: bool, scratch: Scratch) -> None:
        """Reduces the arrays of the ranks of this node, a step of items at a time.

        In each step every rank shows its items in a row, and reduces a part of the items of all rows. The sides take
        turns: once all ranks have come to a barrier, all have reduced the step before the last one.
        """
        topology, node_comm = self._context.topology, self._context.node_collective_comm
        if topology.node_size == 1:
            with self._deferred:
                result[:] = items
            return
        sides = scratch.block.view(self._dtype).reshape(*self._layout[:2], -1)
        for number, step in enumerate(slices.chunks(result.size, sides.shape[-1])):
            rows, whole = sides[number % len(sides), : topology.node_size, : step.stop - step.start], result[step]
            with self._deferred:
                rows[topology.node_rank] = items[step]
            if scratch.is_shared:
                node_comm.barrier()
            else:
                for node_rank, row in enumerate(rows):
                    node_comm.bcast(row.view(np.uint8), node_rank)
            own = self._own_part(whole) if is_shared else slice(0, whole.size)
            with self._deferred:
                self._operation.fold(rows[:, own], whole[own])
        if is_shared and not self._leader_reduces:
            node_comm.barrier()

    @property
    def _leader_reduces(self) -> bool:
        return self._context.topology.node_size * self._nbytes <= _MAX_LEADER_BYTES

    def _own_part(self, whole: Array) -> slice:
        """The items that this rank reduces for its node."""
        topology = self._context.topology
        if self._leader_reduces:
            return slice(0, whole.size if topology.is_leader else 0)
        part = slices.byte_slice(whole.nbytes, topology.node_size, topology.node_rank, grain=LINE_BYTES)
        return slice(part.start // whole.itemsize, part.stop // whole.itemsize)

    def _reduce_between_nodes(self, leaders: CollectiveComm, block: Block) -> None:
        """Reduces the bytes of the leaders in the order of the nodes: each reduces a part, which all others get.

        So each item is reduced once, and all nodes get the same bits, whatever the MPI library and its MPI_Allreduce.
        """
        count, rank, nbytes = leaders.size, leaders.rank, block.nbytes
        is_gathered = count * nbytes <= _MAX_GATHERED_BYTES
        parts = [slices.byte_slice(nbytes, count, number, grain=LINE_BYTES) for number in range(count)]
        own = block if is_gathered else block[parts[rank]]
        received = self._received[: count * own.nbytes]
        if is_gathered:
            leaders.allgather(block, received)
        else:
            leaders.alltoall_parts(block, parts, received)
        with self._deferred:
            self._operation.fold(received.view(self._dtype).reshape(count, -1), own.view(self._dtype))
        if not is_gathered:
            leaders.allgather_parts(block, parts)
