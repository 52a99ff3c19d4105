"""What a segment kind is asked for: whether it fits here, and memory for the ranks of a node."""

from __future__ import annotations

from typing import Protocol

from mpishare.comm.context import Context


class Backing(Protocol):
    """A run of bytes in this rank's address space that is one array's, as long as the object is."""

    lifetime: str
    """When the memory goes, in words."""

    @property
    def address(self) -> int:
        """Where the bytes begin in this process."""
        ...

    def protect(self) -> None:
        """Makes the pages read-only in this process. They may then begin at another address."""
        ...

    def private(self) -> Backing | None:
        """The same bytes, copy-on-write in this process; None where the kernel does not let us map them so."""
        ...


class Memory(Backing, Protocol):
    """Memory as a kind makes it, for one array or for several in turn.

    It goes when the object goes, by local work alone.
    """

    def reserve(self, part: slice) -> None:
        """Gets real pages for the bytes of `part`, so that touching them later cannot fail.

        Raises:
            MemoryError: There are no pages left.
        """
        ...

    def unprotect(self) -> None:
        """Makes the pages writable again."""
        ...

    def second(self) -> Memory | None:
        """Another map of the same pages, None where there can be none."""
        ...


class Kind(Protocol):
    """One way to get memory for the ranks of a node."""

    name: str
    """What MPISHARE_BACKEND and `backend=` call it."""

    title: str
    """The same, and where its bytes lie if that differs, for people."""

    is_shared: bool
    """Whether the ranks of a node see one copy, and so what the others write. If not, each has a copy of its own."""

    def check(self, context: Context, nbytes: int) -> None:
        """Returns when `nbytes` can be had here. Local.

        Raises:
            MpishareError: Why they cannot.
        """
        ...

    def allocate(self, context: Context, nbytes: int) -> Memory:
        """`nbytes`, at least one, in the memory of the node. Collective over the ranks of this node.

        No rank raises while another is still in a collective of this call.

        Raises:
            MpishareError, MemoryError, OSError: They could not be had after all.
        """
        ...
