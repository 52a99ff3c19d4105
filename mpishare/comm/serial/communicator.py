"""Communicators of one rank, and their groups."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any, NoReturn

from mpishare.comm.serial.collectives import Collectives
from mpishare.comm.serial.constants import CONGRUENT, IDENT, LARGEST_TAG, TAG_UB, UNDEFINED
from mpishare.comm.serial.messages import Messages
from mpishare.comm.serial.requests import Operation, Request

_handles = itertools.count(1)
_delete_fns: dict[int, Callable[..., object] | None] = {}


class Win:
    """Windows, which only MPI makes."""


class Group:
    """The one rank, or no rank."""

    def __init__(self, size: int = 0) -> None:
        self.size, self.rank = size, 0 if size else UNDEFINED

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Group) and self.size == other.size

    def Get_size(self) -> int:
        """The number of ranks."""
        return self.size

    def Get_rank(self) -> int:
        """The rank of this process; UNDEFINED in an empty group."""
        return self.rank

    def Free(self) -> None:
        """Becomes the null group, which is equal to an empty one here."""
        self.size, self.rank = 0, UNDEFINED


class Intracomm(Collectives, Messages):
    """A communicator of this rank alone. Two are equal if they are one, or have both been freed."""

    rank, size, is_intra, is_inter, is_topo, topology = 0, 1, True, False, False, UNDEFINED

    def __init__(self, handle: int | None = None) -> None:
        super().__init__()
        self.handle = next(_handles) if handle is None else handle
        self.name = "one rank without MPI"
        self._attributes: dict[int, Any] = {TAG_UB: LARGEST_TAG}

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

    def Get_rank(self) -> int:
        """The rank of this process."""
        return self.rank

    def Get_size(self) -> int:
        """The number of ranks."""
        return self.size

    def Get_name(self) -> str:
        """The name."""
        return self.name

    def Set_name(self, name: str) -> None:
        """Sets the name."""
        self.name = name

    def Get_group(self) -> Group:
        """The group of this rank."""
        return Group(1)

    group = property(Get_group)

    def Get_topology(self) -> int:
        """UNDEFINED: it has no topology."""
        return self.topology

    def Is_inter(self) -> bool:
        """False: it has one group."""
        return self.is_inter

    def Is_intra(self) -> bool:
        """True."""
        return self.is_intra

    def Compare(self, comm: Intracomm) -> int:
        """IDENT if it is `comm`, else CONGRUENT."""
        return IDENT if self == comm else CONGRUENT

    # Its life, and other communicators

    def Dup(self, info: Any = None) -> Intracomm:
        """Another communicator."""
        return Intracomm()

    Clone = Dup_with_info = Dup

    def Idup(self, info: Any = None) -> tuple[Intracomm, Request]:
        """Another communicator, and a request that has ended."""
        return Intracomm(), Request(Operation())

    Idup_with_info = Idup

    def Create(self, group: Group, tag: int = 0) -> Intracomm:
        """A communicator of a group; COMM_NULL of an empty one."""
        return Intracomm() if group.size else COMM_NULL

    Create_group = Create

    def Split(self, color: int = 0, key: int = 0, info: Any = None) -> Intracomm:
        """Another communicator; COMM_NULL where `color` is UNDEFINED."""
        return COMM_NULL if color == UNDEFINED else Intracomm()

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
        keyval = next(_handles)
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


Comm = Intracomm
COMM_NULL, COMM_WORLD, COMM_SELF = Intracomm(0), Intracomm(), Intracomm()
GROUP_NULL = GROUP_EMPTY = Group()
