"""Arrays whose rows are split over the nodes: how many rows each node takes, and memory of another size on each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise

from mpishare.arrays.slices import parts_of
from mpishare.arrays.spec import Spec
from mpishare.comm.agreement import agree
from mpishare.comm.context import Context
from mpishare.errors import CapacityError
from mpishare.host.memory import memory_room


def node_counts(context: Context, whole: Spec, counts: Sequence[int] | None) -> list[int]:
    """How many rows each node takes.

    Args:
        context: The context of the communicator.
        whole: The spec of all rows.
        counts: The numbers of the user. When None, all nodes take equally many; but if these are too many for the free
            memory of a node, each takes rows in proportion to its free memory.

    Raises:
        ArgumentError: `counts` does not fit the nodes and the rows.

    Collective:
        Over the communicator.
    """
    n_rows, nodes = whole.shape[0], context.topology.placement.nodes
    with agree(context.collective_comm):
        numbers = [part.stop - part.start for part in parts_of(n_rows, len(nodes), counts, "nodes")]
        own = memory_room().free
    if counts is not None:
        return numbers
    free_bytes = context.collective_comm.allgather_int(own)
    free = [free_bytes[ranks[0]] for ranks in nodes]
    row_bytes = whole.nbytes // max(n_rows, 1)
    if all(number * row_bytes <= room for number, room in zip(numbers, free, strict=True)):
        return numbers
    ends = [n_rows * end // (sum(free) or 1) for end in accumulate(free, initial=0)]
    return [stop - start for start, stop in pairwise(ends)]


@contextmanager
def on_each_node(context: Context, whole: Spec) -> Iterator[Context]:
    """An agreement of all ranks, in which each node makes its part of an array.

    Args:
        context: The context of the communicator.
        whole: The spec of the whole array.

    Yields:
        The context of the ranks of this node. Its memory has another size on each node.

    Raises:
        CapacityError: The block raised one. It says how many nodes would do.

    Collective:
        Over the communicator.
    """
    with agree(context.collective_comm):
        try:
            yield context.of_node()
        except CapacityError as error:
            room = max(error.free, memory_room().free, 1)
            n_nodes = max(-(-whole.nbytes // room), context.topology.n_nodes + 1)
            cure = f"{n_nodes} nodes with {room:,} bytes each would hold all {whole.nbytes:,}. {error.cure}"
            raise CapacityError(error.host, error.where, error.wanted, error.free, cure) from error
