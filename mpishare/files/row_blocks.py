"""Which bytes of an array in a file each rank has, and which rank writes them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, cycle
from typing import NamedTuple

from mpishare.arrays import slices
from mpishare.arrays.spec import Spec
from mpishare.comm.topology import Placement

ROOT = 0
"""The rank that makes the file, and whose array is saved if all ranks have the same. It leads the first node."""

BLOCK_BYTES = 4 << 20
"""Bytes that are written, sent and checked at a time: little memory, and enough to hide the cost of a call.
A checkpoint has a checksum for each, so that another number needs another version of its file."""

_SHARED_BY_HOSTS = frozenset({"lustre", "gpfs", "ceph", "pvfs2", "wekafs", "panfs"})
"""File systems on which hosts may write parts of one file at the same time, wherever the parts meet. On NFS and BeeGFS
the caches of two hosts may each hold the page in which they meet (RFC 1813, section 4.11), with MPI-IO too."""


class Run(NamedTuple):
    """Contiguous bytes of a file: the offset of the first one, and their number."""

    offset: int
    nbytes: int


@dataclass(frozen=True)
class RowBlocks:
    """An array in a file: the bytes of the ranks, one rank's behind the other's.

    Attributes:
        spec: The whole array.
        starts: Where the bytes of each rank begin, relative to the array, and at last where all end.
        offset: Where the array begins in the file, in bytes.
    """

    spec: Spec
    starts: tuple[int, ...]
    offset: int = 0

    @classmethod
    def of_root(cls, spec: Spec, size: int) -> RowBlocks:
        """An array that `ROOT`, one of `size` ranks, has alone."""
        return cls(spec, (0, *(spec.nbytes,) * size))

    @classmethod
    def of_rows(cls, rows: Spec, lengths: Sequence[int]) -> RowBlocks:
        """An array that has `lengths[rank]` rows on each rank; `rows` is the spec of any rank's."""
        spec = replace(rows, shape=(sum(lengths), *rows.shape[1:]), order="C")
        row_bytes = replace(rows, shape=rows.shape[1:]).nbytes
        return cls(spec, tuple(row_bytes * row for row in accumulate(lengths, initial=0)))

    @property
    def block_bytes(self) -> int:
        """The size of a run, but for the last one of a rank: whole items, of about `BLOCK_BYTES`."""
        itemsize = self.spec.dtype.itemsize or 1
        return max(BLOCK_BYTES // itemsize, 1) * itemsize

    def runs(self, rank: int) -> Iterator[Run]:
        """The bytes of a rank, in the order of the file."""
        start, stop = self.starts[rank], self.starts[rank + 1]
        for part in slices.chunks(stop - start, self.block_bytes):
            yield Run(self.offset + start + part.start, part.stop - part.start)

    def all_runs(self) -> Iterator[Run]:
        """The bytes of all ranks, in the order of the file."""
        for rank in range(len(self.starts) - 1):
            yield from self.runs(rank)


def choose_way(placement: Placement, filesystem: str, *, distributed: bool) -> str:
    """How the bytes are written.

    Args:
        placement: The ranks of each node.
        filesystem: The type of the file system.
        distributed: Whether each rank has a part of its own.

    Returns:
        "root": the root writes all. "node": all ranks write; they are on one node. "hosts": all ranks write; the file
        system allows it. "streams": the ranks of the root's node write, and receive the bytes of the others.
    """
    if not distributed:
        return "root"
    if len(placement.nodes) == 1:
        return "node"
    return "hosts" if filesystem in _SHARED_BY_HOSTS else "streams"


def writers(placement: Placement, way: str) -> tuple[int, ...]:
    """The rank that writes the bytes of each rank: for a rank of another node, one of the root's node."""
    size = len(placement.node_of)
    if way == "root":
        return (ROOT,) * size
    if way != "streams":
        return tuple(range(size))
    near = placement.nodes[placement.node_of[ROOT]]
    turns = cycle(near)
    return tuple(rank if rank in near else next(turns) for rank in range(size))
