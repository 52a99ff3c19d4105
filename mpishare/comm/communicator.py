"""The communicator that mpishare's collectives run on: the few calls that they make, and the messages of one call.

With a limit, each blocking call is made in its nonblocking form and waits for at most this time. Either all ranks of a
communicator have a limit or none, as MPI matches no blocking collective with a nonblocking one (MPI 3.1, section 5.12).

Every call but `barrier_asleep` orders memory, on any CPU: what a rank of a node read and wrote in node memory before it
comes before what the ranks that get data from it do there afterwards. For MPI itself must bring its data in order. It
publishes them by a release and takes them by an acquire, as Open MPI does with opal_atomic_wmb and opal_atomic_rmb
(btl/sm) and MPICH with MPL_atomic_release_store and MPL_atomic_acquire_load; or the kernel or a network brings them,
which orders no less. A release waits for all that its rank has done before, not for MPI's data alone. No rank polls
node memory that another one writes, so that it needs no other fence. MPI_Barrier brings no data, and may order nothing:
the one of Open MPI's coll/sm counts the ranks without a fence. On x86 it orders all the same, as the processor keeps
stores in order, and loads.

Source:
    The ARM architecture reference manual, B2.3, "barrier-ordered-before"; Intel 64 and IA-32 Architectures Software
    Developer's Manual, volume 3A, section 9.2.2, "Memory Ordering in P6 and More Recent Processor Families"; MPI 3.1,
    section 11.7.
"""

from __future__ import annotations

import math
import pickle
import platform
from collections.abc import Callable, Sequence
from itertools import accumulate, starmap
from typing import Any, TypeVar

import numpy as np

from mpishare.comm import mpi
from mpishare.comm.requests import count_wait, keep_alive, pending, run_blocking, this_thread, waits
from mpishare.comm.watchdog import WaitLimit
from mpishare.errors import StallError

_T = TypeVar("_T")

_BARRIER_ORDERS = platform.machine() in ("x86_64", "AMD64")
"""Whether MPI_Barrier orders memory here. It takes a third of the time of an MPI_Allreduce."""


class CollectiveComm:
    """A communicator of mpi4py with the calls that mpishare makes. Blocks are one-dimensional uint8 arrays, or bytes.

    Attributes:
        rank: This process's rank.
        size: Number of ranks.
        ranks: For each rank, its rank on the communicator over all nodes.
        comm: The communicator as mpi4py has it.
    """

    def __init__(
        self,
        comm: mpi.Intracomm,
        limit: WaitLimit | None = None,
        ranks: Sequence[int] = (),
        over_all: mpi.Intracomm | None = None,
    ) -> None:
        """Makes the calls on `comm`; without a `limit` they wait for ever.

        Messages travel on mpishare's own communicator `over_all` nodes, if there is one: users may see `comm`.
        """
        self.comm = comm
        self._limit = WaitLimit(None) if limit is None else limit
        self.rank: int = comm.rank
        self.size: int = comm.size
        self.ranks = ranks or range(comm.size)
        self._messages = comm if over_all is None else over_all
        self._allreduce, self._barrier = self._blocking("Allreduce"), self._blocking("Barrier")
        self._bcast, self._alltoallv = self._blocking("Bcast"), self._blocking("Alltoallv")
        self._allgather, self._allgatherv = self._blocking("Allgather"), self._blocking("Allgatherv")
        self._gather, self._scatterv = self._blocking("Gather"), self._blocking("Scatterv")
        self._bits = memoryview(b"")  # of `allreduce_or`, mostly of the size of the last call
        self._reduction: tuple[Any, ...] = ()

    def _blocking(self, name: str) -> Callable[..., object]:
        """A collective call of MPI that returns when it has ended, and raises after the limit.

        An exception keeps the buffers alive: a request of mpi4py holds the buffers of a message, and copies of the
        counts, not the buffers of a reduction. Within `extend` Python runs no handler of a signal, so that the request
        is not lost.
        """
        if self._limit.seconds == math.inf:
            return getattr(self.comm, name)  # type: ignore[no-any-return]
        begin: Callable[..., mpi.Request] = getattr(self.comm, f"I{name.lower()}")

        def call(*args: Any) -> None:
            begun: list[mpi.Request] = []
            try:
                begun.extend(starmap(begin, [args]))
                self._limit.wait(begun[0])
            except BaseException:
                keep_alive([args, begun])
                raise

        return call

    def isend(self, block: Any, rank: int, tag: int) -> mpi.Request:
        """Begins to send, as in mpi4py."""
        return self._messages.Isend(block, self.ranks[rank], tag)

    def irecv(self, block: Any, rank: int, tag: int) -> mpi.Request:
        """Begins to receive, as in mpi4py."""
        return self._messages.Irecv(block, self.ranks[rank], tag)

    def allreduce_or(self, data: bytes) -> bytes:
        """The bitwise OR of the same number of bytes from each rank. Receives that have begun go on meanwhile."""
        waits[0] += 1
        this_thread.begun += 1
        try:
            if len(data) != len(self._bits):
                self._bits = memoryview(bytearray(len(data)))
                self._reduction = mpi.IN_PLACE, [self._bits.obj, mpi.BYTE], mpi.BOR
            self._bits[:] = data
            if pending:
                run_blocking(self._allreduce, *self._reduction)
            else:
                self._allreduce(*self._reduction)
        except BaseException:  # MPI may still use the buffer, for ranks that come late
            self._bits = memoryview(b"")
            raise
        return self._bits.tobytes()

    def barrier(self) -> None:
        """Returns when all ranks have come, which are of one node. It orders memory, as the other calls do."""
        if not _BARRIER_ORDERS:
            self.allreduce_or(b"\0")
            return
        count_wait()
        if pending:
            run_blocking(self._barrier)
        else:
            self._barrier()

    def barrier_asleep(self) -> None:
        """Like `barrier`, but leaves the cores to the threads of a rank that works before it comes.

        It orders no memory where MPI_Barrier does not: an agreement follows.
        """
        self._limit.wait(self.comm.Ibarrier(), spin_s=0)

    def call_together(self, function: Callable[[], _T]) -> _T:
        """Calls a function of MPI that waits for all ranks without a limit, on all of them, once all have come.

        A rank that has begun to meet the others makes the call whatever happens, as they may be in it already; an
        exception from outside is raised after it. For `extend` see `_blocking`.
        """
        if self._limit.seconds == math.inf:
            return function()
        count_wait()
        begun: list[mpi.Request] = []
        try:
            begun.extend(starmap(self.comm.Ibarrier, [()]))
            self._limit.wait(begun[0])
        except StallError:
            raise
        except BaseException:
            if begun:
                function()
            raise
        return function()

    def bcast(self, block: Any, root: int) -> None:
        """Copies the `block` of `root` to the blocks of all other ranks."""
        count_wait()
        self._bcast([block, mpi.BYTE], root)

    def gather(self, block: Any, root: int) -> None:
        """Fills `block` of `root`, which has its own part there, by the blocks of the other ranks, of one length."""
        count_wait()
        if self.rank == root:
            self._gather(mpi.IN_PLACE, [block, mpi.BYTE], root)
        else:
            self._gather([block, mpi.BYTE], None, root)

    def scatter_parts(self, block: Any, parts: Sequence[slice], root: int) -> None:
        """Fills `block` of each other rank by its part of `block` of `root`, which alone gives the `parts`."""
        count_wait()
        if self.rank == root:
            sizes, starts = [part.stop - part.start for part in parts], [part.start for part in parts]
            self._scatterv([block, sizes, starts, mpi.BYTE], mpi.IN_PLACE, root)
        else:
            self._scatterv(None, [block, mpi.BYTE], root)

    def allgather(self, block: Any, blocks: Any) -> None:
        """Fills `blocks` with the blocks of all ranks, which have one length, in the order of the ranks."""
        count_wait()
        self._allgather([block, mpi.BYTE], [blocks, mpi.BYTE])

    def allgather_parts(self, block: Any, parts: Sequence[slice]) -> None:
        """Fills `block` on all ranks, where each rank has filled its own part."""
        count_wait()
        sizes, starts = [part.stop - part.start for part in parts], [part.start for part in parts]
        self._allgatherv(mpi.IN_PLACE, [block, sizes, starts, mpi.BYTE])

    def alltoall_parts(self, block: Any, parts: Sequence[slice], received: Any) -> None:
        """Sends to each rank its part of `block`; fills `received` by this rank's part of the block of each rank."""
        sizes, starts = [part.stop - part.start for part in parts], [part.start for part in parts]
        own = sizes[self.rank]
        places = [own * rank for rank in range(self.size)]
        count_wait()
        self._alltoallv([block, sizes, starts, mpi.BYTE], [received, [own] * self.size, places, mpi.BYTE])

    def allgather_int(self, number: int) -> list[int]:
        """The numbers of all ranks, by rank."""
        numbers = np.empty(self.size, np.int64)
        self.allgather(np.array([number], np.int64), numbers)
        return list(map(int, numbers))

    def allgather_obj(self, obj: Any) -> list[Any]:
        """The objects of all ranks, pickled, by rank."""
        data = pickle.dumps(obj)
        sizes = self.allgather_int(len(data))
        buffer = np.empty(sum(sizes), np.uint8)
        self._allgatherv([data, mpi.BYTE], [buffer, sizes, mpi.BYTE])
        pickles = [buffer[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]
        return [pickle.loads(data.tobytes()) for data in pickles]  # noqa: S301 - from ranks of this job

    def bcast_obj(self, obj: Any, root: int) -> Any:
        """The object of `root`, pickled."""
        return self.allgather_obj(obj if self.rank == root else None)[root]

    def wait(self, request: mpi.Request, status: mpi.Status | None = None) -> None:
        """Waits for a message."""
        waits[0] += 1
        if self._limit.seconds == math.inf:
            request.Wait(status)
        else:
            self._limit.wait(request, status)
