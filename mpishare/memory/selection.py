"""Which kind of segment a node uses, chosen alike by all its ranks, and the memory made of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from mpishare.arrays import slices
from mpishare.comm.agreement import Severity, agree, severity_of
from mpishare.comm.context import Context
from mpishare.errors import ArgumentError, BackendError, CapacityError, MpishareError
from mpishare.host import memory as host_memory
from mpishare.memory.kinds import Kind, Memory
from mpishare.memory.memmap import MemmapInFolder, MemmapInMemory
from mpishare.memory.private import Private
from mpishare.memory.segment import Origin
from mpishare.memory.window import Window

KINDS: tuple[Kind, ...] = (MemmapInMemory(), Window(), MemmapInFolder(), Private())
"""In the order in which a node tries them.

A nameless file in memory comes before a window: a SIGKILL inside MPI_Win_allocate_shared leaves MPI's file in /dev/shm,
whose size limits windows, and where a window does not fit Open MPI hangs.
"""


def check_backend(backend: str | None, context: Context) -> str | None:
    """The kinds that are asked for, by argument or else by MPISHARE_BACKEND; None for the node's own choice.

    Raises:
        ArgumentError: There is no such kind.
    """
    wanted = context.config.backend if backend is None else backend
    if wanted is None:
        return None
    if not _order(wanted, KINDS):
        asked = "MPISHARE_BACKEND" if backend is None else "backend"
        names = ", ".join(dict.fromkeys(kind.name for kind in KINDS))
        raise ArgumentError(f"{asked} {wanted!r} is unknown. Known here: {names}, or several with commas.")
    return wanted


@lru_cache(maxsize=64)
def _order(wanted: str, kinds: tuple[Kind, ...]) -> tuple[Kind, ...]:
    """Those of `kinds` that `wanted` names, in its order; none where it names one that is not there."""
    found = [[kind for kind in kinds if kind.name == name] for name in str(wanted).split(",")]
    return tuple(kind for some in found for kind in some) if all(found) else ()


def probe(context: Context) -> dict[str, str]:
    """For each kind whether it fits on this node and what it gives, or why it does not, found by making a page of it.

    Collective:
        Over the ranks of this node.
    """
    return {kind.title: _tell(kind, context) for kind in KINDS}


def _tell(kind: Kind, context: Context) -> str:
    try:
        memory = _attempt(kind, context, slices.PAGE_BYTES, writable=False)
    except MpishareError as error:
        return f"does not fit: {error}"
    own = "is copy-on-write" if memory.private() is not None else "copies"
    alone = ", a map of its own as this node has one rank" if context.topology.node_size == 1 else ""
    return f"fits{alone}; {memory.lifetime}; private() {own}"


@dataclass(frozen=True)
class Obtained:
    """Memory of this node.

    Attributes:
        memory: The bytes.
        kind: The segment kind that made it.
        refusals: For each kind that was tried before, why it did not do, by title.
    """

    memory: Memory
    kind: Kind
    refusals: dict[str, str]
    _origins: dict[str, Origin] = field(default_factory=dict, compare=False)

    def origin(self, label: str, node_size: int) -> Origin:
        """What segments say of where they come from, made once for each call that asks."""
        known = self._origins.get(label)
        if known is None:
            known = Origin(self.kind.title, label, node_size, self.kind.is_shared, self.refusals)
            self._origins[label] = known
        return known


def obtain(
    context: Context, nbytes: int, backend: str | None, writable: bool, *, relieve: Callable[[], None]
) -> Obtained:
    """Memory of the first kind that works on all ranks of this node.

    Args:
        context: That of the communicator.
        nbytes: Bytes on this node, at least one.
        backend: Kinds that `check_backend` knows, or None.
        writable: Whether the ranks are going to write to it and see what the others write.
        relieve: Gives memory back to the system; called where a kind has no room, before that is final.

    Raises:
        CapacityError, BackendError: None does; on all ranks of the node.

    Collective:
        Over the ranks of this node.
    """
    refusals: dict[str, str] = {}  # words only: an error has the frames that raised it, and these the arrays in them
    lacks: dict[str, CapacityError] = {}
    for kind in KINDS if backend is None else _order(backend, KINDS):
        for is_relieved in (False, True):
            try:
                return Obtained(_attempt(kind, context, nbytes, writable=writable), kind, refusals)
            except BaseException as error:  # on all ranks of the node
                severity = severity_of(error, context.topology.node_size)
                if severity == Severity.FATAL:
                    raise
                lack = error.alone() if isinstance(error, CapacityError) else None
                words = str(error)
            if is_relieved or severity != Severity.NO_ROOM:
                break
            relieve()
            context.node_collective_comm.barrier()
        refusals[kind.title] = words
        if lack is not None:
            lacks[kind.title] = lack
    raise _summary(context, refusals, lacks)


def _summary(context: Context, refusals: dict[str, str], lacks: dict[str, CapacityError]) -> MpishareError:
    """One error for all kinds: the first that is about room, with the words of the others."""
    first = next(iter(lacks), "")
    others = "; ".join(f"{title}: {words}" for title, words in refusals.items() if title != first)
    if not lacks:
        return BackendError(f"no segment kind can be used on host {context.topology.host}: {others}")
    lack = lacks[first]
    cure = f"{lack.cure} Nor elsewhere. {others}" if others else lack.cure
    return CapacityError(lack.host, lack.where, lack.wanted, lack.free, cure)


def _attempt(kind: Kind, context: Context, nbytes: int, *, writable: bool) -> Memory:
    """Memory with real pages. Each rank of the node gets those of its own slice, on the memory nearest to its core.

    Raises:
        MpishareError: It could not be had on a rank of this node; on all ranks of the node.
    """
    with agree(context.node_collective_comm):
        if writable and not kind.is_shared and context.topology.node_size > 1:
            raise BackendError("each rank would write to a copy of its own, and the others would not see it")
        kind.check(context, nbytes)
    part = slice(0, nbytes)
    if kind.is_shared:
        part = slices.fill_slice(nbytes, context.topology.node_size, context.topology.node_rank)
    with agree(context.node_collective_comm):
        try:
            memory = kind.allocate(context, nbytes)
            memory.reserve(part)
        except MemoryError as error:
            cure = f"The kernel says: {error}. Others took the room since it was looked at; share less."
            raise CapacityError(
                context.topology.host, kind.title, nbytes, host_memory.memory_room().free, cure
            ) from error
        except OSError as error:
            raise BackendError(f"{kind.title} on host {context.topology.host}: the kernel says: {error}") from error
    return memory
