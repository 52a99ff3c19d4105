"""The sum, or another reduction, of the arrays of all ranks: one result per node."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.raw import Place, address_of, overlap
from mpishare.arrays.spec import Spec
from mpishare.collectives.arguments import (
    LastCall,
    is_in_shared_memory,
    is_of_nodes,
    name_of_out,
    refuse_objects,
)
from mpishare.comm import mpi
from mpishare.comm.agreement import PAYLOAD_BYTES, agree
from mpishare.comm.collective import collective
from mpishare.comm.context import Context
from mpishare.errors import ArgumentError, SpecError
from mpishare.memory.allocation import kept_memory, node_memory
from mpishare.memory.backends import check_backend
from mpishare.memory.segment import segment_of
from mpishare.objects.array_class import PLAIN, ArrayClass, items_of_out, take_apart
from mpishare.transfer.reduce import FEW_ITEMS_BYTES, FewItems, FewMemory, Operation, Reduction, operation_of

_T = TypeVar("_T", bound="NDArray[Any] | complex | np.number[Any] | np.bool_")
_NUMBERS = (int, float, complex, np.number, np.bool_)

_IS_C_ORDER, _IS_NODE_SHARED = 1, 2
"""What a rank says of its array: that it is not in Fortran order, so that the result is in C order; and that it is in
node memory to which the ranks of a node write, so that several of them might have given the same items."""

_NOT_OF_NODES = "scope 'nodes' is for an array that the ranks of a node share. Pass scope='all'."

CALLS_WITHOUT_MEMORY = 20
"""The number of calls of few bytes that a communicator makes before it obtains memory for them. To obtain it takes
longer than these calls, so a communicator of a few calls does without."""

_PAYLOADS = [bytes([flags]).ljust(PAYLOAD_BYTES, b"\0") for flags in range(4)]
"""The payloads by which a rank says so."""


def allreduce(
    local: _T,
    op: mpi.Op | np.ufunc | str | None = None,
    *,
    out: NDArray[Any] | None = None,
    comm: mpi.Comm | None = None,
    backend: str | None = None,
    scope: str = "all",
) -> _T:
    """Reduces the arrays of all ranks, item by item, to one array per node, which all ranks of the node see.

    Numbers give a number: `dt = allreduce(dt, "min")`.

    The result has the same bits on all ranks, and in each run with the same ranks on the same nodes: within a node the
    ranks are taken in rising order, ((a0 + a1) + a2) + a3. The nodes follow, in the order of their lowest ranks.

    Args:
        local: This rank's array of numbers, of the same shape and dtype on all ranks, any strides. NumPy reduces, so
            float16, long doubles and numbers in foreign byte order are allowed. Or a number, of Python or NumPy, of the
            same type on all ranks; an int has 64 bits.
        op: MPI.SUM, the same as None; PROD, MIN or MAX; LAND, LOR, LXOR, BAND, BOR or BXOR, for bool and integers;
            NumPy's function for one of these, such as `numpy.minimum`; or a name, such as "min", "sum" or "minimum".
            mpi4py's `comm.Allreduce` takes operations made by MPI.Op.Create.
        out: Where an array of results goes: a node-shared array that may be written, from `empty`, `zeros` or `full`,
            of the shape and dtype of `local`, which it must not overlap. New memory is taken when None. Call
            `fence(scope="all")` before `out` is written again, as other ranks may still read it.
        comm: The ranks that reduce; MPI_COMM_WORLD when None.
        backend: The backend to use, or several with commas in the order to try; None lets each node choose.
        scope: "all" where each rank has an array of its own; "nodes" where the ranks of a node see one array, such as a
            tally from `zeros` that all of them have added to. It counts once, and may be `out` itself.

    Returns:
        `out`, or a new array of the shape, dtype and class of `local`, in Fortran order if all ranks' arrays are,
        else in C order. A new one is read-only, as arrays of `share` are, and valid as long as it or a view of it
        exists. For a number, a number of its type. Integers wrap round, NaN stays NaN in MIN and MAX, and a logical
        operation of two or more ranks gives 0 or 1.

    Raises:
        SpecError: `local` is neither an array nor a number, or its dtype or class does not fit `op`, as the product of
            two lengths is no length; several ranks of a node gave the same items of an array that they write to, with
            the scope "all", or arrays of their own, with the scope "nodes"; or `out` is not such an array.
        ArgumentError: `op` is not an operation on arrays of numbers, `backend` or `scope` is unknown, or the scope of a
            number is "nodes".
        CapacityError: The bytes do not fit on this node, or, as a `PeerCapacityError`, on another.
        BackendError: The backend that was asked for cannot be used on this node.
        MismatchError: The ranks gave different shapes, dtypes, classes or operations, or made different calls.
        PeerError: Another rank raised one of these.

    Collective:
        Over `comm`.

    Source:
        MPI 3.1, section 5.9.6 (MPI_Allreduce); between nodes a reduce-scatter and an allgather, as in R. Thakur, R.
        Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH", Int. J. High Perform.
        Comput. Appl. 19 (2005), section 4.5.

    Example:
        >>> import mpishare as ms, numpy as np
        >>> counts = ms.allreduce(np.ones(3, "i8"))
        >>> int(counts[0]) == ms.topology().size, counts.flags.writeable
        (True, False)
        >>> ms.allreduce(0.5, "max")
        0.5
    """
    is_number = type(local) is not np.ndarray and out is None and isinstance(local, _NUMBERS)
    array: Any = _array_of(local) if is_number else local
    with collective("allreduce", comm) as call:
        context, topology = call.context, call.context.topology
        plan = context.cached(_LastPlan).plan(array, out, operation_of(op), backend, scope, is_number)
        items, target = (array, out) if plan.kind is PLAIN else (take_apart(array)[0], take_apart(out)[0])
        if is_number:
            target = np.empty((), array.dtype)  # of each rank its own
        flags = _IS_C_ORDER if plan.spec.order == "C" else 0
        if plan.of_nodes or not items.flags.owndata:  # else they are neither in node memory nor in `out`
            flags |= _checked(items, target, plan.of_nodes, topology.node_size)
        few = plan.few
        reduction = few or Reduction(context, plan.operation, items, of_nodes=plan.of_nodes)
        if few is not None:
            few.write(items)
            call.ends_in_collective = target is not None
        flags = call.agree(plan.call, _PAYLOADS[flags])[0]
        _count(context, plan)
        if flags & _IS_NODE_SHARED and topology.size > topology.n_nodes:
            _check_distinct(context, items)
        if target is not None:
            if few is None:
                with agree(context.collective_comm):
                    reduction.run(target, plan.is_shared)
            else:  # what few bytes need is not known to fail, so no agreement follows
                reduction.run(target, plan.is_shared)
                if not is_number:
                    context.node_collective_comm.barrier()
            return _number(target, local) if is_number else out  # type: ignore[return-value]
        spec, scope = plan.spec, "all" if few is None else "node"
        if flags & _IS_C_ORDER and spec.order == "F":
            spec = replace(spec, order="C")
        with node_memory(context, spec.nbytes, backend=plan.backend, made_by="allreduce", scope=scope) as segment:
            reduction.run(segment.view(spec), segment.origin.is_shared)
        return plan.kind.around(segment.view(spec))  # type: ignore[return-value]


def _array_of(number: Any) -> Any:
    """A number as a 0-d array; an int of more than 64 bits as it is, which is refused."""
    array = np.asarray(number)
    return number if array.dtype.hasobject else array


def _number(array: NDArray[Any], given: _T) -> _T:
    """The item of a 0-d array, as a number of the type that was given."""
    return array[()] if isinstance(given, np.generic) else array.item()  # type: ignore[return-value]


@dataclass(frozen=True)
class _Plan:
    """What the arguments of a call mean.

    Attributes:
        call: The call as all ranks must give it.
        operation: The operation.
        spec: The spec of this rank's array.
        kind: Its class.
        backend: What `check_backend` returned.
        is_shared: Whether all ranks of the node see the same bytes of `out`.
        of_nodes: Whether the array of a node counts once.
        memory: Where one rank of each node is to reduce the items, once there is some; None of more bytes.
        few: How it does; None before.
    """

    call: str
    operation: Operation
    spec: Spec
    kind: ArrayClass
    backend: str | None
    is_shared: bool
    of_nodes: bool
    memory: FewMemory | None
    few: FewItems | None


class _LastPlan(LastCall[_Plan]):
    """The plan of the last call on a communicator."""

    @staticmethod
    def make(context: Context, local: Any, out: Any, *others: Any) -> _Plan:
        """See `LastCall.make`."""
        operation, backend, scope, is_number = others
        refuse_objects(local, "allreduce")
        items, kind = take_apart(local)
        spec = Spec.of(items)
        operation.check(spec.dtype)
        kind.check_result(operation.function, items, context.topology.size, operation.name)
        backend = check_backend(backend, context)
        target = items_of_out(out, kind)
        of_nodes = is_of_nodes(scope)
        if of_nodes and is_number:
            raise ArgumentError(_NOT_OF_NODES)
        of_what = f"{operation.name}, backend={backend}, scope={'nodes' if of_nodes else 'all'}"
        shape = f"{spec.dtype.str}{list(spec.shape)}, {of_what}"
        call = f"allreduce({shape}{kind.text}{name_of_out(target)}){', a number' if is_number else ''}"
        if out is not None and not spec.fits(target):
            given = f"local is {spec.dtype} of shape {spec.shape}"
            raise SpecError(f"out is {target.dtype} of shape {target.shape}, but {given}.")
        is_few = not of_nodes and context.topology.size * spec.nbytes <= FEW_ITEMS_BYTES
        memory = context.cached(FewMemory) if is_few else None
        few = FewItems(context, operation, spec, memory) if memory is not None and memory.blocks else None
        is_shared = is_in_shared_memory(target)
        return _Plan(call, operation, spec, kind, backend, is_shared, of_nodes, memory, few)


def _count(context: Context, plan: _Plan) -> None:
    """Counts a call of few bytes on which the ranks have agreed. After some of them it obtains memory for the others.

    Collective:
        Over the communicator. All ranks have counted the same calls, and know whether there is such memory.
    """
    memory = plan.memory
    if memory is None:
        return
    memory.turn += 1
    if memory.blocks is None and memory.turn >= CALLS_WITHOUT_MEMORY:
        block = kept_memory(context, 2 * memory.nbytes)
        memory.blocks = () if block is None else (block[: memory.nbytes], block[memory.nbytes :])
        context.cached(_LastPlan).forget()


def _checked(local: NDArray[Any], out: NDArray[Any] | None, of_nodes: bool, node_size: int) -> int:
    """Checks where the items of this rank lie. Local.

    Returns:
        `_IS_NODE_SHARED`, or 0.

    Raises:
        SpecError: Ranks would read items that others have replaced; or the ranks of a node do not share what is to
            count once for each node.
    """
    if out is not None and np.may_share_memory(local, out):
        is_same = address_of(local) == address_of(out) and local.strides == out.strides
        if not (of_nodes and is_same):
            raise SpecError("local and out overlap: ranks would read items that others have replaced. Pass a copy.")
    if not of_nodes:
        return _IS_NODE_SHARED if local.flags.writeable and is_in_shared_memory(local) else 0
    if local.nbytes and node_size > 1 and not is_in_shared_memory(local):
        raise SpecError(_NOT_OF_NODES)
    return 0


def _check_distinct(context: Context, local: NDArray[Any]) -> None:
    """Raises a `SpecError` on all ranks if several ranks of a node gave the same node-shared items.

    Collective:
        Over the communicator.
    """
    segment, topology = segment_of(local), context.topology
    own = None if segment is None else (segment.key, Place.of(local, segment.address))
    places = context.node_collective_comm.allgather_obj(own)
    with agree(context.collective_comm):
        for rank, other in zip(topology.ranks_of(topology.node), places, strict=True):
            if segment is None or other is None or other[0] != segment.key or rank == topology.rank:
                continue
            if overlap(local, other[1].view(segment.block())):
                raise SpecError(
                    f"local is the same node-shared memory on ranks {topology.rank} and {rank}, and would count twice. "
                    "Pass scope='nodes' to count it once for each node, or an array of each rank."
                )
