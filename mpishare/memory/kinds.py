"""What a segment kind is, and where memory comes from."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from mpishare.comm.context import Context
from mpishare.memory.mapping import Mapping


class Kind(NamedTuple):
    """One way to allocate memory for the ranks of a node.

    Attributes:
        name: Its name in MPISHARE_BACKEND and in `backend=`.
        title: Its name for people: `name`, and where the bytes lie if kinds differ in that alone.
        is_shared: Whether the ranks of a node see one copy, and thus what the others write. If not, each has its own.
        check: Called with the number of bytes; raises `MpishareError` if they cannot be allocated on this node. Returns
            in how many steps to reserve their pages; see `host.memory.check_memory`. Local.
        allocate: Allocates so many bytes, at least one. Raises `MpishareError`, `MemoryError` or `OSError` where that
            fails after all, but no rank raises while another is still in a collective of this call. Collective over
            the ranks of this node.
    """

    name: str
    title: str
    is_shared: bool
    check: Callable[[Context, int], int]
    allocate: Callable[[Context, int], Mapping]


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

    memory: Mapping
    origin: Origin
