"""Who does which part: slices of items, chunks of bytes, the path between nodes. Plain functions of plain data."""

from __future__ import annotations

from collections.abc import Iterator

from mpishare.layout import Layout

__all__ = ["LARGEST_MESSAGE_BYTES", "PAGE_BYTES", "balanced_slice", "byte_slice", "chain", "chunk_bytes", "chunks"]

PAGE_BYTES = 4096
"""The smallest page of any Linux that MPI runs on; a multiple of it is only a better cut, never a need."""

LARGEST_MESSAGE_BYTES = 1 << 30
"""A round number below 2**31 - 1, the largest count of MPI 3."""

_CHUNK_BYTES = 128 << 10
"""Measured best over TCP with 4 and 8 nodes: large enough to hide the cost of a message, small enough that the last
node waits for few of them."""


def balanced_slice(count: int, parts: int, part: int) -> slice:
    """Part number `part` of `count` items cut into `parts` runs whose lengths differ by at most one."""
    return slice(count * part // parts, count * (part + 1) // parts)


def byte_slice(nbytes: int, parts: int, part: int, *, grain: int = PAGE_BYTES) -> slice:
    """Like `balanced_slice`, in bytes, with the inner cuts on multiples of `grain` so that no page has two owners."""
    grains = balanced_slice(-(-nbytes // grain), parts, part)
    return slice(min(grains.start * grain, nbytes), min(grains.stop * grain, nbytes))


def chunk_bytes(nbytes: int, n_nodes: int) -> int:
    """Bytes that travel between nodes as one message, at most 2**31 - 1, MPI's largest count; all where none travel."""
    return _CHUNK_BYTES if n_nodes > 1 else max(nbytes, 1)


def chunks(nbytes: int, chunk: int) -> Iterator[slice]:
    """The bytes from 0 to `nbytes` in runs of `chunk`, the last one shorter."""
    for start in range(0, nbytes, chunk):
        yield slice(start, min(start + chunk, nbytes))


def chain(layout: Layout, root: int) -> tuple[int, ...]:
    """The ranks along which bytes travel so that each node receives them once.

    The root speaks for its own node, so that it need not be the leader; then the leaders of the other nodes follow in
    the order of the nodes, from the root's on and round, which keeps neighbours of the machine file neighbours.
    """
    first = layout.node_of[root]
    count = len(layout.nodes)
    return (root, *(layout.leader((first + step) % count) for step in range(1, count)))
