"""The ranks of a node read disjoint pieces of a file into its memory, while its leader sends earlier ones on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from mpishare.arrays.slices import round_up
from mpishare.comm import mpi
from mpishare.comm.agreement import agree
from mpishare.comm.context import Context
from mpishare.comm.pending import InFlight
from mpishare.comm.tags import Tag
from mpishare.files.parts import Part
from mpishare.files.pieces import Piece, piece_bytes
from mpishare.files.source import Source
from mpishare.memory.allocation import allocate, seal
from mpishare.memory.segment import Segment
from mpishare.progress_bar import Bar
from mpishare.transfer.node_fill import broadcast_in_node
from mpishare.transfer.pipeline import broadcast_chunks

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
    topology = context.topology
    offsets, nbytes = layout_of(parts)
    segment = allocate(context, nbytes, backend=backend, label="load", writable=False)
    streams = once_per == "job" and topology.n_nodes > 1
    with Bar(nbytes, "B", is_shown=progress and topology.rank == ROOT) as bar:
        reader = _Reader(context, source, parts, segment, streams=streams, bar=bar)
        if not streams:
            reader.read()
        elif topology.node != topology.node_of(ROOT):
            broadcast_chunks(context, ROOT, segment.block())
        elif topology.is_leader:
            broadcast_chunks(context, ROOT, segment.block(), until_ready=reader.wait_until)
        else:
            reader.read()
        if not segment.origin.is_shared:
            broadcast_in_node(context, ROOT, segment.block())
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
    """What this rank does to read the arrays into the segment of its node.

    After an error it reads no more, but still notifies the leader, so that no rank waits. `check` raises the error.
    """

    def __init__(
        self, context: Context, source: Source, parts: Sequence[Part], segment: Segment, *, streams: bool, bar: Bar
    ) -> None:
        """`streams` says whether the leader sends pieces to other nodes while the others of its node read."""
        self._context = context
        self._source = source
        self._parts = parts
        self._bar = bar
        self._streams = streams
        ranks = range(context.topology.node_size if segment.origin.is_shared else 1)
        self._readers = (ranks[1:] or ranks) if streams else ranks
        offsets, self._nbytes = layout_of(parts)
        self._blocks = [segment.block()[at : at + part.spec.nbytes] for at, part in zip(offsets, parts, strict=True)]
        largest_bytes = piece_bytes(self._nbytes, len(self._readers))
        self._pieces = [(number, piece) for number, part in enumerate(parts) for piece in part.pieces(largest_bytes)]
        self._starts = [*(offsets[number] + piece.start for number, piece in self._pieces), self._nbytes]
        if len(self._pieces) == 1:
            self._readers = range(1)  # it has opened the file
        self._next = 0
        self._error: Exception | None = None
        self._has_gap = False

    def read(self) -> None:
        """Reads this rank's pieces; notifies the leader of each if that sends them."""
        node_rank, done = self._context.topology.node_rank, 0
        own = self._pieces[self._readers.index(node_rank) :: len(self._readers)] if node_rank in self._readers else []
        with InFlight(self._context.collective_comm, Tag.PIECE_READY) as notices:
            for number, piece in own:
                self._read(number, piece)
                done += piece.nbytes
                if self._streams:
                    notices.send(b"" if self._error is None else b"x", self._rank_of(0))
                else:
                    self._bar.show(min(done * len(self._readers), self._nbytes))  # the others are about as far

    def wait_until(self, stop: int) -> bool:
        """On the leader: returns when the bytes before `stop` have been read, some of them by this rank itself.

        Returns:
            Whether all of them could be read.
        """
        while self._starts[self._next] < stop:
            reader = self._readers[self._next % len(self._readers)]
            if reader == self._context.topology.node_rank:
                self._read(*self._pieces[self._next])
            else:
                self._wait_for(reader)
            self._next += 1
        self._bar.show(min(stop, self._nbytes))
        return self._error is None and not self._has_gap

    def _rank_of(self, node_rank: int) -> int:
        return self._context.topology.ranks_of(self._context.topology.node)[node_rank]

    def _wait_for(self, reader: int) -> None:
        """Waits for the next piece of another rank of the node."""
        status = mpi.Status()
        with InFlight(self._context.collective_comm, Tag.PIECE_READY) as notices:
            notices.receive(bytearray(1), self._rank_of(reader))
            notices.wait_oldest(status)
        self._has_gap = self._has_gap or status.count > 0

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
