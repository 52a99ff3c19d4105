"""Self-scheduling: how many tasks a rank, or a node, takes at a time. Plain functions of plain data.

Each chunk is a part of what is left, so that all ranks end together, and large at first, so that chunks are few. Where
some tasks are much longer than others, tasks are taken singly in the end: two long ones in one chunk would outlast all
others.

Source:
    C. D. Polychronopoulos and D. J. Kuck, "Guided self-scheduling", IEEE Trans. Computers C-36 (1987); S. F. Hummel,
    E. Schonberg, L. E. Flynn, "Factoring: a method for scheduling parallel loops", Comm. ACM 35 (1992).
"""

from __future__ import annotations

from typing import NamedTuple

CHUNK_S = 0.002
"""How long a chunk should take: some hundred times as long as taking it, so that a rank still notices several hundred
times a second that the rest is cancelled."""

_SHORTEST_S = 0.00005
"""A chunk takes at least so long, unless it is one task, so that taking chunks costs a tenth of the time at most."""

_GROWTH = 8
"""A chunk is at most so many times as large as the one before, whose tasks may have been short by chance."""

_FRACTION = 8
"""A chunk is this fraction of a rank's share of all that is left. With 2, as in factoring, simulated ranks ended up to
3 longest tasks apart (tests/unit/tasks/test_self_scheduling.py); more would cost more chunks, some hundred in all."""

_TAIL = 4
"""The tail begins when each rank has less to do than so many of the longest tasks."""


class ChunkRequest(NamedTuple):
    """How many tasks a rank asks for.

    Attributes:
        n_tasks: Tasks wanted.
        n_tail_tasks: Tasks wanted in the tail.
        tail: The tail begins when each rank has at most so many tasks to go.
    """

    n_tasks: int
    n_tail_tasks: int = 1
    tail: int = 0


def chunk_size(left: int, n_ranks: int, request: ChunkRequest, n_takers: int = 1) -> int:
    """Number of tasks in the next chunk: at least one, unless none is left.

    Args:
        left: Tasks that no rank has taken.
        n_ranks: Number of ranks that run them.
        request: What is asked for.
        n_takers: Number of ranks, of these, that the chunk is for.
    """
    share = left / n_ranks
    count = request.n_tasks if share > request.tail else request.n_tail_tasks
    return min(left, count, max(1, int(share * n_takers / _FRACTION)))


class ChunkSizer:
    """Finds out how many tasks a rank should ask for, by the time of those that it has run.

    Attributes:
        request: What to ask for next.
    """

    def __init__(self, chunk: int | None) -> None:
        """`chunk` is the number of tasks to ask for each time; None to find it by time."""
        self._is_fixed = chunk is not None
        self.request = ChunkRequest(chunk or 1, chunk or 1)
        self._count = 0
        self._seconds = 0.0
        self._shortest_s = float("inf")
        self._longest_s = 0.0

    def note_time(self, count: int, seconds: float) -> None:
        """Notes that `count` tasks took `seconds`."""
        self._count += count
        self._seconds += seconds
        if not self._is_fixed:
            self.request = self._next_request(count, max(seconds, 1e-9))

    def _next_request(self, count: int, seconds: float) -> ChunkRequest:
        """The longest task is estimated as if one alone took all that a chunk took longer than the shortest tasks."""
        self._shortest_s = min(self._shortest_s, seconds / count)
        self._longest_s = max(self._longest_s, seconds - (count - 1) * self._shortest_s)
        mean_s = max(self._seconds / self._count, 1e-9)
        wanted = max(1, min(int(CHUNK_S * count / seconds), count * _GROWTH))
        tail_count = max(1, min(wanted, int(_SHORTEST_S / mean_s)))
        return ChunkRequest(wanted, tail_count, int(_TAIL * self._longest_s / mean_s))

    def block_request(self, n_ranks: int, seconds: float) -> ChunkRequest:
        """The request for a block of tasks that keeps `n_ranks` ranks busy for `seconds`, with one each at least."""
        per_rank = max(1, int(seconds * self._count / max(self._seconds, 1e-9)))
        return ChunkRequest(per_rank * n_ranks, self.request.n_tail_tasks * n_ranks, self.request.tail)
