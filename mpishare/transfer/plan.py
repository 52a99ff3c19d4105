"""Which ranks pass bytes from node to node, and in chunks of what size: plain functions of plain data."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

from mpishare.arrays import slices
from mpishare.comm.topology import Placement

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

_MAX_BCAST_BYTES, _MAX_BCAST_BYTES_OF_TWO = 8 << 10, 256 << 10
"""Up to here MPI's broadcast takes no longer than chunks on any link, with more than two nodes, and with two. Measured
with Open MPI on links of 400 Mbit/s: two hosts, 1 KiB in 13 us where chunks take 22, and the same time from 16 KiB on;
four hosts, 4 KiB in 31 us where chunks take 36, and 16 KiB in 0.9 ms where they take 0.4. Through shared memory, two
nodes, where the root of a share copies the array to its node while chunks travel: 1 MiB 0.22 to 0.20 ms, 2 MiB 0.43 to
0.35, 256 KiB the same time."""

_MAX_BCAST_S = 0.3e-3
"""Seconds that the bytes of a broadcast of MPI may take down its binomial tree. Below, the work of the ranks with
chunks takes longer than what chunks save: over MPI_Bcast's own time, 64 KiB to 4 hosts as fast as the cores took 2.8 in
chunks, and take 1.65, in two runs on two machines."""

_MIN_CHUNK_BYTES, _MAX_CHUNK_BYTES = 4 << 10, 256 << 10
"""Of the largest several fit in a core's cache, until the root has copied them to the memory of its node, and another
leader has sent them on. Measured where links are as fast as cores, 32 MiB: 2 hosts 13.4 ms with 256 KiB, 15 ms with 60
KiB, 13 to 19 ms with 320 KiB, 17 to 18 ms with 1 to 16 MiB; 4 hosts at 10 Gbit/s 35 ms with 256 KiB, 42 with 1 MiB."""

_FAST_BYTE_S = 1 / 4e9
"""Where a byte takes less, at most one core copies it, from memory to memory, and chunks may be of any size. Measured
through shared memory, 2 nodes of 1, 32 MiB: 5.5 ms with 256 KiB, 5.2 ms with 4 MiB, 5.0 ms as one message; 2 nodes of
2: 11.3, 8.1 and 7.4 ms.

A network that is so fast carries bytes while the ranks work. Played where a message keeps a rank busy for 4.5 us, 32
MiB at 200 Gbit/s over the least time possible, by models that say so and by those of slower links: 8 nodes 1.09 and
1.19, 32 nodes 1.17 and 1.55. Pretend nodes get the same choice, although cores carry their bytes: measured with 3 and 4
of them on 2 cores, 8 and 32 MiB take the same time by both, and 1 MiB 4 and 9 % longer."""

_WORTHWHILE = 0.9
"""A chain keeps links busy more evenly than ways in which a place sends to several others. Measured on 8 hosts at 400
Mbit/s, 32 MiB, where the models differ by 1 %: 0.77 s along a chain, 0.96 s down two trees."""

_MAX_CHAIN = 32
"""Nodes in a chain. In a longer one each byte passes too many ranks, of which any may be late."""

_LAG = 3
"""Rounds of a circulant graph between a chunk's coming and its going on. Played on 512 nodes at 200 Gbit/s, 32 MiB,
where a rank takes 2 us for a message: 2.7 of the least time with one, 1.6 with two, 1.24 with three, 1.27 with four."""

_FILL_PART = 32
"""Chunks are not so small for the sake of the first rounds that these take less than such a part of the time."""

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
        return nbytes * self.byte_s + self._besides_s(nbytes)

    def next_s(self, nbytes: int) -> float:
        """Seconds between messages of `nbytes`, of which a rank receives and sends one after the other.

        A link that is faster than `_FAST_BYTE_S` carries bytes while the ranks work.
        """
        if self.byte_s >= _FAST_BYTE_S:
            return self.message_s(nbytes)
        return max(nbytes * self.byte_s, 2 * self._besides_s(nbytes))

    def _besides_s(self, nbytes: int) -> float:
        return self.eager_s if nbytes <= EAGER_BYTES else self.large_s

    def __str__(self) -> str:
        return (
            f"{1e-6 / self.byte_s:,.0f} MB/s; besides its bytes a message of up to {EAGER_BYTES >> 10} KiB takes "
            f"{self.eager_s * 1e6:.1f} us, a larger one {self.large_s * 1e6:.1f} us"
        )


UNMEASURED = Link(1 / 50e6, 11e-6, 270e-6)
"""A link of 400 Mbit/s, as it was measured once: for arrays that are too small for a probe."""


class Way(Enum):
    """How bytes travel from place 0 of a path to all others, with the seconds of a model.

    In all models a place sends one message at a time, and receives another meanwhile. There are p places and k chunks,
    each of which takes the seconds t(n) of its n bytes.
    """

    CHAIN = "a chain"
    """Each place sends to the next: (p - 2 + k) t(N / k), least for k = sqrt((p - 2) N b / a), where t(n) = a + n b.

    On a link faster than `_FAST_BYTE_S` the k chunks take `Link.next_s` each, which is N b for chunks of at least
    2 a / b; the smallest of these are best.

    Source:
        J. L. Träff and A. Ripke, "Optimal broadcast for fully connected processor-node networks", J. Parallel Distrib.
        Comput. 68 (2008), section 2: the linear pipeline.
    """

    CIRCULANT_GRAPH = "a circulant graph"
    """In each round a place sends to another one than in the round before. What comes in a round goes on three rounds
    later at the earliest, so that latencies and the work of the ranks hold up no link: (3 (log2(p) - 1) + k) t(N / k),
    log2 rounded up, where N / k is at least 2 a / b, and again `Link.next_s` for the k chunks. One chunk goes as down a
    binomial tree: log2(p) t(N).

    Source:
        J. L. Träff, "Optimal broadcast schedules in logarithmic time with applications to broadcast, all-broadcast,
        reduction and all-reduction", arXiv:2407.18004 (2024), here for each third of the chunks.
    """


class Choice(NamedTuple):
    """A way, the bytes of its chunks, and the seconds that its model says."""

    way: Way
    chunk_bytes: int
    seconds: float


def choose(nbytes: int, count: int, link: Link, configured: int | None = None) -> Choice:
    """The way that takes the least time by its model; of few nodes a chain, if the other is not faster by a tenth.

    To one other node there is a chain alone. Where the models differ by a tenth, 16 MiB between two hosts took 6.6 ms
    in chunks of 60 KiB, and 10 to 22 ms in chunks of 256 KiB.

    A binomial tree (R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in
    MPICH", Int. J. High Perform. Comput. Appl. 19 (2005)) is the circulant graph for one chunk. Two trees (P. Sanders,
    J. Speck, J. L. Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel Computing 35
    (2009)) are not among the ways: played on 512 nodes at 200 Gbit/s (benchmarks/simulation.py) 32 MiB take 1.45 of the
    least time down them, and 1.26 through a circulant graph. Nor is scatter and ring allgather (E. Chan, M. Heimlich,
    A. Purkayastha, R. van de Geijn, "Collective communication: theory, practice, and experience", Concurrency and
    Computation 19 (2007)), which brings nearly all bytes twice.

    Args:
        nbytes: Bytes to pass on.
        count: Places on the path, at least 2.
        link: That between two places.
        configured: MPISHARE_CHUNK, bytes of a message along a chain; None for the choice of the models.
    """
    if configured is not None:
        return Choice(Way.CHAIN, configured, _chain_s(nbytes, count - 2, configured, link))
    if count == 2:
        return _to_one_node(nbytes, link)
    chain = _chain(nbytes, count, link)
    graph = _graph(nbytes, count, link)
    return graph if count > _MAX_CHAIN or graph.seconds < _WORTHWHILE * chain.seconds else chain


def _chain(nbytes: int, count: int, link: Link) -> Choice:
    """A chain with the chunks that make its model least: eager ones, or larger ones."""
    fill_steps = count - 2
    choices = []
    for besides_s, least, most in (
        (link.eager_s, _MIN_CHUNK_BYTES, EAGER_BYTES),
        (link.large_s, EAGER_BYTES, _largest_chunk(link)),
    ):
        best = int(2 * besides_s / link.byte_s)
        if link.byte_s >= _FAST_BYTE_S:
            best = math.isqrt(int(nbytes * besides_s / link.byte_s) // fill_steps)
        chunk = _even_chunk(nbytes, min(max(best, least), most), most)
        choices.append(Choice(Way.CHAIN, chunk, _chain_s(nbytes, fill_steps, chunk, link)))
    return min(choices, key=lambda choice: choice.seconds)


def _to_one_node(nbytes: int, link: Link) -> Choice:
    """A chain of two places, with no pipeline to fill: messages are eager, or one takes all.

    Measured on 2 hosts, 4 MiB as fast as the cores are: 1.8 ms with 60 KiB, 3.0 ms with 256 KiB; 32 MiB at 4 Gbit/s
    with 1 ms of delay: 75 and 104 ms; at 4 and at 10 Gbit/s without delay the same time.
    """
    most = LARGEST_MESSAGE_BYTES if link.byte_s < _FAST_BYTE_S else EAGER_BYTES
    chunk = _even_chunk(nbytes, most, most)
    return Choice(Way.CHAIN, chunk, _chain_s(nbytes, 0, chunk, link))


def _largest_chunk(link: Link) -> int:
    """The most bytes of a chunk."""
    return LARGEST_MESSAGE_BYTES if link.byte_s < _FAST_BYTE_S else _MAX_CHUNK_BYTES


def _chain_s(nbytes: int, fill_steps: int, chunk: int, link: Link) -> float:
    """Seconds until the last place has the last chunk."""
    if nbytes <= chunk:
        return (fill_steps + 1) * link.message_s(nbytes)
    count, rest = divmod(nbytes, chunk)
    return fill_steps * link.message_s(chunk) + count * link.next_s(chunk) + (link.next_s(rest) if rest else 0.0)


def _graph(nbytes: int, count: int, link: Link) -> Choice:
    """A circulant graph with one chunk, or with chunks as small as the work of the ranks allows, eager or larger.

    The rounds before the last place gets its first chunk need be no shorter than a part of the whole. Eager chunks come
    before their turn and hold up others, so that no fast link is busy all the time: played on 512 nodes at 200 Gbit/s
    with a rank busy for 1 us, 32 MiB take 1.5 of the least time in 60 KiB, and 1.16 in 64 bytes more.
    """
    levels, choices = (count - 1).bit_length(), list[Choice]()
    fill_rounds = _LAG * (levels - 1)
    if nbytes <= _largest_chunk(link):
        choices.append(Choice(Way.CIRCULANT_GRAPH, max(nbytes, 1), levels * link.message_s(nbytes)))
    for besides_s, least, most, next_s in (
        (link.eager_s, _MIN_CHUNK_BYTES, EAGER_BYTES, link.message_s),
        (link.large_s, EAGER_BYTES + LINE_BYTES, _largest_chunk(link), link.next_s),
    ):
        best = max(int(2 * besides_s / link.byte_s), nbytes // (_FILL_PART * max(fill_rounds, 1)))
        chunk = _even_chunk(nbytes, min(max(best, least), most), most)
        seconds = fill_rounds * link.message_s(chunk) + -(-nbytes // chunk) * next_s(chunk)
        choices.append(Choice(Way.CIRCULANT_GRAPH, chunk, seconds))
    return min(choices, key=lambda choice: choice.seconds)


def _even_chunk(nbytes: int, best: int, most: int) -> int:
    """The bytes of a chunk where all chunks are equal, as near to `best` as that allows."""
    count = max(round(nbytes / best), -(-nbytes // most), 1)
    return max(min(slices.round_up(-(-nbytes // count), LINE_BYTES), most), 1)


class Step(NamedTuple):
    """One chunk that a rank receives, and what it sends then.

    Attributes:
        chunk: Its bytes.
        parent: The rank from which it comes; None at the root.
        sends: To which ranks chunks go on, in this order: this chunk, or one that came before.
    """

    chunk: slice
    parent: int | None
    sends: tuple[tuple[int, slice], ...]


def steps(nbytes: int, path: Sequence[int], place: int, choice: Choice) -> Sequence[Step]:
    """The chunks that a rank receives and sends on, in its order.

    Args:
        nbytes: Bytes to pass on.
        path: The rank at each place. Place 0 is the root's.
        place: That of the rank in question.
        choice: What `choose` returned for the same bytes and number of places.
    """
    chunks = list(slices.chunks(nbytes, choice.chunk_bytes))
    return (_in_chain if choice.way is Way.CHAIN else _in_rounds)(chunks, path, place)


def is_by_mpi(nbytes: int, n_nodes: int, link: Link, configured: int | None) -> bool:
    """Whether bytes that are in node memory already go to the other nodes by one MPI_Bcast of the leaders.

    Args:
        nbytes: The bytes.
        n_nodes: Nodes, at least 2.
        link: That between two nodes.
        configured: MPISHARE_CHUNK, which asks for messages of that size; else None.
    """
    if configured is not None:
        return False
    if n_nodes == 2:
        return nbytes <= _MAX_BCAST_BYTES_OF_TWO
    levels = (n_nodes - 1).bit_length()
    return nbytes <= _MAX_BCAST_BYTES or levels * nbytes * link.byte_s <= _MAX_BCAST_S


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


def _in_chain(chunks: Sequence[slice], path: Sequence[int], place: int) -> list[Step]:
    """The steps of `place` in a chain."""
    parent = path[place - 1] if place else None
    following = path[place + 1 : place + 2]
    return [Step(chunk, parent, tuple((dest, chunk) for dest in following)) for chunk in chunks]


def _in_rounds(chunks: Sequence[slice], path: Sequence[int], place: int) -> list[Step]:
    """The steps of `place` in a circulant graph, in the order of the rounds.

    What it sends has come in an earlier round, so that no circle of places waits.
    """
    count, lag = len(path), min(_LAG, len(chunks))

    def rounds(of: int) -> Iterator[tuple[int, int, slice]]:
        """When a place gets each chunk, and from how many places before it."""
        for first in range(lag):
            own = chunks[first::lag]
            for chunk, number, skip in _rounds(len(own), count, of):
                yield number * lag + first, skip, own[chunk]

    came = sorted(rounds(place), key=itemgetter(0))
    numbers, sends = [number for number, _, _ in came], [list[tuple[int, slice]]() for _ in came]
    of_chunk = {chunk.start: index for index, (_, _, chunk) in enumerate(came)}
    sent = [
        (number, dest, chunk)
        for dest in {(place + skip) % count for skip in _skips(count)} - {0}
        for number, skip, chunk in rounds(dest)
        if (place + skip) % count == dest
    ]
    for number, dest, chunk in sorted(sent, key=itemgetter(0)):
        index = bisect(numbers, number - lag) - 1 if place else of_chunk[chunk.start]
        sends[index].append((path[dest], chunk))
    return [
        Step(chunk, path[(place - skip) % count] if place else None, tuple(after))
        for (_, skip, chunk), after in zip(came, sends, strict=True)
    ]


def _rounds(n_chunks: int, count: int, place: int) -> Iterator[tuple[int, int, int]]:
    """For each chunk that `place` gets: the chunk, the round, and how many places before it the sender is.

    The root, which sends a new chunk in each round, has it in the round before.
    """
    if not place:
        yield from ((chunk, chunk - 1, 0) for chunk in range(n_chunks))
        return
    skips, schedule, has_last = _skips(count), _schedule(count, place), False
    before = -(n_chunks - 1) % len(skips)  # so that the last period is a whole one
    for number in range(before, before + n_chunks - 1 + len(skips)):
        period, index = divmod(number, len(skips))
        chunk = schedule[index] + period * len(skips) - before
        is_last = chunk >= n_chunks - 1  # also what the schedule has after the last one, for which that comes again
        if chunk >= 0 and not (is_last and has_last):
            yield min(chunk, n_chunks - 1), number - before, skips[index]
        has_last = has_last or is_last


@lru_cache(maxsize=64)
def _skips(count: int) -> tuple[int, ...]:
    """How far a place sends in each round of a period: 1, and so on to half of `count`, rounded up."""
    skips = [count]
    while skips[0] > 1:
        skips.insert(0, (skips[0] + 1) // 2)
    return tuple(skips[:-1])


@lru_cache(maxsize=4096)
def _schedule(count: int, place: int) -> tuple[int, ...]:
    """Which chunk `place`, not the root, gets in each round of the first period; those below 0 are of none.

    In each period it gets a chunk that the root sent in that period, by its shortest path from the root, and all others
    of the period before. A path is a sum of skips, the largest first, and the chunk follows from the smallest of them.

    Source:
        Träff, as in `Way.CIRCULANT_GRAPH`, algorithms 4 to 6.
    """
    skips, period = (*_skips(count), count), len(_skips(count))
    own, rest = period, place
    while rest:
        own = max(index for index in range(period) if skips[index] <= rest)
        rest -= skips[own]
    left, result = [index for index in range(period, -1, -1) if index != own], list[int]()

    def search(start: int, before: int, largest: int) -> int:
        """Notes the paths on from `start` that end below `before`, in the order of rounds. Returns the last end."""
        for index in [index for index in left if index <= largest]:
            end, number = start + skips[index], len(result)
            if number == period:
                break
            if index in left and end < before and end <= count + place - skips[number]:
                if end <= count + place - skips[number + 1]:
                    before = search(end, before, index)
                    number = len(result)
                if number == period or start > count + place - skips[number + 1]:
                    break
                before = end
                result.append(index)
                left.remove(index)
        return before

    search(0, 2 * count, period)
    return tuple(own if index == period else index - period for index in result)
