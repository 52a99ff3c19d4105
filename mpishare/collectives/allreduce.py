"""The sum, or another reduction, of the arrays of all ranks: one result per node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from mpishare.arrays.spec import Spec
from mpishare.comm import mpi
from mpishare.comm.agreement import PAYLOAD_BYTES
from mpishare.comm.collective import collective
from mpishare.memory.allocation import node_memory
from mpishare.memory.backends import check_backend
from mpishare.transfer.reduce import Reduction, operation_of

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
        if agreement.payload == _IN_C_ORDER:
            spec = replace(spec, order="C")
        scope = "node" if reduction.is_gathered else "all"  # few bytes are reduced without any allocation
        with node_memory(context, spec.nbytes, backend=backend, made_by="allreduce", scope=scope) as segment:
            if spec.nbytes:
                reduction.run(local, spec, segment)
        return segment.view(spec)
