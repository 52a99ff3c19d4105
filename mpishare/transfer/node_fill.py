"""How the block of each node is filled with the bytes of an array that one rank has."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays import slices
from mpishare.arrays.raw import Block, bytes_of, copy_by_threads, copy_bytes
from mpishare.arrays.spec import Spec
from mpishare.comm.agreement import Deferred
from mpishare.comm.context import Context
from mpishare.host.memory import own_cores
from mpishare.transfer.between_nodes import LARGEST_MESSAGE_BYTES, broadcast, is_chain

_SMALL_BYTES = 16 << 10
"""At most this size: a second copy takes less time than a view of the bytes, a twentieth of `share` for 1 KiB."""

THREADED_BYTES = 32 << 20
"""A copy of at least this size is worth threads, and the sleep of the other ranks of the node."""

_MAX_THREADS = 8
"""More threads would wait for the memory."""


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


class ArraySource:
    """The bytes of an array, in the order of `header`. It satisfies `ByteSource`."""

    __slots__ = ("array", "header")

    def __init__(self, header: Spec, array: NDArray[Any]) -> None:
        self.header = header
        self.array = array

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
    topology, deferred = context.topology, Deferred()
    if block.nbytes >= THREADED_BYTES and topology.node_of(root) == topology.node:
        context.cached(_cores)
    sends_chunks = topology.n_nodes > 1 and is_chain(context, block.nbytes)
    contiguous = None if source is None else source.contiguous
    with deferred:
        if source is not None and not (sends_chunks and contiguous is not None):
            _write(context, block, source)
    if sends_chunks:
        if contiguous is None:
            broadcast(context, root, block)
        else:

            def copy(chunk: slice) -> None:  # while MPI sends those before
                block[chunk] = contiguous[chunk]

            broadcast(context, root, block, copy)
    else:
        _send_when_written(context, root, block, is_shared)
    if not is_shared:
        broadcast_in_node(context, root, block)
    deferred.raise_first()


def _write(context: Context, block: Block, source: ByteSource) -> None:
    """Copies on the root: many bytes by threads, on the cores of the ranks of its node, which sleep until then.

    Gain for 256 MiB in memory used again, 4 ranks on 2 cores: 20 to 14 ms.
    """
    contiguous = source.contiguous if block.nbytes >= THREADED_BYTES else None
    if contiguous is None:
        source.write(block.data)
    else:
        cores = context.cached(_cores)
        copy_by_threads(block, contiguous, min(len(cores), context.topology.node_size, _MAX_THREADS), cores)


def _cores(context: Context) -> frozenset[int]:
    """The cores that the ranks of this node may run on, all together. Collective over the ranks of this node."""
    return frozenset().union(*context.node_collective_comm.allgather_obj(own_cores()))


def _send_when_written(context: Context, root: int, block: Block, is_shared: bool) -> None:
    """Waits until the root has filled its block, and brings it to the other nodes."""
    topology = context.topology
    is_on_root_node = topology.node_of(root) == topology.node
    if is_on_root_node and block.nbytes >= THREADED_BYTES:
        context.node_collective_comm.barrier_asleep()
    if topology.n_nodes == 1:
        return
    if is_on_root_node and is_shared:
        context.node_collective_comm.barrier()
    elif is_on_root_node:
        broadcast_in_node(context, root, block)  # to the leader, which sends it to the others
    broadcast(context, root, block)


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
