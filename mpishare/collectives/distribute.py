"""distribute: one copy per job of an array, its rows split over the nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import accumulate, pairwise
from typing import Any

from numpy.typing import NDArray

from mpishare.arrays.raw import bytes_of, copy_bytes
from mpishare.arrays.slices import parts_of
from mpishare.arrays.spec import Spec, describe
from mpishare.comm import mpi
from mpishare.comm.agreement import NO_PAYLOAD, agree
from mpishare.comm.collective import collective
from mpishare.comm.context import Context
from mpishare.errors import ArgumentError, checked_integer, checked_integers
from mpishare.memory.allocation import node_memory
from mpishare.memory.backends import check_backend
from mpishare.objects.distributed import Distributed, node_counts, on_each_node
from mpishare.transfer.between_nodes import broadcast_spec
from mpishare.transfer.node_fill import broadcast_in_node
from mpishare.transfer.rows import describe_rows, rows_of, spread_rows, stack_rows, stage_of

Parts = list[tuple[int, NDArray[Any]]]
"""Rows of a node, with the rank that brings them."""


def distribute(
    array: NDArray[Any] | None = None,
    *,
    local: NDArray[Any] | None = None,
    root: int = 0,
    counts: Sequence[int] | None = None,
    comm: mpi.Comm | None = None,
    backend: str | None = None,
) -> Distributed:
    """Splits the rows of an array over the nodes: one copy per job, for data larger than a node.

    The array is what `root` has, or what the ranks have made of it: with `local`, all ranks give their rows. The rows
    of a node follow one another. So rows of `local` are numbered in the order of the nodes, and on a node in the order
    of its ranks; where the ranks of each node are consecutive, that is the order of the ranks.

    Args:
        array: On `root`, shape (n, ...), any strides, any dtype without Python objects; ignored on the other ranks.
        local: Instead of `array`, on all ranks: this rank's rows, shape (n, ...) with any n >= 0. The other lengths and
            the dtype must be the same on all ranks.
        root: The rank that has `array`.
        counts: How many rows of `array` each node takes, in the order of the nodes, the same on all ranks. When None,
            their numbers differ by at most one; where a node has too little free memory for that, all nodes take rows
            in proportion to their free memory.
        comm: The ranks that share; MPI_COMM_WORLD when None.
        backend: The backend to use, or several with commas in the order to try; None lets each node choose.

    Returns:
        A `Distributed`, read-only, whose rows are in C order. `array` and `local` may be changed or deleted afterwards.

    Raises:
        SpecError: `array` or `local` is not an array, is 0-d, or holds Python objects; or no array can have as many
            rows.
        ArgumentError: `root` is not a rank of `comm`, `counts` does not fit the nodes and the rows, `backend` is
            unknown, or `local` was given with `array` or `counts`.
        CapacityError: The rows do not fit on this node, or, as a `PeerCapacityError`, on another. It says how many
            nodes would do.
        BackendError: The requested backend cannot be used on this node.
        MismatchError: The ranks gave different arguments, or made different calls.
        PeerError: Another rank raised one of these.

    Collective:
        Over `comm`.

    Example:
        >>> import mpishare as ms, numpy as np
        >>> table = ms.distribute(np.arange(12.0).reshape(6, 2) if ms.topology().rank == 0 else None)
        >>> table.take([5, 0]).tolist()
        [[10.0, 11.0], [0.0, 1.0]]
        >>> ms.distribute(local=np.arange(3)).shape[0] == 3 * ms.topology().size
        True
    """
    with collective("distribute", comm) as call:
        context, payload, extension = call.context, NO_PAYLOAD, b""
        root = checked_integer("root", root, largest=context.topology.size - 1)
        backend = check_backend(backend, context)
        numbers = None if counts is None else checked_integers("counts", counts)
        what = f"…, counts={numbers}, root={root}"
        if local is not None:
            if not (array is None and counts is None):
                given = f"local was given with {describe(array)} as array and counts={counts}"
                raise ArgumentError(f"{given}. Give it alone: each node keeps the rows of its ranks.")
            spec = rows_of(local)
            what = f"local=rows of {describe_rows(spec)}"
        array = array if context.topology.rank == root else None
        if local is None and context.topology.rank == root:
            spec = rows_of(array)
            payload, extension = spec.packed
        stage = stage_of(context, array)
        payload = call.agree(f"distribute({what}, backend={backend})", payload)
        if local is not None:
            return _from_all(context, spec, local, backend)
        spec = broadcast_spec(context, payload, extension, root)
        whole = Spec(spec.dtype, spec.shape)
        numbers = node_counts(context, whole, numbers)
        receivers = [root if root in ranks else ranks[0] for ranks in context.topology.placement.nodes]
        parts = dict(zip(receivers, parts_of(whole.shape[0], len(receivers), numbers), strict=True))

        def fill(own: NDArray[Any]) -> Parts:
            spread_rows(context, root, array, parts, own, stage)
            return [(root, own)]

        return _made(context, whole, numbers, fill, backend)


def _from_all(context: Context, spec: Spec, local: NDArray[Any], backend: str | None) -> Distributed:
    """The rows of all ranks. Collective over the communicator."""
    topology = context.topology
    starts, whole = stack_rows(context, spec)
    lengths = [stop - start for start, stop in pairwise(starts)]
    counts = [sum(lengths[rank] for rank in ranks) for ranks in topology.placement.nodes]
    ranks = topology.ranks_of(topology.node)
    ends = list(accumulate((lengths[rank] for rank in ranks), initial=0))

    def fill(own: NDArray[Any]) -> Parts:
        parts = [own[start:stop] for start, stop in pairwise(ends)]
        copy_bytes(parts[topology.node_rank], local)
        return list(zip(ranks, parts, strict=True))

    return _made(context, whole, counts, fill, backend)


def _made(
    context: Context, whole: Spec, counts: Sequence[int], fill: Callable[[NDArray[Any]], Parts], backend: str | None
) -> Distributed:
    """A new array of `counts[node]` rows on each node.

    Args:
        context: The context of the communicator.
        whole: The spec of all rows.
        counts: The number of rows of each node.
        fill: Writes the rows of this node that this rank brings, once all nodes have memory. It returns all rows of the
            node in parts, with the rank that brings each of them.
        backend: What `check_backend` returned.

    Collective:
        Over the communicator.
    """
    own = Spec(whole.dtype, (counts[context.topology.node], *whole.shape[1:]))
    with on_each_node(context, whole) as node_context, ExitStack() as stack:
        memory = node_memory(node_context, own.nbytes, backend=backend, made_by="distribute")
        with agree(context.collective_comm):
            segment = stack.enter_context(memory)
        parts = fill(segment.view(own))
        for rank, part in () if segment.origin.is_shared else parts:
            broadcast_in_node(context, rank, bytes_of(part))
    return Distributed(context, whole, counts, segment.view(own))
