"""The ranks of a node copy disjoint parts of an array out of the root's own memory, all at once."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays import slices
from mpishare.arrays.raw import Block, address_of
from mpishare.comm.agreement import NOTE_BYTES, agree, any_rank
from mpishare.comm.context import Context
from mpishare.memory import syscalls
from mpishare.transfer import plan

_TOLD = struct.Struct(f"<qQQ16s{NOTE_BYTES - 40}x")
"""Process, address of the bytes, address of a token, and the token: who reads it there reads the right process."""

_TOKEN_BYTES = 16


class _Permission:
    """Whether the ranks of a node may read each other's memory, kept for each communicator.

    Attributes:
        is_refused: Whether some rank may not, as far as it was tried.
    """

    def __init__(self, _: Context) -> None:
        self.is_refused = False


@dataclass(frozen=True)
class Offer:
    """What the root tells its node: which process it is, where the bytes are, and how to know that process."""

    pid: int
    address: int
    token_address: int
    token: bytes
    kept: NDArray[np.uint8]
    """On the root, the token itself, which must stay where it is."""


def offer(context: Context, source: Block | None) -> Offer | None:
    """Tells the ranks of the root's node where its bytes are.

    Args:
        context: That of the communicator.
        source: On the root, the bytes, in one run; None on the others, and where there is no such run.

    Returns:
        What `take` wants; None on all ranks where the root must copy by itself.

    Collective:
        Over the ranks of this node.
    """
    if context.keep(_Permission).is_refused:
        return None
    token = np.empty(0, np.uint8)
    with agree(context.node_collective_comm) as agreement:
        if source is not None:
            token = np.frombuffer(os.urandom(_TOKEN_BYTES), np.uint8).copy()
            agreement.note = _TOLD.pack(os.getpid(), address_of(source), address_of(token), token.tobytes())
    pid, address, token_address, expected = _TOLD.unpack(agreement.note)
    return Offer(pid, address, token_address, expected, token) if pid else None


def take(context: Context, root: int, found: Offer, block: Block, source: Block | None, *, root_helps: bool) -> bool:
    """Fills `block`, which the ranks of this node share, with the bytes that `root` offered.

    Args:
        context: That of the communicator.
        root: A rank of this node.
        found: What `offer` returned.
        block: The bytes to fill.
        source: On `root`, those to fill it with.
        root_helps: Whether `root` copies a part too, or had other work.

    Returns:
        Whether it was done, the same on all ranks. Containers and some kernels forbid it; then `root` must copy.

    Collective:
        Over the ranks of this node.

    Source:
        process_vm_readv(2); ptrace(2), "Ptrace access mode checking", for who may.
    """
    ranks = context.topology.ranks_of(context.topology.node)
    helpers = [rank for rank in ranks if root_helps or rank != root][: plan.LARGEST_PULL_RANKS]
    failed = False
    if context.topology.rank in helpers:
        part = slices.fill_slice(block.nbytes, len(helpers), helpers.index(context.topology.rank))
        if source is not None:
            block[part] = source[part]
        else:
            failed = not _read(found, part.start, block[part])
    if any_rank(context.node_collective_comm, np.array([failed])):
        context.keep(_Permission).is_refused = True
        return False
    return True


def _read(found: Offer, start: int, target: Block) -> bool:
    """Copies the bytes from `start` on out of the process that offered, if it is the one; whether it was done."""
    token = np.zeros(_TOKEN_BYTES, np.uint8)
    try:
        syscalls.read_process(found.pid, found.token_address, address_of(token), _TOKEN_BYTES)
        if token.tobytes() != found.token:
            return False  # a process of that number in another namespace
        syscalls.read_process(found.pid, found.address + start, address_of(target), target.nbytes)
    except OSError:
        return False
    return True
