"""The ranks of a node read disjoint pieces of a file into its memory, while its leader sends earlier ones on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.raw import Block
from mpishare.arrays.slices import round_up
from mpishare.comm.agreement import agree
from mpishare.comm.context import Context
from mpishare.comm.pending import InFlight
from mpishare.comm.tags import Tag
from mpishare.files.parts import Part
from mpishare.files.pieces import Piece, piece_bytes
from mpishare.files.source import Source
from mpishare.memory.allocation import allocate, seal
from mpishare.progress_bar import Bar
from mpishare.transfer.node_fill import broadcast_in_node
from mpishare.transfer.pipeline import broadcast_chunks, receive_in_order

ROOT = 0
"""The rank that inspects the file. Its node reads a file that is read once per job."""

_ALIGNED_BYTES = 64
"""A cache line, and the widest vector registers."""


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
        CapacityError, BackendError: See `allocate`.
        PeerError: Another rank raised one of these.

    Collective:
        Over the communicator.
    """
    offsets, nbytes = layout_of(parts)
    segment = allocate(context, nbytes, backend=backend, made_by="load", writable=False)
    topology, block, streams = context.topology, segment.block(), once_per == "job" and context.topology.n_nodes > 1
    with Bar(nbytes, "B", is_shown=progress and topology.rank == ROOT) as bar:
        readers = topology.ranks_of(topology.node)[: None if segment.origin.is_shared else 1]
        reader = _Reader(context, source, parts, block, (readers[1:] or readers) if streams else readers, bar)
        if streams and topology.node != topology.node_of(ROOT):
            broadcast_chunks(context, ROOT, block)
        elif not topology.is_leader:
            reader.read()
        elif streams:
            broadcast_chunks(context, ROOT, block, reader.read_chunk)
        else:
            reader.read_chunk(slice(nbytes))
        if not segment.origin.is_shared:
            broadcast_in_node(context, ROOT, block)
    with agree(context.collective_comm):
        reader.check()
    seal(context, segment)
    return [segment.view(part.spec, offset) for part, offset in zip(parts, offsets, strict=True)]


def layout_of(parts: Sequence[Part]) -> tuple[list[int], int]:
    """Where each array begins in a block for all of them, and the bytes of the block."""
    offsets, end = [], 0
    for part in parts:
        offsets.append(round_up(end, _ALIGNED_BYTES) if part.spec.nbytes else end)
        end = offsets[-1] + part.spec.nbytes
    return offsets, end


class _Reader:
    """What this rank does to read the arrays into the block of its node.

    Reader number i of n reads the pieces i, i + n, i + 2n, … and notifies the leader of each. While the leader sends to
    other nodes it reads none, unless it is alone on its node. After an error a rank reads no more, but still notifies,
    so that no rank waits. `check` raises the error.
    """

    def __init__(
        self, context: Context, source: Source, parts: Sequence[Part], block: Block, readers: Sequence[int], bar: Bar
    ) -> None:
        """`readers` are the ranks of the node that read; the others have nothing to do."""
        self._rank, self._leader = context.topology.rank, context.topology.ranks_of(context.topology.node)[0]
        self._context = context
        self._source = source
        self._parts = parts
        self._bar = bar
        self._block = block
        offsets, nbytes = layout_of(parts)
        self._blocks = [block[at : at + part.spec.nbytes] for at, part in zip(offsets, parts, strict=True)]
        largest_bytes = piece_bytes(nbytes, len(readers))
        self._pieces = [(number, piece) for number, part in enumerate(parts) for piece in part.pieces(largest_bytes)]
        self._starts = [*(offsets[number] + piece.start for number, piece in self._pieces), nbytes]
        readers = readers if len(self._pieces) > 1 else [self._leader]  # which has the file open
        self._reader_of = [readers[number % len(readers)] for number in range(len(self._pieces))]
        buffers = [(reader, np.empty(1, np.uint8)) for reader in self._reader_of if reader != self._rank]
        self._notices = receive_in_order(context.collective_comm, buffers, Tag.PIECE_READY)
        self._next = 0
        self._error: Exception | None = None

    def read(self) -> None:
        """Reads this rank's pieces, and notifies the leader of each."""
        with InFlight(self._context.collective_comm, Tag.PIECE_READY) as notices:
            for (number, piece), reader in zip(self._pieces, self._reader_of, strict=True):
                if reader == self._rank:
                    self._read(number, piece)
                    notices.send(b"", self._leader)

    def read_chunk(self, chunk: slice) -> Block:
        """On the leader: the bytes of `chunk`, once those before its end have been read, some by this rank itself."""
        while self._starts[self._next] < chunk.stop:
            if self._reader_of[self._next] == self._rank:
                self._read(*self._pieces[self._next])
            else:
                next(self._notices)
            self._next += 1
            self._bar.show(self._starts[self._next])
        return self._block[chunk]

    def _read(self, number: int, piece: Piece) -> None:
        if self._error is None:
            try:
                self._parts[number].read(self._source, piece.items, self._blocks[number])
            except Exception as error:  # raised by `check`
                self._error = error

    def check(self) -> None:
        """Returns if this rank read all of its pieces, and the file is as it was inspected.

        Raises:
            FileError: Otherwise.
        """
        if self._error is not None:
            raise self._error
        self._source.check()
