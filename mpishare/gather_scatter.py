"""Rows to one rank and from one rank, as buffers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from numpy.typing import NDArray

from mpishare.arrays import slices
from mpishare.arrays.raw import Block, bytes_of, copy_bytes
from mpishare.arrays.spec import Spec
from mpishare.comm import mpi
from mpishare.comm.agreement import agree
from mpishare.comm.collective import collective
from mpishare.comm.context import Context
from mpishare.comm.pending import InFlight
from mpishare.comm.tags import Tag
from mpishare.comm.topology import check_root
from mpishare.errors import CapacityError
from mpishare.host import memory as host_memory
from mpishare.memory.buffer_pool import acquire
from mpishare.transfer import plan
from mpishare.transfer.pipeline import WINDOW, broadcast_spec, receive_in_order
from mpishare.transfer.rows import describe_row, note_rows, rows_of, stack_rows


def gather(local: NDArray[Any], *, root: int = 0, comm: mpi.Comm | None = None) -> NDArray[Any] | None:
    """Stacks the rows of all ranks, in the order of the ranks, on `root` alone.

    Args:
        local: This rank's rows: an array of one dimension or more. Its first length may differ between ranks, and be
            0; the others and the dtype must be equal. Rows that are not contiguous are sent from a copy.
        root: The rank that gets them.
        comm: The ranks that gather; MPI_COMM_WORLD when None.

    Returns:
        On `root` a writable `numpy.ndarray` of its own, in C order, with the rows of rank 0 first; None elsewhere.

    Raises:
        SpecError: `local` is no array, has no dimension, or holds Python objects; or the rows of all ranks are more
            than an array can have.
        ArgumentError: `root` is no rank of `comm`.
        CapacityError: `root` gets no memory for them; on the others as a `PeerCapacityError`.
        MismatchError: The ranks gave rows of different shapes or dtypes, or made different calls.
        PeerError: Another rank raised one of these.

    Collective:
        Over `comm`, but a rank other than `root` may return before others have come.

    Source:
        MPI 3.1, section 5.5 (MPI_Gatherv), without its limit of 2**31 items.

    Example:
        >>> import mpishare as ms, numpy as np
        >>> from mpi4py import MPI
        >>> comm = MPI.COMM_WORLD
        >>> ends = ms.gather(np.array([comm.rank]), root=comm.size - 1)
        >>> (ends is None) == (comm.rank != comm.size - 1)
        True
    """
    with collective("gather", comm) as call:
        return _gather(call, local, root)


def scatter(array: NDArray[Any] | None, *, root: int = 0, comm: mpi.Comm | None = None) -> NDArray[Any]:
    """Gives each rank its part of the rows that `root` has: those that `partition` of their number names.

    Args:
        array: On `root`, an array of one dimension or more, any strides, any dtype without Python objects; ignored
            elsewhere.
        root: The rank that has the rows.
        comm: The ranks that get them; MPI_COMM_WORLD when None.

    Returns:
        A writable `numpy.ndarray` of this rank's own, in C order; on `root` too it is a copy. Ranks get no rows where
        there are fewer rows than ranks.

    Raises:
        SpecError: On `root`, `array` is no array, has no dimension, or holds Python objects.
        ArgumentError: `root` is no rank of `comm`.
        CapacityError: This process gets no memory for its rows; on the others as a `PeerCapacityError`.
        MismatchError: The ranks gave different `root`, or made different calls.
        PeerError: Another rank raised one of these.

    Collective:
        Over `comm`.

    Source:
        MPI 3.1, section 5.6 (MPI_Scatterv), without its limit of 2**31 items.

    Example:
        >>> import mpishare as ms, numpy as np
        >>> from mpi4py import MPI
        >>> comm = MPI.COMM_WORLD
        >>> mine = ms.scatter(np.arange(10) if comm.rank == 0 else None)
        >>> mine.tolist() == list(range(10))[ms.partition(10)]
        True
    """
    with collective("scatter", comm) as call:
        return _scatter(call, array, root)


def _gather(call: collective, local: NDArray[Any], root: int) -> NDArray[Any] | None:
    context = call.context
    with call.begin() as agreement:
        rank = check_root(root, context.topology.size)
        spec = rows_of(local)
        run = _run(context, local, spec) if context.topology.rank != rank else None
        agreement.call = f"gather(rows of {describe_row(spec)}, root={rank})"
        agreement.note = note_rows(context, spec.shape[0])
    ends, whole = stack_rows(context, agreement.note, spec)
    with agree(context.collective_comm):
        block = _memory(context, whole.nbytes) if context.topology.rank == rank else None
    if block is None:
        _send(context, [] if run is None else [(rank, run)], WINDOW)
        return None
    array = whole.view(block)
    places = [(other, array[ends[other] : ends[other + 1]]) for other in range(context.topology.size) if other != rank]
    pieces = [(other, piece) for other, place in places for piece in _pieces(bytes_of(place))]
    for _ in receive_in_order(context.collective_comm, pieces, Tag.ROWS):
        pass
    copy_bytes(array[ends[rank] : ends[rank + 1]], local)
    return array


def _scatter(call: collective, array: NDArray[Any] | None, root: int) -> NDArray[Any]:
    context = call.context
    with call.begin() as agreement:
        rank = check_root(root, context.topology.size)
        agreement.call = f"scatter(…, root={rank})"
        extension = b""
        if context.topology.rank == rank:
            agreement.note, extension = rows_of(array).packed
    return _scattered(context, broadcast_spec(context, agreement.note, extension, rank), array, rank)


def _scattered(context: Context, spec: Spec, array: NDArray[Any] | None, root: int) -> NDArray[Any]:
    """This rank's rows of what `root` has, of which `spec` tells."""
    parts = [slices.balanced_slice(spec.shape[0], context.topology.size, rank) for rank in range(context.topology.size)]
    owns = [Spec(spec.dtype, (part.stop - part.start, *spec.shape[1:])) for part in parts]
    own = owns[context.topology.rank]
    with agree(context.collective_comm):
        block = _memory(context, own.nbytes)
        stage = None
        if context.topology.rank == root and array is not None and not array.flags.c_contiguous:
            stage = _memory(context, max(one.nbytes for one in owns))
    mine = own.view(block)
    if context.topology.rank != root or array is None:
        for _ in receive_in_order(context.collective_comm, [(root, piece) for piece in _pieces(block)], Tag.ROWS):
            pass
        return mine
    others = [rank for rank in range(context.topology.size) if rank != root]
    runs = ((rank, _staged(array[parts[rank]], owns[rank], stage)) for rank in others)
    _send(context, runs, WINDOW if stage is None else 0)
    copy_bytes(mine, array[parts[root]])
    return mine


def _staged(rows: NDArray[Any], spec: Spec, stage: Block | None) -> Block:
    """The bytes of rows in C order: their own, or where there is a stage, a copy on it."""
    if stage is None:
        return bytes_of(rows)
    place = stage[: spec.nbytes]
    copy_bytes(spec.view(place), rows)
    return place


def _run(context: Context, local: NDArray[Any], spec: Spec) -> Block:
    """The bytes of an array in C order."""
    stage = None if local.flags.c_contiguous else _memory(context, spec.nbytes)
    return _staged(local, Spec(spec.dtype, spec.shape), stage)


def _memory(context: Context, nbytes: int) -> Block:
    """Memory of this rank's own.

    Raises:
        CapacityError: There is none.
    """
    try:
        return acquire(nbytes, context.buffer_pool_bytes)
    except (MemoryError, ValueError, OverflowError) as error:
        free = host_memory.memory_room().free
        cure = "Use allgather or share, which have one copy per node, or fewer rows at a time."
        raise CapacityError(context.topology.host, "the memory of this process", nbytes, free, cure) from error


def _send(context: Context, runs: Iterable[tuple[int, Block]], window: int) -> None:
    """Sends each run of bytes to the rank named with it; the next one is asked for when `window` are on their way."""
    with InFlight(context.collective_comm, Tag.ROWS) as sending:
        for dest, run in runs:
            for piece in _pieces(run):
                sending.send(piece, dest)
                sending.wait_until(window)


def _pieces(run: Block) -> Iterator[Block]:
    return (run[part] for part in slices.chunks(run.nbytes, plan.LARGEST_MESSAGE_BYTES))
