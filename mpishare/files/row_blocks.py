"""Which bytes of an array in a file each rank has, and who writes them. Plain functions of plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from mpishare.arrays import slices
from mpishare.arrays.spec import Spec
from mpishare.comm.placement import Placement

ROOT = 0
"""The rank that makes the file, and whose array is saved where all have the same. It leads the first node."""

BLOCK_BYTES = 4 << 20
"""How much is written, sent or checked at a time: little memory, and enough that the cost of a call does not show.
A checkpoint has a checksum for each, so that another number makes another version of its front."""

_SHARED_BY_HOSTS = frozenset({"lustre", "gpfs", "beegfs", "fhgfs", "ceph", "pvfs2", "wekafs", "panfs"})
"""File systems on which hosts may write parts of one file at the same time, wherever the parts meet. On NFS the caches
of two hosts may each hold the page in which they meet (RFC 1813, section 4.11)."""


class Run(NamedTuple):
    """So many bytes of a file from one place on."""

    at: int
    nbytes: int


@dataclass(frozen=True)
class RowBlocks:
    """An array that lies in a file as the parts of the ranks, one after the other.

    Attributes:
        spec: That of the whole.
        starts: Where the part of each rank begins, in bytes of the array, and at last where all end.
        at: Where the array begins in the file.
    """

    spec: Spec
    starts: tuple[int, ...]
    at: int = 0

    @classmethod
    def whole(cls, spec: Spec, size: int) -> RowBlocks:
        """All of it is `ROOT`'s, of so many ranks."""
        return cls(spec, tuple(0 if rank <= ROOT else spec.nbytes for rank in range(size + 1)))

    @classmethod
    def rows(cls, mine: Spec, lengths: Sequence[int]) -> RowBlocks:
        """Each rank has so many rows; `mine` is the spec of any rank's."""
        spec = replace(mine, shape=(sum(lengths), *mine.shape[1:]), order="C")
        row_bytes = replace(mine, shape=mine.shape[1:]).nbytes
        return cls(spec, tuple(row_bytes * row for row in accumulate(lengths, initial=0)))

    @property
    def block_bytes(self) -> int:
        """How long a run is, in whole items."""
        itemsize = self.spec.dtype.itemsize or 1
        return max(BLOCK_BYTES // itemsize, 1) * itemsize

    def runs(self, rank: int) -> Iterator[Run]:
        """The bytes of a rank, run by run."""
        start, stop = self.starts[rank], self.starts[rank + 1]
        for part in slices.chunks(stop - start, self.block_bytes):
            yield Run(self.at + start + part.start, part.stop - part.start)


def choose(placement: Placement, filesystem: str, *, distributed: bool, mpio: bool = False) -> str:
    """The way in which the bytes get into the file.

    Args:
        placement: The ranks of each node.
        filesystem: The type of the file system.
        distributed: Whether each rank has a part.
        mpio: Whether HDF5 can write through MPI.

    Returns:
        "root", it writes all; "node", all ranks write, as they are on one; "mpio", HDF5 writes through MPI; "hosts",
        all ranks write, as the file system lets several hosts; "streams", the ranks of the root's node write, and what
        the others have comes to them in messages.
    """
    if not distributed:
        return "root"
    if mpio:
        return "mpio"
    if len(placement.nodes) == 1:
        return "node"
    return "hosts" if filesystem in _SHARED_BY_HOSTS else "streams"


def writers(placement: Placement, way: str) -> tuple[int, ...]:
    """For each rank, the one that writes its bytes. Those of other nodes are dealt round the ranks of the root's."""
    size = sum(map(len, placement.nodes))
    if way == "root":
        return (ROOT,) * size
    if way in ("node", "hosts", "mpio"):
        return tuple(range(size))
    near = placement.nodes[placement.node_of[ROOT]]
    far = [rank for rank in range(size) if rank not in near]
    dealt = {rank: near[number % len(near)] for number, rank in enumerate(far)}
    return tuple(dealt.get(rank, rank) for rank in range(size))


def senders(found: Sequence[int], writer: int) -> list[int]:
    """The other ranks whose bytes `writer` writes, as `writers` found it."""
    return [rank for rank, its in enumerate(found) if its == writer and rank != writer]
