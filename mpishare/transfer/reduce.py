"""Reduces the arrays of all ranks to one on each node: first the arrays of a node, then the results of the nodes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextvars import Context as ContextVars
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays import slices
from mpishare.arrays.dtypes import HAS_NUMPY_2
from mpishare.arrays.raw import Block, bytes_of
from mpishare.arrays.slices import LINE_BYTES
from mpishare.arrays.spec import Spec
from mpishare.comm import mpi
from mpishare.comm.agreement import Deferred
from mpishare.comm.communicator import CollectiveComm
from mpishare.comm.context import Context
from mpishare.comm.requests import count_wait
from mpishare.errors import ArgumentError, SpecError
from mpishare.transfer.node_fill import broadcast_in_node

Array = NDArray[Any]

FEW_ITEMS_BYTES = 32 << 10
"""Up to this size, over all ranks, one rank of each node reduces the items of all; see `FewItems`."""

_PIECE_BYTES, _MAX_PIECE_BYTES = 1 << 20, 64 << 20
"""Bytes that the ranks of a node reduce at a time, and the leaders for each node; and the leaders at most."""

_KINDS = {"b": "bool", "i": "integers", "u": "unsigned integers", "f": "floats", "c": "complex numbers"}


class Operation(NamedTuple):
    """An operation of MPI on arrays of one shape and dtype.

    Attributes:
        name: What all ranks must give alike.
        function: NumPy's function of two arrays that does it.
        kinds: The kinds of dtypes that it takes.
    """

    name: str
    function: np.ufunc
    kinds: str

    def check(self, dtype: np.dtype[Any]) -> None:
        """Raises a `SpecError` where MPI 3.1, section 5.9.2, has no such operation."""
        if dtype.kind not in self.kinds:  # here bool has bits, too
            known = ", ".join(_KINDS[kind] for kind in self.kinds)
            raise SpecError(f"{self.name} does not fit dtype {dtype}: it takes {known}. {_cure(dtype)}")

    def fold(self, inputs: Sequence[Array] | Array, out: Array) -> None:
        """Reduces `inputs`, at least one, from first to last into `out`, which overlaps none of them.

        NumPy takes one item that is its own result for a reduction: it swaps the operands, and a complex product is
        then rounded in another way.
        """
        result, *others = inputs
        if not others:
            out[...] = result
        for array in others:
            _run_quietly(self.function, result.copy() if out.size == 1 else result, array, out)
            result = out


_QUIET = ContextVars()
"""In NumPy 2, where it ignores errors. NumPy 1 keeps that for a thread and not for a context."""

if HAS_NUMPY_2:
    _QUIET.run(np.seterr, all="ignore")


def _run_quietly(function: np.ufunc, first: Array, second: Array, out: Array) -> None:
    """Runs a function of NumPy. An overflow is a value, as in MPI; a warning could be an error.

    `errstate` would take as long as the rest of a small reduction. A context runs once at a time, and a signal's
    handler may reduce, too: so each time another copy of it.
    """
    if HAS_NUMPY_2:
        _QUIET.copy().run(function, first, second, out=out)
        return
    with np.errstate(all="ignore"):
        function(first, second, out=out)


def operation_of(op: mpi.Op | np.ufunc | str | None) -> Operation:
    """The operation that `op` stands for: one of MPI, a function of NumPy, a name of one of these, or the sum for None.

    Raises:
        ArgumentError: `op` is not an operation, or not one on arrays of numbers.
    """
    key = op.handle if isinstance(op, mpi.Op) else op.lower() if isinstance(op, str) else op
    try:
        known = _known_operations().get(key)
    except TypeError:  # it cannot be hashed
        known = None
    if known is None:
        names = ", ".join(name for name in _known_operations() if isinstance(name, str))
        raise ArgumentError(
            f"op is {op!r}, which does not reduce arrays of numbers. Use {names}, NumPy's functions of these names or "
            "MPI's operations. mpi4py's comm.Allreduce takes one of MPI.Op.Create, and gives each rank a copy."
        )
    return known


@cache
def _known_operations() -> dict[Hashable, Operation]:
    """MPI's own operations, by handle, by NumPy's function, and by the names of both."""
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
    known: dict[Hashable, Operation] = {}
    for name, (function, kinds) in table.items():
        keys = (getattr(mpi, name).handle, function, name.lower(), function.__name__)
        known.update(dict.fromkeys(keys, Operation(f"MPI.{name}", function, kinds)))
    return known | {None: known["sum"]}


def _cure(dtype: np.dtype[Any]) -> str:
    if dtype.names is not None:
        return "Reduce its columns one by one."
    if dtype.kind == "b":
        return "Use 'logical_or' or 'logical_and', or count with int(…) of a number, .astype('i8') of an array."
    return "Use another operation, or another dtype by .astype."


class FewMemory:
    """Where the ranks of a node bring few bytes to one another, on one communicator.

    Attributes:
        blocks: Two blocks of `nbytes`, each the same memory on all ranks of the node, on every node; None before they
            are made, and no block where there is no such memory.
        nbytes: How much the items of the ranks of this node take at most, if they are few.
        turn: The number of calls of few bytes on which the ranks have agreed.
    """

    def __init__(self, context: Context) -> None:
        self.blocks: Sequence[Block] | None = None
        self.nbytes = FEW_ITEMS_BYTES + context.topology.node_size * LINE_BYTES
        self.turn = 0


class FewItems:
    """A reduction of few bytes, in memory that is kept: within a node no message brings the items.

    The rules:
    1. A rank writes its items to its row of that memory before the ranks agree on the call. So after the agreement all
       ranks of a node see all its rows, which are in C order, whatever the order of each rank's array.
    2. Calls take the two blocks in turn. So a rank that writes for a call has left the agreement of the call before,
       into which each rank came when it had read the rows of the call before that, which were in the same block.
    3. All ranks count the calls on which they have agreed, before they `run`. They do it outside of all blocks of
       agreements: where an exception prevents it on one rank, that rank is out of step.
    """

    def __init__(self, context: Context, operation: Operation, spec: Spec, memory: FewMemory) -> None:
        """Takes the rows from `memory`, which has blocks. Local; may raise MemoryError."""
        spec, row_bytes = replace(spec, order="C"), slices.round_up(spec.nbytes, LINE_BYTES)
        topology = context.topology
        self._context, self._operation, self._memory = context, operation, memory
        starts = [row_bytes * rank for rank in range(topology.node_size)]
        self._rows = [[spec.view(block[start:]) for start in starts] for block in memory.blocks or ()]
        self._own_rows = [rows[topology.node_rank] for rows in self._rows]
        nodes = np.empty((topology.n_nodes, *spec.shape), spec.dtype)
        self._of_node, self._nodes = np.empty(spec.shape, spec.dtype), nodes
        self._node_rows = [nodes[node, ...] for node in range(topology.n_nodes)]

    def write(self, items: Array) -> None:
        """Writes the items of this rank, before the ranks agree. Local."""
        self._own_rows[self._memory.turn % 2][...] = items

    def run(self, out: Array, is_shared: bool) -> None:
        """Reduces the items of all ranks into the memory of each node. An agreement or a barrier must follow.

        Args:
            out: The result on this node, a contiguous array.
            is_shared: Whether all ranks of the node see the same bytes.

        Collective:
            Over the communicator, but a rank may return before others have come.
        """
        topology, rows = self._context.topology, self._rows[(self._memory.turn - 1) % 2]
        if topology.n_nodes == 1:
            if topology.is_leader or not is_shared:
                self._operation.fold(rows, out)
            return
        count_wait()  # the other leaders may be in their collective before this one has begun it
        if self._context.leader_comm is not None:
            self._operation.fold(rows, self._of_node)
            self._context.leader_comm.allgather(self._of_node, self._nodes)
            self._operation.fold(self._node_rows, out)
        if not is_shared:
            broadcast_in_node(self._context, 0, bytes_of(out))


class Reduction:
    """One reduction of any size, on one rank.

    The ranks of a node each get one part of all arrays of the node and reduce it, then the leaders do the same with the
    results of the nodes. So each item is reduced once, and all nodes get the same bits, whatever the MPI library and
    its MPI_Allreduce.
    """

    def __init__(self, context: Context, operation: Operation, local: Array, *, of_nodes: bool = False) -> None:
        """Allocates what this rank receives. Local; may raise MemoryError.

        `of_nodes` tells whether the ranks of a node have one array, which counts once.
        """
        topology = context.topology
        self._context, self._operation, self._local, self._of_nodes = context, operation, local, of_nodes
        self._leaders_bytes = min(topology.n_nodes * _PIECE_BYTES, _MAX_PIECE_BYTES)
        piece = min(local.nbytes, _PIECE_BYTES)
        received = piece + topology.node_size * LINE_BYTES
        if topology.is_leader:
            received = max(received, min(local.nbytes, self._leaders_bytes) + topology.n_nodes * LINE_BYTES)
        self._received = np.empty(received, np.uint8)
        # Not where the items are sent from their own memory: glibc gives back two such buffers with each call.
        self._sent = np.empty(0 if local.flags.forc else piece // local.itemsize, local.dtype)

    def run(self, out: Array, is_shared: bool) -> None:
        """See `FewItems.run`."""
        topology, local = self._context.topology, self._local
        if out.flags.fnc:
            local, out = local.T, out.T
        result = out.reshape(-1)
        self._deferred = Deferred()
        items: Any = local.reshape(-1) if local.flags.c_contiguous else local.flat
        for piece in slices.chunks(result.size, _PIECE_BYTES // result.itemsize):
            if topology.node_size == 1 or self._of_nodes:
                with self._deferred:
                    if topology.is_leader or not is_shared:
                        result[piece] = items[piece]
            else:
                comm = self._context.node_collective_comm
                self._exchange(comm, self._contiguous(items, piece), result[piece], gathers=not is_shared)
        if topology.n_nodes > 1 and result.size:
            self._reduce_nodes(result, is_shared)
        self._deferred.raise_first()

    def _contiguous(self, items: Any, piece: slice) -> Array:
        """A piece of the items, in memory that MPI can send."""
        if isinstance(items, np.ndarray):
            return items[piece]
        with self._deferred:
            if not self._sent.size:  # an array in Fortran order, and a result in C order
                self._sent = np.empty(piece.stop - piece.start, self._local.dtype)
            self._sent[: piece.stop - piece.start] = items[piece]
        sent = self._sent if self._sent.size else items.base.ravel(order="K")  # others wait for as many bytes
        return sent[: piece.stop - piece.start]

    def _exchange(self, comm: CollectiveComm, sent: Array, result: Array, *, gathers: bool) -> None:
        """Brings one part of the items of all ranks of `comm` to each of them, which reduces it into `result`.

        With `gathers`, each rank gets the results of all parts; else they have one `result` in node memory.
        """
        parts = [slices.byte_slice(sent.nbytes, comm.size, number, grain=LINE_BYTES) for number in range(comm.size)]
        block = result.view(np.uint8)
        own = block[parts[comm.rank]]
        received = self._received[: comm.size * own.nbytes]
        comm.alltoall_parts(sent.view(np.uint8), parts, received)
        with self._deferred:
            self._operation.fold(received.view(self._local.dtype).reshape(comm.size, -1), own.view(self._local.dtype))
        if gathers:
            comm.allgather_parts(block, parts)

    def _reduce_nodes(self, result: Array, is_shared: bool) -> None:
        """Reduces the results of the nodes, where the ranks of this node have reduced its own."""
        if is_shared:
            self._context.node_collective_comm.barrier()
        leaders = self._context.leader_comm
        if leaders is not None:
            for piece in slices.chunks(result.size, self._leaders_bytes // result.itemsize):
                self._exchange(leaders, result[piece], result[piece], gathers=True)
        if not is_shared:
            broadcast_in_node(self._context, 0, result.view(np.uint8))
