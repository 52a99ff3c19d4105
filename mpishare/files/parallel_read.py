"""The ranks of a node read disjoint pieces of a file into its memory, and its leader sends on what is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mpishare.arrays.raw import Block
from mpishare.comm import mpi
from mpishare.comm.context import Context
from mpishare.comm.pending import InFlight
from mpishare.comm.tags import Tag
from mpishare.files.inspect import Part
from mpishare.files.pieces import Cuttable, Piece, piece_bytes, pieces
from mpishare.files.source import Source
from mpishare.transfer.node_fill import broadcast_in_node
from mpishare.transfer.pipeline import broadcast_chunks

ROOT = 0
"""The rank that looks at the file, whose node reads it where it is read once a job."""

_ALIGNED_BYTES = 64
"""A cache line, and what the widest vector instructions want."""

Show = Callable[[int], None]
"""Shows how many bytes are there."""


def laid_out(parts: Sequence[Part]) -> tuple[list[int], int]:
    """Where in a block each array begins, and the bytes of the block."""
    offsets, end = [], 0
    for part in parts:
        at = -(-end // _ALIGNED_BYTES) * _ALIGNED_BYTES if part.spec.nbytes else end
        offsets.append(at)
        end = at + part.spec.nbytes
    return offsets, end


def bring(
    context: Context, source: Source, parts: Sequence[Part], block: Block, *, is_shared: bool, once: bool, show: Show
) -> Reading | None:
    """Brings the arrays of a file to every node.

    Args:
        context: That of the communicator.
        source: The file.
        parts: The arrays, as they are laid out in the block.
        block: The memory of this node.
        is_shared: Whether the ranks of this node see one `block`, or each has its own.
        once: Whether the root's node alone reads, or each node a file of its own.
        show: Shows on the root how many bytes are there.

    Returns:
        What this rank read, if its node reads: its `end` tells how it went.

    Collective:
        Over the communicator, but a rank may return before others have come.
    """
    streams = once and context.topology.n_nodes > 1
    reading = None
    if not once or context.topology.node == context.topology.node_of(ROOT):
        reading = Reading(context, source, parts, block, is_shared=is_shared, streams=streams, show=show)
    if streams:
        _stream(context, block, reading)
    elif reading is not None:
        reading.read_own()
        context.node_collective_comm.barrier()
    if not is_shared:
        broadcast_in_node(context, ROOT, block)
    return reading


def _stream(context: Context, block: Block, reading: Reading | None) -> None:
    """The leader of the node that reads sends on what is there; on a node of several ranks the others read."""
    if reading is None:
        broadcast_chunks(context, ROOT, block)
    elif context.topology.is_leader:
        broadcast_chunks(context, ROOT, block, until_ready=reading.until)
    else:
        reading.read_and_tell()


class Reading:
    """What this rank does to read the arrays of a file into the block of its node.

    An error ends the reading, but not the telling: it is raised by `end`, once no rank waits for bytes any more. Those
    that would go to other nodes after it stay here.
    """

    def __init__(
        self,
        context: Context,
        source: Source,
        parts: Sequence[Part],
        block: Block,
        *,
        is_shared: bool,
        streams: bool,
        show: Show,
    ) -> None:
        """`streams` says whether the leader sends to other nodes meanwhile, `show` shows on the root what is there."""
        offsets, nbytes = laid_out(parts)
        ranks = range(context.topology.node_size) if is_shared else range(1)
        self._readers = ranks[1:] if streams and len(ranks) > 1 else ranks
        arrays = [Cuttable(at, part.cuts, part.cut_bytes) for at, part in zip(offsets, parts, strict=True)]
        self._pieces = pieces(arrays, nbytes, piece_bytes(nbytes, len(self._readers)))
        if len(self._pieces) == 1:
            self._readers = range(1)  # which has the file open
        self._context = context
        self._node_ranks = context.topology.ranks_of(context.topology.node)
        self._source = source
        self._parts = parts
        self._blocks = [block[at : at + part.spec.nbytes] for at, part in zip(offsets, parts, strict=True)]
        self._show = show
        self._nbytes = nbytes
        self._next = 0
        self._ready = 0
        self._error: Exception | None = None
        self._lacks = False

    @property
    def _own(self) -> list[Piece]:
        me = self._context.topology.node_rank
        return self._pieces[self._readers.index(me) :: len(self._readers)] if me in self._readers else []

    def read_own(self) -> None:
        """Reads the pieces of this rank."""
        done = 0
        for piece in self._own:
            self._read(piece)
            done += piece.nbytes
            self._show(min(done * len(self._readers), self._nbytes))  # the others are about as far

    def read_and_tell(self) -> None:
        """The same, and tells the leader of each."""
        leader = self._node_ranks[0]
        with InFlight(self._context.collective_comm, Tag.PIECE_READY) as sending:
            for piece in self._own:
                self._read(piece)
                sending.send(b"" if self._error is None else b"x", leader)

    def until(self, stop: int) -> bool:
        """On the leader: returns when the bytes before `stop` are there, some of which it may read itself.

        Returns:
            Whether all of them could be read.
        """
        while self._ready < stop:
            piece = self._pieces[self._next]
            reader = self._readers[self._next % len(self._readers)]
            if reader == self._context.topology.node_rank:
                self._read(piece)
            else:
                self._await(reader)
            self._next += 1
            self._ready = piece.ready
        self._show(self._ready)
        return self._error is None and not self._lacks

    def _await(self, reader: int) -> None:
        status = mpi.Status()
        with InFlight(self._context.collective_comm, Tag.PIECE_READY) as receiving:
            receiving.receive(bytearray(1), self._node_ranks[reader])
            receiving.wait_oldest(status)
        self._lacks = self._lacks or status.count > 0

    def _read(self, piece: Piece) -> None:
        if self._error is None:
            try:
                self._parts[piece.part].read(self._source, piece.box, self._blocks[piece.part])
            except Exception as error:  # raised by `end`
                self._error = error

    def end(self) -> None:
        """Returns when all that this rank read was read well, and the file is as it was.

        Raises:
            FileError: It was not.
        """
        if self._error is not None:
            raise self._error
        self._source.check()
