"""The sum, or another reduction, of the arrays of all ranks: one result per node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from mpishare.arrays.raw import Block
from mpishare.arrays.spec import Spec
from mpishare.comm import mpi
from mpishare.comm.agreement import PAYLOAD_BYTES, agree
from mpishare.comm.collective import collective
from mpishare.comm.context import Context
from mpishare.errors import MpishareError
from mpishare.memory.allocation import allocate_block, is_refusal, next_slots, seal
from mpishare.memory.segment import Segment
from mpishare.memory.selection import check_backend
from mpishare.transfer.link import measure_link
from mpishare.transfer.node_reduce import Reduction, plan_of
from mpishare.transfer.operations import operation_of

_PAYLOADS = {
    (first, second): bytes((first, second)).ljust(PAYLOAD_BYTES, b"\0") for first in (0, 1) for second in (0, 1)
}
"""The notes with two flags, each set for all ranks if one rank sets it: the result is in C order; items are not shown
yet."""


def allreduce(
    local: NDArray[Any], op: mpi.Op | None = None, *, comm: mpi.Comm | None = None, backend: str | None = None
) -> NDArray[Any]:
    """Reduces the arrays of all ranks, item by item, to one array per node, which all ranks of the node see.

    The result has the same bits on all ranks, and in each run with the same ranks on the same nodes. The order:

    - Within a node the ranks are taken in rising order: ((a0 + a1) + a2) + a3.
    - Between nodes, arrays of up to 16 KiB over all nodes are reduced in the order of the nodes. Larger arrays are
      split into one part per node. Part k is reduced in the order k, k+1, ..., k-1.
    - An operation made by MPI.Op.Create is applied from the last rank of a node to the first: a0 + (a1 + (a2 + a3)).
      If it does not commute, it is applied strictly in the order of the ranks.

    Args:
        local: This rank's array of numbers, of the same shape and dtype on all ranks, any strides. NumPy reduces, so
            float16, long doubles and numbers in foreign byte order are allowed.
        op: MPI.SUM, the same as None; PROD, MIN or MAX; LAND, LOR, LXOR, BAND, BOR or BXOR, for bool and integers; or
            an operation made by MPI.Op.Create, for numbers that MPI has types for. An exception in its function ends
            the job.
        comm: The ranks that reduce; MPI_COMM_WORLD when None.
        backend: The segment kind to use, or several with commas in the order to try; None lets each node choose.

    Returns:
        A `numpy.ndarray` of the shape and dtype of `local`, in Fortran order if all ranks' arrays are, else in C order.
        It is read-only, as arrays of `share` are, and valid as long as it or a view of it exists. Integers wrap round,
        NaN stays NaN in MIN and MAX, and a logical operation of two or more ranks gives 0 or 1.

    Raises:
        SpecError: `local` is not an array, or its dtype does not fit `op`.
        ArgumentError: `op` is not an operation on arrays of numbers, or `backend` is unknown.
        CapacityError: The bytes do not fit on this node, or, as a `PeerCapacityError`, on another.
        BackendError: The segment kind that was asked for cannot be used on this node.
        MismatchError: The ranks gave different shapes, dtypes or operations, or made different calls.
        PeerError: Another rank raised one of these.

    Collective:
        Over `comm`.

    Source:
        MPI 3.1, section 5.9.6 (MPI_Allreduce); P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for
        clusters of workstations", J. Parallel Distrib. Comput. 69 (2009).

    Example:
        >>> import mpishare as ms, numpy as np
        >>> from mpi4py import MPI
        >>> counts = ms.allreduce(np.ones(3, "i8"))
        >>> int(counts[0]) == MPI.COMM_WORLD.size, counts.flags.writeable
        (True, False)
    """
    with collective("allreduce", comm) as call:
        context = call.context
        with call.agree_on_arguments() as agreement:
            operation = operation_of(mpi.SUM if op is None else op)
            spec = Spec.of(local)
            operation.check(spec.dtype)
            kind = check_backend(backend, context)
            plan = plan_of(context, operation, spec, kind)
            agreement.call = plan.call
            reduction = Reduction(context, plan, operation, local)
            slots = next_slots(context, plan.scratch_bytes, kind) if plan.can_show_early else None
            if slots is not None:
                reduction.show(local, slots.next_bytes(plan.scratch_bytes))
            agreement.payload = _PAYLOADS[spec.order == "C" or plan.is_ordered, slots is None]
        is_in_c_order, is_late = agreement.payload[:2]
        if plan.is_swapped and not plan.is_small:
            measure_link(context, spec.nbytes)
        scratch, rows = _allocate_scratch(context, plan.scratch_bytes, kind)
        segment, block = allocate_block(context, spec.nbytes, backend=kind, made_by="allreduce")
        if plan.scratch_bytes and scratch is None:
            with agree(context.collective_comm):
                reduction.allocate_rows()
        reduction.is_shown = not is_late
        if is_in_c_order and spec.order == "F":
            spec = reduction.spec = replace(spec, order="C")
        if spec.nbytes:
            reduction.run(local, block, segment.origin.is_shared, rows)
        seal(context, segment, is_filled=reduction.is_repeated)
        return segment.view(spec)


def _allocate_scratch(context: Context, nbytes: int, kind: str | None) -> tuple[Segment | None, Block | None]:
    """Memory in which the ranks of each node show one another their items; None on all nodes if one node has none.

    Collective:
        Over the communicator.
    """
    if not nbytes:
        return None, None
    try:
        return allocate_block(context, nbytes, backend=kind, made_by="allreduce", writable=True)
    except MpishareError as error:
        if not is_refusal(context, error):
            raise
        return None, None
