"""Which segment kind a node uses: the first of KINDS that works on all its ranks."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

from mpishare.arrays.slices import PAGE_BYTES
from mpishare.comm.agreement import PAYLOAD_BYTES, Severity, agree, severity_of
from mpishare.comm.context import Context
from mpishare.errors import ArgumentError, BackendError, CapacityError, MpishareError
from mpishare.host import memory as host_memory
from mpishare.memory import buffer_pool, cache
from mpishare.memory.hugepages import fill_slice
from mpishare.memory.kinds import Kind, NodeMemory, Origin
from mpishare.memory.mapping import Mapping
from mpishare.memory.memmap import MEMMAP_IN_FOLDER, MEMMAP_IN_MEMORY
from mpishare.memory.private import PRIVATE
from mpishare.memory.window import KEPT_WINDOW, WINDOW, KeptWindow, may_print_errors

KINDS: tuple[Kind, ...] = (WINDOW, MEMMAP_IN_MEMORY, MEMMAP_IN_FOLDER, KEPT_WINDOW, PRIVATE)
"""In the order in which a node tries them.

MPI's own shared memory comes first. Nameless files serve where MPI makes no windows, where the kernel maps them no
second time, and where /dev/shm, which limits windows, is small. A window that stays holds its memory and a communicator
until MPI_Finalize, so that it comes after all that goes with its last view.

`_first_kind` puts another one first: the folder that MPISHARE_DIR names; and a nameless file in memory, where MPI would
print an error for each window.
"""

_PRINTS_ERRORS = (
    "Open MPI would print an error for each, as its UCX finds no network; with OMPI_MCA_osc=^ucx it does not"
)
"""Why windows do not come first."""

_NO_SIZE_BYTES = 1 << 60
"""More than fits anywhere."""

_has_reported_copies = False
"""Whether this process has reported that the ranks of its node hold copies."""


def check_backend(backend: str | None, context: Context) -> str | None:
    """The names of the kinds to try, from the argument or else from MPISHARE_BACKEND; None for the node's own choice.

    Raises:
        ArgumentError: There is no such kind.
    """
    names = context.config.backend if backend is None else backend
    if names is not None and not (isinstance(names, str) and _kinds_named(names, KINDS)):
        source = "MPISHARE_BACKEND" if backend is None else "backend"
        known = ", ".join(dict.fromkeys(kind.name for kind in KINDS))
        raise ArgumentError(f"{source} {names!r} is unknown. Use one of {known}, or several with commas.")
    return names


@lru_cache(maxsize=64)
def _kinds_named(names: str, kinds: tuple[Kind, ...]) -> tuple[Kind, ...]:
    """Those of `kinds` that `names` lists, in its order; empty if one of the names is unknown."""
    matches = [[kind for kind in kinds if kind.name == name] for name in names.split(",")]
    return tuple(kind for match in matches for kind in match) if all(matches) else ()


def probe(context: Context) -> dict[str, str]:
    """For each kind, by title, the size up to which it fits on this node and what it provides, or why it does not fit.

    Each is tried with one page: first those that this node tries for an array, in their order. Larger sizes are only
    compared with what is free, as each rank finds for itself.

    Collective:
        Over the ranks of this node.
    """
    kinds = dict.fromkeys([*_kinds_to_try(context, context.config.backend), *KINDS])
    outcomes = {kind.title: _probe(kind, context) for kind in kinds}
    postponed = _postponed(context, context.config.backend).items()
    return outcomes | {title: f"{outcomes[title]}; not tried first: {reason}" for title, reason in postponed}


def _probe(kind: Kind, context: Context) -> str:
    try:
        memory = _allocate(kind, context, PAGE_BYTES, writable=False)
    except MpishareError as error:
        return f"does not fit: {error}"
    private = "is copy-on-write" if memory.copy_on_write() is not None else "copies"
    lifetime = memory.lifetime if memory.can_protect else f"{memory.lifetime}; read-only by NumPy's flag alone"
    single = ", a map of its own as this node has one rank" if context.topology.node_size == 1 else ""
    if isinstance(memory, KeptWindow):
        memory.free()
    return f"fits{single}, {_largest(kind, context)}; {lifetime}; private() {private}"


def _largest(kind: Kind, context: Context) -> str:
    """The size up to which an array fits, less at most 2 %, and why a larger one does not. Local."""
    largest, refused, reason = PAGE_BYTES, _NO_SIZE_BYTES, ""
    while refused > largest * 1.02:
        nbytes = math.isqrt(largest * refused)
        try:
            kind.check(context, nbytes)
            largest = nbytes
        except CapacityError as error:
            refused, reason = nbytes, f"{error.where} has {error.free:,} free"
        except MpishareError as error:
            refused, reason = nbytes, str(error)
    return f"up to {largest:,} bytes as {reason}"


def obtain(context: Context, nbytes: int, backend: str | None, writable: bool) -> NodeMemory:
    """Memory of the first kind that works on all ranks of this node.

    Args:
        context: The context of the communicator.
        nbytes: Bytes on this node, at least one.
        backend: Names of kinds that `check_backend` accepted, or None.
        writable: Whether the ranks will write to it and must see what the others write.

    Raises:
        CapacityError, BackendError: No kind works; on all ranks of the node.

    Collective:
        Over the ranks of this node.
    """
    refusals = _postponed(context, backend)  # texts, as an error would keep its frames, and these the arrays in them
    lack, lacking = None, ""
    kinds = _kinds_to_try(context, backend)
    for number, kind in enumerate(kinds, start=1):
        # What is cached stays where /dev/shm alone is short: each new array would release it, for no gain.
        allocate = _allocate if kind is WINDOW and MEMMAP_IN_MEMORY in kinds[number:] else _allocate_with_retry
        try:
            memory = allocate(kind, context, nbytes, writable)
            if kind is PRIVATE and backend is None:
                _report_copies(context, nbytes, refusals)
            return NodeMemory(memory, Origin(kind.title, context.topology.node_size, kind.is_shared, refusals))
        except MpishareError as error:  # on all ranks of the node
            if severity_of(error, context.topology.node_size) == Severity.FATAL:
                raise
            refusals[kind.title] = str(error)
            if lack is None and isinstance(error, CapacityError):
                lack, lacking = error.alone(), kind.title
    others = "; ".join(f"{title}: {text}" for title, text in refusals.items() if text != refusals.get(lacking))
    if backend is not None:
        others = f"{others}{'; ' * bool(others)}MPISHARE_BACKEND or backend= allows {backend} alone; leave it out"
    if lack is None:
        raise BackendError(f"no segment kind can be used on host {context.topology.host}: {others}")
    cure = f"{lack.cure} No other segment kind can be used either. {others}" if others else lack.cure
    raise CapacityError(lack.host, lack.where, lack.wanted, lack.free, cure)


def _report_copies(context: Context, nbytes: int, refusals: dict[str, str]) -> None:
    """Writes to stderr, once in a process that is a leader, that each rank of its node holds a copy. Local."""
    global _has_reported_copies
    topology = context.topology
    if _has_reported_copies or not topology.is_leader or topology.node_size == 1:
        return
    _has_reported_copies = True
    reasons = "; ".join(f"{title}: {text}" for title, text in refusals.items())
    sys.stderr.write(
        f"mpishare: {topology.node_size} ranks on host {topology.host} hold {topology.node_size} copies of an array of "
        f"{nbytes:,} bytes, as they can share no memory for it. {reasons}\n"
    )
    sys.stderr.flush()


def _kinds_to_try(context: Context, backend: str | None) -> Sequence[Kind]:
    """The kinds to try, in order. Collective over the ranks of this node."""
    if backend is not None:
        return _kinds_named(backend, KINDS)
    first = context.cached(_first_kind)
    return sorted(KINDS, key=lambda kind: kind.title != first)


def _postponed(context: Context, backend: str | None) -> dict[str, str]:
    """By title, why windows are not tried first; empty if they are, or if the user chooses.

    Collective:
        Over the ranks of this node.
    """
    is_postponed = backend is None and context.cached(_first_kind) == MEMMAP_IN_MEMORY.title
    return {WINDOW.title: _PRINTS_ERRORS} if is_postponed else {}


def _first_kind(context: Context) -> str:
    """The title of a kind that this node tries before all others, as its leader decides; "" where the order stays.

    Collective:
        Over the ranks of this node.
    """
    title = MEMMAP_IN_MEMORY.title if may_print_errors(context) else ""
    if context.config.directory is not None:
        title = MEMMAP_IN_FOLDER.title
    return str(context.node_collective_comm.bcast_obj(title, 0))


def _allocate_with_retry(kind: Kind, context: Context, nbytes: int, writable: bool) -> Mapping:
    """Like `_allocate`; where memory is short, the ranks of the node release what they cache, and it is tried again."""
    try:
        return _allocate(kind, context, nbytes, writable)
    except MpishareError as error:
        if severity_of(error, context.topology.node_size) != Severity.NO_ROOM:
            raise
    cache.clear()
    buffer_pool.clear()
    context.node_collective_comm.barrier()
    return _allocate(kind, context, nbytes, writable)


def _allocate(kind: Kind, context: Context, nbytes: int, writable: bool) -> Mapping:
    """Memory with real pages. Each rank reserves the pages of its own slice, near to its core.

    Where little more memory is free, they do so in steps, and look at what is left before each.

    Raises:
        MpishareError: It could not be allocated on a rank of this node; on all ranks of the node.
    """
    topology, comm = context.topology, context.node_collective_comm
    with agree(comm) as agreement:
        if writable and not kind.is_shared and topology.node_size > 1:
            raise BackendError("each rank would write to a copy of its own, and the others would not see it")
        agreement.payload = ((1 << kind.check(context, nbytes)) - 1).to_bytes(PAYLOAD_BYTES, "little")
    steps = int.from_bytes(agreement.payload, "little").bit_length()  # the most that a rank has counted
    part = fill_slice(nbytes, topology.node_size, topology.node_rank) if kind.is_shared else slice(0, nbytes)
    first, *others = _slices(part, steps)
    with agree(comm), _kernel_errors(kind, context, nbytes):
        memory = kind.allocate(context, nbytes)
        memory.reserve(first)
    for step, other in enumerate(others, start=1):
        with agree(comm):  # while no rank reserves
            host_memory.check_memory(topology.host, nbytes, allocated=nbytes * step // steps)
        with agree(comm), _kernel_errors(kind, context, nbytes):
            memory.reserve(other)
    return memory


def _slices(part: slice, count: int) -> list[slice]:
    """`part` in `count` slices, which end at huge pages where it is large enough."""
    steps = [fill_slice(part.stop - part.start, count, number) for number in range(count)]
    return [slice(part.start + step.start, part.start + step.stop) for step in steps]


@contextmanager
def _kernel_errors(kind: Kind, context: Context, nbytes: int) -> Iterator[None]:
    """Raises errors of the kernel within the block as ours."""
    host = context.topology.host
    try:
        yield
    except MemoryError as error:
        if isinstance(error, CapacityError):
            raise
        cure = f"The kernel reports: {error}. Another process has taken the memory meanwhile; share less."
        raise CapacityError(host, kind.title, nbytes, host_memory.memory_room().free, cure) from error
    except OSError as error:
        raise BackendError(f"{kind.title} on host {host}: the kernel reports: {error}") from error
