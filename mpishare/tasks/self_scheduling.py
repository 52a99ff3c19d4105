"""How many tasks go to whom at a time. Plain functions of plain data.

Each claim is a part of what is left, so that all end together, and large at first, so that claims are few. Where some
tasks are much longer than others, single ones are dealt in the end: two long ones in one claim would outlast all else.

Source:
    C. D. Polychronopoulos and D. J. Kuck, "Guided self-scheduling", IEEE Trans. Computers C-36 (1987); S. F. Hummel,
    E. Schonberg, L. E. Flynn, "Factoring: a method for scheduling parallel loops", Comm. ACM 35 (1992).
"""

from __future__ import annotations

from typing import NamedTuple

CHUNK_S = 0.002
"""How long a chunk should take: a claim costs a few microseconds, so that this is some hundred times as long, and a
rank still looks several hundred times a second whether the rest has been given up."""

_LEAST_S = 0.00005
"""A chunk takes as long at least, so that claims take a tenth of the time at most, unless it is one task."""

_GROWTH = 8
"""A chunk is at most so many times as large as the one before, as the tasks of that may have been short by chance."""

_PART = 8
"""A claim is such a part of what its rank would have of all that is left. With 2, as in factoring, simulated ranks
ended up to 3 longest tasks apart (tests/unit/test_dealing.py); more parts cost some hundred claims in all."""

_CAREFUL = 4
"""Tasks are dealt with care when each rank has less to do than so many of the longest."""


class ChunkRequest(NamedTuple):
    """How many tasks somebody would have.

    Attributes:
        wanted: So many.
        careful: So many in the end.
        tail: The end begins when each rank has so many to go.
    """

    wanted: int
    careful: int = 1
    tail: int = 0


def portion(left: int, ranks: int, wish: ChunkRequest, claimers: int = 1) -> int:
    """How many of the tasks that are `left` one claim gets, which is one at least, unless none is left.

    Args:
        left: Tasks that nobody has claimed.
        ranks: How many ranks there are to run them.
        wish: How many the claimer would have.
        claimers: For how many of the ranks it claims.
    """
    each = left / ranks
    wanted = wish.wanted if each > wish.tail else wish.careful
    return min(left, wanted, max(1, int(each * claimers / _PART)))


class ChunkSizer:
    """How many tasks a rank wants at a time, found out by the time of those that it has run.

    Attributes:
        wish: So many the next time.
    """

    def __init__(self, chunk: int | None) -> None:
        """`chunk` is how many the caller wants each time, None where time decides."""
        self._chunk = chunk
        self.wish = ChunkRequest(chunk or 1, chunk or 1)
        self._count = 0
        self._seconds = 0.0
        self._shortest_s = float("inf")
        self._longest_s = 0.0

    def ran(self, count: int, seconds: float) -> None:
        """So many tasks took so long."""
        self._count += count
        self._seconds += seconds
        if self._chunk is None:
            self.wish = self._next_wish(count, max(seconds, 1e-9))

    def _next_wish(self, count: int, seconds: float) -> ChunkRequest:
        """The longest task is estimated as if one made up for all that a chunk took longer than the quickest."""
        self._shortest_s = min(self._shortest_s, seconds / count)
        self._longest_s = max(self._longest_s, seconds - (count - 1) * self._shortest_s)
        mean_s = max(self._seconds / self._count, 1e-9)
        wanted = max(1, min(int(CHUNK_S * count / seconds), count * _GROWTH))
        return ChunkRequest(
            wanted, max(1, min(wanted, int(_LEAST_S / mean_s))), int(_CAREFUL * self._longest_s / mean_s)
        )

    def block(self, ranks: int, seconds: float) -> ChunkRequest:
        """How many tasks for so many ranks to have work for that time, as far as is known: one each at least."""
        in_time = int(seconds * self._count / max(self._seconds, 1e-9))
        _, careful, tail = self.wish
        return ChunkRequest(max(1, in_time) * ranks, careful * ranks, tail)
