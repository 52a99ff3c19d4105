"""A communicator in the place of mpi4py's own, with the calls that mpishare makes, which waits under a `Lookout`."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from mpishare.lookout import Lookout

__all__ = ["Watched"]


class Watched(MPI.Intracomm):
    """Every blocking call in its nonblocking form. All ranks of a communicator have it, or none."""

    def __new__(cls, comm: MPI.Intracomm, *_: object) -> Watched:
        return super().__new__(cls, comm)

    def __init__(self, _: MPI.Intracomm, lookout: Lookout, ranks: Sequence[int], *inner: Watched) -> None:
        """Its ranks are `ranks` of the channel that `lookout` talks over; those of `inner` are compared first."""
        self._lookout = lookout
        self._inner = inner
        self.ranks = tuple(ranks)

    def enter(self, name: str) -> str:
        """See `Lookout.enter`."""
        return self._lookout.enter(name, [*self._inner, self])

    def _wait(self, request: MPI.Request) -> None:
        self._lookout.wait(request, self.ranks)

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        self._wait(self.Iallreduce(sendbuf, recvbuf, op))

    def Bcast(self, buf: Any, root: int = 0) -> None:
        self._wait(self.Ibcast(buf, root))

    def Barrier(self) -> None:
        self._wait(self.Ibarrier())

    def bcast(self, obj: Any, root: int = 0) -> Any:
        packed = np.frombuffer(pickle.dumps(obj), np.uint8) if self.rank == root else None
        size = np.array([0 if packed is None else packed.size], np.int64)
        self.Bcast(size, root)
        buffer = np.empty(int(size[0]), np.uint8) if packed is None else packed.copy()
        self.Bcast(buffer, root)
        return obj if self.rank == root else pickle.loads(buffer.tobytes())  # noqa: S301 - ours

    def allgather(self, sendobj: Any) -> list[Any]:
        packed = np.frombuffer(pickle.dumps(sendobj), np.uint8)
        sizes = np.empty(self.size, np.int64)
        self._wait(self.Iallgather(np.array([packed.size], np.int64), sizes))
        starts = np.cumsum(sizes) - sizes
        buffer = np.empty(int(sizes.sum()), np.uint8)
        self._wait(self.Iallgatherv(packed, [buffer, sizes.tolist(), starts.tolist(), MPI.BYTE]))
        ends = (starts + sizes).tolist()
        parts = [buffer[start:end].tobytes() for start, end in zip(starts.tolist(), ends, strict=True)]
        return [pickle.loads(part) for part in parts]  # noqa: S301 - ours

    def wait_any(self, requests: Sequence[MPI.Request]) -> int:
        first = _First(requests)
        self._wait(first)
        return first.number

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> MPI.Request:
        return _Request(super().Isend(buf, dest, tag), self, dest)

    def Irecv(self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> MPI.Request:
        return _Request(super().Irecv(buf, source, tag), self, source)


class _Request(MPI.Request):
    """A request whose `Wait` is under watch."""

    def __new__(cls, request: MPI.Request, *_: object) -> _Request:
        return super().__new__(cls, request)

    def __init__(self, _: MPI.Request, comm: Watched, peer: int) -> None:
        self._comm = comm
        self._peer = comm.ranks[peer]

    def Wait(self, status: MPI.Status | None = None) -> Any:
        self._comm._lookout.wait(self, [self._peer], status)
        return True


class _First(MPI.Request):
    """Ends when one of several requests does.

    Attributes:
        number: Which one.
    """

    def __new__(cls, *_: object) -> _First:
        return super().__new__(cls)

    def __init__(self, requests: Sequence[MPI.Request]) -> None:
        self._requests = requests
        self.number = 0

    def Test(self, status: MPI.Status | None = None) -> bool:
        self.number, has_ended = MPI.Request.Testany(self._requests, status)
        return has_ended
