"""A board in the memory of one node, on which its ranks meet in less time than in a collective of MPI.

Each rank writes what it brings and then, by one store, that it has come; then it looks until all have come, and lets
others have the core meanwhile. Where ranks share cores this is where the time goes: an MPI_Allreduce makes each rank
wait once for every power of two, the board once.

- That a rank has come stands on the board and nowhere else. So an exception from outside, a signal's, finds the rank
  either in a meeting or out of it, and the next meeting is the right one.
- Two sides are used in turn. One is written again when all have come to the meeting after, and so have read it.
- What is brought goes before the number of the meeting, on a processor that keeps the order of stores and of loads. On
  others there is no board.

Source:
    Intel 64 and IA-32 Architectures Software Developer's Manual, volume 3, section 9.2.2; S. Jain et al., "Framework
    for scalable intra-node collective operations using shared memory", SC18.
"""

from __future__ import annotations

import ctypes
import platform
from os import sched_yield

from mpi4py import MPI

from mpishare.agreement import BROUGHT_BYTES, agree
from mpishare.meanwhile import go_on

__all__ = ["Boarded", "Side", "does_for", "number_bytes", "size_bytes"]

_MOST_RANKS = 16
"""All ranks look at what all bring, so that more would do better with a tree."""

_LINE_BYTES = 64
_NUMBER_BYTES = 8
_LOOKS = 16
"""So often a rank looks before it lets MPI and receives that have begun go on, for those that wait for it elsewhere."""


def does_for(ranks: int) -> bool:
    """Whether a board is of use for so many ranks, on a processor whose stores others see in the program's order."""
    return 1 < ranks <= _MOST_RANKS and platform.machine() == "x86_64"


def size_bytes(ranks: int) -> int:
    """The size of a board for so many."""
    return 2 * _side_bytes(ranks)


def number_bytes(number: int) -> bytes:
    """The number of a meeting as it stands on a board."""
    return number.to_bytes(_NUMBER_BYTES, "little")


class Boarded(MPI.Intracomm):
    """A communicator of ranks of one node with a board beside it. All of its ranks have it, or none."""

    enter = None

    def __new__(cls, comm: MPI.Intracomm, *_: object) -> Boarded:
        """The same communicator."""
        return super().__new__(cls, comm)

    def __init__(self, comm: MPI.Intracomm, memory: object, address: int) -> None:
        """The board begins at `address`, with all bytes zero, and lasts as long as `memory`."""
        self._set_board(memory, address, comm.size, comm.rank)

    def _set_board(self, memory: object, address: int, ranks: int, place: int) -> None:
        """It is one of `ranks`, of which this is number `place`."""
        self._memory = memory
        self._place = place
        length = _side_bytes(ranks)
        self._sides = [Side(address + number * length, ranks, place) for number in range(2)]
        self._met = 0

    def meet(self, mine: bytes) -> bytes:
        """What all ranks bring, `BROUGHT_BYTES` each, put together by or. Collective."""
        if self._sides[~self._met & 1].came[self._place] > self._met:  # an exception ended the last meeting early
            self._finish()
        number = self._met + 1
        side = self._sides[number & 1]
        side.mine[:] = mine
        side.came[self._place] = number
        return self._finish()

    def _finish(self) -> bytes:
        """The outcome of the meeting that this rank has come to, when that is over."""
        number = self._met + 1
        side = self._sides[number & 1]
        self._look_for(number_bytes(number) * side.ranks, side.numbers)
        self._met = number
        return side.together()

    def _look_for(self, sight: bytes, place: memoryview) -> None:
        """Returns when `sight` stands at `place`."""
        looks = 0
        while bytes(place) != sight:
            looks += 1
            if looks % _LOOKS == 0:
                self.Iprobe()
                go_on()
            sched_yield()

    def Barrier(self) -> None:
        """On the board, where ranks that are in different calls find it out."""
        with agree(self):
            pass


class Side:
    """Where the ranks write for one meeting.

    Attributes:
        ranks: How many they are.
        came: For each rank the number of the last meeting that it has come to on this side.
        numbers: The same as bytes.
        mine: What this rank brings.
        over: The number of the last meeting on this side whose outcome is there.
        outcome: Where it is, when not all can find it by themselves.
    """

    def __init__(self, address: int, ranks: int, place: int) -> None:
        board = memoryview((ctypes.c_uint8 * _side_bytes(ranks)).from_address(address)).cast("B")
        self.ranks = ranks
        self.numbers = board[: ranks * _NUMBER_BYTES]
        self.came = self.numbers.cast("Q")
        end = _numbers_bytes(ranks)
        self.over = board[end - _NUMBER_BYTES : end]
        starts = range(end, end + ranks * BROUGHT_BYTES, BROUGHT_BYTES)
        self._brought = [board[start : start + BROUGHT_BYTES] for start in starts]
        self.mine = self._brought[place]
        self.outcome = board[end + ranks * BROUGHT_BYTES :]

    def together(self) -> bytes:
        """What the ranks brought, put together by or."""
        found = 0
        for brought in self._brought:
            found |= int.from_bytes(brought, "little")
        return found.to_bytes(BROUGHT_BYTES, "little")


def _side_bytes(ranks: int) -> int:
    return _numbers_bytes(ranks) + (ranks + 1) * BROUGHT_BYTES


def _numbers_bytes(ranks: int) -> int:
    """Those of the ranks and of the outcome."""
    return -(-(ranks + 1) * _NUMBER_BYTES // _LINE_BYTES) * _LINE_BYTES
