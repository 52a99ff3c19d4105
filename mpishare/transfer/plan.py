"""Which ranks pass bytes from node to node, and in chunks of what size: plain functions of plain data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from mpishare.arrays import slices
from mpishare.comm.placement import Placement

LARGEST_MESSAGE_BYTES = 1 << 30
"""A round number below 2**31 - 1, the largest count of MPI 3."""

LINE_BYTES = 64
"""A cache line. It is a multiple of the size of every number (a complex long double has 32 bytes), so that a cut at a
multiple of it never divides a number."""

MIN_CMA_BYTES = 4 << 20
"""Below it the root fills its node alone: measured, that takes no longer than to tell the other ranks."""

MAX_CMA_READERS = 8
"""Ranks that read the root's memory at the same time. More would wait for the kernel's lock on it (S. Chakraborty, H.
Subramoni, D. K. Panda, "Contention-aware kernel-assisted MPI collectives", IEEE Cluster 2017)."""

EAGER_BYTES = 60 << 10
"""Open MPI over TCP sends a message up to this size at once; its limit is 64 KiB with its own header. For a larger one
it first asks the receiver, which stalls a chain."""

_MIN_CHUNK_BYTES, _MAX_CHUNK_BYTES = 4 << 10, 16 << 20

_WORTHWHILE = 0.9
"""A chain keeps links busy more evenly than trees do, where a place sends to two others. Measured on 8 hosts at 400
Mbit/s, 32 MiB, where the models differ by 1 %: 0.77 s along a chain, 0.96 s down two trees."""

_MAX_CHAIN = 32
"""Nodes in a chain. In a longer one each byte passes too many ranks, of which any may be late."""

_LARGE_RING_CHUNKS = range(256 << 10, (1 << 20) + 1)
"""Bytes of ring chunks that are not eager. Smaller ones cost more than eager ones. Larger ones gain nothing, as all
links of a ring are busy from the first chunk to the last."""

_MIN_RING_CHUNKS = 4
"""Chunks for each node's part of the bytes, so that one is in flight while another is reduced."""

_SMALL_BYTES = 16 << 10
"""Up to here, over all nodes, the time depends on the number of messages in sequence."""


def chain(placement: Placement, root: int) -> tuple[int, ...]:
    """The ranks along which bytes travel so that each node receives them once.

    The root stands for its own node, so it need not be the leader. The leaders of the other nodes follow in the order
    of the nodes, from the root's node on and round: neighbours in the machine file stay neighbours.
    """
    first = placement.node_of[root]
    count = len(placement.nodes)
    return (root, *(placement.leader((first + step) % count) for step in range(1, count)))


@dataclass(frozen=True)
class Link:
    """What a message from node to node costs, as `transfer.link` measures it.

    Attributes:
        byte_s: Seconds that each byte takes.
        eager_s: Seconds that a message of up to `EAGER_BYTES` takes besides.
        large_s: The same for a larger one.
    """

    byte_s: float
    eager_s: float
    large_s: float

    def message_s(self, nbytes: int) -> float:
        """Seconds of a message of `nbytes`."""
        return nbytes * self.byte_s + (self.eager_s if nbytes <= EAGER_BYTES else self.large_s)

    def __str__(self) -> str:
        return (
            f"{1e-6 / self.byte_s:,.0f} MB/s; besides its bytes a message of up to {EAGER_BYTES >> 10} KiB takes "
            f"{self.eager_s * 1e6:.1f} us, a larger one {self.large_s * 1e6:.1f} us"
        )


UNMEASURED = Link(1 / 50e6, 11e-6, 270e-6)
"""A link of 400 Mbit/s, as benchmarks/results/nodes-chunks.json has it: for arrays that are too small for a probe."""


class Way(Enum):
    """How bytes travel from place 0 of a path to all others, with the seconds of a model.

    In all models a place sends one message at a time, and receives another meanwhile. There are p places and k chunks,
    each of which takes the seconds t(n) of its n bytes.
    """

    CHAIN = "a chain"
    """Each place sends to the next: (p - 2 + k) t(N / k), least for k = sqrt((p - 2) N b / a), where t(n) = a + n b.

    Source:
        J. L. Träff and A. Ripke, "Optimal broadcast for fully connected processor-node networks", J. Parallel Distrib.
        Comput. 68 (2008), section 2: the linear pipeline.
    """

    BINOMIAL_TREE = "a binomial tree"
    """Each place that has all bytes sends them on: log2(p) t(N), rounded up.

    Source:
        R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH", Int. J.
        High Perform. Comput. Appl. 19 (2005), section 4.3.
    """

    TWO_TREES = "two trees"
    """Half of the chunks goes down each of two binary trees: (2 h - 2 + k) t(N / k), where h is their height.

    Source:
        P. Sanders, J. Speck, J. L. Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan",
        Parallel Computing 35 (2009).
    """


class Choice(NamedTuple):
    """A way, the bytes of its chunks, and the seconds that its model says."""

    way: Way
    chunk_bytes: int
    seconds: float


@lru_cache(maxsize=256)
def choose(nbytes: int, count: int, link: Link, configured: int | None = None) -> Choice:
    """The way that takes the least time by its model; of few nodes a chain, if no other is faster by a tenth.

    Scatter and ring allgather (E. Chan, M. Heimlich, A. Purkayastha, R. van de Geijn, "Collective communication:
    theory, practice, and experience", Concurrency and Computation 19 (2007)) is not among the ways: its model is at
    least 0.94 of the least of these, from 2 to 1,024 nodes, 64 KiB to 1 GiB, and 400 Mbit/s to shared memory.

    Args:
        nbytes: Bytes to pass on.
        count: Places on the path, at least 2.
        link: That between two places.
        configured: MPISHARE_CHUNK, bytes of a message along a chain; None for the choice of the models.
    """
    if configured is not None:
        return Choice(Way.CHAIN, configured, _pipeline_s(nbytes, count - 2, configured, link))
    chain = _in_chunks(Way.CHAIN, nbytes, count - 2, link)
    choices = [_in_chunks(Way.TWO_TREES, nbytes, 2 * (count - 1).bit_length() - 2, link)]
    if nbytes <= _MAX_CHUNK_BYTES:
        levels = (count - 1).bit_length()
        choices.append(Choice(Way.BINOMIAL_TREE, max(nbytes, 1), levels * link.message_s(nbytes)))
    least = min(choices, key=lambda choice: choice.seconds)
    return least if count > _MAX_CHAIN or least.seconds < _WORTHWHILE * chain.seconds else chain


def _in_chunks(way: Way, nbytes: int, fill_steps: int, link: Link) -> Choice:
    """A way with the chunks that make its model least: eager ones, or larger ones.

    Args:
        way: The way.
        nbytes: Bytes to pass on.
        fill_steps: How many chunks the root has sent before the last place begins to receive its first.
        link: That between two places.
    """
    choices = []
    for besides_s, least, most in (
        (link.eager_s, _MIN_CHUNK_BYTES, EAGER_BYTES),
        (link.large_s, EAGER_BYTES, _MAX_CHUNK_BYTES),
    ):
        best = math.isqrt(int(nbytes * besides_s / link.byte_s) // fill_steps) if fill_steps else nbytes
        best = min(max(best, least), most)
        chunk = min(slices.round_up(-(-nbytes // max(round(nbytes / best), 1)), LINE_BYTES), most)  # of equal size
        choices.append(Choice(way, max(chunk, 1), _pipeline_s(nbytes, fill_steps, max(chunk, 1), link)))
    return min(choices, key=lambda choice: choice.seconds)


def _pipeline_s(nbytes: int, fill_steps: int, chunk: int, link: Link) -> float:
    """Seconds until the last place has the last chunk."""
    if nbytes <= chunk:
        return (fill_steps + 1) * link.message_s(nbytes)
    count, rest = divmod(nbytes, chunk)
    return (fill_steps + count) * link.message_s(chunk) + (link.message_s(rest) if rest else 0.0)


class Step(NamedTuple):
    """One chunk on its way through a place.

    Attributes:
        chunk: Its bytes.
        parent: The place from which it comes; None at the root.
        children: The places to which it goes on, in this order.
    """

    chunk: slice
    parent: int | None
    children: tuple[int, ...]


def steps(nbytes: int, count: int, place: int, choice: Choice) -> list[Step]:
    """The chunks that a place receives and sends on, in its order.

    Args:
        nbytes: Bytes to pass on.
        count: Places on the path. Place 0 is the root.
        place: The place in question.
        choice: What `choose` returned for the same bytes and places.
    """
    chunks = list(slices.chunks(nbytes, choice.chunk_bytes))
    if choice.way is Way.TWO_TREES:
        return _two_trees(chunks, count, place)
    parent, children = (_next_in_chain if choice.way is Way.CHAIN else _binomial_tree)(count, place)
    return [Step(chunk, parent, children) for chunk in chunks]


def ring_chunk_bytes(nbytes: int, configured: int | None) -> int:
    """Bytes of a chunk on a ring, a multiple of `LINE_BYTES`.

    Args:
        nbytes: Bytes of each node's part.
        configured: MPISHARE_CHUNK; None for the choice made here.
    """
    large = min(nbytes // _MIN_RING_CHUNKS, _LARGE_RING_CHUNKS[-1])
    best = large if large in _LARGE_RING_CHUNKS else EAGER_BYTES
    return slices.round_up(configured or best, LINE_BYTES)


def is_small(nbytes: int) -> bool:
    """Whether `nbytes`, of all nodes together, are so few that the number of messages decides, and not their size."""
    return nbytes <= _SMALL_BYTES


def _next_in_chain(count: int, place: int) -> tuple[int | None, tuple[int, ...]]:
    """The place before, and the next one."""
    return place - 1 if place else None, (place + 1,) if place + 1 < count else ()


def _binomial_tree(count: int, place: int) -> tuple[int | None, tuple[int, ...]]:
    """Parent and children of `place`. See `Way.BINOMIAL_TREE`."""
    lowest = place & -place if place else 1 << (count - 1).bit_length()
    steps = [1 << bit for bit in reversed(range(lowest.bit_length() - 1))]
    return place - lowest if place else None, tuple(place + step for step in steps if place + step < count)


def _two_trees(chunks: Sequence[slice], count: int, place: int) -> list[Step]:
    """The steps of `place`, where even chunks go down one tree and odd ones down the other.

    They are in the order in which a machine of equal links would bring them: chunk n leaves the root at time n, and
    takes two for each level. So each place waits only for what others begin earlier in the same order, up to two steps
    in advance: with that many receives posted no circle of places waits.
    """
    trees = [_tree(count, place, is_second) for is_second in (False, True)]
    order = sorted(range(len(chunks)), key=lambda number: number + 2 * trees[number % 2][2])
    return [Step(chunks[number], *trees[number % 2][:2]) for number in order]


def _tree(count: int, place: int, is_second: bool) -> tuple[int | None, tuple[int, ...], int]:
    """Parent, children and level of `place` in one of two trees, each below place 0.

    The first tree is the binary search tree of places 1, 2, …: odd places are leaves. In the second, each place has the
    position of another in the first, so that no place is inner in both: the places are mirrored where the last one is
    even, else shifted by one.
    """
    last = count - 1

    def position(of: int) -> int:
        """The position of a place, and the place at a position of the mirrored tree."""
        return last + 1 - of if last % 2 == 0 else of % last + 1

    def place_at(number: int) -> int:
        """The place at a position; 0 at 0."""
        if not is_second or not number:
            return number
        return last + 1 - number if last % 2 == 0 else (number - 2) % last + 1

    if place == 0:
        return None, (place_at(1 << (last.bit_length() - 1)),), 0
    own = position(place) if is_second else place
    half = (own & -own) >> 1
    children = [own - half] if half else []
    while half and own + half > last:
        half >>= 1
    children += [own + half] if half else []
    parent, level = _above(own, last), 1
    above = parent
    while above:
        above, level = _above(above, last), level + 1
    return place_at(parent), tuple(map(place_at, children)), level


def _above(position: int, last: int) -> int:
    """The position above in the binary search tree of 1 to `last`; 0 above the top."""
    lowest = position & -position
    above = (position ^ lowest) | lowest << 1
    return above if above <= last else position ^ lowest
