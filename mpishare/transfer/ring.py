"""How what each node has comes to all nodes: rings of messages among one rank a node, and fewer for few bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TypeAlias

import numpy as np

from mpishare.arrays.raw import Block
from mpishare.comm.collective_comm import CollectiveComm
from mpishare.comm.context import Context
from mpishare.comm.pending import InFlight
from mpishare.comm.tags import Tag
from mpishare.transfer import ring_plan
from mpishare.transfer.pipeline import WINDOW, receive_in_order
from mpishare.transfer.ring_plan import Ring

Combine: TypeAlias = Callable[[Block, Block], None]
"""Puts what comes from places before, its first argument, together with what is here, and leaves it there."""


def staging(nbytes: int) -> list[Block]:
    """Memory for pieces of up to so many bytes that are to be put together with others."""
    return [np.empty(nbytes, np.uint8) for _ in range(WINDOW)]


def circulate(
    context: Context,
    path: Sequence[int],
    block: Block,
    ring: Ring,
    combine: Combine | None = None,
    stages: Sequence[Block] = (),
) -> None:
    """Sends and receives all pieces of `ring`, which this rank has in the ring of the ranks in `path`.

    Args:
        context: That of the communicator.
        path: One rank of each node, this one among them.
        block: The bytes on this node.
        ring: What this rank sends and receives of them.
        combine: What to do with the pieces that are to be reduced.
        stages: Memory for these; see `staging`.
    """
    _Turning(context.collective_comm, path, path.index(context.topology.rank), block, ring, combine, stages).run()


class _Turning:
    """A ring at work on one rank: as many pieces as the window allows on their way in, and as many on their way out."""

    def __init__(
        self,
        comm: CollectiveComm,
        path: Sequence[int],
        place: int,
        block: Block,
        ring: Ring,
        combine: Combine | None,
        stages: Sequence[Block],
    ) -> None:
        self._comm = comm
        self._before, self._next = path[place - 1], path[(place + 1) % len(path)]
        self._block = block
        self._coming, self._sent, self._ready = ring.coming, ring.sent, len(ring.ready)
        self._reduced = ring.reduced
        self._combine = combine
        self._stages = stages
        self._asked = self._came = self._left = self._gone = 0
        self._receiving = InFlight(comm, Tag.RING)
        self._sending = InFlight(comm, Tag.RING)

    def run(self) -> None:
        """Returns when all that is coming has come and all that is sent has gone."""
        with self._receiving, self._sending:
            while self._came < len(self._coming) or self._gone < len(self._sent):
                while self._may_ask():
                    self._ask()
                while self._may_send():
                    self._send()
                self._wait()

    def _may_ask(self) -> bool:
        if self._asked == len(self._coming) or len(self._receiving) == WINDOW:
            return False
        is_overwritten = self._asked >= self._reduced > 0  # by what comes back of it
        return not is_overwritten or self._gone > self._asked - self._reduced

    def _ask(self) -> None:
        place = self._place(self._asked)
        self._receiving.receive(place, self._before)
        self._asked += 1

    def _place(self, number: int) -> Block:
        """Where a piece is received."""
        piece = self._coming[number]
        if number >= self._reduced:
            return self._block[piece]
        return self._stages[number % len(self._stages)][: piece.stop - piece.start]

    def _may_send(self) -> bool:
        is_there = self._left < min(self._ready + self._came, len(self._sent))
        return is_there and len(self._sending) < WINDOW

    def _send(self) -> None:
        piece = self._block[self._sent[self._left]]
        self._sending.send(piece, self._next)
        self._left += 1

    def _wait(self) -> None:
        """Waits for the next piece to come or to go."""
        queues = [queue for queue in (self._receiving, self._sending) if queue]
        queue = queues[self._comm.wait_any([queue.oldest for queue in queues])]
        queue.drop_oldest()
        if queue is self._sending:
            self._gone += 1
            return
        if self._came < self._reduced:
            assert self._combine is not None
            self._combine(self._place(self._came), self._block[self._coming[self._came]])
        self._came += 1


def exchange(context: Context, path: Sequence[int], mine: Block, sizes: Sequence[int]) -> list[Block]:
    """What each rank of `path` has, in as few turns as can be; for few bytes, as all of them are copied.

    Args:
        context: That of the communicator.
        path: One rank of each node, this one among them.
        mine: What this rank has.
        sizes: The bytes that each has.

    Returns:
        For each rank of `path` its bytes.
    """
    count, place = len(path), path.index(context.topology.rank)
    turned = [sizes[(place - step) % count] for step in range(count)]
    ends = [0, *accumulate(turned)]
    room = np.empty(ends[-1], np.uint8)
    room[: ends[1]] = mine
    for distance, places in ring_plan.spread(count):
        target, source = path[(place + distance) % count], path[(place - distance) % count]
        coming = room[ends[distance] : ends[distance + places]]
        with InFlight(context.collective_comm, Tag.RING) as messages:
            messages.receive(coming, source)
            messages.send(room[: ends[places]], target)
    return [room[ends[step] : ends[step + 1]] for step in ((place - one) % count for one in range(count))]


def pass_along(
    context: Context,
    path: Sequence[int],
    block: Block,
    pieces: Sequence[slice],
    combine: Combine,
    stages: Sequence[Block],
) -> None:
    """Reduces what the ranks of `path` have in their blocks, in this order, into the block of the last of them.

    What the others have in theirs afterwards is the part of those before them. Ranks that are not in `path` return.
    """
    if context.topology.rank not in path:
        return
    place = path.index(context.topology.rank)
    if place:
        lengths = [piece.stop - piece.start for piece in pieces]
        places = [stages[number % len(stages)][:length] for number, length in enumerate(lengths)]
        coming = receive_in_order(context.collective_comm, [(path[place - 1], one) for one in places], Tag.RING)
    with InFlight(context.collective_comm, Tag.RING) as sending:
        for piece in pieces:
            if place:
                combine(next(coming), block[piece])
            if place + 1 < len(path):
                sending.send(block[piece], path[place + 1])
            sending.wait_until(WINDOW)
