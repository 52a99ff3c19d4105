"""The rows of all ranks as one array: one copy per node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from mpishare.arrays.raw import Block, copy_bytes
from mpishare.comm import mpi
from mpishare.comm.collective import collective
from mpishare.comm.context import Context
from mpishare.memory.allocation import allocate_block, seal
from mpishare.memory.selection import check_backend
from mpishare.transfer import plan
from mpishare.transfer.link import link_of, measure_link
from mpishare.transfer.node_fill import broadcast_in_node
from mpishare.transfer.ring import circulate, gather_runs
from mpishare.transfer.ring_plan import MAX_SWAP_BYTES, gather_ring, joined_runs, run_bytes, swap_chunk_bytes
from mpishare.transfer.rows import describe_rows, payload_of_rows, rows_of, stack_rows

_MAX_CALL_BYTES = 64 << 10
"""Up to here, over all nodes, one MPI_Allgatherv of the leaders takes less time than a ring of chunks. For 256 KiB over
4 hosts at 400 Mbit/s it took twice as long."""


def allgather(local: NDArray[Any], *, comm: mpi.Comm | None = None, backend: str | None = None) -> NDArray[Any]:
    """Stacks the rows of all ranks, in rank order, in one array per node, which all ranks of the node see.

    Each rank writes its rows to the memory of its node. Each node's rows are sent to each other node once.

    Args:
        local: This rank's rows, shape (n, ...) with any n >= 0. The other lengths and the dtype must be the same on all
            ranks. Any strides, any dtype without Python objects.
        comm: The ranks that gather; MPI_COMM_WORLD when None.
        backend: The segment kind to use, or several with commas in the order to try; None lets each node choose.

    Returns:
        A `numpy.ndarray` in C order, with the rows of rank 0 first. It is read-only, as arrays of `share` are, and
        valid as long as it or a view of it exists.

    Raises:
        SpecError: `local` is not an array, is 0-d, or holds Python objects; or an array cannot have as many rows as
            all ranks have.
        ArgumentError: `backend` is unknown.
        CapacityError: The bytes do not fit on this node, or, as a `PeerCapacityError`, on another.
        BackendError: The segment kind that was asked for cannot be used on this node.
        MismatchError: The ranks gave rows of different shapes or dtypes, or made different calls.
        PeerError: Another rank raised one of these.

    Collective:
        Over `comm`.

    Source:
        MPI 3.1, section 5.7 (MPI_Allgatherv); R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective
        communication operations in MPICH", Int. J. High Perform. Comput. Appl. 19 (2005).

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
        rank = context.topology.rank
        with call.agree_on_arguments() as agreement:
            spec = rows_of(local)
            kind = check_backend(backend, context)
            agreement.call = f"allgather(rows of {describe_rows(spec)}, backend={kind})"
            agreement.payload = payload_of_rows(context, spec.shape[0])
        starts, whole = stack_rows(context, agreement.payload, spec)
        segment, block = allocate_block(context, whole.nbytes, backend=kind, made_by="allgather")
        copy_bytes(whole.view(block)[starts[rank] : starts[rank + 1]], local)
        if whole.nbytes:
            row_bytes = whole.nbytes // starts[-1]
            byte_starts = [start * row_bytes for start in starts]
            if not segment.origin.is_shared:
                for other in context.topology.ranks_of(context.topology.node):
                    broadcast_in_node(context, other, block[byte_starts[other] : byte_starts[other + 1]])
            if context.topology.n_nodes == 2 and whole.nbytes <= MAX_SWAP_BYTES:
                measure_link(context, whole.nbytes)
            if context.topology.n_nodes > 1:
                _gather_nodes(context, block, byte_starts, is_shared=segment.origin.is_shared)
        seal(context, segment)
        return segment.view(whole)


def _gather_nodes(context: Context, block: Block, starts: Sequence[int], *, is_shared: bool) -> None:
    """Sends the rows of each node to all nodes. `starts` has the first byte of each rank's rows in `block`."""
    if context.topology.node_size > 1:
        context.node_collective_comm.barrier()
    placement = context.topology.placement
    if context.leader_comm is not None:
        runs = [joined_runs(ranks, starts) for ranks in placement.nodes]
        if plan.is_small(block.nbytes) or (block.nbytes <= _MAX_CALL_BYTES and context.config.chunk_bytes is None):
            gather_runs(context.leader_comm, block, runs)
        else:
            largest, configured = max(map(run_bytes, runs)), context.config.chunk_bytes
            if len(runs) == 2 and block.nbytes <= MAX_SWAP_BYTES:
                chunk_bytes = swap_chunk_bytes(largest, link_of(context), configured)
            else:
                chunk_bytes = plan.ring_chunk_bytes(largest, configured)
            ring = gather_ring(runs, context.topology.node, chunk_bytes)
            circulate(context, plan.chain(placement, 0), block, ring)
    if not is_shared:
        broadcast_in_node(context, 0, block)
