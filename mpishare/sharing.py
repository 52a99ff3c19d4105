"""share: one copy per node of the root's array or object; private: a copy-on-write view of it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeVar

from numpy.typing import NDArray

from mpishare.arrays.spec import PLAIN_CLASSES, Spec
from mpishare.comm import callsite, mpi
from mpishare.comm.agreement import agree
from mpishare.comm.collective import collective
from mpishare.comm.context import Context
from mpishare.errors import SpecError, checked_integer
from mpishare.memory.allocation import allocate, allocate_known, comm_of_users, next_slots
from mpishare.memory.kept_files import MAX_KEPT
from mpishare.memory.segment import Segment, segment_of
from mpishare.memory.selection import check_backend
from mpishare.objects import unshared
from mpishare.objects.packing import PackedHeader, PackedObject, is_packed_header, replicate_object, unpack_object
from mpishare.transfer.leaders import broadcast_filled
from mpishare.transfer.link import measure_link
from mpishare.transfer.node_fill import ArraySource, fill, replicate
from mpishare.transfer.pipeline import broadcast_spec

_T = TypeVar("_T")


def share(obj: _T | None, *, root: int = 0, comm: mpi.Comm | None = None, backend: str | None = None) -> _T:
    """Shares the array or the object of `root`: one copy of each array per node, of which every rank gets a view.

    An object is anything that can be pickled, such as a DataFrame, a fitted model, a dict or a bound method. It is
    pickled once, without its arrays. The arrays go into the memory of the node, and each rank unpickles an object of
    its own around views of them. An array that is in several places of the object stays one array.

    Columns of Python objects cannot be views. They travel in the pickle, so that each rank has its own. A
    `RuntimeWarning` on `root` names such a column, the memory that it takes on each rank, and what to use instead.

    Args:
        obj: On `root`, an array of any shape, any strides and any dtype without Python objects, or any object that can
            be pickled; ignored elsewhere. It may be changed or deleted afterwards. cloudpickle, where it is installed
            on all ranks, pickles lambdas and classes that pickle refuses.
        root: The rank whose object is shared.
        comm: The ranks that share; MPI_COMM_WORLD when None.
        backend: The segment kind to use, or several with commas in the order to try; None lets each node choose.

    Returns:
        For an array, a plain `numpy.ndarray` with the bits, dtype and shape of `obj`, in Fortran order if `obj` is,
        else in C order. For an object, one of the same type that contains such arrays. Their pages are read-only: a
        write from C ends the process. An array is valid as long as it or a view of it exists. The memory of the node is
        released with the last view.

    Raises:
        SpecError: `obj` is None or cannot be pickled on `root`, or is an array whose dtype has no fixed size.
        ArgumentError: `root` is not a rank of `comm`, or `backend` is unknown.
        CapacityError: The bytes do not fit on this node, or, as a `PeerCapacityError`, on another.
        BackendError: The requested segment kind cannot be used on this node.
        MismatchError: The ranks gave different `root` or `backend`, or made different calls.
        PeerError: Another rank raised one of these, or could not unpickle the object. That rank raises its own error.

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
    """Makes a view of a node-shared array whose changes only this rank sees.

    Its pages are copy-on-write: only pages that this rank changes take memory. Whether later writes of other ranks to
    the same array show in the other pages is undefined. So use it for arrays that do not change, such as those of
    `share`.

    Arrays in nameless files (`backend="memmap"`), and files that are mapped where they lie (`load(map=True)`), can be
    mapped again as copy-on-write as long as their rank keeps the file open: it does so for the newest 64 segments. All
    others can be where the process has CAP_CHECKPOINT_RESTORE, as the user root does. Otherwise the bytes are copied,
    and a `RuntimeWarning` reports how many.

    Args:
        array: An array from `share`, `empty`, `zeros`, `full` or `load`, or a view of one.

    Returns:
        A writable `numpy.ndarray` of the same bits, dtype, shape and strides (C order where the bytes were copied).

    Raises:
        SpecError: `array` is not a view of node-shared memory, or is private already. Use `array.copy()` then.

    Collective:
        No, local.

    Source:
        mmap(2), MAP_PRIVATE.

    Example:
        >>> import mpishare as ms
        >>> shared = ms.zeros(3)
        >>> view = ms.private(shared)
        >>> view[0] = 1.0
        >>> float(view[0]), float(shared[0])
        (1.0, 0.0)
    """
    segment = _shared_segment(array)
    view = segment.private_view(array)
    if view is not None:
        return view
    if array.nbytes:
        kind = segment.origin.kind
        if kind.startswith(("memmap", "mapped")):
            reason = f"the file of this array is closed, as a rank keeps only the newest {MAX_KEPT} open"
        else:
            reason = f'this process may not map memory of kind {kind!r} again; that of backend="memmap" it may'
        callsite.warn(f"private(): {array.nbytes:,} bytes were copied: {reason}")
    return array.copy()


def _share(call: collective, obj: Any, root: int, backend: str | None) -> Any:
    context = call.context
    with call.begin() as agreement:
        root = checked_integer("root", root, largest=context.topology.size - 1)
        backend = check_backend(backend, context)
        agreement.call = _share_call(root, backend)
        header: Spec | PackedHeader
        slots, extension = None, b""
        if context.topology.rank == root:
            if type(obj) in PLAIN_CLASSES:
                header = Spec.of(obj)
            else:
                obj = _pack(obj, root)
                header = obj.header
            agreement.note, extension = header.packed
            slots = next_slots(context, header.nbytes, backend)
            if slots is not None:
                memory = slots.next_bytes(header.nbytes)
                if isinstance(header, Spec):
                    fill(memory, header, obj)
                else:
                    obj.write(memory)
    if is_packed_header(agreement.note):
        header = PackedHeader.unpack(agreement.note)
    else:
        header = broadcast_spec(context, agreement.note, extension, root)
    if context.topology.rank != root:
        slots = next_slots(context, header.nbytes, backend)
    if slots is None:
        segment = allocate(context, header.nbytes, backend=backend, made_by="share", writable=False)
        measure_link(context, header.nbytes)
        _fill(context, segment, header, obj, root)
    else:  # the root has filled it on its node
        if context.topology.n_nodes > 1:
            broadcast_filled(context, root, slots.next_bytes(header.nbytes), is_final=True)
        segment = allocate_known(context, slots, header.nbytes, "share")
        segment.seal()
    if isinstance(header, Spec):
        return segment.view(header)
    segment.copied_bytes = header.copied_bytes
    call.release()  # all memory is allocated, so that classes may share arrays while their objects are unpickled
    with agree(context.collective_comm):
        return unpack_object(segment, header)


@lru_cache(maxsize=256)
def _share_call(root: int, backend: str | None) -> str:
    return f"share(…, root={root}, backend={backend})"


def _pack(obj: Any, root: int) -> PackedObject:
    """The object on its root, which is not an array."""
    if obj is None:
        raise SpecError(f"root {root} passed None, so there is nothing to share. Pass the object on that rank.")
    packed = PackedObject(obj)
    if packed.unshared:
        callsite.warn(f"share(): {unshared.describe(packed.unshared)}")
    return packed


def _fill(context: Context, segment: Segment, header: Spec | PackedHeader, obj: Any, root: int) -> None:
    """Brings `obj`, an array or a `PackedObject` on `root`, into the segment of every node. Collective."""
    is_root = context.topology.rank == root
    with agree(comm_of_users(context, segment)):  # they wait for a rank that an exception ends
        if isinstance(header, Spec):
            source = ArraySource(header, obj) if is_root else None
            replicate(context, root, segment.block(), segment.origin.is_shared, source)
        else:
            replicate_object(context, root, segment, header, obj if is_root else None)
        segment.seal()


def _shared_segment(array: NDArray[Any]) -> Segment:
    segment = segment_of(array)
    if segment is None:
        raise SpecError("this array cannot be traced to node-shared memory. Use one from share, empty, zeros or full.")
    if segment.key is None:
        raise SpecError("this array is private to this rank already. Use array.copy() for another.")
    return segment
