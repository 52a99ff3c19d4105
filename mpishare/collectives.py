"""What the ranks do together with node-shared arrays once they exist."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays import slices
from mpishare.arrays.raw import address_of, bytes_of
from mpishare.arrays.spec import Spec
from mpishare.comm import mpi
from mpishare.comm.agreement import agree
from mpishare.comm.collective import collective
from mpishare.comm.collective_comm import CollectiveComm
from mpishare.comm.context import Context, context_of
from mpishare.comm.topology import check_root
from mpishare.errors import ArgumentError, SpecError
from mpishare.memory.segment import segment_of
from mpishare.transfer.pipeline import broadcast_chunks

_SCOPES = ("node", "all")


def bcast(array: NDArray[Any], *, root: int = 0, comm: mpi.Comm | None = None) -> NDArray[Any]:
    """Refreshes a node-shared array on every node, in place, from the copy on `root`'s node.

    What any rank of that node wrote before the call is sent; what ranks of other nodes wrote is overwritten. Whole
    items travel: a view of some columns, such as `array[["a", "c"]]`, brings the others along.

    Args:
        array: On each rank its view of one array from `empty`, `zeros` or `full`, or the same contiguous part of it.
        root: A rank of the node whose bytes all nodes get.
        comm: The ranks that share; MPI_COMM_WORLD when None.

    Returns:
        `array` itself.

    Raises:
        SpecError: `array` is read-only, not contiguous, or not in node-shared memory.
        ArgumentError: `root` is no rank of `comm`.
        MismatchError: The ranks gave different arrays, different parts or different `root`.
        PeerError: Another rank raised one of these.

    Collective:
        Over `comm`.

    Source:
        MPI 3.1, section 5.4 (MPI_Bcast); the pipelined chain of J. L. Träff and A. Ripke, J. Parallel Distrib. Comput.
        68 (2008).

    Example:
        >>> import mpishare as ms
        >>> from mpi4py import MPI
        >>> model = ms.zeros(4)
        >>> if MPI.COMM_WORLD.rank == 0:
        ...     model[:] = 0.5
        >>> ms.bcast(model).tolist()
        [0.5, 0.5, 0.5, 0.5]
    """
    with collective("bcast", comm) as call:
        context = call.context
        with call.begin() as agreement:
            rank = check_root(root, context.topology.size)
            agreement.call = f"bcast({shared_name(array, writes=True)}, root={rank})"
        broadcast_chunks(context, rank, bytes_of(array))
        context.node_collective_comm.barrier()
    return array


def fence(*, comm: mpi.Comm | None = None, scope: str = "node") -> None:
    """Waits for the other ranks, after which each sees what they wrote to node-shared arrays before.

    Args:
        comm: The ranks that share; MPI_COMM_WORLD when None.
        scope: "node", the ranks of this node; "all", every rank of `comm`.

    Raises:
        ArgumentError: `scope` is neither.
        MismatchError: Ranks of one node gave different scopes.
        PeerError: Another rank raised one of these.

    Collective:
        Over the ranks of `comm` on this node, or over all of `comm`, as `scope` says; over `comm` the first time.

    Source:
        MPI 3.1, section 11.7.1, on shared memory and the unified memory model: a message from one process to another
        orders the stores before it and the loads after it, as MPI's own channels through shared memory rely on.

    Example:
        >>> import mpishare as ms
        >>> ours = ms.zeros(2)
        >>> ours[0] = 1.0
        >>> ms.fence()
        >>> ours.tolist()
        [1.0, 0.0]
    """
    with collective("fence", comm) as call:
        context = call.context
        with call.begin(node_comm_of(context)) as agreement:
            _check_scope(scope)
            agreement.call = f"fence(scope={scope!r})"
        if context.topology.n_nodes > 1 and scope == "all":
            with agree(context.collective_comm) as agreement:
                agreement.call = "fence(scope='all')"


def partition(n: int, *, comm: mpi.Comm | None = None, scope: str = "all") -> slice:
    """This rank's part of `n` items, such that all ranks' parts together are all items, each once.

    Args:
        n: Number of items, 0 or more.
        comm: The ranks that share the work; MPI_COMM_WORLD when None.
        scope: "all", the items are shared among the ranks of `comm`; "node", among the ranks of each node.

    Returns:
        A slice with start and stop. The lengths of two ranks' parts differ by one at most; parts follow rank order.

    Raises:
        ArgumentError: `n` is negative or no integer, or `scope` is neither.

    Collective:
        No, local; but over `comm` the first time that `comm` is used.

    Example:
        >>> import mpishare as ms
        >>> from mpi4py import MPI
        >>> ms.partition(10, comm=MPI.COMM_SELF)
        slice(0, 10, None)
    """
    topology = context_of(comm).topology
    _check_scope(scope)
    try:
        count = operator.index(n)
    except TypeError as error:
        raise ArgumentError(f"n is {n!r}; a number of items is an integer.") from error
    if count < 0:
        raise ArgumentError(f"n is {count}; a number of items is 0 or more.")
    if scope == "node":
        return slices.balanced_slice(count, topology.node_size, topology.node_rank)
    return slices.balanced_slice(count, topology.size, topology.rank)


def _check_scope(scope: str) -> None:
    if not isinstance(scope, str) or scope not in _SCOPES:
        raise ArgumentError(f"scope {scope!r} is unknown. Use 'node' or 'all'.")


def node_comm_of(context: Context) -> CollectiveComm:
    """The communicator for calls of one node. On a single node it is that of all other calls, so that they compare."""
    return context.node_collective_comm if context.topology.n_nodes > 1 else context.collective_comm


def shared_name(array: NDArray[Any], *, writes: bool) -> str:
    """Names the bytes of a node-shared array alike on all ranks, so that a difference between ranks shows.

    Raises:
        SpecError: They are not in node-shared memory, are no one run, or may not be written to although the call does.
    """
    segment = segment_of(array) if isinstance(array, np.ndarray) else None
    if segment is None or segment.key is None:
        raise SpecError("this array cannot be traced to node-shared memory. Use one from empty, zeros or full.")
    if writes and not array.flags.writeable:
        raise SpecError("this array is read-only, as those of share are. Use one from empty, zeros or full.")
    if not array.flags.forc:
        raise SpecError("this part of an array is not contiguous, so its bytes are no one run. Pass the whole array.")
    offset = address_of(array) - segment.address
    return f"array {segment.key:x} from byte {offset}, {Spec.of(array)}"
