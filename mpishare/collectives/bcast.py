"""Collectives on node-shared arrays that exist: refresh on all nodes, wait for writers."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from mpishare.arrays.raw import bytes_of
from mpishare.collectives.arguments import LastCall, is_of_nodes, shared_name
from mpishare.comm import mpi
from mpishare.comm.agreement import agree
from mpishare.comm.collective import collective
from mpishare.comm.context import Context
from mpishare.errors import checked_integer
from mpishare.objects.array_class import take_apart
from mpishare.transfer.between_nodes import broadcast

_FENCES = {scope: f"fence({scope=})" for scope in ("node", "all")}
"""The call of a fence by its scope. A misspelled scope meets the ranks of the one that it begins like."""


def bcast(array: NDArray[Any], *, root: int = 0, comm: mpi.Comm | None = None) -> NDArray[Any]:
    """Copies a node-shared array from `root`'s node to every other node, in place.

    The values that any rank of `root`'s node wrote before the call are sent; those that ranks of other nodes wrote are
    overwritten. Whole items are sent: for a view of some columns, such as `array[["a", "c"]]`, all columns.

    The other ranks may still read when it returns. Call `fence(scope="all")` before the next write.

    Args:
        array: On each rank its view of the same array from `empty`, `zeros` or `full`, or of the same contiguous part.
        root: A rank of the node whose values all nodes get.
        comm: The ranks that share; MPI_COMM_WORLD when None.

    Returns:
        `array` itself.

    Raises:
        SpecError: `array` is read-only, not contiguous, or not in node-shared memory.
        ArgumentError: `root` is not a rank of `comm`.
        MismatchError: The ranks gave different arrays, different parts or different `root`.
        PeerError: Another rank raised one of these.

    Collective:
        Over `comm`.

    Source:
        MPI 3.1, section 5.4 (MPI_Bcast); between nodes, `transfer.between_nodes`.

    Example:
        >>> import mpishare as ms
        >>> model = ms.zeros(4)
        >>> if ms.topology().rank == 0:
        ...     model[:] = 0.5
        >>> ms.bcast(model).tolist()
        [0.5, 0.5, 0.5, 0.5]
    """
    with collective("bcast", comm) as call:
        context = call.context
        rank = checked_integer("root", root, largest=context.topology.size - 1)
        call.agree(context.cached(_LastText).plan(array, array, rank))
        if context.topology.n_nodes > 1:
            with agree(context.node_collective_comm):  # its other ranks wait for the one that receives
                broadcast(context, rank, bytes_of(take_apart(array)[0]))
    return array


class _LastText(LastCall[str]):
    """The last call on a communicator as all ranks must give it."""

    @staticmethod
    def make(_context: Context, array: Any, _out: Any, root: int) -> str:
        """See `LastCall.make`."""
        items, kind = take_apart(array)
        cure = "share brings an array or an object of the root to all ranks; bcast refreshes an array that all have. "
        return f"bcast({shared_name(items, cure=cure)}{kind.text}, {root=})"


def fence(*, comm: mpi.Comm | None = None, scope: str = "node") -> None:
    """Waits for other ranks, as a barrier does. Then each sees what the others wrote to node-shared arrays before.

    Args:
        comm: The ranks that share; MPI_COMM_WORLD when None.
        scope: "node" to wait for the ranks of this node; "all" for every rank of `comm`.

    Raises:
        ArgumentError: `scope` is neither of these.
        MismatchError: Ranks of one node gave different scopes.
        PeerError: Another rank raised one of these.

    Collective:
        Over the ranks of `comm` on this node, or over all of `comm`, as `scope` says; over `comm` the first time.

    Source:
        MPI 3.1, section 11.7.1, shared memory and the unified memory model: a message orders the stores before it on
        one process and the loads after it on the other. MPI's own messages through shared memory rely on this.

    Example:
        >>> import mpishare as ms
        >>> ours = ms.zeros(2)
        >>> ours[0] = 1.0
        >>> ms.fence()
        >>> ours.tolist()
        [1.0, 0.0]
    """
    meant = "node" if scope == "node" or str(scope).startswith("n") else "all"
    with collective(_FENCES[meant], comm, meant, meets_other_scopes=True) as call:
        if scope != meant:
            is_of_nodes(scope)
        call.agree(_FENCES[meant])
