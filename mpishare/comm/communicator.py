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

import math
import os
import pickle
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpishare.comm import mpi
from mpishare.comm.requests import advance_all, keep_alive, kept_alive_on_error, pending, run_blocking, waits
from mpishare.comm.watchdog import Watchdog, ends_within
from mpishare.errors import MismatchError

_HAS_ORDERED_STORES = os.uname().machine == "x86_64"
"""Whether this CPU shows its stores in their order without a fence. Where it does not, MPI_Barrier may order nothing,
as it brings no data: that of Open MPI's coll/sm, which must be asked for, counts the ranks without a fence."""

_SLEEP_S = 0.0001
"""Between two looks whether all ranks have come to a `barrier_asleep`."""

_LONGEST_SLEEP_S = 0.001
"""The same in a wait that may be long, whose pauses grow as it does: it takes 0.03 of a core, not 0.09."""

_TEXT_BYTES = 512
"""How much of the name, file and line of a call MPISHARE_CHECK compares and shows."""

_TELL_S = 0.5
"""How long ranks that differ within a node wait for the other nodes to hear of it."""


class CollectiveComm:
    """A communicator of mpi4py with the calls that mpishare makes. Blocks are one-dimensional uint8 arrays, or bytes.

    Attributes:
        rank: This process's rank.
        size: Number of ranks.
        isend: Begins to send, as in mpi4py.
        irecv: Begins to receive, as in mpi4py.
    """

    def __init__(self, comm: mpi.Intracomm) -> None:
        self._comm = comm
        self.rank: int = comm.rank
        self.size: int = comm.size
        self.isend: Callable[..., mpi.Request] = comm.Isend
        self.irecv: Callable[..., mpi.Request] = comm.Irecv
        self._allreduce: Callable[..., object] = comm.Allreduce
        self._bcast: Callable[..., object] = comm.Bcast
        self._barrier: Callable[..., object] = comm.Barrier
        self._allgather: Callable[..., object] = comm.Allgather
        self._allgatherv: Callable[..., object] = comm.Allgatherv
        self._alltoallv: Callable[..., object] = comm.Alltoallv

    def allreduce_or(self, data: bytes) -> bytes:
        """The bitwise OR of the same number of bytes from each rank. Receives that have begun go on meanwhile."""
        waits[0] += 1
        result = bytearray(data)
        if pending:
            run_blocking(self._allreduce, mpi.IN_PLACE, [result, mpi.BYTE], mpi.BOR)
        else:
            self._allreduce(mpi.IN_PLACE, [result, mpi.BYTE], mpi.BOR)
        return bytes(result)

    def bcast(self, block: Any, root: int) -> None:
        """Copies the `block` of `root` to those of all other ranks."""
        waits[0] += 1
        self._bcast([block, mpi.BYTE], root)

    def allgather(self, block: Any, blocks: Any) -> None:
        """Fills `blocks` with the blocks of all ranks, which have one length, in the order of the ranks."""
        self._allgather([block, mpi.BYTE], [blocks, mpi.BYTE])

    def allgather_int(self, number: int) -> list[int]:
        """The numbers of all ranks, by rank."""
        numbers = np.empty(self.size, np.int64)
        self._allgather(np.array([number], np.int64), numbers)
        return list(map(int, numbers))

    def allgather_parts(self, block: Any, parts: Sequence[slice]) -> None:
        """Fills `block` on all ranks, where each rank has filled its own part."""
        sizes, starts = [part.stop - part.start for part in parts], [part.start for part in parts]
        self._allgatherv(mpi.IN_PLACE, [block, sizes, starts, mpi.BYTE])

    def alltoall_parts(self, block: Any, parts: Sequence[slice], received: Any) -> None:
        """Sends to each rank its part of `block`; fills `received` by this rank's part of the block of each rank."""
        sizes, starts = [part.stop - part.start for part in parts], [part.start for part in parts]
        own = sizes[self.rank]
        places = [own * rank for rank in range(self.size)]
        self._alltoallv([block, sizes, starts, mpi.BYTE], [received, [own] * self.size, places, mpi.BYTE])

    def barrier(self) -> None:
        """Returns when all ranks have come. It orders memory, as the other calls do."""
        waits[0] += 1
        if _HAS_ORDERED_STORES:
            self._barrier()
        else:
            self._allreduce(mpi.IN_PLACE, [bytearray(1), mpi.BYTE], mpi.BOR)

    def barrier_asleep(self, *, has_limit: bool = True) -> None:
        """Like `barrier`, but leaves the cores to the threads of a rank that works before it comes.

        It orders no memory where MPI_Barrier does not: an agreement follows.

        Args:
            has_limit: Whether the others should come soon: MPISHARE_TIMEOUT ends the wait, and stderr names it.
        """
        waits[0] += 1
        self._wait_asleep(self._comm.Ibarrier(), has_limit=has_limit)

    def _wait_asleep(self, request: mpi.Request, *, has_limit: bool) -> None:
        pause_s = _SLEEP_S
        while not request.Test():
            advance_all()
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

    def wait(self, request: mpi.Request, rank: int, status: mpi.Status | None = None) -> None:
        """Waits for a message to or from `rank`."""
        waits[0] += 1
        request.Wait(status)


class WatchedComm(CollectiveComm):
    """Makes each blocking call in its nonblocking form and waits under a watchdog."""

    def __init__(
        self,
        comm: mpi.Intracomm,
        watchdog: Watchdog,
        ranks: Sequence[int],
        node_comm: WatchedComm | None = None,
    ) -> None:
        """Watches `comm`.

        Args:
            comm: The communicator.
            watchdog: The watchdog of the communicator over all nodes.
            ranks: For each rank of `comm`, its rank on the communicator over all nodes.
            node_comm: Where `comm` is over all nodes, that of this node, whose ranks are compared first.
        """
        super().__init__(comm)
        self._watchdog = watchdog
        self._ranks = tuple(ranks)
        self._node_comm = node_comm
        self._outer: WatchedComm = self
        if node_comm is not None:
            node_comm._outer = self
        self._allreduce = self._watched(comm.Iallreduce)
        self._bcast = self._watched(comm.Ibcast)
        self._barrier = self._watched(comm.Ibarrier)
        self._allgather = self._watched(comm.Iallgather)
        self._allgatherv = self._watched(comm.Iallgatherv)
        self._alltoallv = self._watched(comm.Ialltoallv)

    def _watched(self, begin: Callable[..., mpi.Request]) -> Callable[..., None]:
        """A function that begins a nonblocking collective call of MPI, and waits for all ranks.

        An exception keeps the buffers alive: the requests of mpi4py hold those of messages, but not of reductions.
        """

        def call_and_wait(*args: Any) -> None:
            with kept_alive_on_error(args):
                self._watchdog.wait(begin(*args))

        return call_and_wait

    def enter(self, call: str) -> str:
        """Notes that a public call begins on this communicator; returns where it was called, for errors.

        Raises:
            MismatchError: With MPISHARE_CHECK, the ranks are not all in the same call. On all of them.
            StallError: A rank gave up waiting on this communicator before.
        """
        where = self._watchdog.enter(call)
        if self._watchdog.compares:
            try:
                self._compare(call)
            except BaseException:
                self.leave()
                raise
        return where

    def leave(self) -> None:
        """Notes that the public call that `enter` noted last has ended."""
        self._watchdog.leave()

    def _compare(self, call: str) -> None:
        """Raises where the ranks differ in `call`. A call for all nodes is compared within each node first.

        The ranks of a node that differ also tell the other nodes, if one of them calls for all nodes: the ranks there
        may wait for it. They do not wait for these, which may be in calls for their own node.
        """
        node_comm, outer = self._node_comm or self, self._outer
        own = f"{int(self is outer)}{call}\0{self._watchdog.call}"
        calls = node_comm._gather_records(own, math.inf)
        if _differ(calls):
            if any(text.startswith("1") for text in calls.values()):
                calls = outer._gather_records(f"!{own}", _TELL_S) or calls
        elif node_comm is not self:
            calls = self._gather_records(own, math.inf)
        if _differ(calls):
            raise MismatchError({rank: text.partition("\0")[2] for rank, text in calls.items()})

    def _gather_records(self, text: str, limit_s: float) -> dict[int, str]:
        """The beginnings of the texts of all ranks, by rank of the job; nothing if they do not come in time."""
        own, records = np.zeros(_TEXT_BYTES, np.uint8), np.empty((self.size, _TEXT_BYTES), np.uint8)
        data = text.encode(errors="replace")[:_TEXT_BYTES]
        own[: len(data)] = np.frombuffer(data, np.uint8)
        request = self._comm.Iallgather([own, mpi.BYTE], [records, mpi.BYTE])
        if limit_s == math.inf:
            self._watchdog.wait(request)
            is_done = True
        else:
            is_done = ends_within(request, limit_s)
        if not is_done:
            keep_alive([request])
            return {}
        return {
            rank: row.tobytes().rstrip(b"\0").decode(errors="replace")
            for rank, row in zip(self._ranks, records, strict=True)
        }

    def _wait_asleep(self, request: mpi.Request, *, has_limit: bool) -> None:
        self._watchdog.wait(request, has_limit=has_limit)  # which sleeps between its looks

    def bcast_obj(self, obj: Any, root: int) -> Any:
        """See `CollectiveComm.bcast_obj`."""
        return self.allgather_obj(obj if self.rank == root else None)[root]

    def gather_obj(self, obj: Any, root: int) -> list[Any]:
        """See `CollectiveComm.gather_obj`."""
        gathered = self.allgather_obj(obj)
        return gathered if self.rank == root else []

    def allgather_obj(self, obj: Any) -> list[Any]:
        """See `CollectiveComm.allgather_obj`."""
        data, sizes = np.frombuffer(pickle.dumps(obj), np.uint8), np.empty(self.size, np.int64)
        self._allgather(np.array([data.size], np.int64), sizes)
        buffer = np.empty(int(sizes.sum()), np.uint8)
        self._allgatherv(data, [buffer, sizes.tolist(), mpi.BYTE])
        parts = np.split(buffer, np.cumsum(sizes)[:-1])
        return [pickle.loads(part.tobytes()) for part in parts]  # noqa: S301 - from ranks of this job

    def wait(self, request: mpi.Request, rank: int, status: mpi.Status | None = None) -> None:
        """See `CollectiveComm.wait`."""
        self._watchdog.wait(request, status)


def _differ(records: dict[int, str]) -> bool:
    """Whether the calls that begin the records are not all the same."""
    return len({text.partition("\0")[0] for text in records.values()}) > 1
