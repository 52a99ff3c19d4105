"""empty, zeros, ones, full, and their like of an array: one array per node, which all ranks of the node may write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from mpishare.arrays.raw import copy_bytes, scalar, zero
from mpishare.arrays.slices import balanced_slice
from mpishare.arrays.spec import ShapeLike, Spec, plain
from mpishare.comm import mpi
from mpishare.comm.collective import collective
from mpishare.memory.allocation import node_memory
from mpishare.memory.backends import check_backend


def empty(
    shape: ShapeLike,
    dtype: DTypeLike = float,
    *,
    order: str = "C",
    comm: mpi.Comm | None = None,
    backend: str | None = None,
) -> NDArray[Any]:
    """Makes one array per node with arbitrary contents, which all ranks of the node may write.

    Each rank of a node sees what the others have written once all of them have called `fence`. The arrays of different
    nodes are independent; `bcast` makes them equal.

    Args:
        shape: One length or several, in items.
        dtype: Any dtype without Python objects.
        order: "C" or "F".
        comm: The ranks that share; MPI_COMM_WORLD when None.
        backend: The backend to use, or several with commas in the order to try; None lets each node choose.

    Returns:
        A writable `numpy.ndarray` of `shape` and `dtype`, valid as long as it or a view of it exists.

    Raises:
        SpecError: The shape is negative or too large, or the dtype has no fixed size.
        ArgumentError: `order` or `backend` is unknown.
        CapacityError: The bytes do not fit on this node, or, as a `PeerCapacityError`, on another.
        BackendError: The requested backend cannot be used on this node.
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
    """Like `empty`, with every byte zero. The ranks of a node clear disjoint parts in parallel.

    Args:
        shape: One length or several, in items.
        dtype: Any dtype without Python objects.
        order: "C" or "F".
        comm: The ranks that share; MPI_COMM_WORLD when None.
        backend: The backend to use, or several with commas in the order to try; None lets each node choose.

    Returns:
        A writable `numpy.ndarray` of `shape` and `dtype`, valid as long as it or a view of it exists.

    Raises:
        SpecError: The shape is negative or too large, or the dtype has no fixed size.
        ArgumentError: `order` or `backend` is unknown.
        CapacityError: The bytes do not fit on this node, or, as a `PeerCapacityError`, on another.
        BackendError: The requested backend cannot be used on this node.
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
    return _make("zeros", shape, dtype, order, comm, backend, item_of=zero)


def ones(
    shape: ShapeLike,
    dtype: DTypeLike = float,
    *,
    order: str = "C",
    comm: mpi.Comm | None = None,
    backend: str | None = None,
) -> NDArray[Any]:
    """Like `empty`, with every item 1. The ranks of a node fill disjoint parts in parallel.

    Args:
        shape: One length or several, in items.
        dtype: Any dtype without Python objects that has a 1.
        order: "C" or "F".
        comm: The ranks that share; MPI_COMM_WORLD when None.
        backend: The backend to use, or several with commas in the order to try; None lets each node choose.

    Returns:
        A writable `numpy.ndarray` of `shape` and `dtype`, valid as long as it or a view of it exists.

    Raises:
        SpecError, ArgumentError, CapacityError, BackendError, MismatchError, PeerError: See `full`.

    Collective:
        Over `comm`.

    Example:
        >>> import mpishare as ms
        >>> ms.ones(3).tolist()
        [1.0, 1.0, 1.0]
    """
    return _make("ones", shape, dtype, order, comm, backend, item_of=_items_of(1))


def full(
    shape: ShapeLike,
    value: ArrayLike,
    dtype: DTypeLike | None = None,
    *,
    order: str = "C",
    comm: mpi.Comm | None = None,
    backend: str | None = None,
) -> NDArray[Any]:
    """Like `empty`, with every item equal to `value`. The ranks of a node fill disjoint parts in parallel.

    Args:
        shape: One length or several, in items.
        value: One item; a tuple if `dtype` has columns.
        dtype: Any dtype without Python objects; the dtype of `value` when None.
        order: "C" or "F".
        comm: The ranks that share; MPI_COMM_WORLD when None.
        backend: The backend to use, or several with commas in the order to try; None lets each node choose.

    Returns:
        A writable `numpy.ndarray` of `shape` and `dtype`, valid as long as it or a view of it exists.

    Raises:
        SpecError: The shape is negative or too large, the dtype has no fixed size, or `value` is not an item of it, or
            has a unit or whatever else a class of arrays adds.
        ArgumentError: `order` or `backend` is unknown.
        CapacityError: The bytes do not fit on this node, or, as a `PeerCapacityError`, on another.
        BackendError: The requested backend cannot be used on this node.
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
    return _make("full", shape, dtype, order, comm, backend, item_of=_items_of(value))


def empty_like(
    array: NDArray[Any],
    dtype: DTypeLike | None = None,
    *,
    order: str = "K",
    shape: ShapeLike | None = None,
    comm: mpi.Comm | None = None,
    backend: str | None = None,
) -> NDArray[Any]:
    """Like `empty`, with the shape and dtype of an array. Its values, and where its memory is, do not matter.

    Args:
        array: A plain array, of the same shape and dtype on all ranks.
        dtype: Another dtype, without Python objects; the dtype of `array` when None.
        order: "C" or "F"; "K" or "A" for "F" if `array` is in Fortran order, else "C".
        shape: Another shape, in items; the shape of `array` when None.
        comm: The ranks that share; MPI_COMM_WORLD when None.
        backend: The backend to use, or several with commas in the order to try; None lets each node choose.

    Returns:
        A writable `numpy.ndarray`, valid as long as it or a view of it exists.

    Raises:
        SpecError: `array` is no plain array, as every rank must give one; or as of `empty`.
        ArgumentError, CapacityError, BackendError, MismatchError, PeerError: See `empty`.

    Collective:
        Over `comm`.

    Example:
        >>> import mpishare as ms
        >>> ms.empty_like(ms.zeros((2, 3)), "f4").shape
        (2, 3)
    """
    return _make("empty_like", shape, dtype, order, comm, backend, like=(array,))


def zeros_like(
    array: NDArray[Any],
    dtype: DTypeLike | None = None,
    *,
    order: str = "K",
    shape: ShapeLike | None = None,
    comm: mpi.Comm | None = None,
    backend: str | None = None,
) -> NDArray[Any]:
    """Like `zeros`, with the shape and dtype of an array.

    Args:
        array: A plain array, of the same shape and dtype on all ranks.
        dtype: Another dtype, without Python objects; the dtype of `array` when None.
        order: "C" or "F"; "K" or "A" for "F" if `array` is in Fortran order, else "C".
        shape: Another shape, in items; the shape of `array` when None.
        comm: The ranks that share; MPI_COMM_WORLD when None.
        backend: The backend to use, or several with commas in the order to try; None lets each node choose.

    Returns:
        A writable `numpy.ndarray`, valid as long as it or a view of it exists.

    Raises:
        SpecError, ArgumentError, CapacityError, BackendError, MismatchError, PeerError: See `empty_like`.

    Collective:
        Over `comm`.

    Example:
        >>> import mpishare as ms, numpy as np
        >>> ms.zeros_like(np.ones(3, "i4")).tolist()
        [0, 0, 0]
    """
    return _make("zeros_like", shape, dtype, order, comm, backend, like=(array,), item_of=zero)


def full_like(
    array: NDArray[Any],
    value: ArrayLike,
    dtype: DTypeLike | None = None,
    *,
    order: str = "K",
    shape: ShapeLike | None = None,
    comm: mpi.Comm | None = None,
    backend: str | None = None,
) -> NDArray[Any]:
    """Like `full`, with the shape and dtype of an array.

    Args:
        array: A plain array, of the same shape and dtype on all ranks.
        value: One item; a tuple if the dtype has columns.
        dtype: Another dtype, without Python objects; the dtype of `array` when None.
        order: "C" or "F"; "K" or "A" for "F" if `array` is in Fortran order, else "C".
        shape: Another shape, in items; the shape of `array` when None.
        comm: The ranks that share; MPI_COMM_WORLD when None.
        backend: The backend to use, or several with commas in the order to try; None lets each node choose.

    Returns:
        A writable `numpy.ndarray`, valid as long as it or a view of it exists.

    Raises:
        SpecError: As of `empty_like`, or `value` is no item of the dtype, as of `full`.
        ArgumentError, CapacityError, BackendError, MismatchError, PeerError: See `empty_like`.

    Collective:
        Over `comm`.

    Example:
        >>> import mpishare as ms, numpy as np
        >>> ms.full_like(np.ones(2), 0.5).tolist()
        [0.5, 0.5]
    """
    return _make("full_like", shape, dtype, order, comm, backend, like=(array,), item_of=_items_of(value))


def _items_of(value: ArrayLike) -> Callable[[DTypeLike | None], NDArray[Any]]:
    """What makes `value` an item of a dtype, or of its own dtype if that is None."""
    return lambda dtype: scalar(plain(value), dtype)


def _make(
    name: str,
    shape: Any,
    dtype: DTypeLike | None,
    order: str,
    comm: mpi.Comm | None,
    backend: str | None,
    *,
    like: tuple[NDArray[Any], ...] = (),
    item_of: Callable[[DTypeLike | None], NDArray[Any]] | None = None,
) -> NDArray[Any]:
    """The array of these calls. Its shape and dtype, unless they are given, are those of the array in `like`.

    `item_of` makes the value of every item, of a dtype, unless it is None.
    """
    with collective(name, comm) as call:
        context, topology = call.context, call.context.topology
        for one in map(Spec.of, like):
            shape, dtype = one.shape if shape is None else shape, one.dtype if dtype is None else dtype
            order = one.order if order in ("K", "A") else order
        item = None if item_of is None else item_of(dtype)
        spec = Spec.make(shape, item.dtype if dtype is None and item is not None else dtype, order)
        backend = check_backend(backend, context)
        value = "" if item is None else f", value={item.tolist()!r}"
        call.agree(f"{name}({spec}{value}, backend={backend})")
        with node_memory(context, spec.nbytes, backend=backend, made_by=name, writable=True, scope="node") as segment:
            array = segment.view(spec)
            if item is not None:
                part = array.ravel(order="K")[balanced_slice(array.size, topology.node_size, topology.node_rank)]
                copy_bytes(part, np.broadcast_to(item, part.shape))
        return array
