"""Who does which part: slices of items, chunks of bytes, the path between nodes. Plain functions of plain data."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mpishare.comm.placement import Placement

LARGEST_MESSAGE_BYTES = 1 << 30
"""A round number below 2**31 - 1, the largest count of MPI 3."""

MIN_CMA_BYTES = 4 << 20
"""Below it the root alone fills its node: measured, it takes no longer than to tell the others."""

MAX_CMA_READERS = 8
"""Ranks that read the root's memory at the same time. The kernel's lock on it is what more would wait for (S.
Chakraborty, H. Subramoni, D. K. Panda, "Contention-aware kernel-assisted MPI collectives", IEEE Cluster 2017)."""

EAGER_BYTES = 60 << 10
"""A message up to this size leaves at once with Open MPI over TCP, whose limit is 64 KiB with its own header; a larger
one first asks the receiver, which stalls a chain."""

_EAGER_COST_BYTES, _LARGE_COST_BYTES = 560, 14 << 10
"""Bytes that a link carries in the time that such a message, and a larger one, costs besides its bytes: 11 and 270 us,
measured at 400 Mbit/s (benchmarks/results/nodes-chunks.json). A faster link carries more in it."""

_LARGEST_CHUNK_BYTES = 16 << 20
_LARGEST_TREE_BYTES = 1 << 20


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
    """Where a place on the path between nodes gets its bytes from and sends them to.

    Attributes:
        parent: The place that it gets them from, None where they begin.
        children: The places that it sends them to, in this order.
        chunk_bytes: How many travel as one message, at most 2**31 - 1, MPI's largest count.
    """

    parent: int | None
    children: tuple[int, ...]
    chunk_bytes: int


def links(nbytes: int, count: int, place: int, chunk: int | None = None) -> Links:
    """How `nbytes` travel over `count` places, from the first on: down a tree if few, along a chain if many.

    Args:
        nbytes: How many.
        count: Places on the path, at least two.
        place: Whose links.
        chunk: Bytes of a message, always along a chain; None for what the model says.
    """
    best = chunk or chunk_bytes(nbytes, count)
    tree_cost = (count - 1).bit_length() * _message_cost(nbytes)
    if chunk is None and nbytes <= _LARGEST_TREE_BYTES and tree_cost <= _chain_cost(nbytes, count, best):
        return Links(*_tree(count, place), max(nbytes, 1))
    return Links(place - 1 if place else None, (place + 1,) if place + 1 < count else (), best)


def chunk_bytes(nbytes: int, n_nodes: int) -> int:
    """Bytes that travel between nodes as one message, from a model of a pipelined chain.

    With p nodes and k chunks, each of which costs a time `a` besides the time of its bytes, a chain of N bytes ends
    after (p - 2 + k) (a + N b / k), b the time of a byte. That is least for chunks of sqrt(N (a / b) / (p - 2)) bytes.
    Messages that leave at once cost less than larger ones, so that the best of those is compared with them.
    `benchmarks/nodes.py --chunks` compares the choice with others on a link.

    Source:
        E. Chan, M. Heimlich, A. Purkayastha, R. van de Geijn, "Collective communication: theory, practice, and
        experience", Concurrency and Computation 19 (2007).
    """
    best = math.isqrt(nbytes * _LARGE_COST_BYTES // max(n_nodes - 2, 1))
    large = min(max(best, EAGER_BYTES), _LARGEST_CHUNK_BYTES)
    return min(EAGER_BYTES, large, key=lambda chunk: _chain_cost(nbytes, n_nodes, chunk))


def _chain_cost(nbytes: int, count: int, chunk: int) -> int:
    """In the time of a byte."""
    return (count - 2 + -(-nbytes // chunk)) * _message_cost(min(chunk, nbytes))


def _message_cost(nbytes: int) -> int:
    return nbytes + (_EAGER_COST_BYTES if nbytes <= EAGER_BYTES else _LARGE_COST_BYTES)


def _tree(count: int, place: int) -> tuple[int | None, tuple[int, ...]]:
    """Parent and children of `place` in a binomial tree, which ends after log2 of `count` messages in turn.

    Source:
        R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH", Int. J.
        High Perform. Comput. Appl. 19 (2005), section 4.3.
    """
    lowest = place & -place if place else 1 << (count - 1).bit_length()
    steps = [1 << bit for bit in reversed(range(lowest.bit_length() - 1))]
    return place - lowest if place else None, tuple(place + step for step in steps if place + step < count)
