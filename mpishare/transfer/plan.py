"""Which ranks pass bytes from node to node, and in chunks of what size: plain functions of plain data."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mpishare.arrays.slices import round_up
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

_EAGER_COST_BYTES, _LARGE_COST_BYTES = 560, 14 << 10
"""The fixed cost of an eager message and of a larger one, in bytes that the link carries in that time. The times are 11
and 270 us, measured at 400 Mbit/s (benchmarks/results/nodes-chunks.json). A faster link carries more bytes in them."""

_MAX_CHUNK_BYTES = 16 << 20
_MAX_TREE_BYTES = 1 << 20

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
class Links:
    """From which place of a path a place receives, to which it sends, and in what chunks.

    Attributes:
        parent: The place that it receives from; None at the root.
        children: The places that it sends to, in this order.
        chunk_bytes: Bytes of a message, at most 2**31 - 1, MPI's largest count.
    """

    parent: int | None
    children: tuple[int, ...]
    chunk_bytes: int


def links(nbytes: int, count: int, place: int, configured: int | None = None) -> Links:
    """How a place passes on `nbytes`: down a tree if they are few, along a chain if they are many.

    Args:
        nbytes: Bytes to pass on.
        count: Places on the path. Place 0 is the root.
        place: The place in question.
        configured: MPISHARE_CHUNK, bytes of a message along a chain; None for the model's choice.
    """
    chunk = configured or chunk_bytes(nbytes, count)
    tree_cost = (count - 1).bit_length() * _message_cost(nbytes)
    if configured is None and nbytes <= _MAX_TREE_BYTES and tree_cost <= _chain_cost(nbytes, count, chunk):
        return Links(*_tree(count, place), max(nbytes, 1))
    return Links(place - 1 if place else None, (place + 1,) if place + 1 < count else (), chunk)


def chunk_bytes(nbytes: int, n_nodes: int) -> int:
    """Bytes of a chunk along a chain of nodes, from a model of a pipelined chain.

    With p nodes and k chunks, each of which costs a time `a` besides the time of its bytes, a chain of N bytes ends
    after (p - 2 + k) (a + N b / k), where b is the time of a byte. That is least for chunks of
    sqrt(N (a / b) / (p - 2)) bytes. Eager messages cost less than larger ones, so the best eager size is compared with
    that. `benchmarks/nodes.py --chunks` compares the choice with other sizes on a link.

    Source:
        E. Chan, M. Heimlich, A. Purkayastha, R. van de Geijn, "Collective communication: theory, practice, and
        experience", Concurrency and Computation 19 (2007).
    """
    best = math.isqrt(nbytes * _LARGE_COST_BYTES // max(n_nodes - 2, 1))
    large = min(max(best, EAGER_BYTES), _MAX_CHUNK_BYTES)
    return min(EAGER_BYTES, large, key=lambda chunk: _chain_cost(nbytes, n_nodes, chunk))


def ring_chunk_bytes(nbytes: int, configured: int | None) -> int:
    """Bytes of a chunk on a ring, a multiple of `LINE_BYTES`.

    Args:
        nbytes: Bytes of each node's part.
        configured: MPISHARE_CHUNK; None for the choice made here.
    """
    large = min(nbytes // _MIN_RING_CHUNKS, _LARGE_RING_CHUNKS[-1])
    best = large if large in _LARGE_RING_CHUNKS else EAGER_BYTES
    return round_up(configured or best, LINE_BYTES)


def is_small(nbytes: int) -> bool:
    """Whether `nbytes`, of all nodes together, are so few that the number of messages decides, and not their size."""
    return nbytes <= _SMALL_BYTES


def _chain_cost(nbytes: int, count: int, chunk: int) -> int:
    """The time of a chain, in bytes that a link carries in it."""
    return (count - 2 + -(-nbytes // chunk)) * _message_cost(min(chunk, nbytes))


def _message_cost(nbytes: int) -> int:
    return nbytes + (_EAGER_COST_BYTES if nbytes <= EAGER_BYTES else _LARGE_COST_BYTES)


def _tree(count: int, place: int) -> tuple[int | None, tuple[int, ...]]:
    """Parent and children of `place` in a binomial tree, which takes log2(count) messages in sequence.

    Source:
        R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH", Int. J.
        High Perform. Comput. Appl. 19 (2005), section 4.3.
    """
    lowest = place & -place if place else 1 << (count - 1).bit_length()
    steps = [1 << bit for bit in reversed(range(lowest.bit_length() - 1))]
    return place - lowest if place else None, tuple(place + step for step in steps if place + step < count)
