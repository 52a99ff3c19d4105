"""What `root` has, on every rank, with one copy of its arrays per node; or seen privately."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeVar

from numpy.typing import NDArray

from mpishare.arrays.spec import PLAIN_CLASSES, Spec
from mpishare.comm import callsite, mpi
from mpishare.comm.agreement import agree
from mpishare.comm.collective import collective
from mpishare.comm.context import Context
from mpishare.comm.topology import check_root
from mpishare.errors import SpecError
from mpishare.memory.allocation import allocate, allocate_known, known_slots, seal
from mpishare.memory.segment import Segment, segment_of
from mpishare.memory.selection import check_backend
from mpishare.memory.slab import SlotPool
from mpishare.objects.packing import PackedHeader, PackedObject, bring, is_packed_header, unpacked
from mpishare.objects.unshared import told
from mpishare.transfer.node_fill import ArraySource, fill, replicate
from mpishare.transfer.pipeline import broadcast_spec

_T = TypeVar("_T")


def share(obj: _T | None, *, root: int = 0, comm: mpi.Comm | None = None, backend: str | None = None) -> _T:
    """Gives every rank what `root` has: an array as a read-only view of one copy per node, or an object of such views.

    An object, which may be a DataFrame, a fitted model, a dict, a bound method or whatever else can be pickled, is
    pickled once, without its arrays. These lie side by side in the memory of the node, and each rank makes its own
    object around views of them. What is one array in several places of it stays one.

    Columns of Python objects cannot be views. They are in the pickle, each rank has its own, and a `RuntimeWarning` on
    `root` names the column, what it costs on each rank, and what to use instead.

    Args:
        obj: On `root`, an array of any shape, any strides and any dtype without Python objects, or any object that can
            be pickled; ignored elsewhere. The caller may change or drop it afterwards. cloudpickle, where it is
            installed on all ranks, is used for lambdas and classes that pickle refuses.
        root: The rank whose object it is.
        comm: The ranks that share; MPI_COMM_WORLD when None.
        backend: The segment kind to use, or several with commas in the order to try; None lets each node choose.

    Returns:
        For an array a plain `numpy.ndarray` with the bits, dtype and shape of `obj`; in Fortran order where `obj` is,
        else in C order. For an object one of the same type, with such arrays in it. Their pages are read-only: a store
        into them from C ends the process. They are valid as long as they, or any view of them, exist, and the node's
        memory goes with the last of them.

    Raises:
        SpecError: `obj` is None or cannot be pickled on `root`, or is an array whose dtype has no fixed size.
        ArgumentError: `root` is no rank of `comm`, or `backend` is unknown.
        CapacityError: The bytes do not fit on this node, or, as a `PeerCapacityError`, on another.
        BackendError: The segment kind that was asked for cannot be used on this node.
        MismatchError: The ranks gave different `root` or `backend`, or made different calls.
        PeerError: Another rank raised one of these, or could not unpickle the object; then it raises its own error.

    Collective:
        Over `comm`.

    Source:
        MPI 3.1, section 11.2.3 (MPI_Win_allocate_shared); T. Hoefler et al., "MPI + MPI: a new hybrid approach to
        parallel programming with MPI plus shared memory", Computing 95 (2013); PEP 574.

    Example:
        >>> import mpishare as ms, numpy as np
        >>> from mpi4py import MPI
        >>> table = ms.share(np.arange(6.0).reshape(2, 3) if MPI.COMM_WORLD.rank == 0 else None)
        >>> table.sum(axis=0).tolist(), table.flags.writeable
        ([3.0, 5.0, 7.0], False)
        >>> model = ms.share({"name": "line", "weights": np.ones(3)} if MPI.COMM_WORLD.rank == 0 else None)
        >>> model["name"], model["weights"].flags.writeable
        ('line', False)
    """
    with collective("share", comm) as call:
        result: _T = _share(call, obj, root, backend)
        return result


def private(array: NDArray[Any]) -> NDArray[Any]:
    """Gives this rank a view of a node-shared array that it alone may write.

    The pages are copy-on-write: memory is used only for those that this rank changes. What other ranks write later to
    the same array shows, or does not, in pages that this rank has not changed; so keep it for arrays that stay as they
    are, such as those of `share`.

    The kernel lets only a process with CAP_CHECKPOINT_RESTORE (root has it) open the pages of an MPI window again.
    Without it the bytes are copied, and a `RuntimeWarning` says how many.

    Args:
        array: An array from `share`, `empty`, `zeros` or `full`, or a view of one.

    Returns:
        A writable `numpy.ndarray` of the same bits, dtype, shape and strides (C order where the bytes were copied).

    Raises:
        SpecError: `array` is no view of node-shared memory, or private already; `array.copy()` does then.

    Collective:
        No, local.

    Source:
        mmap(2), MAP_PRIVATE.

    Example:
        >>> import mpishare as ms
        >>> ours = ms.zeros(3)
        >>> mine = ms.private(ours)
        >>> mine[0] = 1.0
        >>> float(mine[0]), float(ours[0])
        (1.0, 0.0)
    """
    view = _shared_segment(array).private_view(array)
    if view is not None:
        return view
    if array.nbytes:
        told = f"private(): the kernel gives no copy-on-write view here, so {array.nbytes:,} bytes were copied"
        callsite.warn(told)
    return array.copy()


def _share(call: collective, obj: Any, root: int, backend: str | None) -> Any:
    context = call.context
    with call.begin() as agreement:
        rank = check_root(root, context.topology.size)
        kind = check_backend(backend, context)
        agreement.call = _share_call(rank, kind)
        crate, mine, slots, extension = None, None, None, b""
        if context.topology.rank == rank:
            if type(obj) in PLAIN_CLASSES:
                mine = obj
                spec = Spec.of(mine)
                agreement.note, extension = spec.packed
                slots = known_slots(context, spec.nbytes, kind)
                if slots is not None:
                    fill(slots.next_bytes(spec.nbytes), spec, mine)
            else:
                crate, slots = _crated(context, obj, rank, kind)
                agreement.note = crate.label.pack()
    if is_packed_header(agreement.note):
        return _share_object(call, PackedHeader.read(agreement.note), crate, slots, rank, kind)
    spec = broadcast_spec(context, agreement.note, extension, rank)
    if context.topology.rank != rank:
        slots = known_slots(context, spec.nbytes, kind)
    if slots is not None:
        segment = allocate_known(context, slots, spec.nbytes, "share")
        segment.seal()
    else:
        segment = allocate(context, spec.nbytes, backend=kind, label="share", writable=False)
        source = None if mine is None else ArraySource(spec, mine)
        replicate(context, rank, segment.block(), segment.origin.is_shared, source)
        seal(context, segment)
    return segment.view(spec)


@lru_cache(maxsize=256)
def _share_call(root: int, backend: str | None) -> str:
    return f"share(…, root={root}, backend={backend})"


def _crated(context: Context, obj: object, root: int, kind: str | None) -> tuple[PackedObject, SlotPool | None]:
    """The object on its root, in its place already where all ranks know that."""
    if obj is None:
        raise SpecError(f"root {root} passed None, so there is nothing to share. Pass the object on that rank.")
    crate = PackedObject(obj)
    if crate.copies:
        callsite.warn(f"share(): {told(crate.copies)}")
    slots = known_slots(context, crate.label.nbytes, kind)
    if slots is not None:
        crate.write(slots.next_bytes(crate.label.nbytes))
    return crate, slots


def _share_object(
    call: collective,
    label: PackedHeader,
    crate: PackedObject | None,
    slots: SlotPool | None,
    root: int,
    kind: str | None,
) -> Any:
    """Shares what `label` tells of, which `root` has in `crate`, and in `slots` if these are known."""
    context = call.context
    if context.topology.rank != root:
        slots = known_slots(context, label.nbytes, kind)
    if slots is not None:
        segment = allocate_known(context, slots, label.nbytes, "share")
        segment.seal()
    else:
        segment = allocate(context, label.nbytes, backend=kind, label="share", writable=False)
        bring(context, root, segment, label, crate)
        seal(context, segment)
    segment.copied_bytes = label.copied_bytes
    call.release()  # all memory is taken, so that classes may share arrays when their objects are made again
    with agree(context.collective_comm):
        return unpacked(segment, label)


def _shared_segment(array: NDArray[Any]) -> Segment:
    segment = segment_of(array)
    if segment is None:
        raise SpecError("this array cannot be traced to node-shared memory. Use one from share, empty, zeros or full.")
    if segment.key is None:
        raise SpecError("this array is private to this rank already. Use array.copy() for another.")
    return segment
