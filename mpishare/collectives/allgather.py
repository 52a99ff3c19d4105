"""The rows of all ranks as one array: one copy per node."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.raw import address_of, bytes_of, copy_bytes
from mpishare.arrays.spec import Spec
from mpishare.collectives.arguments import LastCall, RowsPlan, is_in_shared_memory, name_of_out, refuse_objects
from mpishare.comm import mpi
from mpishare.comm.agreement import Deferred, agree, mark_known
from mpishare.comm.collective import collective
from mpishare.comm.context import Context
from mpishare.errors import SpecError
from mpishare.memory.allocation import node_memory
from mpishare.memory.backends import check_backend
from mpishare.objects.array_class import PLAIN, items_of_out, take_apart
from mpishare.transfer.node_fill import broadcast_in_node
from mpishare.transfer.rows import (
    FEW_BYTES,
    copy_of,
    describe_rows,
    gather_nodes,
    rows_of,
    stack_rows,
    takes,
    told_rows,
)


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
            `local` may be its own rows of `out`, which then are where they belong. If it overlaps other rows of `out`,
            it is copied first, unless a handle of `out` gave it. New memory is taken when None. Call
            `fence(scope="all")` before `out` is written again, as other ranks may still read it.
        comm: The ranks that gather; MPI_COMM_WORLD when None.
        backend: The backend to use, or several with commas in the order to try; None lets each node choose.

    Returns:
        `out`, or a new array of the class of `local` in C order, with the rows of rank 0 first. A new one is read-only,
        as arrays of `share` are, and valid as long as it or a view of it exists.

    Raises:
        SpecError: `local` is not an array, is 0-d, or holds Python objects; or an array cannot have as many rows as
            all ranks have; or `out` does not have their shape and dtype, or is not such an array.
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
        >>> rank = ms.topology().rank
        >>> every = ms.allgather(np.full((rank + 1, 2), rank))  # rank 0 has one row, rank 1 has two
        >>> every[0].tolist(), every.flags.writeable
        ([0, 0], False)
    """
    with collective("allgather", comm) as call:
        context, topology = call.context, call.context.topology
        plan = context.cached(_LastPlan).plan(local, out, backend)
        items, whole_out = (local, out) if plan.kind is PLAIN else (take_apart(local)[0], take_apart(out)[0])
        told, whole, starts, fits = plan.told, plan.whole, plan.starts, plan.fits
        is_inside = whole_out is not None and not items.flags.owndata and np.may_share_memory(items, whole_out)
        is_in_place = is_inside and _begins_at(starts[topology.rank], whole_out, items)
        call.ends_in_collective = plan.is_few
        payload = call.agree(plan.call, told_rows(-1) if is_inside and not is_in_place else told)
        if payload != told or not 0 < whole.nbytes <= sys.maxsize:
            # Numbers of rows differ; or rows are inside of `out` elsewhere; or no array may have all rows.
            call.ends_in_collective = False
            starts, whole = stack_rows(context, plan.spec, payload)
            fits = whole_out is None or takes(whole, whole_out)
            with agree(context.collective_comm):
                is_in_place = is_inside and _begins_at(starts[topology.rank], whole_out, items)
                items = copy_of(context, items) if is_inside and not is_in_place else items
                call.ends_in_collective = plan.is_few
        if whole_out is not None and not fits:  # on all ranks, as they have agreed on `out`
            given = f"out is {whole_out.dtype} of shape {whole_out.shape}"
            expected = f"the rows of all ranks are {whole.dtype} of shape {whole.shape}, in C order"
            raise mark_known(context.collective_comm, SpecError(f"{given}, but {expected}."))
        rows = None if is_in_place else items
        if whole_out is not None:
            if plan.is_few:  # copied without any allocation, so that no rank fails
                if rows is not None:
                    whole_out[starts[topology.rank] : starts[topology.rank + 1]] = rows
                _spread(context, whole_out, plan.is_shared, starts)
                context.node_collective_comm.barrier()
                return out  # type: ignore[return-value]
            with agree(context.collective_comm):
                _gather(context, rows, whole_out, plan.is_shared, starts)
            return out  # type: ignore[return-value]
        with node_memory(context, whole.nbytes, backend=plan.backend, made_by="allgather") as segment:
            _gather(context, rows, segment.view(whole), segment.origin.is_shared, starts)
        return plan.kind.around(segment.view(whole))


@dataclass(frozen=True)
class _Plan(RowsPlan):
    """What the arguments of a call mean.

    Attributes:
        backend: What `check_backend` returned.
        is_shared: Whether all ranks of the node see the same bytes of `out`.
        starts: The first row of each rank, and the number of all rows, if all ranks have as many.
        is_few: Whether there is an `out`, of few bytes.
    """

    backend: str | None
    is_shared: bool
    starts: list[int]
    is_few: bool


class _LastPlan(LastCall[_Plan]):
    """The plan of the last call on a communicator."""

    @staticmethod
    def make(context: Context, local: Any, out: Any, backend: str | None) -> _Plan:
        """See `LastCall.make`."""
        refuse_objects(local, "allgather")
        rows, kind = take_apart(local)
        spec, items, size = rows_of(rows), items_of_out(out, kind), context.topology.size
        backend = check_backend(backend, context)
        call = f"allgather(rows of {describe_rows(spec)}{kind.text}, backend={backend}{name_of_out(items)})"
        n_rows = spec.shape[0]
        whole = Spec(spec.dtype, (size * n_rows, *spec.shape[1:]))
        starts = [rank * n_rows for rank in range(size + 1)]
        is_shared, fits = is_in_shared_memory(items), items is None or takes(whole, items)
        is_few = items is not None and items.nbytes <= FEW_BYTES and bool(spec.typestr)
        return _Plan(call, told_rows(n_rows), spec, kind, whole, fits, backend, is_shared, starts, is_few)


def _begins_at(row: int, out: Any, local: NDArray[Any]) -> bool:
    """Whether the rows lie in `out` from `row` on."""
    return bool(out.ndim) and local.flags.c_contiguous and address_of(local) == address_of(out[row:])


def _gather(
    context: Context, local: NDArray[Any] | None, out: NDArray[Any], is_shared: bool, starts: Sequence[int]
) -> None:
    """Fills the memory of each node with the rows of all ranks. An agreement must follow.

    Args:
        context: The context of the communicator.
        local: This rank's rows; None if they are in their place.
        out: All rows on this node, in C order.
        is_shared: Whether all ranks of the node see the same bytes.
        starts: The first row of each rank, and the number of all rows.

    Collective:
        Over the communicator.
    """
    rank, deferred = context.topology.rank, Deferred()
    with deferred:
        if local is not None:
            copy_bytes(out[starts[rank] : starts[rank + 1]], local)
    _spread(context, out, is_shared, starts)
    deferred.raise_first()


def _spread(context: Context, out: NDArray[Any], is_shared: bool, starts: Sequence[int]) -> None:
    """The same where each rank has written its own rows. An agreement or a barrier must follow."""
    topology = context.topology
    if not out.nbytes:
        return
    if not is_shared:
        for other in topology.ranks_of(topology.node):
            broadcast_in_node(context, other, bytes_of(out[starts[other] : starts[other + 1]]))
    if topology.n_nodes > 1:
        block, row_bytes = bytes_of(out), out.nbytes // len(out)
        context.node_collective_comm.barrier()
        gather_nodes(context, block, [start * row_bytes for start in starts])
        if not is_shared:
            broadcast_in_node(context, 0, block)
