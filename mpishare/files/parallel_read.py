"""The ranks of a node read disjoint pieces of a file into its memory, while its leader sends earlier ones on."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.raw import Block
from mpishare.arrays.slices import LINE_BYTES, round_up
from mpishare.comm.context import Context
from mpishare.comm.in_flight import InFlight
from mpishare.comm.tags import Tag
from mpishare.files.parts import Part
from mpishare.files.pieces import Hyperslab, piece_bytes
from mpishare.files.source import Source
from mpishare.memory.allocation import node_memory
from mpishare.progress_bar import Bar
from mpishare.transfer.between_nodes import broadcast
from mpishare.transfer.node_fill import broadcast_in_node

ROOT = 0
"""The rank that inspects the file. Its node reads a file that is read once per job."""


def read_parts(
    context: Context,
    source: Source,
    parts: Sequence[Part],
    *,
    backend: str | None = None,
    once_per: str = "job",
    progress: bool = False,
) -> list[NDArray[Any]]:
    """Reads arrays of a file into the memory of each node, all in one segment.

    Args:
        context: That of the communicator.
        source: The file, the same on all ranks; or, once per node, on all ranks of a node.
        parts: The arrays, the same on all ranks.
        backend: What `check_backend` returned.
        once_per: "job": the root's node reads each byte, and sends it to the others. "node": every node reads.
        progress: Whether the root shows a bar.

    Returns:
        The arrays, read-only.

    Raises:
        FileError: A piece cannot be read, or the file has changed.
        CapacityError, BackendError: See `node_memory`.
        PeerError: Another rank raised one of these.

    Collective:
        Over the communicator.
    """
    offsets, nbytes = layout_of(parts)
    with node_memory(context, nbytes, backend=backend, made_by="load") as segment:
        topology, block, streams = context.topology, segment.block(), once_per == "job" and context.topology.n_nodes > 1
        readers = topology.ranks_of(topology.node)[: None if segment.origin.is_shared else 1]
        errors: list[Exception] = []
        reading = _read(context, source, parts, block, (readers[1:] or readers) if streams else readers, errors)
        ready_bytes = 0

        def read_chunk(chunk: slice) -> Block:
            nonlocal ready_bytes
            while ready_bytes < chunk.stop:
                ready_bytes = next(reading)
                bar.show(ready_bytes)
            return block[chunk]

        with closing(reading), Bar(nbytes, "B", is_shown=progress and topology.rank == ROOT) as bar:
            try:
                if streams:
                    broadcast(context, ROOT, block, read_chunk)
                if not streams or topology.node == topology.node_of(ROOT):
                    for ready_bytes in reading:  # all pieces that no chunk has waited for
                        bar.show(ready_bytes)
            finally:  # also after an error, as the other ranks of the node wait for the bytes
                if not segment.origin.is_shared:
                    broadcast_in_node(context, ROOT, block)
        if errors:
            raise errors[0]
        source.check()
    return [segment.view(part.spec, offset) for part, offset in zip(parts, offsets, strict=True)]


def layout_of(parts: Sequence[Part]) -> tuple[list[int], int]:
    """Where each array begins in a block for all of them, and the bytes of the block."""
    offsets, end = [], 0
    for part in parts:
        offsets.append(round_up(end, LINE_BYTES) if part.spec.nbytes else end)
        end = offsets[-1] + part.spec.nbytes
    return offsets, end


def _pieces(
    parts: Sequence[Part], offsets: Sequence[int], largest_bytes: int
) -> Iterator[tuple[int, list[tuple[Part, Hyperslab, int]]]]:
    """What is read at a time: a piece of an array; or small arrays that lie in one window of `largest_bytes`.

    Yields:
        The first byte in the block; and for each array its piece, and where the array begins.
    """

    def window(number: int) -> int:
        first, last = offsets[number] // largest_bytes, (offsets[number] + parts[number].spec.nbytes) // largest_bytes
        return first if first == last else ~number  # of this array alone

    for _, group in groupby(range(len(parts)), window):
        numbers = list(group)
        reads = ((parts[n], piece, offsets[n]) for n in numbers for piece in parts[n].pieces(largest_bytes))
        if len(numbers) > 1:
            small = [(part, piece.items, offset) for part, piece, offset in reads]
            yield from [(offsets[numbers[0]], small)] if small else []
        else:
            yield from ((offset + piece.start, [(part, piece.items, offset)]) for part, piece, offset in reads)


def _read(
    context: Context,
    source: Source,
    parts: Sequence[Part],
    block: Block,
    readers: Sequence[int],
    errors: list[Exception],
) -> Generator[int, None, None]:
    """Reads arrays into the block of this node, each piece by one of `readers`, which notifies the leader.

    Reader number i of n reads the pieces i, i + n, i + 2n, …. While the leader sends to other nodes it reads none,
    unless it is alone on its node. After an error, which joins `errors`, a rank reads no more, but still notifies, so
    that no rank waits.

    Yields:
        On the leader after each piece: the number of bytes from the beginning of the block that have been read.
    """
    comm, topology = context.collective_comm, context.topology
    rank, leader = topology.rank, topology.ranks_of(topology.node)[0]
    offsets, nbytes = layout_of(parts)
    pieces = list(_pieces(parts, offsets, piece_bytes(nbytes, len(readers))))
    ends = [*(start for start, _ in pieces[1:]), nbytes]
    readers = readers if len(pieces) > 1 else [leader]  # which has the file open
    dealt = [readers[number % len(readers)] for number in range(len(pieces))]
    others = [(reader, np.empty(0, np.uint8)) for reader in dealt if reader != rank]
    with (
        InFlight(comm, Tag.PIECE_READY) as sent,
        InFlight(comm, Tag.PIECE_READY, buffers=others if rank == leader else ()) as receiving,
    ):
        notices = receiving.receive_all()
        for (_, reads), reader, end in zip(pieces, dealt, ends[: len(pieces)], strict=True):
            if reader == rank and not errors:
                try:
                    for part, items, offset in reads:
                        part.read(source, items, block[offset : offset + part.spec.nbytes])
                except Exception as error:
                    errors.append(error)
            if reader == rank != leader:
                sent.send(b"", leader)
            elif reader != rank == leader:
                next(notices)
            yield end
