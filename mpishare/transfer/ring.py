"""How the bytes of each node reach all nodes: rings of chunks, or for few bytes one call of MPI or one swap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays import slices
from mpishare.arrays.raw import Block
from mpishare.comm.communicator import CollectiveComm
from mpishare.comm.context import Context
from mpishare.comm.in_flight import MAX_IN_FLIGHT, InFlight
from mpishare.comm.tags import Tag
from mpishare.transfer.ring_plan import Ring, run_bytes

Combine: TypeAlias = Callable[[Block, Block], None]
"""Reduces the bytes from the places before, its first argument, and this place's own into the second argument."""


def staging(nbytes: int) -> list[Block]:
    """Memory for received chunks, of up to `nbytes` each, until they are combined."""
    return [np.empty(nbytes, np.uint8) for _ in range(MAX_IN_FLIGHT)]


def circulate(
    context: Context,
    path: Sequence[int],
    block: Block,
    ring: Ring,
    combine: Combine | None = None,
    stages: Sequence[Block] = (),
) -> None:
    """Receives and sends all chunks of `ring`, up to `MAX_IN_FLIGHT` of them at a time in each direction.

    Step number n sends up to `MAX_IN_FLIGHT` chunks further than the n chunks that have come, and waits for the next.
    So each wait is for a message that the other rank begins in an earlier step, and no circle of ranks waits.

    Args:
        context: The context of the communicator.
        path: The ranks of the ring by place, this one among them: one of each node.
        block: The bytes on this node.
        ring: The chunks that this rank sends and receives.
        combine: Called for each chunk that is to be reduced.
        stages: Memory for these chunks; see `staging`.
    """
    place = path.index(context.topology.rank)
    previous, following = path[place - 1], path[(place + 1) % len(path)]
    buffers = [block[chunk] for chunk in ring.coming]
    for number in range(ring.reduced):
        buffers[number] = stages[number % MAX_IN_FLIGHT][: buffers[number].nbytes]
    posted = begun = 0
    with InFlight(context.collective_comm, Tag.RING) as receives, InFlight(context.collective_comm, Tag.RING) as sends:
        for number in range(max(len(ring.coming), len(ring.sent)) + 1):
            while begun < min(number + MAX_IN_FLIGHT, number + len(ring.ready), len(ring.sent)):
                sends.wait_until(MAX_IN_FLIGHT - 1)
                sends.send(block[ring.sent[begun]], following)
                begun += 1
            while posted < min(number + MAX_IN_FLIGHT, len(ring.coming)) and ring.sends_before(posted) <= begun:
                sends.wait_until(begun - ring.sends_before(posted))
                receives.receive(buffers[posted], previous)
                posted += 1
            if number < len(ring.coming):
                receives.wait_oldest()
            if combine is not None and number < ring.reduced:
                combine(buffers[number], block[ring.coming[number]])


def swap(context: Context, other: int, sent: NDArray[Any], received: NDArray[Any], chunk_bytes: int) -> None:
    """Sends `sent`, contiguous, to the rank `other`, which sends as many bytes into `received`.

    One message goes by one call of MPI; of more, all are in flight at once.
    """
    if max(sent.nbytes, received.nbytes) <= chunk_bytes and not context.is_watched:
        context.collective_comm.sendrecv(sent, received, other, Tag.RING)
        return
    with InFlight(context.collective_comm, Tag.RING) as messages:
        for chunk in slices.chunks(received.nbytes, chunk_bytes):
            messages.receive(received.view(np.uint8)[chunk], other)
        for chunk in slices.chunks(sent.nbytes, chunk_bytes):
            messages.send(sent.view(np.uint8)[chunk], other)


def gather_runs(leader_comm: CollectiveComm, block: Block, runs: Sequence[Sequence[slice]]) -> None:
    """Brings the bytes that each leader has in its runs of `block` to the same runs of the others, by one call of MPI.

    Args:
        leader_comm: The communicator of the leaders.
        block: The bytes on this node.
        runs: For each leader its slices of `block`, which together are the whole.
    """
    if max(map(len, runs)) <= 1:
        leader_comm.allgather_parts(block, [each[0] if each else slice(0, 0) for each in runs])
        return
    ends = list(accumulate(map(run_bytes, runs)))
    parts = [slice(end - run_bytes(each), end) for end, each in zip(ends, runs, strict=True)]
    packed = np.concatenate([block[run] for each in runs for run in each])
    leader_comm.allgather_parts(packed, parts)
    position = 0
    for run in chain(*runs):
        block[run] = packed[position : position + run.stop - run.start]
        position += run.stop - run.start
