"""The sum, or another reduction, of the arrays of all ranks: one result per node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.spec import Spec
from mpishare.comm import mpi
from mpishare.comm.agreement import PAYLOAD_BYTES, agree
from mpishare.comm.collective import collective
from mpishare.comm.context import Context
from mpishare.errors import MpishareError
from mpishare.memory.allocation import is_refusal, node_memory
from mpishare.memory.backends import check_backend
from mpishare.transfer.reduce import Reduction, Scratch, operation_of

_IN_C_ORDER = b"\1".ljust(PAYLOAD_BYTES, b"\0")
"""The payload of a rank that has no array in Fortran order: the result is in C order then."""


def allreduce(
    local: NDArray[Any], op: mpi.Op | None = None, *, comm: mpi.Comm | None = None, backend: str | None = None
) -> NDArray[Any]:
    """Reduces the arrays of all ranks, item by item, to one array per node, which all ranks of the node see.

    The result has the same bits on all ranks, and in each run with the same ranks on the same nodes. The order:

    - Within a node the ranks are taken in rising order: ((a0 + a1) + a2) + a3. The nodes follow, in the
      order of their lowest ranks.
    - An operation made by MPI.Op.Create is applied from the last to the first: a0 + (a1 + (a2 + a3)). If it does not
      commute and the ranks of the nodes are not consecutive, it is applied strictly in the order of the ranks.

    Args:
        local: This rank's array of numbers, of the same shape and dtype on all ranks, any strides. NumPy reduces, so
            float16, long doubles and numbers in foreign byte order are allowed.
        op: MPI.SUM, the same as None; PROD, MIN or MAX; LAND, LOR, LXOR, BAND, BOR or BXOR, for bool and integers; or
            an operation made by MPI.Op.Create, for numbers that MPI has types for. An exception in its function ends
            the job.
        comm: The ranks that reduce; MPI_COMM_WORLD when None.
        backend: The backend to use, or several with commas in the order to try; None lets each node choose.

    Returns:
        A `numpy.ndarray` of the shape and dtype of `local`, in Fortran order if all ranks' arrays are, else in C order.
        It is read-only, as arrays of `share` are, and valid as long as it or a view of it exists. Integers wrap round,
        NaN stays NaN in MIN and MAX, and a logical operation of two or more ranks gives 0 or 1.

    Raises:
        SpecError: `local` is not an array, or its dtype does not fit `op`.
        ArgumentError: `op` is not an operation on arrays of numbers, or `backend` is unknown.
        CapacityError: The bytes do not fit on this node, or, as a `PeerCapacityError`, on another.
        BackendError: The backend that was asked for cannot be used on this node.
        MismatchError: The ranks gave different shapes, dtypes or operations, or made different calls.
        PeerError: Another rank raised one of these.

    Collective:
        Over `comm`.

    Source:
        MPI 3.1, section 5.9.6 (MPI_Allreduce); between nodes a reduce-scatter and an allgather, as in R. Thakur, R.
        Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH", Int. J. High Perform.
        Comput. Appl. 19 (2005), section 4.5.

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
            backend = check_backend(backend, context)
            shape = f"{spec.dtype.str}{list(spec.shape)}"
            agreement.call = f"allreduce({shape}, {operation.name}, backend={backend})"
            reduction = Reduction(context, operation, local)
            if spec.order == "C":
                agreement.payload = _IN_C_ORDER
        if spec.order == "F" and (agreement.payload == _IN_C_ORDER or reduction.is_in_rank_order):
            spec = replace(spec, order="C")
        scratch = _scratch(context, reduction.scratch_bytes, backend)
        with node_memory(context, spec.nbytes, backend=backend, made_by="allreduce") as segment:
            if spec.nbytes:
                reduction.run(local, spec, segment, scratch)
        return segment.view(spec)


def _scratch(context: Context, nbytes: int, backend: str | None) -> Scratch:
    """Memory in which the ranks of a node exchange items; memory of each rank alone where the node has none.

    Collective:
        Over the communicator.
    """
    try:
        if nbytes:
            memory = node_memory(context, nbytes, backend=backend, made_by="allreduce", writable=True)
            return Scratch(memory.segment.block(), is_shared=True)
    except MpishareError as error:
        if not is_refusal(context, error):
            raise
        with agree(context.collective_comm):
            return Scratch(np.empty(nbytes, np.uint8), is_shared=False)
    return Scratch(np.empty(0, np.uint8), is_shared=True)
