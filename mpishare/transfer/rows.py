"""Rows of all ranks: their number on each rank, the array of all of them, and the messages that bring them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, zip_longest
from typing import Any

from numpy.typing import NDArray

from mpishare.arrays import slices
from mpishare.arrays.raw import Block, bytes_of, copy_bytes
from mpishare.arrays.spec import Spec
from mpishare.comm.agreement import PAYLOAD_BYTES, mark_known
from mpishare.comm.context import Context
from mpishare.comm.in_flight import MAX_IN_FLIGHT, InFlight, Tag
from mpishare.errors import SpecError
from mpishare.host.memory import allocate_buffer
from mpishare.transfer.between_nodes import LARGEST_MESSAGE_BYTES, broadcast

FEW_BYTES = 64 << 10
"""Up to this size of the rows of all ranks it counts that one collective of MPI takes less time than messages, and a
barrier less than an agreement."""

_CHUNK_BYTES = 4 << 20
"""Rows travel from the root in chunks of this size. Rows that are not contiguous are copied to a buffer for one."""


def rows_of(array: object) -> Spec:
    """The spec of an array that has rows.

    Raises:
        SpecError: The array is 0-d, or cannot be shared.
    """
    spec = Spec.of(array)
    if not spec.shape:
        raise SpecError("an array without dimensions has no rows. Pass array[numpy.newaxis] for one row of it.")
    return spec


def describe_rows(spec: Spec) -> str:
    """What must be equal on all ranks of an array of n rows."""
    shape, dtype = str(("n", *spec.shape[1:])).replace("'", ""), spec.dtype
    kinds = {dtype.kind, *(dtype[name].base.kind for name in dtype.names or ())}
    cure = "" if kinds.isdisjoint("SU") else " (strings of one width on all ranks: use .astype)"
    return f"shape {shape}, {dtype.str if dtype.names is None else dtype}{cure}"


_TOLD = struct.Struct(f"<qq{PAYLOAD_BYTES - 16}x")


def told_rows(n_rows: int) -> bytes:
    """The payload by which a rank tells how many rows it has.

    The number and its inverse are both combined by OR. So a rank finds its own payload in the result only if it is the
    same on all ranks.
    """
    return _TOLD.pack(n_rows, ~n_rows)


def stack_rows(context: Context, spec: Spec, payload: bytes = b"") -> tuple[list[int], Spec]:
    """Where the rows of each rank begin in the array of all rows, with their total at the end; and its spec.

    Args:
        context: The context of the communicator.
        spec: The spec of this rank's rows.
        payload: What the ranks have told, if they have; see `told_rows`.

    Raises:
        SpecError: An array cannot have as many rows. On all ranks.

    Collective:
        Over the communicator, unless all ranks have as many rows.
    """
    n_rows, size = spec.shape[0], context.topology.size
    are_equal = payload == told_rows(n_rows)
    numbers = [n_rows] * size if are_equal else context.collective_comm.allgather_int(n_rows)
    starts = [0, *accumulate(numbers)]
    try:
        return starts, Spec.checked((starts[-1], *spec.shape[1:]), spec.dtype)
    except SpecError as error:
        mark_known(context.collective_comm, error)
        raise


def gather_nodes(context: Context, block: Block, starts: Sequence[int]) -> None:
    """Brings the rows of each node to the leaders of all other nodes, straight into their place.

    One MPI_Allgatherv of the leaders does it where the ranks of a node are consecutive; else one for each run of ranks.
    A block that is too large for MPI's counts is sent run by run.

    Args:
        context: The context of the communicator.
        block: The rows of all ranks, on the leader of each node with the rows of its node.
        starts: The first byte of each rank's rows in `block`, with their total at the end.

    Collective:
        Over the leaders. On other ranks it returns at once.
    """
    if context.leader_comm is None:
        return
    placement = context.topology.placement
    runs = [joined_runs(ranks, starts) for ranks in placement.nodes]
    if block.nbytes <= LARGEST_MESSAGE_BYTES:
        for parts in zip_longest(*runs, fillvalue=slice(0, 0)):
            context.leader_comm.allgather_parts(block, parts)
        return
    for node, of_node in enumerate(runs):
        for run in of_node:
            broadcast(context, placement.leader(node), block[run])


def joined_runs(ranks: Iterable[int], starts: Sequence[int]) -> list[slice]:
    """The bytes of some ranks as slices that do not touch, where `starts[rank]` to `starts[rank + 1]` are a rank's."""
    runs: list[slice] = []
    for rank in ranks:
        start, stop = starts[rank], starts[rank + 1]
        if runs and runs[-1].stop == start:
            runs[-1] = slice(runs[-1].start, stop)
        elif stop > start:
            runs.append(slice(start, stop))
    return runs


def send_blocks(context: Context, blocks: Iterable[tuple[int, Block]], *, reuses_memory: bool = False) -> None:
    """Sends each block to the rank given with it, which calls `receive_blocks`.

    Args:
        context: The context of the communicator.
        blocks: Ranks and blocks. The next is asked for once at most `MAX_IN_FLIGHT` messages are in flight.
        reuses_memory: Whether each block overwrites the one before. Then it is asked for once that one has been sent.
    """
    with InFlight(context.collective_comm, Tag.ROWS) as sending:
        for rank, message in _messages(blocks):
            sending.send(message, rank)
            sending.wait_until(0 if reuses_memory else MAX_IN_FLIGHT)


def receive_blocks(context: Context, blocks: Iterable[tuple[int, Block]]) -> None:
    """Fills each block with the bytes that the rank given with it sends by `send_blocks`."""
    with InFlight(context.collective_comm, Tag.ROWS, buffers=list(_messages(blocks))) as receiving:
        for _ in receiving.receive_all():
            pass


def _messages(blocks: Iterable[tuple[int, Block]]) -> Iterator[tuple[int, Block]]:
    """Ranks and messages."""
    return ((rank, message) for rank, block in blocks for message in cut_messages([block]))


def cut_messages(blocks: Iterable[Block]) -> Iterator[Block]:
    """The blocks, cut to the largest message of MPI."""
    return (block[chunk] for block in blocks for chunk in slices.chunks(block.nbytes, LARGEST_MESSAGE_BYTES))


def stage_of(context: Context, array: NDArray[Any] | None) -> Block:
    """Memory for a chunk of the rows of the root's array, if these must be copied before they are sent; else none.

    Raises:
        CapacityError: There is too little.
    """
    if array is None or array.flags.c_contiguous:
        return allocate(context, 0)
    return allocate(context, array[: _n_rows_of_chunk(array)].nbytes)


def _n_rows_of_chunk(rows: NDArray[Any]) -> int:
    return max(_CHUNK_BYTES // max(rows.nbytes // max(len(rows), 1), 1), 1)


def spread_rows(
    context: Context,
    root: int,
    array: NDArray[Any] | None,
    parts: Mapping[int, slice],
    own: NDArray[Any],
    stage: Block,
) -> None:
    """Brings to each rank in `parts`, one of which is the root, its part of the rows of the root's array.

    Args:
        context: The context of the communicator.
        root: The rank that has `array`.
        array: The array, of any strides, on `root`; ignored on the other ranks.
        parts: The rows of each rank that gets some.
        own: Where this rank's rows go, in C order.
        stage: On `root`, what `stage_of` returned for `array`.

    Collective:
        Over the communicator, but a rank may return before others have come.
    """
    rank = context.topology.rank
    if rank == root and array is not None:
        chunk = _n_rows_of_chunk(array)
        blocks = (
            (other, _bytes_in_c_order(array[part][some], stage))
            for other, part in parts.items()
            if other != root
            for some in slices.chunks(part.stop - part.start, chunk)
        )
        send_blocks(context, blocks, reuses_memory=stage.size > 0)
        copy_bytes(own, array[parts[root]])
    elif rank in parts:
        chunks = slices.chunks(len(own), _n_rows_of_chunk(own))
        receive_blocks(context, [(root, bytes_of(own[some])) for some in chunks])


def _bytes_in_c_order(rows: NDArray[Any], stage: Block) -> Block:
    """The bytes of `rows` in C order: its own if it is contiguous, else a copy at the front of `stage`."""
    if rows.flags.c_contiguous:
        return bytes_of(rows)
    block = stage[: rows.nbytes]
    copy_bytes(Spec(rows.dtype, rows.shape).view(block), rows)
    return block


def copy_of(context: Context, rows: NDArray[Any]) -> NDArray[Any]:
    """A copy in C order, in memory of this process alone. Raises a `CapacityError` where there is too little."""
    copy = Spec(rows.dtype, rows.shape).view(allocate(context, rows.nbytes))
    copy_bytes(copy, rows)
    return copy


def memory_of(context: Context, spec: Spec, out: NDArray[Any] | None) -> Block:
    """The bytes of `out`, which has this spec, or new ones.

    Raises:
        SpecError: `out` is not a writable array in C order of this shape and dtype.
        CapacityError: This process has too little memory.
    """
    if out is None:
        return allocate(context, spec.nbytes)
    if not takes(spec, out):
        rows = f"the rows are {spec.dtype} of shape {spec.shape}"
        raise SpecError(f"out is {out.dtype} of shape {out.shape}, but {rows}, in C order, to be written.")
    return bytes_of(out)


def takes(spec: Spec, out: NDArray[Any]) -> bool:
    """Whether `out` is a writable array in C order of this shape and dtype. Raises a `SpecError` if it is no array."""
    Spec.of(out)
    return spec.fits(out) and out.flags.c_contiguous and out.flags.writeable


def allocate(context: Context, nbytes: int) -> Block:
    """Memory of this process alone. Raises a `CapacityError` where there is too little."""
    cure = "Use fewer rows at a time, or start fewer ranks on the node."
    return allocate_buffer(context.topology.host, nbytes, cure)
