"""Collectives of one rank: each copies what it sends to where it is received, or does nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from mpishare.comm.serial.buffers import Buffer, reduced, simple, vector
from mpishare.comm.serial.constants import ERR_ROOT, IN_PLACE, Exception
from mpishare.comm.serial.messages import dump, load
from mpishare.comm.serial.ops import SUM, Op
from mpishare.comm.serial.requests import Operation, Request


class Collectives:
    """The collective calls of a communicator."""

    # Collectives of buffers

    def Barrier(self) -> None:
        """Returns at once."""

    def Bcast(self, buf: Any, root: int = 0) -> None:
        """Leaves `buf` as it is."""
        _check_root(root)
        simple(buf)

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Copies one buffer to the other."""
        _copy(simple, sendbuf, simple, recvbuf)

    Alltoall = Allgather

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Copies one buffer to the other."""
        _copy(simple, sendbuf, vector, recvbuf)

    def Alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Copies one buffer to the other."""
        _copy(vector, sendbuf, vector, recvbuf)

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Copies one buffer to the other."""
        _copy(simple, sendbuf, simple, recvbuf, root)

    Scatter = Gather

    def Gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Copies one buffer to the other."""
        _copy(simple, sendbuf, vector, recvbuf, root)

    def Scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Copies one buffer to the other."""
        _copy(vector, sendbuf, simple, recvbuf, root)

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM, root: int = 0) -> None:
        """Copies one buffer to the other."""
        _check_root(root)
        self.Allreduce(sendbuf, recvbuf)

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        """Copies one buffer to the other."""
        if not _is_in_place(sendbuf, recvbuf):
            source, target = reduced(sendbuf, recvbuf)
            target.write(source.read())

    Reduce_scatter_block = Scan = Allreduce

    def Reduce_scatter(self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None = None, op: Op = SUM) -> None:
        """Copies one buffer to the other."""
        if recvcounts is not None and (*recvcounts,) != (simple(recvbuf).count,):
            raise ValueError(f"message: recvcounts is {recvcounts}; expected the number of items of recvbuf alone")
        self.Allreduce(sendbuf, recvbuf)

    def Exscan(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        """Leaves `recvbuf` as it is: there is no lower rank."""

    # Collectives of objects, which arrive as copies

    def barrier(self) -> None:
        """Returns at once."""

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """A copy of the object."""
        _check_root(root)
        return _copied(obj)

    def reduce(self, sendobj: Any, op: Op = SUM, root: int = 0) -> Any:
        """A copy of the object."""
        return self.bcast(sendobj, root)

    def allreduce(self, sendobj: Any, op: Op = SUM) -> Any:
        """A copy of the object."""
        return _copied(sendobj)

    scan = allreduce

    def exscan(self, sendobj: Any, op: Op = SUM) -> None:
        """None: there is no lower rank."""

    def gather(self, sendobj: Any, root: int = 0) -> list[Any]:
        """A list of a copy of the object."""
        return [self.bcast(sendobj, root)]

    def allgather(self, sendobj: Any) -> list[Any]:
        """A list of a copy of the object."""
        return [_copied(sendobj)]

    def scatter(self, sendobj: Sequence[Any], root: int = 0) -> Any:
        """A copy of the object for the one rank."""
        (obj,) = sendobj
        return self.bcast(obj, root)

    def alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        """A list of a copy of the object for the one rank."""
        return [self.scatter(sendobj)]


def _nonblocking(call: Callable[..., None]) -> Callable[..., Request]:
    @wraps(call)
    def begin(*args: Any, **kwargs: Any) -> Request:
        call(*args, **kwargs)
        return Request(Operation())

    return begin


for _name in (
    *("Barrier", "Bcast", "Gather", "Gatherv", "Scatter", "Scatterv", "Allgather", "Allgatherv", "Alltoall"),
    *("Alltoallv", "Reduce", "Allreduce", "Reduce_scatter_block", "Reduce_scatter", "Scan", "Exscan"),
):
    setattr(Collectives, f"I{_name.lower()}", _nonblocking(getattr(Collectives, _name)))


def _copied(obj: Any) -> Any:
    return load(dump(obj))


def _copy(
    of_send: Callable[[Any], Buffer],
    sendbuf: Any,
    of_receive: Callable[[Any], Buffer],
    recvbuf: Any,
    root: int = 0,
) -> None:
    """Copies one buffer to the other, unless one says that all is in place."""
    _check_root(root)
    if not _is_in_place(sendbuf, recvbuf):
        source, target = of_send(sendbuf), of_receive(recvbuf)
        target.write(source.read())


def _is_in_place(*buffers: Any) -> bool:
    return any(buffer is None or buffer is IN_PLACE for buffer in buffers)


def _check_root(root: int) -> None:
    if root != 0:
        raise Exception(f"MPI_ERR_ROOT: there is one rank, 0, and no root {root}", ERR_ROOT)
