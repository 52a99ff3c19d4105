"""How the block of each node is filled with the bytes of an array that one rank has."""

from __future__ import annotations

import functools
import os
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays import slices
from mpishare.arrays.raw import Block, bytes_of, copy_by_threads, copy_bytes
from mpishare.arrays.spec import Spec
from mpishare.comm.context import Context
from mpishare.transfer import cma
from mpishare.transfer.between_nodes import LARGEST_MESSAGE_BYTES, broadcast, is_chain

_SMALL_BYTES = 16 << 10
"""Up to this size a second copy takes less time than a view of the bytes: a twentieth of `share` for 1 KiB."""


class ByteSource(Protocol):
    """Bytes on the root that each node is to have.

    Attributes:
        contiguous: The bytes, if they are contiguous in memory; else None.
    """

    @property
    def contiguous(self) -> Block | None:
        """See above."""

    def write(self, memory: memoryview) -> None:
        """Copies the bytes to `memory`, which has their length."""


class ArraySource(NamedTuple):
    """The bytes of an array, in the order of `header`. It satisfies `ByteSource`."""

    header: Spec
    array: NDArray[Any]

    @property
    def contiguous(self) -> Block | None:
        """The bytes of a C or Fortran contiguous array."""
        return bytes_of(self.array) if self.array.flags.forc else None

    def write(self, memory: memoryview) -> None:
        """See `fill`."""
        fill(memory, self.header, self.array)


def fill(memory: memoryview, spec: Spec, array: NDArray[Any]) -> None:
    """Copies the bytes of `array` to `memory`, of `spec.nbytes` bytes, in the order of `spec`."""
    if not array.flags.forc:
        copy_bytes(spec.view(np.frombuffer(memory, np.uint8)), array)
    elif spec.nbytes <= _SMALL_BYTES:
        memory[:] = array.tobytes("A")
    else:
        memory[:] = bytes_of(array).data


def replicate(context: Context, root: int, block: Block, is_shared: bool, source: ByteSource | None) -> None:
    """Fills the block of every node with the bytes of `source`.

    Local work fails only where `source` cannot write its bytes. The messages follow all the same, as the other ranks
    wait for them, and an agreement of all ranks after this call refuses the bytes.

    Args:
        context: The context of the communicator.
        root: The rank that has `source`.
        block: The memory to fill on this node.
        is_shared: Whether `block` is the same memory on all ranks of this node; else each rank has its own.
        source: The bytes, on `root`; None on the other ranks.

    Collective:
        Over the communicator, but a rank may return before others have come.
    """
    is_on_root_node = context.topology.node_of(root) == context.topology.node
    try:
        if is_on_root_node:
            is_filled = is_shared and _read_by_cma(context, root, block, source)
            if not is_filled:
                _copy_by_root(context, root, block, source)
        elif _sends_meanwhile(context, block):
            broadcast(context, root, block)
    finally:
        if context.topology.n_nodes > 1 and not _sends_meanwhile(context, block):
            if is_on_root_node and is_shared:
                context.node_collective_comm.barrier()
            elif is_on_root_node:
                broadcast_in_node(context, root, block)  # to the leader, which sends it to the others
            broadcast(context, root, block)
        if not is_shared:
            broadcast_in_node(context, root, block)


def _sends_meanwhile(context: Context, block: Block) -> bool:
    """Whether the root sends chunks to the other nodes while its own node is filled."""
    return context.topology.n_nodes > 1 and is_chain(context, block.nbytes)


def _read_by_cma(context: Context, root: int, block: Block, source: ByteSource | None) -> bool:
    """Fills the root's node: its ranks read disjoint parts from the memory of `root`, which sends to other nodes.

    Returns:
        Whether this was the way. It takes contiguous bytes, enough of them, and the kernel's permission.
    """
    if context.topology.node_size == 1 or block.nbytes < cma.MIN_BYTES:
        return False
    contiguous = None if source is None else source.contiguous
    published = cma.publish(context, contiguous)
    if published is None:
        return False
    if contiguous is not None and _sends_meanwhile(context, block):
        broadcast(context, root, block, contiguous.__getitem__)
    if not cma.read(context, root, published, block, contiguous):
        _copy_while_others_wait(context, block, source)
    return True


def _copy_by_root(context: Context, root: int, block: Block, source: ByteSource | None) -> None:
    """Fills the root's node by `root` alone, while it sends contiguous bytes, or before it sends others."""
    if not _sends_meanwhile(context, block):
        _copy_while_others_wait(context, block, source)
    elif source is not None and (contiguous := source.contiguous) is not None:
        broadcast(context, root, block, contiguous.__getitem__, functools.partial(_copy, block, contiguous))
    elif source is not None:
        try:
            source.write(block.data)
        finally:
            broadcast(context, root, block)


def _copy(target: Block, source: Block, part: slice) -> None:
    """Copies one part."""
    target[part] = source[part]


def _copy_while_others_wait(context: Context, block: Block, source: ByteSource | None) -> None:
    """Copies on the root's node, many bytes by threads on the cores of the other ranks, which sleep until then.

    A rank that is bound to a core has no other. Gain for 256 MiB, 4 ranks on 4 cores, user namespaces: fresh 33 to 21
    ms, memory used again 20 to 10 ms; of the sleep, on MPICH, whose waiting ranks keep their cores: fresh 37 to 28 ms,
    used again 26 to 13 ms.
    """
    if block.nbytes < cma.MIN_BYTES:
        if source is not None:
            source.write(block.data)
        return
    try:
        contiguous = source.contiguous if source is not None else None
        if contiguous is not None:
            cores = len(os.sched_getaffinity(0))
            copy_by_threads(block, contiguous, min(cores, context.topology.node_size, cma.MAX_READERS))
        elif source is not None:
            source.write(block.data)
    finally:
        context.node_collective_comm.barrier_asleep()


def broadcast_in_node(context: Context, root: int, block: Block) -> None:
    """Copies the block of one rank to the blocks of the other ranks of this node, where each rank has its own.

    Args:
        context: The context of the communicator.
        root: The rank whose block is copied on its own node. On other nodes it is the leader's.
        block: The bytes.

    Collective:
        Over the ranks of this node.
    """
    ranks = context.topology.ranks_of(context.topology.node)
    node_rank = ranks.index(root) if root in ranks else 0
    for chunk in slices.chunks(block.nbytes, LARGEST_MESSAGE_BYTES):
        context.node_collective_comm.bcast(block[chunk], node_rank)
