"""A collective communicator whose waits are watched: used where MPISHARE_CHECK or MPISHARE_TIMEOUT is set."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from mpishare.comm import mpi
from mpishare.comm.collective_comm import CollectiveComm, barrier_of
from mpishare.comm.watchdog import Watchdog
from mpishare.errors import MismatchError


class WatchedComm(CollectiveComm):
    """Makes each blocking call in its nonblocking form and waits under a watchdog."""

    def __init__(
        self, comm: mpi.Intracomm, watchdog: Watchdog, ranks: Sequence[int], node_comm: WatchedComm | None = None
    ) -> None:
        """Watches `comm`.

        Args:
            comm: The communicator.
            watchdog: That of the communicator over all nodes.
            ranks: For each rank of `comm`, its rank on the communicator over all nodes.
            node_comm: Where `comm` is over all nodes, that of this node, whose ranks are compared first.
        """
        super().__init__(comm)
        self._watchdog = watchdog
        self._ranks = tuple(ranks)
        self._node_comm = node_comm
        self._allreduce = self._watched(comm.Iallreduce)
        self.begin_bcast = comm.Ibcast
        self.begin_barrier = barrier_of(comm.Ibarrier, comm.Iallreduce)
        self._allgather = self._watched(comm.Iallgather)
        self._allgatherv = self._watched(comm.Iallgatherv)

    def _watched(self, begin: Callable[..., mpi.Request]) -> Callable[..., None]:
        """A function that begins a nonblocking collective call of MPI, and waits for all ranks."""
        return lambda *args: self._watchdog.wait(begin(*args), self._ranks, meets=True)

    def finish(self, request: mpi.Request | None) -> None:
        """See `CollectiveComm.finish`."""
        if request is not None:
            self._watchdog.wait(request, self._ranks)

    def enter(self, call: str) -> str:
        """Notes that a public call begins on this communicator; returns where it was called, for errors.

        Raises:
            MismatchError: With MPISHARE_CHECK, the ranks are not all in the same call. On all of them.
            StallError: A rank gave up waiting on this communicator before.
        """
        where = self._watchdog.enter(call)
        if self._watchdog.compares:
            try:
                is_for_all = self._node_comm is not None
                if self._node_comm is not None:
                    self._node_comm._compare(call, is_for_all)
                self._compare(call, is_for_all)
            except BaseException:
                self.leave()
                raise
        return where

    def leave(self) -> None:
        """Notes that the public call that `enter` noted last has ended."""
        self._watchdog.leave()

    def _compare(self, call: str, is_for_all: bool) -> None:
        """Raises where the ranks differ in `call`, which is for all nodes or for this one.

        A node whose ranks differ still meets the other nodes if one of its ranks calls for all nodes: they would wait.
        """
        calls = self.allgather_obj((call, self._watchdog.call, is_for_all))
        if len({name for name, _, _ in calls}) > 1:
            outer = self._watchdog.outer
            if outer is not None and outer is not self and any(for_all for _, _, for_all in calls):
                outer.allgather_obj((f"!{call}", self._watchdog.call, False))
            raise MismatchError({rank: where for rank, (_, where, _) in zip(self._ranks, calls, strict=True)})

    def _wait_asleep(self, request: mpi.Request, *, has_limit: bool) -> None:
        self._watchdog.wait(request, self._ranks, has_limit=has_limit)  # which sleeps between its looks

    @property
    def is_given_up(self) -> bool:
        """See `CollectiveComm.is_given_up`."""
        return self._watchdog.stalled is not None

    def bcast_obj(self, obj: Any, root: int) -> Any:
        """See `CollectiveComm.bcast_obj`."""
        return self.allgather_obj(obj if self.rank == root else None)[root]

    def allgather_obj(self, obj: Any) -> list[Any]:
        """See `CollectiveComm.allgather_obj`."""
        return self._gathered(obj, self._comm.Iallgather, self._comm.Iallgatherv)

    def gather_obj(self, obj: Any, root: int) -> list[Any]:
        """See `CollectiveComm.gather_obj`."""
        return self._gathered(obj, partial(self._comm.Igather, root=root), partial(self._comm.Igatherv, root=root))

    def _gathered(self, obj: Any, gather: Callable[..., mpi.Request], gatherv: Callable[..., mpi.Request]) -> list[Any]:
        """What MPI's `gather` and `gatherv` bring to this rank; nothing where they bring none."""
        data = np.frombuffer(pickle.dumps(obj), np.uint8)
        sizes = np.zeros(self.size, np.int64)
        self._watched(gather)(np.array([data.size], np.int64), sizes)
        buffer = np.empty(int(sizes.sum()), np.uint8)
        self._watched(gatherv)(data, [buffer, sizes.tolist(), mpi.BYTE])
        parts = np.split(buffer, np.cumsum(sizes)[:-1])
        return [pickle.loads(part.tobytes()) for part in parts if part.size]  # noqa: S301 - from ranks of this job

    def wait(self, request: mpi.Request, rank: int, status: mpi.Status | None = None) -> None:
        """See `CollectiveComm.wait`."""
        self._watchdog.wait(request, [self._ranks[rank]], status)
