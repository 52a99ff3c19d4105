"""Reduces the arrays of all ranks to one on each node: first the arrays of a node, then the results of the nodes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextvars import Context as ContextVars
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays import slices
from mpishare.arrays.dtypes import HAS_NUMPY_2
from mpishare.arrays.slices import LINE_BYTES
from mpishare.comm import mpi
from mpishare.comm.agreement import Deferred
from mpishare.comm.communicator import CollectiveComm
from mpishare.comm.context import Context
from mpishare.errors import ArgumentError, SpecError
from mpishare.transfer.node_fill import broadcast_in_node

Array = NDArray[Any]

_MAX_GATHERED_BYTES = 32 << 10
"""Up to this size, over all ranks, one rank reduces the items of all: one collective of MPI in place of three."""

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
            out[:] = result
        for array in others:
            _run_quietly(self.function, result.copy() if out.size == 1 else result, array, out=out)
            result = out


_QUIET = ContextVars()
"""In NumPy 2, where it ignores errors. NumPy 1 keeps that for a thread and not for a context."""

if HAS_NUMPY_2:
    _QUIET.run(np.seterr, all="ignore")


def _run_quietly(function: np.ufunc, *args: Array, out: Array) -> None:
    """Runs a function of NumPy. An overflow is a value, as in MPI; a warning could be an error.

    `errstate` would take as long as the rest of a small reduction. A context runs once at a time, and a signal's
    handler may reduce, too: so each time another copy of it.
    """
    if HAS_NUMPY_2:
        _QUIET.copy().run(function, *args, out=out)
        return
    with np.errstate(all="ignore"):
        function(*args, out=out)


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


def is_few(context: Context, nbytes: int) -> bool:
    """Whether the items of all ranks, of which each has `nbytes`, are gathered."""
    return context.topology.size * nbytes <= _MAX_GATHERED_BYTES


class Reduction:
    """One reduction on one rank.

    Few bytes are gathered: each leader gets the items of all ranks and reduces them. More are exchanged: the
    ranks of a node each get one part of all arrays of the node and reduce it, then the leaders do the same with the
    results of the nodes. So each item is reduced once, and all nodes get the same bits, whatever the MPI library and
    its MPI_Allreduce.

    Attributes:
        is_gathered: Whether the items of all ranks are gathered.
    """

    def __init__(self, context: Context, operation: Operation, local: Array, *, of_nodes: bool = False) -> None:
        """Allocates what this rank receives. Local; may raise MemoryError.

        `of_nodes` tells whether the ranks of a node have one array, which counts once.
        """
        topology = context.topology
        self._context, self._operation, self._dtype, self._of_nodes = context, operation, local.dtype, of_nodes
        self.is_gathered = not of_nodes and is_few(context, local.nbytes)
        self._leaders_bytes = min(topology.n_nodes * _PIECE_BYTES, _MAX_PIECE_BYTES)
        piece = local.nbytes if self.is_gathered else min(local.nbytes, _PIECE_BYTES)
        received = piece * topology.size if self.is_gathered else piece + topology.node_size * LINE_BYTES
        if topology.is_leader and not self.is_gathered:
            received = max(received, min(local.nbytes, self._leaders_bytes) + topology.n_nodes * LINE_BYTES)
        self._received = np.empty(received, np.uint8)
        n_items = piece // local.itemsize
        # Not where the items are sent from their own memory: glibc gives back two such buffers with each call.
        self._sent = np.empty(0 if local.flags.forc else n_items, local.dtype)
        if self.is_gathered:
            self._rows = [*self._received.view(local.dtype).reshape(topology.size, n_items)]
            self._node_rows = [*np.empty((topology.n_nodes, n_items), local.dtype)]

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
        if self.is_gathered and local.flags.c_contiguous:  # else a copy may fail, and the others wait for the message
            self.gather(local, result, is_shared)
            return
        self._deferred = Deferred()
        items: Any = local.reshape(-1) if local.flags.c_contiguous else local.flat
        if self.is_gathered:
            self.gather(self._contiguous(items, slice(0, result.size)), result, is_shared)
            self._deferred.raise_first()
            return
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
                self._sent = np.empty(piece.stop - piece.start, self._dtype)
            self._sent[: piece.stop - piece.start] = items[piece]
        sent = self._sent if self._sent.size else items.base.ravel(order="K")  # others wait for as many bytes
        return sent[: piece.stop - piece.start]

    def gather(self, sent: Array, result: Array, is_shared: bool) -> None:
        """Brings the items of all ranks to those that reduce them, the leaders or all: first those of each node.

        What `run` does where all items are gathered, and those of this rank and the result are contiguous.
        """
        topology, rows = self._context.topology, self._rows
        if is_shared and topology.n_nodes == 1:
            self._context.collective_comm.gather(sent, self._received)
        else:
            self._context.collective_comm.allgather(sent, self._received)
        if is_shared and not topology.is_leader:
            return
        if topology.n_nodes > 1:
            for ranks, of_node in zip(topology.placement.nodes, self._node_rows, strict=True):
                self._operation.fold([rows[rank] for rank in ranks], of_node)
            rows = self._node_rows
        self._operation.fold(rows, result.reshape(-1))

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
