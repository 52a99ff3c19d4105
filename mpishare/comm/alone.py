"""Blocks that one rank runs while the other ranks of a communicator do not come to its collectives, such as a task."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from weakref import ref

from mpishare.comm import mpi
from mpishare.errors import ArgumentError

blocks: dict[ref[alone], None] = {}
"""The blocks that this process is in, the innermost last. A signal's exception may take a thread out of a block without
its end. The public call around it then ends it, by `end_others`; else it counts no more when nothing refers to it."""


class alone:  # noqa: N801 - used as `with alone(comm, "within a task"):`
    """A block in which a collective with other ranks of `comm` is an ArgumentError, as these ranks do not come.

    In the thread of the block, a collective over any communicator is refused that has a second rank of `comm`.

    Attributes:
        where: What an error says of where the call was made, such as "within a task".
        is_lifted: Whether the other ranks come for a while.
    """

    def __init__(self, comm: mpi.Intracomm, where: str, *, for_all_threads: bool = False) -> None:
        """A block that begins with `with`, and ends with it or before, by `end`.

        With `for_all_threads`, a collective over `comm` itself is refused in other threads, too. Over other
        communicators they may have an understanding with threads of the other ranks.
        """
        self.where = where
        self.is_lifted = False
        self._comm = comm
        self._is_for_all = for_all_threads
        self._thread = 0
        self._reference = ref(self, _forget)
        hash(self._reference)  # which it keeps, and could not make when this block is gone

    def __enter__(self) -> alone:
        if self._reference not in blocks:  # a pool may begin its block several times
            self._thread = threading.get_ident()
            blocks[self._reference] = None
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Ends the block, if it has not ended."""
        _forget(self._reference)

    def is_of_this_thread(self) -> bool:
        """Whether this thread has entered the block."""
        return self._thread == threading.get_ident()

    def separates(self, comm: mpi.Intracomm, *, of_this_thread: bool = False) -> bool:
        """Whether other ranks of `comm` do not come to a collective of this thread.

        With `of_this_thread`, true only in the thread that entered the block.
        """
        is_own = self.is_of_this_thread()
        if self.is_lifted or not (is_own or (self._is_for_all and not of_this_thread)):
            return False
        return comm.size > 1 and (self._comm == comm or (is_own and _n_common(self._comm, comm) > 1))


def _forget(reference: ref[alone], pop: Callable[..., object] = blocks.pop) -> None:
    """Ends a block. `pop` is there to the very end of the process, where the last reference may go."""
    pop(reference, None)


def end_others(begun: Collection[ref[alone]]) -> None:
    """Ends the blocks of this thread but those that had `begun` before the call that an exception has ended."""
    for reference in set(blocks).difference(begun):
        block = reference()
        if block is not None and block.is_of_this_thread():
            block.end()


def where_alone(comm: mpi.Comm | None, *, of_this_thread: bool = False) -> str:
    """Where a call is made to which other ranks of `comm`, MPI_COMM_WORLD when None, do not come; "" if they do.

    With `of_this_thread`, blocks of other threads do not count.
    """
    if not blocks or mpi.Is_finalized():  # nearly always the first
        return ""
    comm = mpi.communicator(comm)
    if not isinstance(comm, mpi.Intracomm) or comm == mpi.COMM_NULL:
        return ""  # it is refused by `context_of`
    references = list(blocks)  # which other threads may change meanwhile
    begun = [block for reference in reversed(references) if (block := reference()) is not None]
    return next((block.where for block in begun if block.separates(comm, of_this_thread=of_this_thread)), "")


def refuse_alone(name: str, comm: mpi.Comm | None) -> None:
    """Checks that the other ranks of `comm` can come to the collective `name`.

    Raises:
        ArgumentError: They do not. Local.
    """
    if where := where_alone(comm):
        raise ArgumentError(
            f"{name} was called {where}, where other ranks of the communicator do not join. Call it before, outside, "
            "or pass comm=MPI.COMM_SELF."
        )


def _n_common(one: mpi.Intracomm, other: mpi.Intracomm) -> int:
    """How many ranks two communicators have in common; 0 if the first has been freed."""
    if one == mpi.COMM_NULL:
        return 0
    return sum(rank != mpi.UNDEFINED for rank in mpi.ranks_in(one, other))
