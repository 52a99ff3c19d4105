"""The ranks of a node read disjoint tiles of a file into its memory, while its leader sends earlier ones on."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.raw import Block
from mpishare.arrays.slices import LINE_BYTES, round_up
from mpishare.comm.agreement import Deferred, agree
from mpishare.comm.context import Context
from mpishare.comm.in_flight import InFlight, Tag
from mpishare.errors import ArgumentError, FileError
from mpishare.files.errors import file_errors
from mpishare.files.tiles import Selection, tile_bytes
from mpishare.memory.allocation import node_memory
from mpishare.memory.mapping import Mapping, Origin
from mpishare.memory.pool import Slot
from mpishare.memory.segment import Segment
from mpishare.progress_bar import Bar
from mpishare.transfer.between_nodes import broadcast
from mpishare.transfer.node_fill import broadcast_in_node

ROOT = 0
"""The rank that inspects the file. Its node reads a file that is read once per job."""


Part = Any
"""An array in a file, or a part of one: `spec` is what a load of it returns; `tiles(reader, largest_bytes)` are its
tiles in the order of the file, none larger if that can be, which any rank may read in any order."""


def read_parts(
    context: Context,
    reader: Any,
    parts: Sequence[Part],
    once_per: str = "job",
    *,
    backend: str | None,
    progress: bool,
    writable: bool = False,
) -> list[NDArray[Any]]:
    """Reads arrays of a file into new memory of each node, all in one segment.

    Args:
        context: That of the communicator.
        reader: What reads the file, the same on all ranks; or, once per node, on all ranks of a node.
        parts: The arrays, the same on all ranks.
        once_per: "job": the root's node reads each byte, and sends it to the others. "node": every node reads.
        backend: What `check_backend` returned.
        progress: Whether the root shows a bar.
        writable: Whether all ranks of the node may write to the arrays; else they are read-only.

    Returns:
        The arrays.

    Raises:
        FileError: A tile cannot be read, or the file has changed.
        CapacityError, BackendError: See `node_memory`.
        PeerError: Another rank raised one of these.

    Collective:
        Over the communicator.
    """
    offsets, nbytes = layout_of(parts)
    with node_memory(context, nbytes, backend=backend, made_by="load", writable=writable) as segment:
        is_shared = segment.origin.is_shared
        read_into(context, reader, parts, segment.block(), once_per, is_shared=is_shared, progress=progress)
    return [segment.view(part.spec, offset) for part, offset in zip(parts, offsets, strict=True)]


def read_into(
    context: Context,
    reader: Any,
    parts: Sequence[Part],
    block: Block,
    once_per: str,
    *,
    is_shared: bool,
    progress: bool,
) -> None:
    """Reads arrays of a file into a block of each node, laid out by `layout_of`. An agreement must follow.

    Args:
        context: That of the communicator.
        reader: See `read_parts`.
        parts: See `read_parts`.
        block: The memory.
        once_per: See `read_parts`.
        is_shared: Whether all ranks of the node see the same bytes.
        progress: Whether the root shows a bar.

    Raises:
        FileError: A tile cannot be read, or the file has changed.

    Collective:
        Over the communicator.
    """
    (offsets, nbytes), topology = layout_of(parts), context.topology
    streams = once_per == "job" and topology.n_nodes > 1
    readers = topology.ranks_of(topology.node)[: None if is_shared else 1]
    readers = (readers[1:] or readers) if streams else readers
    batches = _batches(reader, parts, offsets, nbytes, tile_bytes(nbytes, len(readers)))
    work = Deferred()
    reading = _read(context, batches, block, readers, work, streams=streams)
    ready_bytes = 0

    def read_chunk(chunk: slice) -> None:
        nonlocal ready_bytes
        while ready_bytes < chunk.stop:
            ready_bytes = next(reading)
            bar.show(ready_bytes)

    with closing(reading), Bar(nbytes, "B", is_shown=progress and topology.rank == ROOT) as bar:
        try:
            if streams:
                broadcast(context, ROOT, block, read_chunk)
            if not streams or topology.node == topology.node_of(ROOT):
                for ready_bytes in reading:  # all batches that no chunk has waited for
                    bar.show(ready_bytes)
        finally:  # also after an error, as the other ranks of the node wait for the bytes
            if not is_shared:
                broadcast_in_node(context, ROOT, block)
    with work:
        reader.check()
    work.raise_first()


def map_parts(context: Context, reader: Any, chosen: Sequence[Selection]) -> list[NDArray[Any]]:
    """Maps arrays of a file on each node, as read-only views of the kernel's own pages. See `map_part`.

    Collective:
        Over the communicator.
    """
    with agree(context.collective_comm):
        first_key = context.new_keys(len(chosen))  # before anything fails: all ranks count alike
        origin = Origin("mapped file", context.topology.node_size)
        return [map_part(reader, selection, origin, key) for key, selection in enumerate(chosen, first_key)]


def map_part(reader: Any, selection: Selection, origin: Origin, key: int) -> NDArray[Any]:
    """Some items of an array as a read-only view of the kernel's own pages of the file. Local.

    Args:
        reader: What reads the file.
        selection: The items.
        origin: What `report` says of the memory.
        key: The number of the segment; see `Segment`.

    Raises:
        ArgumentError: A list or a mask selects the items.
        FileError: The bytes are not in the file as in memory; or it cannot be opened or mapped, or has changed.
    """
    stored, spec, file = selection.stored, selection.spec, reader.file
    if stored.offset is None or selection.dtype is not None:
        reason = "cannot be mapped: it is converted, or not contiguous in this file. Load it without map=True."
        raise FileError(file.path, stored.name, reason)
    ranges = [axis.indices for axis in selection.axes if isinstance(axis.indices, range)]
    if len(ranges) < len(selection.axes):
        raise ArgumentError("map=True cannot pick items by a list or a mask. Use slices, or leave map=True out.")
    if not stored.nbytes:
        return spec.view(b"")
    with file_errors(file.path, stored.name):
        memory = Mapping.read_only(file.file_of(stored).descriptor, slice(stored.offset, stored.offset + stored.nbytes))
    segment = Segment(Slot(memory, origin, stored.nbytes, readable=memory), stored.nbytes, key, "load")
    segment.seal()
    selected: Any = (*(slice(indices.start, indices.stop, indices.step) for indices in ranges), ...)
    array: NDArray[Any] = segment.view(stored.spec)[selected]
    return array


def layout_of(parts: Sequence[Part]) -> tuple[list[int], int]:
    """Where each array begins in a block for all of them, and the bytes of the block."""
    offsets, end = [], 0
    for part in parts:
        offsets.append(round_up(end, LINE_BYTES) if part.spec.nbytes else end)
        end = offsets[-1] + part.spec.nbytes
    return offsets, end


_Batch = tuple[list[tuple[slice, Callable[[Block], None]]], int]
"""Tiles that one rank reads before it notifies the leader: a large one, or those of many small arrays. For each tile
the bytes of its array in the block, and what reads it. Then a number: with this batch and those before it, all bytes of
the block before that one have been read."""


def _batches(
    reader: Any, parts: Sequence[Part], offsets: Sequence[int], nbytes: int, largest_bytes: int
) -> list[_Batch]:
    """Deals the tiles of all arrays, in order, to batches of about `largest_bytes`. See `layout_of`."""
    tiles = [
        (at, part, tile) for at, part in zip(offsets, parts, strict=True) for tile in part.tiles(reader, largest_bytes)
    ]
    ends = accumulate(tile.nbytes for _, _, tile in tiles)
    numbered = zip(((end - 1) // largest_bytes for end in ends), tiles, strict=True)
    groups = [[item for _, item in group] for _, group in groupby(numbered, itemgetter(0))]
    firsts = [min(at + tile.first for at, _, tile in group) for group in groups]
    ready = [*accumulate([nbytes, *firsts[:0:-1]], min)][::-1]
    return [
        ([(slice(at, at + part.spec.nbytes), tile.read) for at, part, tile in group], end)
        for group, end in zip(groups, ready, strict=False)
    ]


def _read(
    context: Context, batches: Sequence[_Batch], block: Block, readers: Sequence[int], work: Deferred, *, streams: bool
) -> Generator[int, None, None]:
    """Reads arrays into the block of this node, each batch by one of `readers`, which notifies the leader.

    Where the leader streams to other nodes, the readers take turns, as it sends the first bytes first; it reads none
    then, unless it is alone on its node. Else each reads one run of batches, which a disk reads ahead. After an error,
    which `work` keeps, a rank reads no more, but still notifies, so that no rank waits.

    Yields:
        On the leader after each batch: the number of bytes from the beginning of the block that have been read.
    """
    comm, topology = context.collective_comm, context.topology
    rank, leader = topology.rank, topology.ranks_of(topology.node)[0]
    readers, n_batches = readers if len(batches) > 1 else [leader], len(batches)  # the leader has the file open
    dealt = [readers[n % len(readers) if streams else n * len(readers) // n_batches] for n in range(n_batches)]
    others = [(reader, np.empty(1, np.uint8)) for reader in dealt if reader != rank]
    with (
        InFlight(comm, Tag.TILE_READY) as sent,
        InFlight(comm, Tag.TILE_READY, buffers=others if rank == leader else ()) as receiving,
    ):
        notices = receiving.receive_all()
        for (reads, ready), reader in zip(batches, dealt, strict=True):
            if reader == rank and work.error is None:
                with work:
                    for place, read in reads:
                        read(block[place])
            if reader == rank != leader:
                sent.send(b"\0", leader)  # a byte, as only a message with data orders memory
            elif reader != rank == leader:
                next(notices)
            yield ready
