"""What a segment kind is asked for: whether it fits here, and memory that all ranks of a node see."""

from __future__ import annotations

from typing import Protocol

from mpishare.errors import MpishareError
from mpishare.topology import Topology

__all__ = ["Kind", "Memory"]


class Memory(Protocol):
    """A run of bytes in this rank's address space, shared with the other ranks of its node.

    It goes when the object goes, by local work alone.
    """

    lifetime: str
    """When the memory goes, in words."""

    @property
    def address(self) -> int:
        """Where the bytes begin in this process."""
        ...

    def reserve(self, part: slice) -> None:
        """Gets real pages for the bytes of `part`, so that touching them later cannot fail.

        Raises:
            MemoryError: There are no pages left.
        """
        ...

    def protect(self) -> None:
        """Makes the pages read-only in this process."""
        ...

    def private(self) -> Memory | None:
        """The same bytes, copy-on-write in this process; None where the kernel does not let us map them so."""
        ...


class Kind(Protocol):
    """One way to get memory that the ranks of a node share."""

    name: str
    """What MPISHARE_BACKEND and `backend=` call it."""

    def refusal(self, topology: Topology, nbytes: int) -> MpishareError | None:
        """Why `nbytes` cannot be had here, or None when they can. Local."""
        ...

    def allocate(self, topology: Topology, nbytes: int) -> Memory:
        """`nbytes`, at least one, in the memory of the node. Collective over `topology.node_comm`.

        No rank raises while another is still in a collective of this call.
        """
        ...
