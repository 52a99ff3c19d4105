"""The rows of all ranks as one array: one copy per node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.raw import Block, copy_bytes
from mpishare.comm import mpi
from mpishare.comm.collective import collective
from mpishare.comm.context import Context
from mpishare.memory.allocation import allocate, seal
from mpishare.memory.selection import check_backend
from mpishare.transfer import plan, ring_plan
from mpishare.transfer.node_fill import broadcast_in_node
from mpishare.transfer.ring import circulate, exchange
from mpishare.transfer.rows import note_rows, rows_of, stacked, told_row


def allgather(local: NDArray[Any], *, comm: mpi.Comm | None = None, backend: str | None = None) -> NDArray[Any]:
    """Stacks the rows of all ranks, in the order of the ranks, to one array per node, which all ranks of the node see.

    Each rank writes its rows to the memory of its node, and each node's rows cross to each other node once.

    Args:
        local: This rank's rows: an array of one dimension or more. Its first length may differ between ranks, and be
            0; the others and the dtype must be equal. Any strides, any dtype without Python objects.
        comm: The ranks that gather; MPI_COMM_WORLD when None.
        backend: The segment kind to use, or several with commas in the order to try; None lets each node choose.

    Returns:
        A `numpy.ndarray` in C order, with the rows of rank 0 first. It is read-only, as those of `share` are, and valid
        as long as it or a view of it exists.

    Raises:
        SpecError: `local` is no array, has no dimension, or holds Python objects; or the rows of all ranks are more
            than an array can have.
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
        return _allgather(call, local, backend)


def _allgather(call: collective, local: NDArray[Any], backend: str | None) -> NDArray[Any]:
    context = call.context
    with call.begin() as agreement:
        spec = rows_of(local)
        kind = check_backend(backend, context)
        agreement.call = f"allgather(rows of {told_row(spec)}, backend={kind})"
        agreement.note = note_rows(context, spec.shape[0])
    ends, whole = stacked(context, agreement.note, spec)
    segment = allocate(context, whole.nbytes, backend=kind, label="allgather", writable=False)
    copy_bytes(segment.view(whole)[ends[context.topology.rank] : ends[context.topology.rank + 1]], local)
    if whole.nbytes:
        row_bytes = whole.nbytes // ends[-1]
        _fill(context, segment.block(), [end * row_bytes for end in ends], is_shared=segment.origin.is_shared)
    seal(context, segment)
    return segment.view(whole)


def _fill(context: Context, block: Block, starts: Sequence[int], *, is_shared: bool) -> None:
    """Brings what all ranks have in `block`, each from its place of `starts` on, to all nodes."""
    if not is_shared:
        for rank in context.topology.ranks_of(context.topology.node):
            for run in ring_plan.runs([rank], starts):
                broadcast_in_node(context, rank, block[run])
    if context.topology.n_nodes == 1:
        return
    context.node_collective_comm.barrier()
    if context.topology.is_leader:
        _between(context, block, starts)
    if not is_shared:
        broadcast_in_node(context, 0, block)


def _between(context: Context, block: Block, starts: Sequence[int]) -> None:
    """Brings what the nodes have to all nodes."""
    path = plan.chain(context.topology.placement, 0)
    runs = [ring_plan.runs(ranks, starts) for ranks in context.topology.placement.nodes]
    if ring_plan.is_little(block.nbytes):
        _exchange(context, path, block, runs)
        return
    most = max(sum(run.stop - run.start for run in one) for one in runs)
    ring = ring_plan.gather_ring(runs, context.topology.node, ring_plan.piece_bytes(most, context.config.chunk_bytes))
    circulate(context, path, block, ring)


def _exchange(context: Context, path: Sequence[int], block: Block, runs: Sequence[Sequence[slice]]) -> None:
    """The same for few bytes, which are packed."""
    sizes = [sum(run.stop - run.start for run in one) for one in runs]
    mine = np.concatenate([block[:0], *(block[run] for run in runs[context.topology.node])])
    found = exchange(context, path, mine, sizes)
    for node, packed in enumerate(found):
        at = 0
        for run in runs[node] if node != context.topology.node else ():
            length = run.stop - run.start
            block[run] = packed[at : at + length]
            at += length
