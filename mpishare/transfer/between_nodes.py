"""Between nodes: every node receives every byte once, from node memory to node memory."""

from __future__ import annotations

from collections.abc import Callable

from mpishare.arrays import slices
from mpishare.arrays.raw import Block
from mpishare.arrays.spec import Spec, extension_bytes
from mpishare.comm.agreement import agree
from mpishare.comm.context import Context
from mpishare.comm.in_flight import MAX_IN_FLIGHT, InFlight, Tag
from mpishare.comm.topology import Placement

LARGEST_MESSAGE_BYTES = 1 << 30
"""A round number below 2**31 - 1, the largest count of MPI 3."""

_CHUNK_BYTES = 60 << 10
"""Bytes of a message along a chain. Open MPI over TCP sends up to 64 KiB, with its own header, without asking the
receiver first. That round trip would stall the chain."""

_LARGE_CHUNK_BYTES, _LARGE_BYTES_PER_NODE = 256 << 10, 8 << 20
"""Bytes of a message where an array has at least the second number of bytes for each node: the time to fill the chain
no longer counts, and fast links take fewer messages."""

_CHUNKS_PER_NODE = 4
"""A chain needs this many chunks for each of its nodes: then the time to fill and empty it is a small part."""


def is_chain(context: Context, nbytes: int) -> bool:
    """Whether bytes travel along a chain of the nodes, chunk by chunk; else by one MPI_Bcast of the leaders.

    MPI's broadcast sends each byte log2(n) times over the root's link, or over each link twice. Along a chain of n
    nodes each link carries each byte once, and the last node waits for n - 2 chunks more.

    Source:
        J. L. Träff and A. Ripke, "Optimal broadcast for fully connected processor-node networks", J. Parallel Distrib.
        Comput. 68 (2008), section 2: the linear pipeline.
    """
    return nbytes >= _CHUNKS_PER_NODE * context.topology.n_nodes * (context.config.chunk_bytes or _CHUNK_BYTES)


def _chunks(context: Context, nbytes: int) -> list[slice]:
    """The chunks that travel along a chain."""
    is_large = nbytes >= _LARGE_BYTES_PER_NODE * context.topology.n_nodes
    chunk = context.config.chunk_bytes or (_LARGE_CHUNK_BYTES if is_large else _CHUNK_BYTES)
    return list(slices.chunks(nbytes, chunk))


def chain(placement: Placement, root: int) -> tuple[int, ...]:
    """The ranks of a chain: the root stands for its own node, and the leaders of the other nodes follow in their order.

    They begin with the node after the root's, so that neighbours in the machine file are neighbours in the chain.
    """
    first, count = placement.node_of[root], len(placement.nodes)
    return (root, *(placement.leader((first + step) % count) for step in range(1, count)))


def broadcast(context: Context, root: int, block: Block, fill: Callable[[slice], None] | None = None) -> None:
    """Brings bytes from the node of `root` to the leader of each other node, straight into its `block`.

    Args:
        context: The context of the communicator.
        root: The rank that has the bytes. Unless `is_chain`, the leader of its node has them in `block`, too.
        block: The bytes on this node, of the same length on all nodes.
        fill: On `root`, called for each chunk before it leaves, in order; it brings the chunk into `block`. When None,
            all bytes are there.

    Collective:
        Over `root` and the leaders. On other ranks it returns at once.
    """
    if not is_chain(context, block.nbytes):
        if fill is not None and context.topology.rank == root:
            fill(slice(0, block.nbytes))
        if context.leader_comm is not None:
            for part in slices.chunks(block.nbytes, LARGEST_MESSAGE_BYTES):
                context.leader_comm.bcast(block[part], context.topology.node_of(root))
    elif context.topology.rank == root:
        _send(context, block, fill)
    elif context.topology.is_leader and context.topology.node != context.topology.node_of(root):
        _receive_and_send(context, root, block)


def _send(context: Context, block: Block, fill: Callable[[slice], None] | None) -> None:
    """Sends the chunks on the root, the first of the chain."""
    following = chain(context.topology.placement, context.topology.rank)[1]
    with InFlight(context.collective_comm, Tag.CHUNK) as sending:
        for chunk in _chunks(context, block.nbytes):
            if fill is not None:
                fill(chunk)
            sending.send(block[chunk], following)
            sending.wait_until(MAX_IN_FLIGHT)


def _receive_and_send(context: Context, root: int, block: Block) -> None:
    """Receives each chunk on the leader of another node, and sends it to the next one while more come."""
    path = chain(context.topology.placement, root)
    place = path.index(context.topology.rank)
    following = path[place + 1 : place + 2]
    buffers = [(path[place - 1], block[chunk]) for chunk in _chunks(context, block.nbytes)]
    with (
        InFlight(context.collective_comm, Tag.CHUNK, buffers=buffers) as receiving,
        InFlight(context.collective_comm, Tag.CHUNK) as sending,
    ):
        for chunk in receiving.receive_all():
            for rank in following:
                sending.send(chunk, rank)
            sending.wait_until(MAX_IN_FLIGHT)


def broadcast_spec(context: Context, header: bytes, extension: bytes, root: int) -> Spec:
    """The spec that `root` packed, on every rank.

    Args:
        context: The context of the communicator.
        header: The first part of `Spec.packed`. Every rank has it from the agreement of the call.
        extension: The second part, on `root`; ignored on the other ranks.
        root: The rank that packed the spec.

    Raises:
        SpecError: The header is not one of ours, which all ranks see; or this rank lacks the module of the dtype.
        PeerError: Another rank lacks it.

    Collective:
        Over the communicator.
    """
    length = extension_bytes(header)
    if not length:
        return Spec.unpack(header)
    buffer = bytearray(extension if context.topology.rank == root else length)
    context.collective_comm.bcast(buffer, root)
    with agree(context.collective_comm):
        spec = Spec.unpack(header, bytes(buffer))
        spec.check()
    return spec
