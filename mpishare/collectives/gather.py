"""Rows from all ranks to one rank, and from one rank to all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from types import NoneType
from typing import Any
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.raw import bytes_of, copy_bytes
from mpishare.arrays.slices import parts_of
from mpishare.arrays.spec import Spec
from mpishare.collectives.arguments import LastCall, RowsPlan, facts_of, is_written_by_node, refuse_objects
from mpishare.comm import mpi
from mpishare.comm.agreement import NO_PAYLOAD, agree
from mpishare.comm.collective import collective
from mpishare.comm.context import Context
from mpishare.errors import checked_integer, checked_integers
from mpishare.objects.array_class import PLAIN, items_of_out, take_apart
from mpishare.transfer.between_nodes import broadcast_spec
from mpishare.transfer.rows import (
    FEW_BYTES,
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
    takes,
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
        is_root = topology.rank == root
        out = out if is_root else None
        plan = context.cached(_LastPlan).plan(local, out, root)
        kind, told = plan.kind, plan.told
        rows, target = (local, out) if kind is PLAIN else (take_apart(local)[0], take_apart(out)[0])
        may_be_in_out = topology.node == topology.node_of(root) and is_written_by_node(rows)
        # Of the root's rows NumPy knows where they overlap `out`, but not where their strides differ.
        if not rows.flags.c_contiguous or (may_be_in_out and not is_root):
            rows = copy_of(context, rows)
        block, whole = bytes_of(rows), plan.whole
        is_few = call.ends_in_collective = 0 < whole.nbytes <= FEW_BYTES
        if is_few and is_root:
            if plan.fits:
                block = allocate(context, whole.nbytes) if target is None else bytes_of(target)
            else:
                told = told_rows(-1)
        payload = call.agree(plan.call, told)
        if is_few and payload == plan.told:  # of all ranks; and the root has memory, so that no rank fails from here on
            if is_root:
                copy_bytes(whole.view(block)[root * len(rows) : (root + 1) * len(rows)], rows)
            context.collective_comm.gather(block, root)
            call.ends_in_collective = False
            if not is_root:
                return None
            return kind.around(whole.view(block)) if out is None else out
        call.ends_in_collective = False
        starts, spec = stack_rows(context, plan.spec, payload)
        with agree(context.collective_comm):
            if is_root:
                block = memory_of(context, spec, target)
        if not is_root:
            send_blocks(context, [(root, block)])
            return None
        parts = [spec.view(block)[start:stop] for start, stop in pairwise(starts)]
        copy_bytes(parts[root], rows)  # first, as others' rows may go where they are
        receive_blocks(context, [(rank, bytes_of(part)) for rank, part in enumerate(parts) if rank != root])
        return kind.around(spec.view(block)) if out is None else out


class _LastPlan(LastCall[RowsPlan]):
    """The plan of the last `gather` on a communicator."""

    @staticmethod
    def make(context: Context, local: Any, out: Any, root: int) -> RowsPlan:
        """See `LastCall.make`."""
        refuse_objects(local, "gather")
        rows, kind = take_apart(local)
        spec = rows_of(rows)
        call = f"gather(rows of {describe_rows(spec)}{kind.text}, root={root})"
        whole = Spec(spec.dtype, (context.topology.size * spec.shape[0], *spec.shape[1:]))
        target = items_of_out(out, kind)
        return RowsPlan(call, told_rows(spec.shape[0]), spec, kind, whole, target is None or takes(whole, target))


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
        root = checked_integer("root", root, largest=topology.size - 1)
        numbers = None if counts is None else checked_integers("counts", counts)
        array = array if topology.rank == root else None
        refuse_objects(array, "scatter")
        items, kind = take_apart(array)
        last, told, extension = context.cached(_LastScatter), NO_PAYLOAD, b""
        flags = 0 if last.knows(out) else _IS_NEW
        if topology.rank == root:
            of_root = rows_of(items)
            told, extension = of_root.packed
            flags |= _IS_NEW * bool(extension) | _IS_WRITTEN * is_written_by_node(items) | _HAS_CLASS * bool(kind.name)
            if numbers is not None:
                parts_of(of_root.shape[0], topology.size, numbers)
            if not items.flags.c_contiguous and items.nbytes <= FEW_BYTES:
                items = copy_of(context, items)
        text = f"scatter(…, counts={numbers}, root={root})"
        call.ends_in_collective = not flags and last.call[0] == text
        if call.ends_in_collective:
            block = allocate(context, last.own_spec.nbytes) if out is None else bytes_of(out)
        told = call.agree(text, told[:-1] + bytes([flags]))
        if last.call == (text, told):  # on all ranks, which have memory, so that none fails from here on
            source = block if items is None else bytes_of(items)
            context.collective_comm.scatter_parts(source, last.parts, root)
            call.ends_in_collective = False
            if items is not None:
                block[:] = source[last.parts[root]]
            return last.own_spec.view(block) if out is None else out
        call.ends_in_collective = False
        header, flags = told[:-1] + b"\0", told[-1]
        spec = broadcast_spec(context, header, extension, root)
        parts = parts_of(spec.shape[0], topology.size, numbers)
        own = parts[topology.rank]
        own_spec = Spec(spec.dtype, (own.stop - own.start, *spec.shape[1:]))
        if flags & _HAS_CLASS:
            kind = context.collective_comm.bcast_obj(kind, root)
        may_be_in_array = flags & _IS_WRITTEN and topology.node == topology.node_of(root)
        with agree(context.collective_comm):
            kind.around(np.ones([1] * len(spec.shape), spec.dtype))  # an error where this rank lacks the class
            block = memory_of(context, own_spec, items_of_out(out, kind))
            is_apart = may_be_in_array and is_written_by_node(out)
            received = allocate(context, own_spec.nbytes) if is_apart else block
            stage = stage_of(context, items)
        last.keep(text, told, spec, parts, own_spec, out)
        spread_rows(context, root, items, dict(enumerate(parts)), own_spec.view(received), stage)
        if may_be_in_array:
            context.node_collective_comm.barrier()  # the root has sent all rows
        if is_apart:
            block[:] = received
        return kind.around(own_spec.view(block)) if out is None else out


_IS_NEW, _IS_WRITTEN, _HAS_CLASS = 1, 2, 4
"""What a rank says in a `scatter`: that it has another `out` than in the last call, or has changed it; and the root of
its array: that the spec has an extension, which is as good as new; that the ranks of its node write to it; that it has
a class."""


class _LastScatter:
    """The last call of few bytes on a communicator, for the next one with the same arguments.

    Each rank has checked its `out` in it. So where no rank has another one, and the root's rows have the same spec, the
    ranks need no second agreement.

    Attributes:
        call: The call as all ranks gave it, and what they told.
        parts: The bytes of each rank in the root's array.
        own_spec: The spec of this rank's rows.
    """

    def __init__(self, _context: Context) -> None:
        self.call = "", b""
        self.parts: list[slice] = []
        self.own_spec = Spec(np.dtype(np.uint8), (0,))
        self._out: Callable[[], object] = object
        self._facts: tuple[object, ...] = ()

    def keep(
        self, text: str, told: bytes, spec: Spec, parts: list[slice], own_spec: Spec, out: NDArray[Any] | None
    ) -> None:
        """Keeps what all ranks have checked, if a call like this one needs no second agreement. All ranks call it.

        Of `out` it keeps a reference that does not keep it alive.
        """
        if spec.nbytes > FEW_BYTES or told[-1] not in (0, _IS_NEW):
            return
        row_bytes = spec.nbytes // max(spec.shape[0], 1)
        self._out, self._facts = (NoneType, ()) if out is None else (ref(out), facts_of(out))
        self.call, self.own_spec = (text, told[:-1] + b"\0"), own_spec
        self.parts = [slice(part.start * row_bytes, part.stop * row_bytes) for part in parts]

    def knows(self, out: NDArray[Any] | None) -> bool:
        """Whether it was the `out` of that call."""
        return self._out() is out and (out is None or self._facts == facts_of(out))
