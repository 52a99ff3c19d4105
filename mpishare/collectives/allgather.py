"""The rows of all ranks as one array: one copy per node."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.raw import Block, address_of, bytes_of, copy_bytes
from mpishare.arrays.spec import Spec
from mpishare.collectives.arguments import is_in_shared_memory, name_of_out
from mpishare.comm import mpi
from mpishare.comm.agreement import Deferred, agree, mark_known
from mpishare.comm.collective import collective
from mpishare.comm.context import Context
from mpishare.errors import SpecError
from mpishare.memory.allocation import node_memory
from mpishare.memory.backends import check_backend
from mpishare.objects.array_class import items_of_out, take_apart
from mpishare.transfer.node_fill import broadcast_in_node
from mpishare.transfer.rows import describe_rows, gather_nodes, rows_of, stack_rows


def allgather(
    local: NDArray[Any],
    *,
    out: NDArray[Any] | None = None,
    comm: mpi.Comm | None = None,
    backend: str | None = None,
) -> NDArray[Any]:
    """Stacks the rows of all ranks, in rank order, in one array per node, which all ranks of the node see.

    Each rank writes its rows to the memory of its node. Each node's rows are sent to each other node once.

    Args:
        local: This rank's rows, shape (n, ...) with any n >= 0. The other lengths and the dtype must be the same on all
            ranks. Any strides, any dtype without Python objects.
        out: Where the rows go: a node-shared array in C order that may be written, from `empty`, `zeros` or `full`.
            `local` may be its own rows of `out`, which then are where they belong. New memory is taken when None. Call
            `fence(scope="all")` before `out` is written again, as other ranks may still read it.
        comm: The ranks that gather; MPI_COMM_WORLD when None.
        backend: The backend to use, or several with commas in the order to try; None lets each node choose.

    Returns:
        `out`, or a new array of the class of `local` in C order, with the rows of rank 0 first. A new one is read-only,
        as arrays of `share` are, and valid as long as it or a view of it exists.

    Raises:
        SpecError: `local` is not an array, is 0-d, or holds Python objects; or an array cannot have as many rows as
            all ranks have; or `out` does not have their shape and dtype, overlaps `local` elsewhere, or is not such
            an array.
        ArgumentError: `backend` is unknown.
        CapacityError: The bytes do not fit on this node, or, as a `PeerCapacityError`, on another.
        BackendError: The backend that was asked for cannot be used on this node.
        MismatchError: The ranks gave rows of different shapes, dtypes or classes, or made different calls.
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
            local, kind = take_apart(local)
            spec = rows_of(local)
            backend = check_backend(backend, context)
            items = items_of_out(out, kind)
            place = -1 if items is None else _row_of(local, items)
            described = f"{describe_rows(spec)}{kind.text}, backend={backend}{name_of_out(items)}"
            agreement.call = f"allgather(rows of {described})"
        starts, whole = stack_rows(context, spec)
        if out is not None:
            _check_out(context, whole, items, starts, place)
            with agree(context.collective_comm):
                is_shared = is_in_shared_memory(items)
                _gather(context, local if place < 0 else None, bytes_of(items), is_shared, whole, starts)
            return out
        with node_memory(context, whole.nbytes, backend=backend, made_by="allgather") as segment:
            _gather(context, local, segment.block(), segment.origin.is_shared, whole, starts)
        return kind.around(segment.view(whole))


def _row_of(local: NDArray[Any], out: NDArray[Any]) -> int:
    """The row of `out` that `local` begins with; -1 if they do not overlap, -2 if they do in another way."""
    if not (local.nbytes and out.ndim and np.may_share_memory(local, out)):
        return -1
    row, rest = divmod(address_of(local) - address_of(out), out.nbytes // len(out))
    return row if local.flags.c_contiguous and not rest and row >= 0 else -2


def _check_out(context: Context, whole: Spec, out: NDArray[Any], starts: list[int], place: int) -> None:
    """Raises a `SpecError` on all ranks if the rows do not fit `out`, or overlap it in a place of other rows.

    Collective:
        Over the communicator.
    """
    places = context.collective_comm.allgather_int(place)
    if not (whole.fits(out) and out.flags.c_contiguous):
        rows = f"the rows of all ranks are {whole.dtype} of shape {whole.shape}, in C order"
        text = f"out is {out.dtype} of shape {out.shape}, but {rows}."
    elif any(one not in (-1, start) for one, start in zip(places, starts, strict=False)):
        text = "local overlaps out in a place where other rows go. Pass its own rows of out, or a copy."
    else:
        return
    raise mark_known(context.collective_comm, SpecError(text))


def _gather(
    context: Context, local: NDArray[Any] | None, block: Block, is_shared: bool, whole: Spec, starts: list[int]
) -> None:
    """Fills the memory of each node with the rows of all ranks. An agreement of all ranks must follow.

    Args:
        context: The context of the communicator.
        local: This rank's rows; None if they are in their place.
        block: The bytes of all rows on this node.
        is_shared: Whether all ranks of the node see the same bytes.
        whole: The spec of all rows.
        starts: The first row of each rank, and the number of all rows.

    Collective:
        Over the communicator.
    """
    topology, deferred = context.topology, Deferred()
    row_bytes = whole.nbytes // max(starts[-1], 1)
    byte_starts = [start * row_bytes for start in starts]
    with deferred:
        if local is not None:
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
