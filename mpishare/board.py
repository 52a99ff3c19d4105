"""A board in the memory of one node, on which its ranks meet in less time than in a collective of MPI.

Each rank writes its words and then, by one store, that it has come; then it looks until all have come, and lets others
have the core meanwhile. Where ranks share cores this is where the time goes: an MPI_Allreduce makes each rank wait once
for every power of two, the board once.

- That a rank has come stands on the board and nowhere else. So an exception from outside, a signal's, finds the rank
  either in a meeting or out of it, and the next meeting is the right one.
- Two sides are used in turn. One is written again when all have come to the meeting after, and so have read it.
- Words go before the number of the meeting, on a processor that keeps the order of stores and of loads. On others there
  is no board.

Source:
    Intel 64 and IA-32 Architectures Software Developer's Manual, volume 3, section 9.2.2; S. Jain et al., "Framework
    for scalable intra-node collective operations using shared memory", SC18.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from functools import reduce
from operator import or_
from os import sched_yield

from mpi4py import MPI

from mpishare.agreement import NOTE_BYTES, WORDS_BYTES, agree
from mpishare.meanwhile import go_on

__all__ = ["Boarded", "does_for", "size_bytes"]

_MOST_RANKS = 16
"""All ranks look at the words of all, so that more would do better with a tree."""

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


def _side_bytes(ranks: int) -> int:
    numbers = -(-ranks * _NUMBER_BYTES // _LINE_BYTES) * _LINE_BYTES
    return numbers + ranks * WORDS_BYTES + NOTE_BYTES


class Boarded(MPI.Intracomm):
    """A communicator of ranks of one node with a board beside it. All of its ranks have it, or none."""

    enter = None

    def __new__(cls, comm: MPI.Intracomm, *_: object) -> Boarded:
        """The same communicator."""
        return super().__new__(cls, comm)

    def __init__(self, comm: MPI.Intracomm, memory: object, address: int) -> None:
        """The board begins at `address`, with all bytes zero, and lasts as long as `memory`."""
        self._memory = memory
        self._ranks = comm.size
        self._place = comm.rank
        length = _side_bytes(comm.size)
        self._sides = [_Side(address + number * length, comm.size, comm.rank) for number in range(2)]
        self._met = 0

    def meet(self, words: bytes, note: bytes) -> bytes:
        """The words of all ranks put together by or, and the note of the rank that has one. Collective."""
        if self._sides[~self._met & 1].came[self._place] > self._met:  # an exception ended the last meeting early
            self._wait()
        number = self._met + 1
        side = self._sides[number & 1]
        side.mine[:] = words
        if note is not agree.note:
            side.note[:] = note
        side.came[self._place] = number
        self._wait()
        found = bytes(side.words)
        if found != words * self._ranks:
            words = _together(found, len(words))
        return words + bytes(side.note)

    def _wait(self) -> None:
        """Returns when all have come to the next meeting."""
        number = self._met + 1
        numbers = self._sides[number & 1].numbers
        all_came = number.to_bytes(_NUMBER_BYTES, sys.byteorder) * self._ranks
        looks = 0
        while bytes(numbers) != all_came:
            looks += 1
            if looks % _LOOKS == 0:
                self.Iprobe()
                go_on()
            sched_yield()
        self._met = number


class _Side:
    """Where the ranks write for one meeting.

    Attributes:
        came: For each rank the number of the last meeting that it has come to on this side.
        numbers: The same as bytes.
        words: Those of all ranks.
        mine: Those of this rank.
        note: That of the rank which has one.
    """

    def __init__(self, address: int, ranks: int, rank: int) -> None:
        nbytes = _side_bytes(ranks)
        board = memoryview((ctypes.c_uint8 * nbytes).from_address(address)).cast("B")
        self.numbers = board[: ranks * _NUMBER_BYTES]
        self.came = self.numbers.cast("Q")
        self.note = board[nbytes - NOTE_BYTES :]
        self.words = board[nbytes - NOTE_BYTES - ranks * WORDS_BYTES : nbytes - NOTE_BYTES]
        self.mine = self.words[rank * WORDS_BYTES : (rank + 1) * WORDS_BYTES]


def _together(found: bytes, length: int) -> bytes:
    every = (int.from_bytes(found[start : start + length], "little") for start in range(0, len(found), length))
    return reduce(or_, every).to_bytes(length, "little")
