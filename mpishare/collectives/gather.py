"""Rows from all ranks to one rank, and from one rank to all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.raw import bytes_of, copy_bytes
from mpishare.arrays.slices import parts_of
from mpishare.arrays.spec import Spec
from mpishare.collectives.arguments import is_written_by_node, refuse_objects
from mpishare.comm import mpi
from mpishare.comm.agreement import NO_PAYLOAD, agree
from mpishare.comm.collective import collective
from mpishare.errors import checked_integer, checked_integers
from mpishare.objects.array_class import items_of_out, take_apart
from mpishare.transfer.between_nodes import broadcast_spec
from mpishare.transfer.rows import (
    allocate,
    copy_of,
    describe_rows,
    memory_of,
    receive_blocks,
    rows_of,
    send_blocks,
    spread_rows,
    stack_rows,
    stage_of,
    told_rows,
)


def gather(
    local: NDArray[Any], *, root: int = 0, out: NDArray[Any] | None = None, comm: mpi.Comm | None = None
) -> NDArray[Any] | None:
    """Stacks the rows of all ranks, in rank order, on `root` alone.

    Args:
        local: This rank's rows, shape (n, ...) with any n >= 0. The other lengths and the dtype must be the same on all
            ranks. Rows that are not C-contiguous are copied first, and so are rows of other ranks in memory that the
            ranks of the root's node write.
        root: The rank that gets the rows.
        out: On `root`, an array in C order that may be written, into which the rows go; ignored elsewhere. New memory
            is taken when None. It may overlap `local` of any rank, in an array of mpishare.
        comm: The ranks that gather; MPI_COMM_WORLD when None.

    Returns:
        On `root` `out`, or a writable array of the class of `local` in C order, in memory of its own, with the rows of
        rank 0 first.
        None on the other ranks.

    Raises:
        SpecError: `local` is not an array, is 0-d, or holds Python objects; or an array cannot have as many rows as
            all ranks have; or `out` does not fit these.
        ArgumentError: `root` is not a rank of `comm`.
        CapacityError: This process has too little memory; on the other ranks as a `PeerCapacityError`.
        MismatchError: The ranks gave rows of different shapes, dtypes or classes, or made different calls.
        PeerError: Another rank raised one of these.

    Collective:
        Over `comm`, but a rank other than `root` may return before others have come.

    Source:
        MPI 3.1, section 5.5 (MPI_Gatherv), without its limit of 2**31 items.

    Example:
        >>> import mpishare as ms, numpy as np
        >>> nodes = ms.topology()
        >>> ends = ms.gather(np.array([nodes.rank]), root=nodes.size - 1)
        >>> (ends is None) == (nodes.rank != nodes.size - 1)
        True
    """
    with collective("gather", comm) as call:
        context, topology = call.context, call.context.topology
        root = checked_integer("root", root, largest=topology.size - 1)
        refuse_objects(local, "gather")
        local, kind = take_apart(local)
        spec, is_root = rows_of(local), topology.rank == root
        may_be_in_out = topology.node == topology.node_of(root) and is_written_by_node(local)
        # Of the root's rows NumPy knows where they overlap `out`, but not where their strides differ.
        if not local.flags.c_contiguous or (may_be_in_out and not is_root):
            local = copy_of(context, local)
        payload = call.agree(f"gather(rows of {describe_rows(spec)}{kind.text}, root={root})", told_rows(spec.shape[0]))
        starts, whole = stack_rows(context, spec, payload)
        with agree(context.collective_comm):
            block = memory_of(context, whole, items_of_out(out, kind)) if is_root else bytes_of(local)
        if not is_root:
            send_blocks(context, [(root, block)])
            return None
        rows = [whole.view(block)[start:stop] for start, stop in pairwise(starts)]
        copy_bytes(rows[root], local)  # first, as others' rows may go where they are
        receive_blocks(context, [(rank, bytes_of(part)) for rank, part in enumerate(rows) if rank != root])
        return kind.around(whole.view(block)) if out is None else out


def scatter(
    array: NDArray[Any] | None,
    *,
    counts: Sequence[int] | None = None,
    root: int = 0,
    out: NDArray[Any] | None = None,
    comm: mpi.Comm | None = None,
) -> NDArray[Any]:
    """Gives each rank its part of the rows of `root`: of n rows, `partition(n, counts=counts)`.

    Args:
        array: On `root`, shape (n, ...), any strides, any dtype without Python objects; ignored on the other ranks.
        counts: How many rows each rank gets, the same on all ranks; their numbers differ by at most one when None.
        root: The rank that has the rows.
        out: On each rank that wants it, an array in C order that may be written, into which its rows go. New memory is
            taken when None. It may overlap `array`. Where both are in memory that the ranks of the root's node write,
            the rows are first received into memory of this rank's own.
        comm: The ranks that get them; MPI_COMM_WORLD when None.

    Returns:
        `out`, or a writable array of the root's class in C order, in memory of this rank's own; on `root` too it is a
        copy. If there are fewer rows than ranks, some ranks get none.

    Raises:
        SpecError: On `root`, `array` is not an array, is 0-d, or holds Python objects; or `out` does not fit the rows.
        ArgumentError: `root` is not a rank of `comm`, or `counts` does not fit the ranks and the rows.
        CapacityError: This process has too little memory; on the other ranks as a `PeerCapacityError`.
        MismatchError: The ranks gave different `root` or `counts`, or made different calls.
        PeerError: Another rank raised one of these.

    Collective:
        Over `comm`.

    Source:
        MPI 3.1, section 5.6 (MPI_Scatterv), without its limit of 2**31 items.

    Example:
        >>> import mpishare as ms, numpy as np
        >>> nodes = ms.topology()
        >>> rows = ms.scatter(np.arange(10) if nodes.rank == 0 else None)
        >>> rows.tolist() == list(range(10))[ms.partition(10)]
        True
    """
    with collective("scatter", comm) as call:
        context, topology = call.context, call.context.topology
        extension = b""
        payload = NO_PAYLOAD
        root = checked_integer("root", root, largest=topology.size - 1)
        numbers = None if counts is None else checked_integers("counts", counts)
        array = array if topology.rank == root else None
        refuse_objects(array, "scatter")
        array, kind = take_apart(array)
        if topology.rank == root:
            of_root = rows_of(array)
            payload, extension = of_root.packed
            parts_of(of_root.shape[0], topology.size, numbers)
        payload = call.agree(f"scatter(…, counts={numbers}, root={root})", payload)
        spec = broadcast_spec(context, payload, extension, root)
        parts = parts_of(spec.shape[0], topology.size, numbers)
        own = parts[topology.rank]
        own_spec = Spec(spec.dtype, (own.stop - own.start, *spec.shape[1:]))
        kind, is_written = context.collective_comm.bcast_obj((kind, is_written_by_node(array)), root)
        may_be_in_array = is_written and topology.node == topology.node_of(root)
        with agree(context.collective_comm):
            kind.around(np.ones([1] * len(spec.shape), spec.dtype))  # an error where this rank lacks the class
            block = memory_of(context, own_spec, items_of_out(out, kind))
            is_apart = may_be_in_array and is_written_by_node(out)
            received = allocate(context, own_spec.nbytes) if is_apart else block
            stage = stage_of(context, array)
        spread_rows(context, root, array, dict(enumerate(parts)), own_spec.view(received), stage)
        if may_be_in_array:
            context.node_collective_comm.barrier()  # the root has sent all rows
        if is_apart:
            block[:] = received
        return kind.around(own_spec.view(block)) if out is None else out
