"""Reduces the arrays of all ranks to one on each node: first the arrays of a node, then the results of the nodes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays import slices
from mpishare.arrays.dtypes import is_native_number
from mpishare.arrays.slices import LINE_BYTES
from mpishare.comm import mpi
from mpishare.comm.agreement import Deferred
from mpishare.comm.communicator import CollectiveComm
from mpishare.comm.context import Context
from mpishare.errors import ArgumentError, SpecError
from mpishare.transfer.node_fill import broadcast_in_node

Array = NDArray[Any]

_MAX_GATHERED_BYTES = 32 << 10
"""Up to this size, over all ranks, each rank gets the items of all ranks: one message of MPI in place of three."""

_PIECE_BYTES, _MAX_PIECE_BYTES = 1 << 20, 64 << 20
"""Bytes that the ranks of a node reduce at a time, and the leaders for each node; and the leaders at most."""

_KINDS = {"b": "bool", "i": "integers", "u": "unsigned integers", "f": "floats", "c": "complex numbers"}


@dataclass
class Operation:
    """An operation on arrays of one shape and dtype: one of MPI's by a NumPy function, or one made by MPI.Op.Create.

    Attributes:
        name: What all ranks must give alike.
        function: The function, which takes the inputs from first to last.
        kinds: The kinds of dtypes that it takes.
        commutes: Whether the ranks may be taken in any order.
        of_user: Instead of the function, the user's operation. It takes the inputs from last to first, as
            MPI_Reduce_local writes the result over the upper input.
    """

    name: str
    function: np.ufunc | None
    kinds: str = ""
    commutes: bool = True
    of_user: mpi.Op | None = None

    def check(self, dtype: np.dtype[Any]) -> None:
        """Raises a `SpecError` where MPI 3.1, section 5.9.2, has no such operation, or no datatype for the user's."""
        refusal = f"{self.name} does not fit dtype {dtype}:"
        if self.of_user is None:
            if dtype.kind not in self.kinds:  # here bool has bits, too
                known = ", ".join(_KINDS[kind] for kind in self.kinds)
                raise SpecError(f"{refusal} it takes {known}. {_cure(dtype)}")
            return
        if not is_native_number(dtype):
            raise SpecError(f"{refusal} it takes numbers in this machine's byte order.")
        try:
            mpi.Datatype.fromcode(dtype.char)
        except (ValueError, KeyError) as error:
            raise SpecError(f"{refusal} MPI has no type for it. Use .astype('f4').") from error

    def fold(self, inputs: Sequence[Array] | Array, out: Array) -> None:
        """Reduces `inputs`, at least one, into `out`, which overlaps none of them.

        An overflow is a value, as in MPI; a warning could be an error.

        NumPy takes one item that is its own result for a reduction: it swaps the operands, and a complex product is
        then rounded in another way.
        """
        if self.of_user is not None:
            out[:] = inputs[-1]
            for array in inputs[-2::-1]:
                self.of_user.Reduce_local(np.ascontiguousarray(array), out)
            return
        assert self.function is not None
        result, *others = inputs
        if not others:
            out[:] = result
        with np.errstate(all="ignore"):
            for array in others:
                self.function(result.copy() if out.size == 1 else result, array, out=out)
                result = out


def operation_of(op: mpi.Op | np.ufunc | str) -> Operation:
    """The operation that `op` stands for: one of MPI, a function of NumPy, or a name of one of these.

    Raises:
        ArgumentError: `op` is not an operation, or not one on arrays of numbers.
    """
    key = op.handle if isinstance(op, mpi.Op) else op.lower() if isinstance(op, str) else op
    known = _known_operations().get(key) if isinstance(key, Hashable) else None
    if known is not None:
        return known
    if not isinstance(op, mpi.Op) or op == mpi.OP_NULL or op.is_predefined:
        names = ", ".join(name for name in _known_operations() if isinstance(name, str))
        raise ArgumentError(
            f"op is {op!r}, which does not reduce arrays of numbers. Use {names}, NumPy's functions of these names, "
            "MPI's operations, or one of MPI.Op.Create."
        )
    law = "commutes" if op.is_commutative else "does not commute"  # handles differ between ranks, so the name has none
    return Operation(f"an operation of the user's that {law}", None, commutes=op.is_commutative, of_user=op)


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
    return known


def _cure(dtype: np.dtype[Any]) -> str:
    if dtype.names is not None:
        return "Reduce its columns one by one."
    if dtype.kind == "b":
        return "Use 'logical_or' or 'logical_and', or count with int(…) of a number, .astype('i8') of an array."
    return "Use another operation, or another dtype by .astype."


def is_few(context: Context, nbytes: int) -> bool:
    """Whether each rank gets the items of all ranks, of which each has `nbytes`."""
    return context.topology.size * nbytes <= _MAX_GATHERED_BYTES


class Reduction:
    """One reduction on one rank.

    Few bytes, and those whose ranks must be taken strictly in their order, are gathered: each rank gets the items of
    all ranks, and the leaders reduce them. More are exchanged: the ranks of a node each get one part of all arrays of
    the node and reduce it, then the leaders do the same with the results of the nodes. So each item is reduced once,
    and all nodes get the same bits, whatever the MPI library and its MPI_Allreduce.

    Attributes:
        is_gathered: Whether each rank gets the items of all ranks.
    """

    def __init__(self, context: Context, operation: Operation, local: Array, *, of_nodes: bool = False) -> None:
        """Allocates what this rank receives. Local; may raise MemoryError.

        `of_nodes` tells whether the ranks of a node have one array, which counts once.
        """
        topology, nodes = context.topology, context.topology.placement.nodes
        self._context, self._operation, self._dtype = context, operation, local.dtype
        is_consecutive = [rank for ranks in nodes for rank in ranks] == list(range(topology.size))
        self._groups = nodes if operation.commutes or is_consecutive else (tuple(range(topology.size)),)
        self.is_gathered = not of_nodes and (is_few(context, local.nbytes) or self._groups is not nodes)
        self._of_nodes = of_nodes
        self._piece_bytes = _PIECE_BYTES
        if self.is_gathered:
            self._piece_bytes = slices.round_up(_MAX_GATHERED_BYTES // topology.size, LINE_BYTES)
        self._leaders_bytes = min(topology.n_nodes * _PIECE_BYTES, _MAX_PIECE_BYTES)
        piece = min(local.nbytes, self._piece_bytes)
        received = piece * topology.size if self.is_gathered else piece + topology.node_size * LINE_BYTES
        if topology.is_leader and not self.is_gathered:
            received = max(received, min(local.nbytes, self._leaders_bytes) + topology.n_nodes * LINE_BYTES)
        self._received = np.empty(received, np.uint8)
        n_items = piece // local.itemsize
        # Not where the items are sent from their own memory: glibc gives back two such buffers with each call.
        self._sent = np.empty(0 if local.flags.forc else n_items, local.dtype)
        self._of_groups = np.empty((len(self._groups), n_items if self.is_gathered else 0), local.dtype)
        is_whole = self.is_gathered and piece == local.nbytes and operation.of_user is None  # which may raise
        self._rows = [*self._received.view(local.dtype).reshape(topology.size, n_items)] if is_whole else []

    def run(self, local: Array, out: Array, is_shared: bool) -> None:
        """Reduces the arrays of all ranks into the memory of each node. An agreement or a barrier must follow.

        Args:
            local: This rank's array.
            out: The result on this node, a contiguous array.
            is_shared: Whether all ranks of the node see the same bytes.

        Collective:
            Over the communicator, but a rank may return before others have come.
        """
        topology = self._context.topology
        if out.flags.fnc:
            local, out = local.T, out.T
        result = out.reshape(-1)
        if self._rows and local.flags.c_contiguous:  # else a copy may fail, and the others wait for the message
            self._context.collective_comm.allgather(local, self._received)
            if topology.is_leader or not is_shared:
                self._fold_groups(self._rows, result)
            return
        self._deferred = Deferred()
        items: Any = local.reshape(-1) if local.flags.c_contiguous else local.flat
        for piece in slices.chunks(result.size, self._piece_bytes // result.itemsize):
            if self.is_gathered:
                self._gather(self._contiguous(items, piece), result[piece], topology.is_leader or not is_shared)
            elif topology.node_size == 1 or self._of_nodes:
                with self._deferred:
                    if topology.is_leader or not is_shared:
                        result[piece] = items[piece]
            else:
                comm = self._context.node_collective_comm
                self._exchange(comm, self._contiguous(items, piece), result[piece], gathers=not is_shared)
        if topology.n_nodes > 1 and not self.is_gathered and result.size:
            self._reduce_nodes(result, is_shared)
        self._deferred.raise_first()

    def _contiguous(self, items: Any, piece: slice) -> Array:
        """A piece of the items, in memory that MPI can send."""
        if isinstance(items, np.ndarray):
            return items[piece]
        with self._deferred:
            if not self._sent.size:  # an array in Fortran order, and a result in C order
                self._sent = np.empty(piece.stop - piece.start, self._dtype)
            self._sent[: piece.stop - piece.start] = items[piece]
        sent = self._sent if self._sent.size else items.base.ravel(order="K")  # others wait for as many bytes
        return sent[: piece.stop - piece.start]

    def _gather(self, sent: Array, result: Array, reduces: bool) -> None:
        """Brings the items of all ranks to each rank, which may reduce them: first the items of each group."""
        received = self._received[: self._context.topology.size * sent.nbytes]
        self._context.collective_comm.allgather(sent.view(np.uint8), received)
        with self._deferred:
            if reduces:
                self._fold_groups(received.view(self._dtype).reshape(-1, sent.size), result)

    def _fold_groups(self, rows: Sequence[Array] | Array, result: Array) -> None:
        """Reduces the items of all ranks: first those of each group."""
        if len(self._groups) > 1:
            of_groups = self._of_groups[:, : result.size]
            for ranks, of_group in zip(self._groups, of_groups, strict=True):
                self._operation.fold([rows[rank] for rank in ranks], of_group)
            rows = of_groups
        self._operation.fold(rows, result)

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
            self._operation.fold(received.view(self._dtype).reshape(comm.size, -1), own.view(self._dtype))
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
