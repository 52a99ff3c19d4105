"""How the bytes of each node reach all nodes: rings of chunks, or few messages for few bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TypeAlias

import numpy as np

from mpishare.arrays.raw import Block
from mpishare.comm.context import Context
from mpishare.comm.pending import InFlight
from mpishare.comm.tags import Tag
from mpishare.transfer.pipeline import MAX_IN_FLIGHT
from mpishare.transfer.ring_plan import Ring, bruck_steps, run_bytes

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


def exchange(context: Context, path: Sequence[int], block: Block, sizes: Sequence[int]) -> list[Block]:
    """The bytes of each rank of `path`, in as few messages in sequence as possible. All bytes are copied.

    Args:
        context: The context of the communicator.
        path: The ranks, this one among them: one of each node.
        block: The bytes of this rank.
        sizes: The number of bytes of each rank of `path`.

    Returns:
        For each rank of `path` its bytes.
    """
    count, place = len(path), path.index(context.topology.rank)
    ends = [0, *accumulate(sizes[(place - step) % count] for step in range(count))]
    blocks = np.empty(ends[-1], np.uint8)
    blocks[: ends[1]] = block
    for distance, places in bruck_steps(count):
        with InFlight(context.collective_comm, Tag.RING) as messages:
            messages.receive(blocks[ends[distance] : ends[distance + places]], path[(place - distance) % count])
            messages.send(blocks[: ends[places]], path[(place + distance) % count])
    steps = [(place - other) % count for other in range(count)]
    return [blocks[ends[step] : ends[step + 1]] for step in steps]


def exchange_runs(context: Context, path: Sequence[int], block: Block, runs: Sequence[Sequence[slice]]) -> None:
    """Like `exchange`, of the bytes that each rank has in its runs of `block`, to the same runs of the other ranks.

    Args:
        context: The context of the communicator.
        path: The ranks, this one among them: one of each node.
        block: The bytes on this node.
        runs: For each rank of `path` its slices of `block`.
    """
    own = np.concatenate([block[:0], *(block[run] for run in runs[path.index(context.topology.rank)])])
    for rank_runs, packed in zip(runs, exchange(context, path, own, list(map(run_bytes, runs))), strict=True):
        rest = packed
        for run in rank_runs:
            block[run], rest = rest[: run.stop - run.start], rest[run.stop - run.start :]
