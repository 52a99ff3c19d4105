"""The rows of all ranks as one array: one copy per node."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from mpishare.arrays.raw import copy_bytes
from mpishare.comm import mpi
from mpishare.comm.agreement import Deferred
from mpishare.comm.collective import collective
from mpishare.memory.allocation import node_memory
from mpishare.memory.backends import check_backend
from mpishare.transfer.node_fill import broadcast_in_node
from mpishare.transfer.rows import describe_rows, gather_nodes, rows_of, stack_rows


def allgather(local: NDArray[Any], *, comm: mpi.Comm | None = None, backend: str | None = None) -> NDArray[Any]:
    """Stacks the rows of all ranks, in rank order, in one array per node, which all ranks of the node see.

    Each rank writes its rows to the memory of its node. Each node's rows are sent to each other node once.

    Args:
        local: This rank's rows, shape (n, ...) with any n >= 0. The other lengths and the dtype must be the same on all
            ranks. Any strides, any dtype without Python objects.
        comm: The ranks that gather; MPI_COMM_WORLD when None.
        backend: The backend to use, or several with commas in the order to try; None lets each node choose.

    Returns:
        A `numpy.ndarray` in C order, with the rows of rank 0 first. It is read-only, as arrays of `share` are, and
        valid as long as it or a view of it exists.

    Raises:
        SpecError: `local` is not an array, is 0-d, or holds Python objects; or an array cannot have as many rows as
            all ranks have.
        ArgumentError: `backend` is unknown.
        CapacityError: The bytes do not fit on this node, or, as a `PeerCapacityError`, on another.
        BackendError: The backend that was asked for cannot be used on this node.
        MismatchError: The ranks gave rows of different shapes or dtypes, or made different calls.
        PeerError: Another rank raised one of these.

    Collective:
        Over `comm`.

    Source:
        MPI 3.1, section 5.7 (MPI_Allgatherv), without its limit of 2**31 items.

    Example:
        >>> import mpishare as ms, numpy as np
        >>> from mpi4py import MPI
        >>> rank = MPI.COMM_WORLD.rank
        >>> every = ms.allgather(np.full((rank + 1, 2), rank))  # rank 0 has one row, rank 1 has two
        >>> every[0].tolist(), every.flags.writeable
        ([0, 0], False)
    """
    with collective("allgather", comm) as call:
        context = call.context
        with call.agree_on_arguments() as agreement:
            spec = rows_of(local)
            backend = check_backend(backend, context)
            agreement.call = f"allgather(rows of {describe_rows(spec)}, backend={backend})"
        starts, whole = stack_rows(context, spec)
        topology, deferred = context.topology, Deferred()
        row_bytes = whole.nbytes // max(starts[-1], 1)
        byte_starts = [start * row_bytes for start in starts]
        with node_memory(context, whole.nbytes, backend=backend, made_by="allgather") as segment:
            block, is_shared = segment.block(), segment.origin.is_shared
            with deferred:
                copy_bytes(whole.view(block)[starts[topology.rank] : starts[topology.rank + 1]], local)
            if not is_shared:
                for other in topology.ranks_of(topology.node):
                    broadcast_in_node(context, other, block[byte_starts[other] : byte_starts[other + 1]])
            if topology.n_nodes > 1 and whole.nbytes:
                context.node_collective_comm.barrier()
                gather_nodes(context, block, byte_starts)
                if not is_shared:
                    broadcast_in_node(context, 0, block)
            deferred.raise_first()
        return segment.view(whole)
