"""What each node sends and receives when all nodes bring bytes to all: plain functions of plain data.

The nodes form a ring. A node's number is its place, and the next place follows it; the first follows the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from mpishare.arrays import slices
from mpishare.comm.topology import Placement
from mpishare.transfer.plan import EAGER_BYTES, LINE_BYTES, Link

MAX_SWAP_BYTES = 2 << 20
"""Up to here the leaders of two nodes swap their bytes by as few messages as the link allows, and not in a ring. Gain
in the transfer alone, through shared memory, when this was added: a quarter to a sixth of the ring's time for an
allreduce of 64 KiB to 1 MiB, two thirds for an allgather of 1 MiB; at 400 Mbit/s a tenth up to 1 MiB."""


@dataclass(frozen=True)
class Ring:
    """The chunks that one place receives from the place before it and sends to the next place.

    Attributes:
        ready: Chunks that the place has from the start. It sends them first.
        coming: Chunks that it receives. It sends them on in the same order.
        kept: How many of the last of `coming` it does not send on.
        reduced: How many of the first of `coming` are combined with its own bytes. The others overwrite its bytes.
        goes_twice: Whether the bytes go round again once they are reduced. Then chunk number `reduced + n` of `coming`
            overwrites chunk number n of `sent`.
    """

    ready: tuple[slice, ...]
    coming: tuple[slice, ...]
    kept: int = 0
    reduced: int = 0
    goes_twice: bool = False

    @cached_property
    def sent(self) -> tuple[slice, ...]:
        """Chunks that the place sends, in order."""
        return (*self.ready, *self.coming[: len(self.coming) - self.kept])

    def sends_before(self, number: int) -> int:
        """How many sends must have ended before chunk `number` of `coming` may be received."""
        return max(0, number - self.reduced + 1) if self.goes_twice else 0


def gather_ring(runs: Sequence[Iterable[slice]], place: int, chunk_bytes: int) -> Ring:
    """How the bytes of each place reach all places: each place sends on what it receives, as far as the place before.

    Every byte crosses each link but one.

    Args:
        runs: For each place, at least two, the slices of the bytes that it has.
        place: The place in question.
        chunk_bytes: Bytes of a message.

    Source:
        R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH", Int. J.
        High Perform. Comput. Appl. 19 (2005), section 4.1.
    """
    count = len(runs)
    parts = [tuple(_chunks_of(runs[(place - step) % count], chunk_bytes)) for step in range(count)]
    return Ring(parts[0], tuple(chain(*parts[1:])), kept=len(parts[-1]))


def reduce_ring(nbytes: int, count: int, place: int, chunk_bytes: int) -> Ring:
    """How bytes that each place has are reduced, with the result in all places.

    The bytes are cut into as many parts as there are places. Each part goes round once to be reduced, from the place of
    its number on, and once more to be distributed: 2 (count - 1) / count times the bytes cross each link, the minimum.

    Args:
        nbytes: Bytes of each place.
        count: Number of places, at least two.
        place: The place in question.
        chunk_bytes: Bytes of a message, a multiple of `LINE_BYTES`.

    Source:
        P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", J. Parallel
        Distrib. Comput. 69 (2009).
    """
    numbers = [(place - step) % count for step in range(2 * count - 1)]
    runs = [slices.byte_slice(nbytes, count, number, grain=LINE_BYTES) for number in numbers]
    parts = [tuple(_chunks_of([run], chunk_bytes)) for run in runs]
    reduced = sum(map(len, parts[1:count]))
    return Ring(parts[0], tuple(chain(*parts[1:])), kept=len(parts[-1]), reduced=reduced, goes_twice=True)


def reduce_chain(nbytes: int, count: int, place: int, chunk_bytes: int) -> Ring:
    """How bytes that each place has are reduced strictly in order, from place 0 on, with the result in the last place.

    Args: See `reduce_ring`.
    """
    chunks = tuple(slices.chunks(nbytes, chunk_bytes))
    if place == 0:
        return Ring(chunks, ())
    return Ring((), chunks, kept=len(chunks) if place == count - 1 else 0, reduced=len(chunks))


def _chunks_of(runs: Iterable[slice], chunk_bytes: int) -> Iterator[slice]:
    for run in runs:
        for chunk in slices.chunks(run.stop - run.start, chunk_bytes):
            yield slice(run.start + chunk.start, run.start + chunk.stop)


def swap_chunk_bytes(nbytes: int, link: Link, configured: int | None) -> int:
    """Bytes of a chunk where two nodes send each other `nbytes`, all chunks at once.

    One message of few bytes, and where the model says that it gains a tenth over eager ones: on a link about as fast as
    memory.

    Args:
        nbytes: Bytes of each node, at least 1.
        link: That between the nodes.
        configured: MPISHARE_CHUNK; None for the choice made here.
    """
    if configured is None and nbytes <= EAGER_BYTES:
        return nbytes
    eager_s = -(-nbytes // EAGER_BYTES) * link.message_s(EAGER_BYTES)
    is_whole = configured is None and link.message_s(nbytes) < 0.9 * eager_s
    return nbytes if is_whole else slices.round_up(configured or EAGER_BYTES, LINE_BYTES)


def joined_runs(ranks: Iterable[int], starts: Sequence[int]) -> list[slice]:
    """The bytes of some ranks as slices that do not touch, where `starts[rank]` to `starts[rank + 1]` are a rank's."""
    runs: list[slice] = []
    for rank in ranks:
        start, stop = starts[rank], starts[rank + 1]
        if runs and runs[-1].stop == start:
            runs[-1] = slice(runs[-1].start, stop)
        elif stop > start:
            runs.append(slice(start, stop))
    return runs


def run_bytes(runs: Iterable[slice]) -> int:
    """Bytes of some runs in all."""
    return sum(run.stop - run.start for run in runs)


def is_in_order(placement: Placement) -> bool:
    """Whether the ranks, listed node by node, are in rising order."""
    return [rank for ranks in placement.nodes for rank in ranks] == list(range(len(placement.node_of)))
