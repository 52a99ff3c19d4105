"""Rows from all ranks to one rank, and from one rank to all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.raw import address_of, bytes_of, copy_bytes
from mpishare.arrays.slices import parts_of
from mpishare.arrays.spec import Spec
from mpishare.collectives.arguments import is_in_shared_memory, place_of, refuse_objects
from mpishare.comm import mpi
from mpishare.comm.agreement import NO_PAYLOAD, agree
from mpishare.comm.collective import collective
from mpishare.comm.context import Context
from mpishare.errors import SpecError, checked_integer, checked_integers
from mpishare.memory.segment import segment_of
from mpishare.objects.array_class import items_of_out, take_apart
from mpishare.transfer.between_nodes import broadcast_spec
from mpishare.transfer.rows import (
    allocate,
    bytes_in_c_order,
    describe_rows,
    has_flag,
    memory_of,
    receive_blocks,
    rows_of,
    send_blocks,
    stack_rows,
    told_rows,
)


def gather(
    local: NDArray[Any], *, root: int = 0, out: NDArray[Any] | None = None, comm: mpi.Comm | None = None
) -> NDArray[Any] | None:
    """Stacks the rows of all ranks, in rank order, on `root` alone.

    Args:
        local: This rank's rows, shape (n, ...) with any n >= 0. The other lengths and the dtype must be the same on all
            ranks. Rows that are not C-contiguous are sent from a copy.
        root: The rank that gets the rows.
        out: On `root`, an array in C order that may be written, into which the rows go; ignored elsewhere. New memory
            is taken when None. Where other ranks see its memory too, their `local` may be their own rows of it, but not
            rows of others.
        comm: The ranks that gather; MPI_COMM_WORLD when None.

    Returns:
        On `root` `out`, or a writable array of the class of `local` in C order, in memory of its own, with the rows of
        rank 0 first.
        None on the other ranks.

    Raises:
        SpecError: `local` is not an array, is 0-d, or holds Python objects; or an array cannot have as many rows as
            all ranks have; or `out` does not fit these, or has rows of others where `local` is.
        ArgumentError: `root` is not a rank of `comm`.
        CapacityError: `root` has too little memory; on the other ranks as a `PeerCapacityError`.
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
        stage = allocate(context, 0 if is_root or local.flags.c_contiguous else spec.nbytes)
        told = told_rows(spec.shape[0], not is_root and is_in_shared_memory(local))
        payload = call.agree(f"gather(rows of {describe_rows(spec)}{kind.text}, root={root})", told)
        starts, whole = stack_rows(context, spec, payload)
        own, place = slice(*starts[topology.rank : topology.rank + 2]), None
        if has_flag(payload):  # rows may lie in `out`
            fits = is_root and isinstance(out, np.ndarray) and whole.fits(out)
            place = context.collective_comm.bcast_obj(place_of(out) if fits else None, root)
        with agree(context.collective_comm):
            block = memory_of(context, whole, items_of_out(out, kind)) if is_root else allocate(context, 0)
            if not is_root:
                _check_place(context, "local", local, root, "out", whole, place, own)
        if topology.rank != root:
            send_blocks(context, [(root, bytes_in_c_order(local, stage))])
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
            taken when None.
        comm: The ranks that get them; MPI_COMM_WORLD when None.

    Returns:
        `out`, or a writable array of the root's class in C order, in memory of this rank's own; on `root` too it is a
        copy. If there are fewer rows than ranks, some ranks get none.

    Raises:
        SpecError: On `root`, `array` is not an array, is 0-d, or holds Python objects; or `out` does not fit the rows,
            or lies in the root's array where rows of others are.
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
        kind, place = context.collective_comm.bcast_obj((kind, place_of(array)), root)
        with agree(context.collective_comm):
            kind.around(np.ones([1] * len(spec.shape), spec.dtype))  # an error where this rank lacks the class
            items = items_of_out(out, kind)
            block = memory_of(context, own_spec, items)
            if items is not None:
                _check_place(context, "out", items, root, "array", spec, place, own)
            is_copied = topology.rank == root and array is not None and not array.flags.c_contiguous
            longest = max(part.stop - part.start for part in parts)
            stage = allocate(context, spec.nbytes // max(spec.shape[0], 1) * longest if is_copied else 0)
        if topology.rank != root or array is None:
            receive_blocks(context, [(root, block)])
        else:
            others = [rank for rank in range(topology.size) if rank != root]
            blocks = ((rank, bytes_in_c_order(array[parts[rank]], stage)) for rank in others)
            send_blocks(context, blocks, reuses_memory=is_copied)
            copy_bytes(own_spec.view(block), array[own])
        return kind.around(own_spec.view(block)) if out is None else out


def _check_place(
    context: Context, name: str, rows: NDArray[Any], root: int, name_of_all: str, spec: Spec, place: Any, own: slice
) -> None:
    """Refuses rows that lie in an array of all rows, at `place` on the root, unless they are this rank's `own` there.

    The root sends from there, or receives there, the rows of one rank after the other.

    Raises:
        SpecError: They lie where other rows are.
    """
    topology, segment = context.topology, segment_of(rows)
    if topology.node != topology.node_of(root) or not is_in_shared_memory(rows):
        return
    if place is None or segment is None or segment.key != place[0]:
        return
    whole = np.ndarray(spec.shape, spec.dtype, segment.block(), *place[1:])
    is_own = address_of(rows) == address_of(whole[own]) and whole[own].flags.c_contiguous and rows.flags.c_contiguous
    if not is_own and np.may_share_memory(rows, whole):
        cure = "Pass its own rows there, or a copy."
        raise SpecError(f"{name} overlaps the root's {name_of_all} in a place of other rows. {cure}")
