"""How the bytes of one array get to every node: a header to all ranks, then each byte once to each node."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from numpy.typing import NDArray

from mpishare import mpi, plan
from mpishare.segments.segment import Segment
from mpishare.spec import HEADER_BYTES, Block, Spec, bytes_of, copy_bytes, extension_bytes
from mpishare.topology import Topology

__all__ = ["announce", "relay", "replicate"]

_CHUNK_TAG = 1
_WINDOW = 4
"""Chunks on their way at a time, in each direction. Measured: 4 keep a link of 400 Mbit/s full over 8 nodes."""


def announce(topology: Topology, header: tuple[bytes, bytes] | None, root: int) -> Spec:
    """The spec that `root` packed, on every rank; `header` is None on the others.

    Raises:
        SpecError: What came is no header of ours. It is the same on all ranks, as the root reads its own too.

    Collective:
        Over `topology.comm`.
    """
    head, tail = (bytes(HEADER_BYTES), b"") if header is None else header
    fixed = bytearray(head)
    topology.channel.Bcast([fixed, mpi.BYTE], root)
    extension = bytearray(tail or extension_bytes(bytes(fixed)))
    if extension:
        topology.channel.Bcast([extension, mpi.BYTE], root)
    return Spec.unpack(bytes(fixed), bytes(extension))


def replicate(topology: Topology, root: int, segment: Segment, spec: Spec, source: NDArray[Any] | None) -> None:
    """Brings the bytes of `source`, on `root`, into the segment of every node.

    Args:
        topology: Where the ranks sit.
        root: The rank that has `source`.
        segment: This node's.
        spec: What `source` is.
        source: The array; None on the other ranks.

    Collective:
        Over `topology.comm`, but a rank may return before others have come.
    """
    block = segment.block()
    if source is None:
        relay(topology, root, block)
    elif source.flags.forc:
        relay(topology, root, block, source=bytes_of(source))
    else:
        copy_bytes(spec.view(block), source)
        relay(topology, root, block)
    if not segment.together:
        _copy_to_node(topology, root, block)


def _copy_to_node(topology: Topology, root: int, block: Block) -> None:
    """From the rank that the chain reaches on this node to the others, each of which has a block of its own."""
    ranks = topology.ranks_of(topology.node)
    first = ranks.index(root) if root in ranks else 0
    for part in plan.chunks(block.nbytes, plan.LARGEST_MESSAGE_BYTES):
        topology.node_channel.Bcast([block[part], mpi.BYTE], first)


def relay(topology: Topology, root: int, block: Block, *, source: Block | None = None) -> None:
    """A pipelined chain: chunks run from `root` through one rank of each node, straight into and out of `block`.

    Every node receives every byte once and sends it on once, whatever their number, so that the time is that of one
    send over the link plus a chunk for each further node. Ranks that are not on the path return at once.

    Args:
        topology: Where the ranks sit.
        root: Where the chain begins.
        block: The bytes on this node, of one length everywhere.
        source: On `root`, other bytes to fill `block` with on the way; a chunk is filled just before it is sent.

    Source:
        J. L. Träff and A. Ripke, "Optimal broadcast for fully connected processor-node networks", J. Parallel Distrib.
        Comput. 68 (2008): a linear pipeline is optimal in bandwidth.
    """
    path = plan.chain(topology.layout, root)
    if topology.rank not in path:
        return
    place = path.index(topology.rank)
    parts = list(plan.chunks(block.nbytes, plan.chunk_bytes(block.nbytes, topology.n_nodes)))
    pieces = [block[part] for part in parts]
    ready: Iterable[Block] = pieces
    if place > 0:
        ready = _received(topology.channel, path[place - 1], pieces)
    elif source is not None:
        ready = _filled(pieces, [source[part] for part in parts])
    if place + 1 < len(path):
        _send(topology.channel, path[place + 1], ready)
    else:
        deque(ready, maxlen=0)  # the end of the chain: take each chunk, pass none on


def _filled(pieces: list[Block], sources: list[Block]) -> Iterator[Block]:
    """Each piece once it has its bytes from `sources`."""
    for piece, source in zip(pieces, sources, strict=True):
        piece[:] = source
        yield piece


def _received(channel: mpi.Intracomm, source: int, pieces: list[Block]) -> Iterator[Block]:
    """Each piece once its bytes have come from `source`, with the next ones already asked for."""
    waiting: deque[mpi.Request] = deque()
    asked = 0
    for piece in pieces:
        while asked < len(pieces) and len(waiting) < _WINDOW:
            waiting.append(channel.Irecv([pieces[asked], mpi.BYTE], source, _CHUNK_TAG))
            asked += 1
        waiting.popleft().Wait()
        yield piece


def _send(channel: mpi.Intracomm, target: int, pieces: Iterable[Block]) -> None:
    """Sends each piece to `target` as it becomes ready; returns when all may be changed again."""
    leaving: deque[mpi.Request] = deque()
    for piece in pieces:
        leaving.append(channel.Isend([piece, mpi.BYTE], target, _CHUNK_TAG))
        if len(leaving) > _WINDOW:
            leaving.popleft().Wait()
    for request in leaving:
        request.Wait()
