"""The communicator that mpishare's collectives run on: the few calls that they make, and no others.

`WatchedComm` has the same calls, with an end to the waiting. All ranks of a communicator have one of the two kinds.

Every call but `barrier_asleep` orders memory, on any CPU: what a rank of a node read and wrote in node memory before it
comes before what the ranks that get data from it do there afterwards. For MPI itself must bring its data in order. It
publishes them by a release and takes them by an acquire, as Open MPI does with opal_atomic_wmb and opal_atomic_rmb
(btl/sm) and MPICH with MPL_atomic_release_store and MPL_atomic_acquire_load; or the kernel or a network brings them,
which orders no less. A release waits for all that its rank has done before, not for MPI's data alone. No rank polls
node memory that another one writes, so that it needs no other fence.

Source:
    The ARM architecture reference manual, B2.3, "barrier-ordered-before"; MPI 3.1, section 11.7.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import starmap
from typing import Any

from mpishare.comm import mpi, progress
from mpishare.comm.pending import keep_alive

_HAS_ORDERED_STORES = os.uname().machine == "x86_64"
"""Whether this CPU shows its stores in their order without a fence. Where it does not, MPI_Barrier may order nothing,
as it brings no data: that of Open MPI's coll/sm, which must be asked for, counts the ranks without a fence."""

_SLEEP_S = 0.0001
"""Between two looks whether all ranks have come to a `barrier_asleep`."""

_LONGEST_SLEEP_S = 0.001
"""The same in a wait that may be long, whose pauses grow as it does: it takes 0.03 of a core, not 0.09."""


class CollectiveComm:
    """A communicator of mpi4py with the calls that mpishare makes. Blocks are one-dimensional uint8 arrays, or bytes.

    Attributes:
        rank: This process's rank.
        size: Number of ranks.
        isend: Begins to send, as in mpi4py.
        irecv: Begins to receive, as in mpi4py.
        begin_bcast: A broadcast, as Bcast or Ibcast of mpi4py; see `finish`.
        begin_barrier: A barrier, in the same way.
    """

    def __init__(self, comm: mpi.Intracomm) -> None:
        self._comm = comm
        self.rank: int = comm.rank
        self.size: int = comm.size
        self.isend: Callable[..., mpi.Request] = comm.Isend
        self.irecv: Callable[..., mpi.Request] = comm.Irecv
        self._allreduce: Callable[..., object] = comm.Allreduce
        self.begin_bcast: Callable[..., mpi.Request | None] = comm.Bcast
        self.begin_barrier: Callable[..., mpi.Request | None] = barrier_of(comm.Barrier, comm.Allreduce)
        self._allgather: Callable[..., object] = comm.Allgather
        self._allgatherv: Callable[..., object] = comm.Allgatherv

    @property
    def is_given_up(self) -> bool:
        """Whether a rank gave up waiting for the others, so that no rank uses the communicator any more."""
        return False

    def allreduce(self, array: Any, op: mpi.Op) -> None:
        """Reduces `array` of all ranks in place."""
        self._allreduce(mpi.IN_PLACE, array, op)

    def allreduce_or(self, data: bytes) -> bytes:
        """The bitwise OR of the same number of bytes from each rank. Receives that have begun go on meanwhile."""
        result = bytearray(data)
        if progress.pending:
            progress.run_blocking(self._allreduce, mpi.IN_PLACE, [result, mpi.BYTE], mpi.BOR)
        else:
            self._allreduce(mpi.IN_PLACE, [result, mpi.BYTE], mpi.BOR)
        return bytes(result)

    def bcast(self, block: Any, root: int) -> None:
        """Fills `block` on all ranks from that of `root`."""
        self.finish(self.begin_bcast([block, mpi.BYTE], root))

    def allgather(self, block: Any, blocks: Any) -> None:
        """Fills `blocks` with the blocks of all ranks, which have one length, in the order of the ranks."""
        self._allgather([block, mpi.BYTE], [blocks, mpi.BYTE])

    def allgather_parts(self, block: Any, parts: Sequence[slice]) -> None:
        """Fills `block` on all ranks, where each rank has filled its own part."""
        sizes, starts = [part.stop - part.start for part in parts], [part.start for part in parts]
        self._allgatherv(mpi.IN_PLACE, [block, sizes, starts, mpi.BYTE])

    def barrier(self) -> None:
        """Returns when all ranks have come."""
        self.finish(self.begin_barrier())

    def finish(self, request: mpi.Request | None) -> None:
        """Waits for what a `begin_...` has returned: None here, as they have waited."""

    def barrier_asleep(self, *, has_limit: bool = True) -> None:
        """Like `barrier`, but leaves the cores to the threads of a rank that works before it comes.

        It orders no memory where MPI_Barrier does not: an agreement follows. An exception, such as a signal handler's,
        ends the wait of this rank alone, and the barrier of no rank.

        Args:
            has_limit: Whether MPISHARE_TIMEOUT ends the wait.
        """
        begun: list[mpi.Request] = []
        try:
            # In one call of C: no signal handler runs between the two.
            begun.extend(starmap(self._comm.Ibarrier, ((),)))
            self._wait_asleep(begun[0], has_limit=has_limit)
        except BaseException:
            if not begun and not self.is_given_up:
                begun.append(self._comm.Ibarrier())
            keep_alive(begun)
            raise

    def _wait_asleep(self, request: mpi.Request, *, has_limit: bool) -> None:
        pause_s = _SLEEP_S
        while not request.Test():
            progress.advance_all()
            time.sleep(pause_s)
            if not has_limit:
                pause_s = min(1.1 * pause_s, _LONGEST_SLEEP_S)

    def bcast_obj(self, obj: Any, root: int) -> Any:
        """The object of `root`, pickled."""
        return self._comm.bcast(obj, root)

    def allgather_obj(self, obj: Any) -> list[Any]:
        """The objects of all ranks, pickled, by rank."""
        return self._comm.allgather(obj)

    def gather_obj(self, obj: Any, root: int) -> list[Any]:
        """On `root`, the objects of all ranks, pickled, by rank; elsewhere nothing."""
        return self._comm.gather(obj, root) or []

    def sendrecv(self, sent: Any, received: Any, rank: int, tag: int) -> None:
        """Sends a block to `rank`, and fills another by one from there. Not on a `WatchedComm`, as nothing ends it."""
        self._comm.Sendrecv([sent, mpi.BYTE], rank, tag, [received, mpi.BYTE], rank, tag)

    def wait(self, request: mpi.Request, rank: int, status: mpi.Status | None = None) -> None:
        """Waits for a message to or from `rank`."""
        request.Wait(status)


def barrier_of(barrier: Callable[..., Any], allreduce: Callable[..., Any]) -> Callable[..., Any]:
    """Of two calls of MPI the one that makes a `barrier`."""
    return barrier if _HAS_ORDERED_STORES else partial(allreduce, mpi.IN_PLACE, [bytearray(1), mpi.BYTE], mpi.BOR)
