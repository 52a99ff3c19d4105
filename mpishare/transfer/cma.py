"""Cross-memory attach (CMA): the ranks of a node read disjoint parts of an array from the root's own memory."""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.raw import Block, address_of
from mpishare.comm.agreement import PAYLOAD_BYTES, agree, any_rank
from mpishare.comm.context import Context
from mpishare.memory import syscalls
from mpishare.memory.hugepages import fill_slice

_PAYLOAD = struct.Struct(f"<qQQ16s{PAYLOAD_BYTES - 40}x")
"""A `Published` in the payload of an agreement, but for its last field."""

_TOKEN_BYTES = 16

MIN_BYTES = 4 << 20
"""For fewer bytes the root fills its node alone: that takes no longer than to tell the other ranks."""

MAX_READERS = 8
"""Ranks that read the root's memory at the same time. More would wait for the kernel's lock on it (S. Chakraborty, H.
Subramoni, D. K. Panda, "Contention-aware kernel-assisted MPI collectives", IEEE Cluster 2017)."""


class Published(NamedTuple):
    """Where the root's bytes are, and how another process makes sure that it reads the right process.

    Process numbers differ between PID namespaces, so `pid` may be that of a stranger. Only the root has `token` at
    `token_address`.
    """

    pid: int
    address: int
    token_address: int
    token: bytes
    token_memory: NDArray[np.uint8]
    """On the root, the memory at `token_address`."""


class _Permission:
    """Whether a rank of this node was refused to read another's memory. Kept for each communicator."""

    def __init__(self, context: Context) -> None:
        self.is_refused = False


def publish(context: Context, source: Block | None) -> Published | None:
    """Tells the ranks of the root's node where its bytes are.

    Args:
        context: The context of the communicator.
        source: On the root, its bytes, or None if they are not contiguous. None on the other ranks.

    Returns:
        The argument for `read`; None on all ranks where the root must copy its bytes itself.

    Collective:
        Over the ranks of this node.
    """
    if context.cached(_Permission).is_refused:
        return None
    with agree(context.node_collective_comm) as agreement:
        token = np.frombuffer(os.urandom(_TOKEN_BYTES), np.uint8)
        if source is not None:
            agreement.payload = _PAYLOAD.pack(os.getpid(), address_of(source), address_of(token), token.tobytes())
    pid, address, token_address, published_token = _PAYLOAD.unpack(agreement.payload)
    return Published(pid, address, token_address, published_token, token) if pid else None


def read(context: Context, root: int, published: Published, block: Block, source: Block | None) -> bool:
    """Fills `block`, which the ranks of this node share, with the bytes that `root` published.

    If there are other nodes, `root` copies no part: it sends to them.

    Args:
        context: The context of the communicator.
        root: A rank of this node.
        published: What `publish` returned.
        block: The memory to fill.
        source: The bytes, on `root`.

    Returns:
        Whether `block` is filled, the same on all ranks. Containers and some kernels forbid CMA; then `root` must copy,
        and `publish` returns None from then on.

    Collective:
        Over the ranks of this node.

    Source:
        process_vm_readv(2); ptrace(2), "Ptrace access mode checking", for the permission.
    """
    ranks = context.topology.ranks_of(context.topology.node)
    readers = [rank for rank in ranks if rank != root or context.topology.n_nodes == 1][:MAX_READERS]
    has_failed = False
    with agree(context.node_collective_comm) as agreement:
        if context.topology.rank in readers:
            part = fill_slice(block.nbytes, len(readers), readers.index(context.topology.rank))
            if source is not None:
                block[part] = source[part]
            else:
                has_failed = not _read_part(published, part.start, block[part])
        agreement.payload = bytes([has_failed]).ljust(PAYLOAD_BYTES, b"\0")
    permission = context.cached(_Permission)
    permission.is_refused = bool(agreement.payload[0])
    return not permission.is_refused


def works(context: Context) -> bool:
    """Whether each rank of this node may read the memory of each other one. Collective over the ranks of this node."""
    comm, token = context.node_collective_comm, np.frombuffer(os.urandom(_TOKEN_BYTES), np.uint8)
    tokens = comm.allgather_obj((os.getpid(), address_of(token), token.tobytes()))
    others = [fact for rank, fact in enumerate(tokens) if rank != context.topology.node_rank]
    has_failed = not all(_has_token(*fact) for fact in others)
    return not any_rank(comm, np.array([has_failed]))[0]


def _has_token(pid: int, address: int, token: bytes) -> bool:
    """Whether this process may read the process that has `token` at `address`: not if `pid` is another's here."""
    received = np.zeros(_TOKEN_BYTES, np.uint8)
    try:
        syscalls.read_process(pid, address, address_of(received), _TOKEN_BYTES)
    except OSError:
        return False
    return received.tobytes() == token


def _read_part(published: Published, start: int, target: Block) -> bool:
    """Copies published bytes from `start` on into `target`. False if the kernel refuses, or the process is another."""
    if not _has_token(published.pid, published.token_address, published.token):
        return False
    try:
        syscalls.read_process(published.pid, published.address + start, address_of(target), target.nbytes)
    except OSError:
        return False
    return True
