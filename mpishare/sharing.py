"""Arrays of which each node holds one copy: shared from a root, made in place, or seen privately."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from mpishare import mpi, plan
from mpishare.agreement import agree
from mpishare.errors import SpecError
from mpishare.segments.allocation import allocate, allocate_known, known_slots, seal
from mpishare.segments.registry import check_backend
from mpishare.segments.segment import Segment, segment_of
from mpishare.spec import ShapeLike, Spec, copy_bytes, scalar, zero
from mpishare.topology import Topology, check_root, topology
from mpishare.transfer import announce, fill, replicate

__all__ = ["empty", "full", "private", "share", "zeros"]


def share(
    obj: NDArray[Any] | None, *, root: int = 0, comm: mpi.Comm | None = None, backend: str | None = None
) -> NDArray[Any]:
    """Gives every rank `root`'s array as a read-only view of one copy per node.

    Args:
        obj: On `root`, an array of any shape, any strides and any dtype without Python objects; ignored elsewhere.
            The caller may change or drop it afterwards.
        root: The rank whose array it is.
        comm: The ranks that share; MPI_COMM_WORLD when None.
        backend: The segment kind to use, or several with commas in the order to try; None lets each node choose.

    Returns:
        A plain `numpy.ndarray` with the bits, dtype and shape of `obj`; in Fortran order where `obj` is, else in C
        order. Its pages are read-only: a store into them from C ends the process. It is valid as long as it, or any
        view of it, exists, and the node's memory goes with the last of them.

    Raises:
        SpecError: `obj` is no plain array on `root`, or its dtype has no fixed size.
        ArgumentError: `root` is no rank of `comm`, or `backend` is unknown.
        CapacityError: The bytes do not fit on this node, or, as a `PeerCapacityError`, on another.
        BackendError: The segment kind that was asked for cannot be used on this node.
        MismatchError: The ranks gave different `root` or `backend`, or made different calls.
        PeerError: Another rank raised one of these.

    Collective:
        Over `comm`.

    Source:
        MPI 3.1, section 11.2.3 (MPI_Win_allocate_shared); T. Hoefler et al., "MPI + MPI: a new hybrid approach to
        parallel programming with MPI plus shared memory", Computing 95 (2013).

    Example:
        >>> import mpishare as ms, numpy as np
        >>> from mpi4py import MPI
        >>> table = ms.share(np.arange(6.0).reshape(2, 3) if MPI.COMM_WORLD.rank == 0 else None)
        >>> table.sum(axis=0).tolist(), table.flags.writeable
        ([3.0, 5.0, 7.0], False)
    """
    return _in_step(_share, topology(comm), obj, root, backend)


def empty(
    shape: ShapeLike,
    dtype: DTypeLike = float,
    *,
    order: str = "C",
    comm: mpi.Comm | None = None,
    backend: str | None = None,
) -> NDArray[Any]:
    """Makes an array of which each node has one, writable by all ranks of the node; its contents are arbitrary.

    Each rank of a node sees what the others write once all of them have called `fence`. Nodes differ until `bcast`.

    Args:
        shape: One length or several, in items.
        dtype: Any dtype without Python objects.
        order: "C" or "F".
        comm: The ranks that share; MPI_COMM_WORLD when None.
        backend: The segment kind to use, or several with commas in the order to try; None lets each node choose.

    Returns:
        A writable `numpy.ndarray` of `shape` and `dtype`, valid as long as it or a view of it exists.

    Raises:
        SpecError: The shape is negative or too large, or the dtype has no fixed size.
        ArgumentError: `order` or `backend` is unknown.
        CapacityError: The bytes do not fit on this node, or, as a `PeerCapacityError`, on another.
        BackendError: The segment kind that was asked for cannot be used on this node.
        MismatchError: The ranks gave different arguments, or made different calls.
        PeerError: Another rank raised one of these.

    Collective:
        Over `comm`.

    Source:
        MPI 3.1, section 11.2.3 (MPI_Win_allocate_shared).

    Example:
        >>> import mpishare as ms
        >>> grid = ms.empty((4, 3))
        >>> grid[ms.partition(4, scope="node")] = 1.0  # each rank of the node its rows
        >>> ms.fence()
        >>> float(grid.sum())
        12.0
    """
    return _make("empty", shape, dtype, order, comm, backend)


def zeros(
    shape: ShapeLike,
    dtype: DTypeLike = float,
    *,
    order: str = "C",
    comm: mpi.Comm | None = None,
    backend: str | None = None,
) -> NDArray[Any]:
    """Like `empty`, with every byte zero. The ranks of a node clear disjoint parts at the same time.

    Args:
        shape: One length or several, in items.
        dtype: Any dtype without Python objects.
        order: "C" or "F".
        comm: The ranks that share; MPI_COMM_WORLD when None.
        backend: The segment kind to use, or several with commas in the order to try; None lets each node choose.

    Returns:
        A writable `numpy.ndarray` of `shape` and `dtype`, valid as long as it or a view of it exists.

    Raises:
        SpecError: The shape is negative or too large, or the dtype has no fixed size.
        ArgumentError: `order` or `backend` is unknown.
        CapacityError: The bytes do not fit on this node, or, as a `PeerCapacityError`, on another.
        BackendError: The segment kind that was asked for cannot be used on this node.
        MismatchError: The ranks gave different arguments, or made different calls.
        PeerError: Another rank raised one of these.

    Collective:
        Over `comm`.

    Source:
        MPI 3.1, section 11.2.3 (MPI_Win_allocate_shared).

    Example:
        >>> import mpishare as ms
        >>> ms.zeros(3, "i4").tolist()
        [0, 0, 0]
    """
    return _make("zeros", shape, dtype, order, comm, backend, item_of=lambda: zero(dtype))


def full(
    shape: ShapeLike,
    value: ArrayLike,
    dtype: DTypeLike | None = None,
    *,
    order: str = "C",
    comm: mpi.Comm | None = None,
    backend: str | None = None,
) -> NDArray[Any]:
    """Like `empty`, with every item equal to `value`. The ranks of a node fill disjoint parts at the same time.

    Args:
        shape: One length or several, in items.
        value: One item; a tuple where `dtype` has columns.
        dtype: Any dtype without Python objects; that of `value` when None.
        order: "C" or "F".
        comm: The ranks that share; MPI_COMM_WORLD when None.
        backend: The segment kind to use, or several with commas in the order to try; None lets each node choose.

    Returns:
        A writable `numpy.ndarray` of `shape` and `dtype`, valid as long as it or a view of it exists.

    Raises:
        SpecError: The shape is negative or too large, the dtype has no fixed size, or `value` is no item of it.
        ArgumentError: `order` or `backend` is unknown.
        CapacityError: The bytes do not fit on this node, or, as a `PeerCapacityError`, on another.
        BackendError: The segment kind that was asked for cannot be used on this node.
        MismatchError: The ranks gave different arguments, or made different calls.
        PeerError: Another rank raised one of these.

    Collective:
        Over `comm`.

    Source:
        MPI 3.1, section 11.2.3 (MPI_Win_allocate_shared).

    Example:
        >>> import mpishare as ms
        >>> ms.full((2, 2), 7).tolist()
        [[7, 7], [7, 7]]
    """
    return _make("full", shape, dtype, order, comm, backend, item_of=lambda: scalar(value, dtype))


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
        warnings.warn(told, RuntimeWarning, stacklevel=2)
    return array.copy()


def _in_step(call: Callable[..., NDArray[Any]], here: Topology, *words: Any) -> NDArray[Any]:
    """Makes a call that takes memory, and notes how it ended; see `Topology.begin`, which the call begins with."""
    try:
        array = call(here, *words)
    except BaseException as error:
        here.end(error)
        raise
    here.end()
    return array


def _share(here: Topology, obj: NDArray[Any] | None, root: int, backend: str | None) -> NDArray[Any]:
    with agree(here.channel, "share") as together:
        here.begin()
        rank = check_root(root, here)
        kind = check_backend(backend, here)
        together.call = _share_call(rank, kind)
        mine, slots, extension = None, None, b""
        if here.rank == rank:
            mine = _checked_array(obj, rank)
            spec = Spec.of(mine)
            together.note, extension = spec.packed
            slots = known_slots(here, spec.nbytes, kind)
            if slots is not None:
                fill(slots.next_place(spec.nbytes), spec, mine)
    spec = announce(here, together.note, extension, rank)
    if here.rank != rank:
        slots = known_slots(here, spec.nbytes, kind)
    if slots is not None:
        segment = allocate_known(here, slots, spec.nbytes, "share")
        segment.seal()
    else:
        segment = allocate(here, spec.nbytes, backend=kind, label="share", writable=False)
        replicate(here, rank, segment, spec, mine)
        seal(here, segment)
    return segment.view(spec)


@lru_cache(maxsize=256)
def _share_call(root: int, backend: str | None) -> str:
    return f"share(…, root={root}, backend={backend})"


def _make(
    name: str,
    shape: ShapeLike,
    dtype: DTypeLike | None,
    order: str,
    comm: mpi.Comm | None,
    backend: str | None,
    *,
    item_of: Callable[[], NDArray[Any]] | None = None,
) -> NDArray[Any]:
    """What `empty`, `zeros` and `full` have in common; with `item_of`, every item is like the one it makes."""
    return _in_step(_made, topology(comm), name, shape, dtype, order, backend, item_of)


def _made(
    here: Topology,
    name: str,
    shape: ShapeLike,
    dtype: DTypeLike | None,
    order: str,
    backend: str | None,
    item_of: Callable[[], NDArray[Any]] | None,
) -> NDArray[Any]:
    with agree(here.channel, name) as together:
        here.begin()
        item = None if item_of is None else item_of()
        spec = Spec.make(shape, item.dtype if dtype is None and item is not None else dtype, order)
        kind = check_backend(backend, here)
        value = "" if item is None else f", value={item.tolist()!r}"
        together.call = f"{name}({spec}{value}, backend={kind})"
    array = allocate(here, spec.nbytes, backend=kind, label=name, writable=True).view(spec)
    if item is not None:
        mine = array.ravel(order="K")[plan.balanced_slice(spec.count, here.node_size, here.node_rank)]
        copy_bytes(mine, np.broadcast_to(item, mine.shape))
        here.node_channel.Barrier()
    return array


def _checked_array(obj: NDArray[Any] | None, root: int) -> NDArray[Any]:
    if obj is None:
        raise SpecError(f"root {root} passed None, so there is no array to share. Pass the array on that rank.")
    return obj


def _shared_segment(array: NDArray[Any]) -> Segment:
    segment = segment_of(array)
    if segment is None:
        raise SpecError("this array cannot be traced to node-shared memory. Use one from share, empty, zeros or full.")
    if segment.key is None:
        raise SpecError("this array is private to this rank already. Use array.copy() for another.")
    return segment
