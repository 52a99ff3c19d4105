"""Which items, or which rows of all ranks, belong to one rank."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from mpishare.arrays.slices import balanced_slice, parts_of
from mpishare.collectives.arguments import is_of_nodes
from mpishare.comm import mpi
from mpishare.comm.collective import collective
from mpishare.comm.context import context_of
from mpishare.errors import checked_integer


def partition(
    n: int,
    *,
    counts: Sequence[int] | None = None,
    rank: int | None = None,
    comm: mpi.Comm | None = None,
    scope: str = "all",
) -> slice:
    """The part of `n` items of this rank, where the parts of all ranks contain each item once.

    The items are cut as `numpy.array_split` cuts them: 10 items for 4 ranks are 3, 3, 2 and 2.

    Args:
        n: Number of items, an integer >= 0.
        counts: How many items each rank takes, in the order of the ranks; they add up to `n`. When None, the numbers
            differ by at most one.
        rank: Whose part it is: a rank of `comm`, or with the scope "node" a node rank. This rank when None.
        comm: The ranks that share the work; MPI_COMM_WORLD when None.
        scope: "all" to share the items among the ranks of `comm`; "node", among the ranks of each node.

    Returns:
        A slice with start and stop. Parts are in the order of the ranks.

    Raises:
        ArgumentError: `n` is negative or not an integer, `counts` does not fit, `rank` is not one of these ranks, or
            `scope` is neither of these.

    Collective:
        No, local; but over `comm` the first time that `comm` is used.

    Example:
        >>> import mpishare as ms
        >>> ms.partition(10, comm=ms.SELF)
        slice(0, 10, None)
    """
    topology = context_of(comm).topology
    of_nodes = is_of_nodes(scope)
    count = checked_integer("n", n)
    size, own = (topology.node_size, topology.node_rank) if of_nodes else (topology.size, topology.rank)
    part = own if rank is None else checked_integer("rank", rank, largest=size - 1)
    return balanced_slice(count, size, part) if counts is None else parts_of(count, size, counts)[part]


def rows(n_own: int, *, comm: mpi.Comm | None = None) -> tuple[slice, int]:
    """Where this rank's rows are among the rows of all ranks, which follow one another in the order of the ranks.

    Args:
        n_own: How many rows this rank has, an integer >= 0.
        comm: The ranks; MPI_COMM_WORLD when None.

    Returns:
        `(own, total)`: a slice with start and stop, and how many rows all ranks have. The rows that a rank gives to
        `allgather` are `own` of its result.

    Raises:
        ArgumentError: `n_own` is negative or not an integer.
        PeerError: Another rank raised this.

    Collective:
        Over `comm`.

    Source:
        MPI 3.1, section 5.11.2 (MPI_Exscan).

    Example:
        >>> import mpishare as ms
        >>> ms.rows(3, comm=ms.SELF)
        (slice(0, 3, None), 3)
    """
    with collective("rows", comm) as call:
        count = checked_integer("n_own", n_own)
        call.agree("rows()")
        ends = list(accumulate(call.context.collective_comm.allgather_int(count)))
        end = ends[call.context.topology.rank]
        return slice(end - count, end), ends[-1]
