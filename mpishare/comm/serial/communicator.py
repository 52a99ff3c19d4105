"""The communicators of one rank, their collectives, and the state of MPI, which has always begun."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from mpishare.comm.serial import values
from mpishare.comm.serial.messages import Messages, Request, dump, load
from mpishare.comm.serial.values import SUM, Buffer, Op, getter, handles, simple, vector

Wtime, Get_processor_name = time.perf_counter, platform.node

_delete_fns: dict[int, Callable[..., object] | None] = {}


def Is_initialized() -> bool:
    """Whether calls are possible."""
    return True


def Is_finalized() -> bool:
    """Whether calls are no longer possible."""
    return False


def Query_thread() -> int:
    """Which threads may call."""
    return values.THREAD_MULTIPLE


@dataclass
class Group:
    """The one rank, or no rank."""

    size: int = 0
    rank: int = values.UNDEFINED

    Get_size, Get_rank = getter("size"), getter("rank")

    def Free(self) -> None:
        """Becomes the null group, which is equal to an empty one here."""
        self.size, self.rank = 0, values.UNDEFINED


def _copying(of_send: Callable[[Any], Buffer], of_receive: Callable[[Any], Buffer]) -> Callable[..., None]:
    """A collective of buffers, which have one form where they are sent, and one where they are received."""

    def call(_: Intracomm, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Copies one buffer to the other, unless one says that all is in place."""
        _check_root(root)
        if not _is_in_place(sendbuf, recvbuf):
            source, target = of_send(sendbuf), of_receive(recvbuf)
            target.write(source.block)

    return call


class Intracomm(Messages):
    """A communicator of this rank alone. Two are equal if they are one, or have both been freed."""

    rank, size, is_intra, is_inter, is_topo = 0, 1, True, False, False

    def __init__(self, handle: int | None = None) -> None:
        super().__init__()
        self.handle = next(handles) if handle is None else handle
        self.name = "one rank without MPI"
        self._attributes: dict[int, Any] = {values.TAG_UB: values.LARGEST_TAG}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Intracomm) and self.handle == other.handle

    def __hash__(self) -> int:
        return hash(self.handle)

    def __bool__(self) -> bool:
        return self.handle != 0

    def __getattr__(self, name: str) -> NoReturn:
        cure = "Install an MPI library where a program needs it."
        raise AttributeError(f"the communicator of one rank without MPI has no {name}. {cure}", name=name, obj=self)

    # Facts

    Get_rank, Get_size, Get_name = getter("rank"), getter("size"), getter("name")
    Is_intra, Is_inter = getter("is_intra"), getter("is_inter")

    def Set_name(self, name: str) -> None:
        """Sets the name."""
        self.name = name

    def Get_group(self) -> Group:
        """The group of this rank."""
        return Group(size=1, rank=0)

    group = property(Get_group)

    # Its life, and other communicators

    def Dup(self, info: Any = None) -> Intracomm:
        """Another communicator."""
        return Intracomm()

    Clone = Dup_with_info = Dup

    def Idup(self, info: Any = None) -> tuple[Intracomm, Request]:
        """Another communicator, and a request that has ended."""
        return Intracomm(), Request(is_active=True)

    def Split(self, color: int = 0, key: int = 0, info: Any = None) -> Intracomm:
        """Another communicator; COMM_NULL where the color, or the type of a split by type, is UNDEFINED."""
        return COMM_NULL if color == values.UNDEFINED else Intracomm()

    def Split_type(self, split_type: int, key: int = 0, info: Any = None) -> Intracomm:
        """Another communicator; COMM_NULL where `split_type` is UNDEFINED."""
        return self.Split(split_type)

    def Free(self) -> None:
        """Ends it, and what its attributes keep."""
        for keyval in list(self._attributes):
            self.Delete_attr(keyval)
        self.handle = 0

    def Abort(self, errorcode: int = 0) -> NoReturn:
        """Ends the process at once."""
        os._exit(errorcode)

    @staticmethod
    def Create_keyval(copy_fn: object = None, delete_fn: Callable[..., object] | None = None) -> int:  # noqa: ARG004
        """A key for attributes. `delete_fn` is called when a communicator that has one is freed."""
        keyval = next(handles)
        _delete_fns[keyval] = delete_fn
        return keyval

    def Set_attr(self, keyval: int, attrval: Any) -> None:
        """Sets an attribute."""
        self._attributes[keyval] = attrval

    def Get_attr(self, keyval: int) -> Any:
        """The attribute, or None."""
        return self._attributes.get(keyval)

    def Delete_attr(self, keyval: int) -> None:
        """Deletes an attribute."""
        value = self._attributes.pop(keyval)
        if delete := _delete_fns.get(keyval):
            delete(self, keyval, value)

    def Set_errhandler(self, errhandler: object) -> None:
        """Does nothing: errors are always raised."""

    # Collectives of buffers: each copies what is sent to where it is received, or does nothing

    def Barrier(self) -> None:
        """Returns at once."""

    def Bcast(self, buf: Any, root: int = 0) -> None:
        """Leaves `buf` as it is."""
        _check_root(root)
        simple(buf)

    Gather = Scatter = Allgather = Alltoall = _copying(simple, simple)
    Gatherv = Allgatherv = _copying(simple, vector)
    Scatterv, Alltoallv = _copying(vector, simple), _copying(vector, vector)

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM, root: int = 0) -> None:
        """Copies one buffer to the other.

        Raises:
            ValueError: They differ in number or datatype.
        """
        _check_root(root)
        if _is_in_place(sendbuf, recvbuf):
            return
        source, target = simple(sendbuf), simple(recvbuf)
        if source.datatype != target.datatype or source.block.size != target.block.size:
            raise ValueError(
                f"message: sendbuf has {source.block.size} bytes of {source.datatype}, and recvbuf {target.block.size} "
                f"of {target.datatype}; expected the same number and datatype"
            )
        target.write(source.block)

    Allreduce = Reduce_scatter_block = Scan = Reduce

    def Reduce_scatter(self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None = None, op: Op = SUM) -> None:
        """Copies one buffer to the other."""
        target = simple(recvbuf)
        if recvcounts is not None and [n * target.datatype.size for n in recvcounts] != [target.block.size]:
            raise ValueError(f"message: recvcounts is {recvcounts}; expected the number of items of recvbuf alone")
        self.Reduce(sendbuf, recvbuf)

    def Exscan(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        """Leaves `recvbuf` as it is: there is no lower rank."""

    # Collectives of objects, which arrive as copies

    barrier = Barrier

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """A copy of the object."""
        _check_root(root)
        return load(dump(obj))

    def reduce(self, sendobj: Any, op: Op = SUM, root: int = 0) -> Any:
        """A copy of the object."""
        return self.bcast(sendobj, root)

    allreduce = scan = reduce

    def exscan(self, sendobj: Any, op: Op = SUM) -> None:
        """None: there is no lower rank."""

    def gather(self, sendobj: Any, root: int = 0) -> list[Any]:
        """A list of a copy of the object."""
        return [self.bcast(sendobj, root)]

    allgather = gather

    def scatter(self, sendobj: Sequence[Any], root: int = 0) -> Any:
        """A copy of the object for the one rank."""
        (obj,) = sendobj
        return self.bcast(obj, root)

    def alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        """A list of a copy of the object for the one rank."""
        return [self.scatter(sendobj)]


def _nonblocking(call: Callable[..., None]) -> Callable[..., Request]:
    """The call that begins what `call` does, and has ended."""

    def begin(*args: Any, **kwargs: Any) -> Request:
        call(*args, **kwargs)
        return Request(is_active=True)

    return begin


for _name in (
    *("Barrier", "Bcast", "Gather", "Gatherv", "Scatter", "Scatterv", "Allgather", "Allgatherv", "Alltoall"),
    *("Alltoallv", "Reduce", "Allreduce", "Reduce_scatter_block", "Reduce_scatter", "Scan", "Exscan"),
):
    setattr(Intracomm, f"I{_name.lower()}", _nonblocking(getattr(Intracomm, _name)))


def _is_in_place(*buffers: Any) -> bool:
    return any(buffer is None or buffer is values.IN_PLACE for buffer in buffers)


def _check_root(root: int) -> None:
    if root != 0:
        raise values.Exception(f"MPI_ERR_ROOT: there is one rank, 0, and no root {root}", values.ERR_ROOT)


Comm = Intracomm
COMM_NULL, COMM_WORLD, COMM_SELF = Intracomm(0), Intracomm(), Intracomm()
GROUP_NULL = GROUP_EMPTY = Group()
