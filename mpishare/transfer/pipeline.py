"""How the bytes of one array get to every node: a header to all ranks, then each byte once to each node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays import slices
from mpishare.arrays.header import extension_bytes
from mpishare.arrays.raw import Block, bytes_of, copy_bytes
from mpishare.arrays.spec import Spec
from mpishare.comm import mpi
from mpishare.comm.collective_comm import CollectiveComm
from mpishare.comm.context import Context
from mpishare.comm.pending import InFlight
from mpishare.comm.tags import Tag
from mpishare.transfer import cma, plan

WINDOW = 4
"""Chunks on their way at a time, in each direction. Measured: 4 keep a link of 400 Mbit/s full over 8 nodes."""

_STAGED_BYTES = 16 << 10
"""Up to here NumPy's fewest steps cost more than a second copy of the bytes."""


def announce(context: Context, header: bytes, extension: bytes, root: int) -> Spec:
    """The spec that `root` packed, on every rank.

    Args:
        context: That of the communicator.
        header: It came to every rank with the agreement to share.
        extension: What `root` packed besides; ignored on the others.
        root: The rank that packed.

    Raises:
        SpecError: What came is no header of ours. It is the same on all ranks, as the root reads its own too.

    Collective:
        Over the communicator.
    """
    length = extension_bytes(header)
    if not length:
        return Spec.unpack(header)
    buffer = bytearray(extension if context.topology.rank == root else length)
    context.collective_comm.bcast(buffer, root)
    return Spec.unpack(header, bytes(buffer))


def fill(place: memoryview, spec: Spec, source: NDArray[Any]) -> None:
    """Copies `source` to `place`, which has as many bytes."""
    if not source.flags.forc:
        copy_bytes(spec.view(np.frombuffer(place, np.uint8)), source)
    elif spec.nbytes <= _STAGED_BYTES:
        place[:] = source.tobytes("A")
    else:
        place[:] = bytes_of(source).data


class Source(Protocol):
    """Bytes on the root that are to be in each node.

    Attributes:
        run: The bytes, where they lie in one run.
    """

    @property
    def run(self) -> Block | None:
        """See above."""

    def write(self, place: memoryview) -> None:
        """Copies them to `place`, which has as many."""


@dataclass(frozen=True)
class ArraySource:
    """Those of an array. It satisfies `Source`."""

    spec: Spec
    array: NDArray[Any]

    @property
    def run(self) -> Block | None:
        """They are in one run if the array is contiguous."""
        return bytes_of(self.array) if self.array.flags.forc else None

    def write(self, place: memoryview) -> None:
        """Copies them in the order of `spec`."""
        fill(place, self.spec, self.array)


def replicate(context: Context, root: int, block: Block, is_shared: bool, source: Source | None) -> None:
    """Brings the bytes of `source`, on `root`, to every node.

    Args:
        context: That of the communicator.
        root: The rank that has `source`.
        block: Where they go on this node.
        is_shared: Whether the ranks of this node see one `block`, or each has its own.
        source: None on the other ranks.

    Collective:
        Over the communicator, but a rank may return before others have come.
    """
    if context.topology.n_nodes == 1 and source is None and is_shared and block.nbytes < plan.SMALLEST_PULL_BYTES:
        return  # the root does all
    if context.topology.node_of(root) != context.topology.node:
        relay(context, root, block)
    else:
        _feed(context, root, block, is_shared, source)
    if not is_shared:
        copy_to_node(context, root, block)


def _feed(context: Context, root: int, block: Block, is_shared: bool, source: Source | None) -> None:
    """On `root`'s node: fills the block and feeds the other nodes, both at once as far as can be."""
    run = None if source is None else source.run
    offered = None
    if is_shared and context.topology.node_size > 1 and block.nbytes >= plan.SMALLEST_PULL_BYTES:
        offered = cma.offer(context, run)
    if offered is not None:
        relay(context, root, block, source=run)
        if cma.take(context, root, offered, block, run, root_helps=context.topology.n_nodes == 1):
            return
        if run is not None:
            block[:] = run
    elif run is not None and context.topology.n_nodes > 1:
        relay(context, root, block, source=run, keep=True)
    elif source is not None:
        source.write(block.data)
        relay(context, root, block)


def copy_to_node(context: Context, root: int, block: Block) -> None:
    """Copies `block` of `root`, or of the leader on a node other than `root`'s, to the blocks of the node's ranks.

    Collective:
        Over the ranks of this node.
    """
    ranks = context.topology.ranks_of(context.topology.node)
    node_rank = ranks.index(root) if root in ranks else 0
    for part in slices.chunks(block.nbytes, plan.LARGEST_MESSAGE_BYTES):
        context.node_collective_comm.bcast(block[part], node_rank)


def relay(
    context: Context,
    root: int,
    block: Block,
    *,
    source: Block | None = None,
    keep: bool = False,
    until: Callable[[int], bool] | None = None,
) -> None:
    """Brings bytes from `root` to one rank of each other node, straight into its `block`. Other ranks return at once.

    Every node receives every byte once. Many bytes run along a pipelined chain of chunks, so that the time is that of
    one send over the link plus a chunk for each further node; few go down a tree.

    Args:
        context: That of the communicator.
        root: Where the bytes are.
        block: The bytes on this node, of one length everywhere.
        source: On `root`, the bytes to send if these are not in `block`.
        keep: Whether `root` is to copy them to `block` too, which it does while they are on their way.
        until: On `root`, called with the end of each chunk before it leaves; returns when its bytes are there, and
            whether they are worth sending. Where they are not, nothing is sent in their place.

    Source:
        J. L. Träff and A. Ripke, "Optimal broadcast for fully connected processor-node networks", J. Parallel Distrib.
        Comput. 68 (2008): a linear pipeline is optimal in bandwidth.
    """
    path = plan.chain(context.topology.placement, root)
    if context.topology.rank not in path or len(path) == 1:
        return
    sent = block if source is None else source
    links = plan.links(block.nbytes, len(path), path.index(context.topology.rank), context.config.chunk_bytes)
    parts = list(slices.chunks(block.nbytes, links.chunk_bytes))
    pieces: Iterable[Block] = (sent[part] for part in parts) if until is None else _once_there(sent, parts, until)
    if links.parent is not None:
        pieces = received(context.collective_comm, [(path[links.parent], block[part]) for part in parts], Tag.CHUNK)
    with InFlight(context.collective_comm, Tag.CHUNK) as sending:
        for part, piece in zip(parts, pieces, strict=True):
            for child in links.children:
                sending.send(piece, path[child])
            if keep:
                block[part] = piece
            sending.wait_until(WINDOW * len(links.children))


def _once_there(block: Block, parts: list[slice], until: Callable[[int], bool]) -> Iterator[Block]:
    for part in parts:
        yield block[part] if until(part.stop) else block[:0]


def received(comm: CollectiveComm, pieces: Sequence[tuple[int, Block]], tag: int) -> Iterator[Block]:
    """Each piece once its bytes have come from the rank named with it, with the next ones already asked for.

    A piece of which less was sent is so much shorter.
    """
    status = mpi.Status()
    asked = 0
    with InFlight(comm, tag) as receiving:
        for _, piece in pieces:
            while asked < len(pieces) and len(receiving) < WINDOW:
                source, place = pieces[asked]
                receiving.receive(place, source)
                asked += 1
            receiving.wait_oldest(status)
            yield piece[: status.count]
