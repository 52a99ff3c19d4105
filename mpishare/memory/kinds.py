"""The protocols of segment kinds: whether a kind can be used on this node, and the memory that it provides."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from mpishare.comm.context import Context
from mpishare.memory.mapping import Mapping


class Backing(Protocol):
    """Bytes in this rank's address space that belong to one array for as long as the object lives."""

    @property
    def address(self) -> int:
        """Where the bytes begin in this process."""

    def protect(self) -> None:
        """Makes the pages read-only in this process. The bytes may begin at another address afterwards.

        Raises:
            OSError: The kernel cannot split the map.
        """

    def copy_on_write(self) -> Mapping | None:
        """A private map of the same bytes; None where the kernel does not allow one."""


class Memory(Backing, Protocol):
    """Memory that a kind provides, for one array or for several in turn.

    It is released when the object is deleted, by local work alone.

    Attributes:
        lifetime: When the memory is released, as a phrase for users.
    """

    lifetime: str

    def reserve(self, part: slice) -> None:
        """Allocates the pages of the bytes of `part`, so that touching them later cannot fail.

        Raises:
            MemoryError: There are no pages left.
        """

    def unprotect(self) -> None:
        """Makes the pages writable again.

        Raises:
            OSError: The kernel cannot split the map.
        """

    def second_map(self) -> Mapping | None:
        """Another map of the same pages; None where there can be none."""


class Kind(Protocol):
    """One way to allocate memory for the ranks of a node.

    Attributes:
        name: Its name in MPISHARE_BACKEND and in `backend=`.
        title: Its name for people: `name`, and where the bytes lie if kinds differ in that alone.
        is_shared: Whether the ranks of a node see one copy, and thus what the others write. If not, each has its own.
    """

    name: str
    title: str
    is_shared: bool

    def check(self, context: Context, nbytes: int) -> None:
        """Checks that `nbytes` can be allocated on this node. Local.

        Raises:
            MpishareError: They cannot.
        """

    def allocate(self, context: Context, nbytes: int) -> Memory:
        """Memory of `nbytes`, at least one, on this node.

        No rank raises while another is still in a collective of this call.

        Raises:
            MpishareError, MemoryError, OSError: The memory could not be allocated after all.

        Collective:
            Over the ranks of this node.
        """


class Origin(NamedTuple):
    """The facts about memory that segments report.

    Attributes:
        kind: Title of the segment kind that provides it; "private" for a copy-on-write view.
        node_size: Number of ranks on the node.
        is_shared: Whether these ranks see one copy, or each has its own.
        refusals: For each kind that was tried before, the reason why it was not used, by title.
    """

    kind: str
    node_size: int
    is_shared: bool = True
    refusals: dict[str, str] = {}  # noqa: RUF012 - never changed


class NodeMemory(NamedTuple):
    """Memory of this node, and where it comes from."""

    memory: Memory
    origin: Origin
