"""Node to node: a chain or trees, along which every byte of a block comes to each node once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

from mpishare.arrays import slices
from mpishare.arrays.header import extension_bytes
from mpishare.arrays.raw import Block
from mpishare.arrays.spec import Spec
from mpishare.comm.agreement import agree
from mpishare.comm.context import Context
from mpishare.comm.in_flight import MAX_IN_FLIGHT, InFlight
from mpishare.comm.tags import Tag
from mpishare.comm.topology import Topology
from mpishare.errors import PeerError
from mpishare.transfer import plan
from mpishare.transfer.link import link_of
from mpishare.transfer.plan import Link, Step

_PART_BYTES = 256 << 10
"""Bytes that the root copies before it lets MPI go on: they fit in a cache."""

_MOST_ROUTES, _LARGEST_KEPT_BYTES = 16, 64 << 20
"""Routes of a communicator that are kept, and the bytes of the largest: in chunks of 60 KiB its route takes 330 KB."""


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


class _Route(NamedTuple):
    """What a rank passes on in one transfer.

    Attributes:
        steps: Its chunks; none where it passes nothing on.
        dests: The rank to which each message is sent.
        most_in_flight: Messages that may be on their way to other nodes.
    """

    steps: Sequence[Step]
    dests: Sequence[int]
    most_in_flight: int


def _route(topology: Topology, configured: int | None, nbytes: int, root: int, link: Link) -> _Route:
    path = plan.chain(topology.placement, root)
    if topology.rank not in path or len(path) == 1:
        return _Route((), (), 0)
    choice = plan.choose(nbytes, len(path), link, configured)
    steps = plan.steps(nbytes, path, path.index(topology.rank), choice)
    most = max((len(step.sends) for step in steps), default=0)
    return _Route(steps, [dest for step in steps for dest, _ in step.sends], MAX_IN_FLIGHT * most)


def _routes(context: Context) -> Callable[..., _Route]:
    """`_route` on one communicator, by bytes, root and link, kept.

    Gain, with 0.4 us for a route that is kept: 5 us for 2 pretend nodes; for 3 of them 70 us, for 16 MiB 260 us.
    """
    return lru_cache(_MOST_ROUTES)(partial(_route, context.topology, context.config.chunk_bytes))


def broadcast_chunks(
    context: Context,
    root: int,
    block: Block,
    chunk_of: Callable[[slice], Block] | None = None,
    after_send: Callable[[slice], None] | None = None,
) -> None:
    """Sends bytes from `root` to one rank of each other node, straight into its `block`: the node's leader.

    Each node receives each byte once, in the way that `plan.choose` says.

    Args:
        context: The context of the communicator.
        root: The rank that has the bytes.
        block: The bytes on this node, of the same length on all nodes.
        chunk_of: On `root`, called for each chunk before it leaves, in order: the bytes to send. When None, they are in
            `block`.
        after_send: On `root`, called for the parts of each chunk, in order, as soon as the chunk begins to leave.

    Raises:
        PeerError: An exception from outside ended the call on a rank from which the bytes would have come. Not all
            ranks have it.

    Collective:
        Over `root` and the leaders of the other nodes. On other ranks it returns at once.
    """
    if block.nbytes <= _LARGEST_KEPT_BYTES:
        route = context.cached(_routes)(block.nbytes, root, link_of(context))
    else:
        route = _route(context.topology, context.config.chunk_bytes, block.nbytes, root, link_of(context))
    steps, dests, most_in_flight = route
    if not steps:
        return
    comm = context.collective_comm
    buffers = [(step.parent, block[step.chunk]) for step in steps if step.parent is not None]
    with (
        InFlight(comm, Tag.CHUNK, buffers=buffers) as receiving,
        InFlight(comm, Tag.CHUNK, dests) as sending,
    ):
        messages = (
            receiving.receive_all() if buffers else map(chunk_of or block.__getitem__, (step.chunk for step in steps))
        )
        for step, message in zip(steps, messages, strict=True):
            if message.nbytes < step.chunk.stop - step.chunk.start:
                parent = root if step.parent is None else step.parent
                reason = "an exception ended the call there, or on a rank before it, before all was sent"
                raise PeerError(parent, context.topology.hosts[context.topology.node_of(parent)], reason)
            for child, chunk in step.sends:
                sending.send(message if chunk == step.chunk else block[chunk], child)
            if after_send is not None:
                for part in slices.chunks(message.nbytes, _PART_BYTES):
                    after_send(slice(step.chunk.start + part.start, step.chunk.start + part.stop))
                    sending.advance()
            sending.wait_until(most_in_flight)
