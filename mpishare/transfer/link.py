"""What a message between nodes costs: measured once for each communicator, in some milliseconds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from mpishare.comm import mpi
from mpishare.comm.agreement import agree
from mpishare.comm.context import Context
from mpishare.comm.in_flight import InFlight
from mpishare.comm.live import LiveObjects
from mpishare.comm.tags import Tag
from mpishare.transfer import plan
from mpishare.transfer.plan import Link

MIN_BYTES = 64 << 10
"""The smallest array before which the link is measured. For fewer bytes the number of messages decides."""

_MIN_BYTES_OF_SEVERAL = 1 << 20
"""Bytes of smaller arrays after which it is measured, too: then there may be more of them, and the probe takes less
time than they have taken."""

_SMALL_BYTES, _MIDDLE_BYTES, _LARGE_BYTES = 4 << 10, 40 << 10, 66 << 10
"""Bytes of the messages of a round, the first two eager: with one more that has the neighbours begin together, 114 KiB,
2.3 ms at 400 Mbit/s."""

_ROUNDS, _ENOUGH_S = range(2, 8 + 1), 0.004
"""Rounds end after so many, fewer if they would fill this time were all as the quicker one of the last two is on the
slowest leader: one that had to wait for a core ends nothing. The later half of them counts: connections are new at
first, and a link that is held to a rate lets some 256 KiB pass at once."""

_MIN_EAGER_S, _MAX_EAGER_S = 1e-6, 50e-6
"""What an eager message can take besides its bytes. Python and MPI take 5 to 20 us."""


class Measured:
    """The link of one communicator, the same on all ranks. Kept for each communicator.

    Attributes:
        size: Ranks of the communicator.
        n_nodes: Its nodes.
        link: None until it is measured.
        sent_bytes: Of the arrays before which it was not.
    """

    def __init__(self, context: Context) -> None:
        self.size = context.topology.size
        self.n_nodes = context.topology.n_nodes
        self.link: Link | None = None
        self.sent_bytes = 0
        _measured.add(self)


_measured = LiveObjects[Measured]()


def measured_links() -> list[tuple[Measured, Link]]:
    """The links of all communicators of this process that are measured, those of most ranks first. Local."""
    links = [(measured, measured.link) for measured in _measured.all() if measured.link is not None]
    return sorted(links, key=lambda pair: pair[0].size, reverse=True)


def measured_link(context: Context) -> Link | None:
    """What `measure_link` has found; None where it has not measured. Local, and the same on all ranks."""
    return context.cached(Measured).link


def link_of(context: Context) -> Link:
    """The link as far as it is known. Local, and the same on all ranks."""
    return measured_link(context) or plan.UNMEASURED


def measure_link(context: Context, nbytes: int) -> None:
    """Measures the link between the nodes, before the first array of at least `MIN_BYTES`, or after many smaller ones.

    The leader of each node sends to the next and receives from the one before, all at once, as in a chain. The slowest
    leader decides, as it does in a chain.

    Args:
        context: The context of the communicator.
        nbytes: Bytes that the nodes are to exchange, the same on all ranks.

    Raises:
        PeerError: An exception from outside ended the probe on another rank. The link stays unmeasured.

    Collective:
        Over the communicator.
    """
    measured = context.cached(Measured)
    is_due = measured.link is None and context.config.chunk_bytes is None
    if not is_due or context.topology.n_nodes == 1:
        return
    measured.sent_bytes += nbytes
    if nbytes < MIN_BYTES and measured.sent_bytes < _MIN_BYTES_OF_SEVERAL:
        return
    rounds: list[_Round] = []
    for count in range(1, _ROUNDS[-1] + 1):
        numbers = np.zeros(4)
        with agree(context.collective_comm):
            if context.topology.is_leader:
                rounds.append(_round(context))
                numbers[:] = _numbers(rounds)
        context.collective_comm.allreduce(numbers, mpi.MAX)
        seconds, byte_s, eager_s, large_s = numbers.tolist()
        if count in _ROUNDS and count * seconds > _ENOUGH_S:
            break
    measured.link = Link(byte_s, eager_s, large_s)


class _Round(NamedTuple):
    """The seconds of a round, and in it of a small message, a larger one that is eager, and one that is not."""

    seconds: float
    small_s: float
    middle_s: float
    large_s: float


def _round(context: Context) -> _Round:
    """One round on a leader: a message that has the neighbours begin together, and then those that are timed."""
    path = plan.chain(context.topology.placement, 0)
    place = path.index(context.topology.rank)
    previous, following = path[place - 1], path[(place + 1) % len(path)]
    source = np.zeros(_LARGE_BYTES, np.uint8)
    targets = [np.zeros(nbytes, np.uint8) for nbytes in (_SMALL_BYTES, _SMALL_BYTES, _MIDDLE_BYTES, _LARGE_BYTES)]
    buffers = [(previous, target) for target in targets]
    clock = [time.perf_counter()]
    with (
        InFlight(context.collective_comm, Tag.PROBE, buffers=buffers) as receives,
        InFlight(context.collective_comm, Tag.PROBE, [following] * len(buffers)) as sends,
    ):
        for target in targets:
            receives.receive(target, previous)
            sends.send(source[: target.nbytes], following)
            receives.wait_until(0)
            sends.wait_until(0)
            clock.append(time.perf_counter())
    _, small_s, middle_s, large_s = (end - start for start, end in pairwise(clock))
    return _Round(clock[-1] - clock[0], small_s, middle_s, large_s)


def _numbers(rounds: Sequence[_Round]) -> tuple[float, float, float, float]:
    """What a rank compares with the others, by the least times of the later rounds.

    A rank may have had to wait for a core in one of them, or the link let the eager ones pass at once and held the
    larger one to its rate. To take a slow link for a quick one costs most: a chain in large chunks then takes twice as
    long. So what an eager message takes beyond `_MAX_EAGER_S`, and half of what a larger one takes, is that of bytes.
    """
    _, small_s, middle_s, large_s = map(min, zip(*rounds[-max(len(rounds) // 2, 1) :], strict=True))
    byte_s = max(
        (middle_s - small_s) / (_MIDDLE_BYTES - _SMALL_BYTES),
        middle_s / (2 * _MIDDLE_BYTES),
        (middle_s - _MAX_EAGER_S) / _MIDDLE_BYTES,
        large_s / (2 * _LARGE_BYTES),
    )
    eager_s = max(middle_s - _MIDDLE_BYTES * byte_s, (small_s - _SMALL_BYTES * byte_s) / 2)
    eager_s = min(max(eager_s, _MIN_EAGER_S), _MAX_EAGER_S)
    seconds = min(single.seconds for single in rounds[-2:])
    return seconds, byte_s, eager_s, max(large_s - _LARGE_BYTES * byte_s, eager_s)
