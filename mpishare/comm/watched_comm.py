"""A collective communicator whose waits are watched: used where MPISHARE_CHECK or MPISHARE_TIMEOUT is set."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpishare.comm import mpi
from mpishare.comm.collective_comm import CollectiveComm
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

    def enter(self, call: str) -> str:
        """Notes that a public call begins.

        Raises:
            MismatchError: With MPISHARE_CHECK, the ranks are not all in the same call. On all of them.
            StallError: A rank gave up waiting on this communicator before.
        """
        where = self._watchdog.enter(call)
        if self._watchdog.compares:
            if self._node_comm is not None:
                self._node_comm._compare(call, outer=self)
            self._compare(call)
        return where

    def _compare(self, call: str, outer: WatchedComm | None = None) -> None:
        """Raises where the ranks differ in `call`.

        A node whose ranks differ still meets the other nodes if one of its ranks calls for all nodes: they would wait.
        `outer` is the communicator over all nodes, where the call is for all of them.
        """
        calls = self.allgather_obj((call, self._watchdog.call, outer is not None))
        if len({name for name, _, _ in calls}) > 1:
            over_all = self._watchdog.outer if outer is None else outer
            if over_all is not None and over_all is not self and any(is_for_all for _, _, is_for_all in calls):
                over_all.allgather_obj((f"!{call}", self._watchdog.call, False))
            raise MismatchError({rank: where for rank, (_, where, _) in zip(self._ranks, calls, strict=True)})

    def _wait_for_all(self, request: mpi.Request) -> None:
        self._watchdog.wait(request, self._ranks)

    def allreduce(self, array: Any, op: mpi.Op) -> None:
        """See `CollectiveComm.allreduce`."""
        self._wait_for_all(self._comm.Iallreduce(mpi.IN_PLACE, array, op))

    def allreduce_or(self, data: bytes) -> bytes:
        """See `CollectiveComm.allreduce_or`."""
        result = bytearray(data)
        self._wait_for_all(self._comm.Iallreduce(mpi.IN_PLACE, [result, mpi.BYTE], mpi.BOR))
        return bytes(result)

    def bcast(self, block: Any, root: int) -> None:
        """See `CollectiveComm.bcast`."""
        self._wait_for_all(self._comm.Ibcast([block, mpi.BYTE], root))

    def barrier(self) -> None:
        """See `CollectiveComm.barrier`."""
        self._wait_for_all(self._comm.Ibarrier())

    def bcast_obj(self, obj: Any, root: int) -> Any:
        """See `CollectiveComm.bcast_obj`."""
        data = np.frombuffer(pickle.dumps(obj), np.uint8) if self.rank == root else None
        size = np.array([0 if data is None else data.size], np.int64)
        self.bcast(size.view(np.uint8), root)
        buffer = np.empty(int(size[0]), np.uint8) if data is None else data.copy()
        self.bcast(buffer, root)
        return obj if self.rank == root else pickle.loads(buffer.tobytes())  # noqa: S301 - from a rank of this job

    def allgather_obj(self, obj: Any) -> list[Any]:
        """See `CollectiveComm.allgather_obj`."""
        data = np.frombuffer(pickle.dumps(obj), np.uint8)
        sizes = np.empty(self.size, np.int64)
        self._wait_for_all(self._comm.Iallgather(np.array([data.size], np.int64), sizes))
        starts = np.cumsum(sizes) - sizes
        buffer = np.empty(int(sizes.sum()), np.uint8)
        self._wait_for_all(self._comm.Iallgatherv(data, [buffer, sizes.tolist(), starts.tolist(), mpi.BYTE]))
        return [
            pickle.loads(buffer[start : start + size].tobytes())  # noqa: S301 - from a rank of this job
            for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)
        ]

    def wait(self, request: mpi.Request, rank: int, status: mpi.Status | None = None) -> None:
        """See `CollectiveComm.wait`."""
        self._watchdog.wait(request, [self._ranks[rank]], status)
