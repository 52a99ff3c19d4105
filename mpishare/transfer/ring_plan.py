"""What each node sends and receives when all nodes bring something to all: pieces of bytes, in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from mpishare.arrays import slices
from mpishare.comm.placement import Placement
from mpishare.transfer import plan

LINE_BYTES = 64
"""A cache line. No number is cut on a multiple of it: the largest, a complex long double, has 32 bytes."""

_LARGE_PIECES_BYTES = range(256 << 10, (1 << 20) + 1)
"""Pieces that do not leave at once with MPI. Smaller ones cost more than those that do (see `plan`); as all links of
a ring are busy from the first piece to the last, larger ones gain nothing."""

_FEWEST_PIECES = 4
"""So many make a part of the bytes, so that one is on its way while another is reduced."""

_LITTLE_BYTES = 16 << 10
"""Up to here, all nodes together, it is the number of messages in turn that takes the time."""


@dataclass(frozen=True)
class Ring:
    """What one place of a ring sends to the next place and receives from the one before.

    Attributes:
        ready: The pieces that it has at the beginning, and sends first.
        coming: The pieces that it receives. It sends them on in the same order.
        kept: How many of these, the last ones, it does not send on.
        reduced: How many of these, the first ones, are put together with what it has. Those that come after them
            have gone from here before: number `reduced + n` of `coming` is number n of `sent`.
    """

    ready: tuple[slice, ...]
    coming: tuple[slice, ...]
    kept: int
    reduced: int = 0

    @property
    def sent(self) -> tuple[slice, ...]:
        """The pieces that it sends."""
        return (*self.ready, *self.coming[: len(self.coming) - self.kept])

    @property
    def staged_bytes(self) -> int:
        """The largest piece that has to be put together with what is there."""
        return max((piece.stop - piece.start for piece in self.coming[: self.reduced]), default=0)


def gather_ring(parts: Sequence[Iterable[slice]], place: int, piece: int) -> Ring:
    """How what each place has comes to all others: each sends on what it gets, until it is with the place before.

    Every byte crosses each link once, but for the one that it need not cross.

    Args:
        parts: For each place, at least two, the runs of bytes that it has.
        place: Whose ring.
        piece: Bytes of a message.

    Source:
        R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH", Int. J.
        High Perform. Comput. Appl. 19 (2005), section 4.1.
    """
    count = len(parts)
    cuts = [tuple(_cut(parts[(place - step) % count], piece)) for step in range(count)]
    return Ring(cuts[0], tuple(chain(*cuts[1:])), kept=len(cuts[-1]))


def reduce_ring(run: slice, count: int, place: int, piece: int) -> Ring:
    """How bytes that each place has come to be reduced in all places.

    They are cut into as many parts as there are places. Each part goes once round to be reduced, from the place of its
    number on, and once more to be known: 2 (count - 1) / count times the bytes over each link, which is the least.

    Args:
        run: The bytes.
        count: Places, at least two.
        place: Whose ring.
        piece: Bytes of a message, a multiple of `LINE_BYTES`.

    Source:
        P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", J. Parallel
        Distrib. Comput. 69 (2009).
    """
    order = [(place - step) % count for step in range(2 * count - 1)]
    cuts = [tuple(_cut([part_of(run, count, part, grain=LINE_BYTES)], piece)) for part in order]
    reduced = sum(map(len, cuts[1:count]))
    return Ring(cuts[0], tuple(chain(*cuts[1:])), kept=len(cuts[-1]), reduced=reduced)


def _cut(parts: Iterable[slice], piece: int) -> Iterator[slice]:
    for part in parts:
        for one in slices.chunks(part.stop - part.start, piece):
            yield slice(part.start + one.start, part.start + one.stop)


def part_of(run: slice, parts: int, part: int, *, grain: int = slices.PAGE_BYTES) -> slice:
    """Part number `part` of a run of bytes; see `slices.byte_slice`."""
    found = slices.byte_slice(run.stop - run.start, parts, part, grain=grain)
    return slice(run.start + found.start, run.start + found.stop)


def piece_bytes(nbytes: int, wanted: int | None) -> int:
    """Bytes of a message on a ring whose places have so many each: `wanted`, or where that is None what seems best."""
    large = min(nbytes // _FEWEST_PIECES, _LARGE_PIECES_BYTES[-1])
    best = large if large in _LARGE_PIECES_BYTES else plan.EAGER_BYTES
    return -(-(wanted or best) // LINE_BYTES) * LINE_BYTES


def is_little(nbytes: int) -> bool:
    """Whether so many bytes reach all places sooner in few large messages than in many small ones."""
    return nbytes <= _LITTLE_BYTES


def spread(count: int) -> list[tuple[int, int]]:
    """How what each of `count` places has comes to all in the fewest turns: how far it goes, and of how many places.

    In each turn a place sends what it has of itself and of the places before it, and gets that of those before them.

    Source:
        J. Bruck et al., "Efficient algorithms for all-to-all communications in multiport message-passing systems",
        IEEE Trans. Parallel Distrib. Syst. 8 (1997), section 4.
    """
    return [(1 << turn, min(1 << turn, count - (1 << turn))) for turn in range((count - 1).bit_length())]


def runs(ranks: Iterable[int], starts: Sequence[int]) -> list[slice]:
    """Where the bytes of some ranks lie among those of all, which begin at `starts` and end where the next begin."""
    found: list[slice] = []
    for rank in ranks:
        one = slice(starts[rank], starts[rank + 1])
        if found and found[-1].stop == one.start:
            found[-1] = slice(found[-1].start, one.stop)
        elif one.stop > one.start:
            found.append(one)
    return found


def is_in_order(placement: Placement) -> bool:
    """Whether the ranks of the nodes, node by node, are all ranks in rising order."""
    return [rank for ranks in placement.nodes for rank in ranks] == list(range(len(placement.node_of)))
