"""What a segment kind is asked for: whether it fits here, and memory for the ranks of a node."""

from __future__ import annotations

from typing import Protocol

from mpishare.topology import Topology

__all__ = ["Kind", "Memory"]


class Memory(Protocol):
    """A run of bytes in this rank's address space.

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
    """One way to get memory for the ranks of a node."""

    name: str
    """What MPISHARE_BACKEND and `backend=` call it."""

    title: str
    """The same, and where its bytes lie if that differs, for people."""

    together: bool
    """Whether the ranks of a node see one copy, and so what the others write. If not, each has a copy of its own."""

    def check(self, topology: Topology, nbytes: int) -> None:
        """Returns when `nbytes` can be had here. Local.

        Raises:
            MpishareError: Why they cannot.
        """
        ...

    def allocate(self, topology: Topology, nbytes: int) -> Memory:
        """`nbytes`, at least one, in the memory of the node. Collective over `topology.node_channel`.

        No rank raises while another is still in a collective of this call.

        Raises:
            MpishareError, MemoryError, OSError: They could not be had after all.
        """
        ...
