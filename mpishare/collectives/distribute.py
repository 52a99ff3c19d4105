"""distribute: one copy per job of an array, its rows split over the nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays import slices
from mpishare.arrays.raw import Block, bytes_of, copy_bytes
from mpishare.arrays.spec import Spec, describe
from mpishare.collectives.distributed import Distributed, counting_nodes, node_counts, on_each_node
from mpishare.collectives.partition import parts_of
from mpishare.comm import mpi
from mpishare.comm.agreement import agree
from mpishare.comm.collective import collective
from mpishare.comm.context import Context
from mpishare.errors import ArgumentError, checked_integer
from mpishare.memory.allocation import node_memory
from mpishare.memory.backends import check_backend
from mpishare.memory.segment import Segment
from mpishare.transfer.between_nodes import broadcast_spec
from mpishare.transfer.node_fill import broadcast_in_node
from mpishare.transfer.rows import (
    allocate,
    bytes_in_c_order,
    describe_rows,
    receive_blocks,
    rows_of,
    send_blocks,
    stack_rows,
)

_CHUNK_BYTES = 4 << 20
"""Rows travel from the root in chunks of this size. Rows that are not contiguous are copied to a buffer for one."""


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
        >>> from mpi4py import MPI
        >>> table = ms.distribute(np.arange(12.0).reshape(6, 2) if MPI.COMM_WORLD.rank == 0 else None)
        >>> table.take([5, 0]).tolist()
        [[10.0, 11.0], [0.0, 1.0]]
        >>> ms.distribute(local=np.arange(3)).shape[0] == 3 * MPI.COMM_WORLD.size
        True
    """
    with collective("distribute", comm) as call:
        context, extension, stage = call.context, b"", np.empty(0, np.uint8)
        with call.agree_on_arguments() as agreement:
            root = checked_integer("root", root, largest=context.topology.size - 1)
            backend = check_backend(backend, context)
            numbers = None if counts is None else [checked_integer("counts", count) for count in counts]
            what = f"…, counts={numbers}, root={root}"
            if local is not None:
                _check_alone(array, counts)
                spec = rows_of(local)
                what = f"local=rows of {describe_rows(spec)}"
            elif context.topology.rank == root:
                spec = rows_of(array)
                parts_of(spec.shape[0], context.topology.n_nodes, numbers, "nodes")
                agreement.payload, extension = spec.packed
                is_copied = array is not None and not array.flags.c_contiguous
                stage = allocate(context, max(spec.nbytes // max(spec.shape[0], 1), _CHUNK_BYTES) if is_copied else 0)
            agreement.call = f"distribute({what}, backend={backend})"
        if local is not None:
            return _from_all(context, spec, local, backend)
        spec = broadcast_spec(context, agreement.payload, extension, root)
        whole = Spec(spec.dtype, spec.shape)
        return _from_root(context, whole, node_counts(context, whole, numbers), array, root, stage, backend)


def _check_alone(array: object, counts: object) -> None:
    """Raises an `ArgumentError` for arguments that do not go with `local`."""
    if array is not None:
        raise ArgumentError(f"both array, {describe(array)}, and local were given. Give one of them.")
    if counts is not None:
        raise ArgumentError("counts was given with local. Each node keeps the rows that its ranks give.")


def _from_root(
    context: Context,
    whole: Spec,
    counts: Sequence[int],
    array: NDArray[Any] | None,
    root: int,
    stage: Block,
    backend: str | None,
) -> Distributed:
    """The rows of the root's array. Collective over the communicator."""
    topology = context.topology
    parts = parts_of(whole.shape[0], topology.n_nodes, counts)
    with _rows_of_node(context, whole, counts, backend) as (segment, own):
        if topology.rank == root and array is not None:
            chunks = (
                (topology.ranks_of(node)[0], array[part][chunk])
                for node, part in enumerate(parts)
                if node != topology.node
                for chunk in _chunks(whole, counts[node])
            )
            blocks = ((leader, bytes_in_c_order(rows, stage)) for leader, rows in chunks)
            send_blocks(context, blocks, reuses_memory=not array.flags.c_contiguous)
            copy_bytes(segment.view(own), array[parts[topology.node]])
        elif topology.is_leader and topology.node != topology.node_of(root):
            rows = segment.view(own)
            receive_blocks(context, [(root, bytes_of(rows[chunk])) for chunk in _chunks(whole, len(rows))])
        if not segment.origin.is_shared:
            broadcast_in_node(context, root, segment.block())
    return Distributed(context, whole, counts, segment.view(own))


def _chunks(whole: Spec, n_rows: int) -> Iterator[slice]:
    """The chunks in which rows travel from the root."""
    row_bytes = whole.nbytes // max(whole.shape[0], 1)
    return slices.chunks(n_rows if row_bytes else 0, max(_CHUNK_BYTES // max(row_bytes, 1), 1))


def _from_all(context: Context, spec: Spec, local: NDArray[Any], backend: str | None) -> Distributed:
    """The rows of all ranks. Collective over the communicator."""
    topology = context.topology
    starts, whole = stack_rows(context, spec)
    lengths = [stop - start for start, stop in pairwise(starts)]
    counts = [sum(lengths[rank] for rank in ranks) for ranks in topology.placement.nodes]
    ranks = topology.ranks_of(topology.node)
    ends = list(accumulate((lengths[rank] for rank in ranks), initial=0))
    with _rows_of_node(context, whole, counts, backend) as (segment, own):
        parts = [segment.view(own)[start:stop] for start, stop in pairwise(ends)]
        copy_bytes(parts[topology.node_rank], local)
        if not segment.origin.is_shared:
            for rank, part in zip(ranks, parts, strict=True):
                broadcast_in_node(context, rank, bytes_of(part))
    return Distributed(context, whole, counts, segment.view(own))


@contextmanager
def _rows_of_node(
    context: Context, whole: Spec, counts: Sequence[int], backend: str | None
) -> Iterator[tuple[Segment, Spec]]:
    """Memory for the rows of this node, as a block that fills it. Leaving the block makes the pages read-only.

    Yields:
        The segment, and the spec of the rows, once all nodes have memory.

    Collective:
        Over the communicator.
    """
    own = Spec(whole.dtype, (counts[context.topology.node], *whole.shape[1:]))
    with agree(context.collective_comm), on_each_node("distribute", context) as node_context, ExitStack() as stack:
        memory = node_memory(node_context, own.nbytes, backend=backend, made_by="distribute")
        with agree(context.collective_comm), counting_nodes(context, whole):
            segment = stack.enter_context(memory)
        yield segment, own
