"""The backends, the ways to allocate memory for the ranks of a node, in the order in which a node tries them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import NamedTuple

from mpishare.arrays.slices import PAGE_BYTES
from mpishare.comm import callsite
from mpishare.comm.agreement import PAYLOAD_BYTES, Deferred, Severity, agree, is_from_outside, severity_of
from mpishare.comm.context import Context
from mpishare.comm.requests import this_thread
from mpishare.config import format_bytes
from mpishare.errors import ArgumentError, BackendError, CapacityError, MpishareError
from mpishare.host import memory as host_memory
from mpishare.host.procfs import IS_LINUX
from mpishare.memory import shared_file, window
from mpishare.memory.mapping import Mapping, Origin
from mpishare.memory.pages import aligned_bytes, cut
from mpishare.memory.pool import free_idle


class Backend(NamedTuple):
    """One way to allocate memory for the ranks of a node.

    Attributes:
        name: Its name in MPISHARE_BACKEND and in `backend=`.
        title: Its name for people: `name`, and where the bytes lie if backends differ in that alone.
        is_shared: Whether the ranks of a node see one copy, and thus what the others write. If not, each has its own.
        check: Called with the number of bytes; raises `MpishareError` if they cannot be allocated on this node. Returns
            in how many steps to reserve their pages, see `host.memory.check_memory`; 0 where that is not needed. Local.
        allocate: Allocates this number of bytes, at least one. Raises `MpishareError`, `MemoryError` or `OSError` where
            that fails after all, but no rank raises while another is still in a collective of this call; after one,
            `Deferred` raises the latter two. Collective over the ranks of this node.
    """

    name: str
    title: str
    is_shared: bool
    check: Callable[[Context, int], int]
    allocate: Callable[[Context, int], Mapping]


def _check_private(context: Context, nbytes: int) -> int:
    """Compares the bytes of all ranks of the node with the free memory."""
    host_memory.check_limits(context.topology.host, nbytes, map_bytes=aligned_bytes(nbytes))
    return host_memory.check_memory(context.topology.host, nbytes * context.topology.node_size)


WINDOW = Backend("window", "window", True, window.check, window.allocate)
"""MPI_Win_allocate_shared, mapped a second time and freed at once."""
MEMMAP_IN_MEMORY = Backend("memmap", "memmap in memory", True, shared_file.check_memory, shared_file.allocate_in_memory)
"""A nameless file in the kernel's own tmpfs. It takes memory as a window does, but no mount limits it."""
MEMMAP_IN_FOLDER = Backend(
    "memmap", "memmap in a folder", True, shared_file.check_folder, shared_file.allocate_in_folder
)
"""A nameless file in MPISHARE_DIR or the temporary folder, if its file system belongs to this node alone."""
PRIVATE = Backend("private", "private", False, _check_private, lambda _, nbytes: Mapping.anonymous(nbytes))
"""One copy per rank: the last resort, and the reference for tests of the others."""

BACKENDS: tuple[Backend, ...] = (WINDOW, MEMMAP_IN_MEMORY, MEMMAP_IN_FOLDER, PRIVATE)
"""The backends, in the order in which a node tries them.

`_first_backend` puts another one first: the folder that MPISHARE_DIR names; and a nameless file in memory, where MPI
would print an error for each window.
"""

_PRINTS_ERRORS = (
    "Open MPI would print an error for each, as its UCX finds no network; with OMPI_MCA_osc=^ucx it does not"
)
"""Why windows do not come first."""

_NO_SIZE_BYTES = 1 << 60
"""More than fits anywhere."""

_reported: set[str] = set()
"""The titles of the backends of which this process has reported that an array got them for want of a better one."""


def check_backend(backend: str | None, context: Context) -> str | None:
    """The names of the backends to try, by the argument or MPISHARE_BACKEND; None for the node's own choice.

    Raises:
        ArgumentError: There is no such backend.
    """
    names = context.config.backend if backend is None else backend
    if names is not None and not (isinstance(names, str) and _backends_named(names, BACKENDS)):
        source = "MPISHARE_BACKEND" if backend is None else "backend"
        known = ", ".join(dict.fromkeys(backend.name for backend in BACKENDS))
        raise ArgumentError(f"{source} {names!r} is unknown. Use one of {known}, or several with commas.")
    return names


@lru_cache(maxsize=64)
def _backends_named(names: str, backends: tuple[Backend, ...]) -> tuple[Backend, ...]:
    """The backends that `names` lists, in its order; none if one of the names is unknown."""
    matches = [[backend for backend in backends if backend.name == name] for name in names.split(",")]
    return tuple(backend for match in matches for backend in match) if all(matches) else ()


def probe(context: Context) -> dict[str, tuple[str, int]]:
    """For each backend, by title, up to which size it fits on this node and what it provides, or why it does not.

    The number is that size in bytes, less at most 2 %; 0 if it does not fit or is not tried.

    Each is tried with one page. The backends that this node tries come first, in order. Larger sizes are only
    compared with what is free, as each rank finds for itself.

    Collective:
        Over the ranks of this node.
    """
    first, refusals = _order(context, context.config.backend)
    outcomes = {}
    for backend in dict.fromkeys([*first, *BACKENDS]):
        text, largest = _probe(backend, context)
        text += f"; not tried first: {refusals[backend.title]}" if backend.title in refusals else ""
        text += "" if backend in first else "; not tried: MPISHARE_BACKEND names others"
        outcomes[backend.title] = text, largest if backend in first else 0
    return outcomes


def _probe(backend: Backend, context: Context) -> tuple[str, int]:
    try:
        memory = _allocate(backend, context, PAGE_BYTES, writable=False)
    except MpishareError as error:
        return f"does not fit: {error}", 0
    private = "is copy-on-write" if memory.copy_on_write() is not None else "copies"
    largest, reason = _largest(backend, context)
    return f"fits, up to {format_bytes(largest)} as {reason}; private() {private}", largest


def _largest(backend: Backend, context: Context) -> tuple[int, str]:
    """The size up to which an array fits, less at most 2 %, and why a larger one does not. Local."""
    largest, refused, reason = PAGE_BYTES, _NO_SIZE_BYTES, ""
    while refused > largest * 1.02:
        nbytes = math.isqrt(largest * refused)
        try:
            backend.check(context, nbytes)
            largest = nbytes
        except CapacityError as error:
            refused, reason = nbytes, f"{error.where} has {format_bytes(error.free)} free"
        except MpishareError as error:
            refused, reason = nbytes, str(error)
    return largest, reason


def obtain(context: Context, nbytes: int, names: str | None, writable: bool) -> tuple[Mapping, Origin]:
    """Memory of the first backend that works on all ranks of this node.

    Args:
        context: The context of the communicator.
        nbytes: Bytes on this node, at least one.
        names: Names of backends that `check_backend` accepted, or None.
        writable: Whether the ranks will write to it and must see what the others write.

    Raises:
        CapacityError, BackendError: No backend works; on all ranks of the node.

    Collective:
        Over the ranks of this node.
    """
    # Texts, as an error would keep its frames, and these the arrays in them.
    backends, refusals = _order(context, names)
    lack, lacking = None, ""
    for number, backend in enumerate(backends, start=1):
        # If /dev/shm alone is short, what is kept stays: the next backend does not need /dev/shm.
        allocate = _allocate if backend is WINDOW and MEMMAP_IN_MEMORY in backends[number:] else _allocate_with_retry
        try:
            memory = allocate(backend, context, nbytes, writable)
            topology, reporting = context.topology, Deferred()
            with reporting:  # the stream may be a user's, and a warning an error
                _report(context, backend, nbytes, names, refusals)
            reporting.raise_first()
            return memory, Origin(backend.title, topology.node_size, backend.is_shared, refusals, topology.node)
        except MpishareError as error:  # on all ranks of the node
            if severity_of(error, context.topology.node_size) == Severity.FATAL:
                raise
            refusals[backend.title] = str(error)
            if lack is None and isinstance(error, CapacityError):
                lack, lacking = error.without_traceback(), backend.title
    others = [f"{title}: {text}" for title, text in refusals.items() if text != refusals.get(lacking)]
    if names is not None:
        others.append(f"MPISHARE_BACKEND or backend= allows {names} alone; leave it out")
    if lack is None:
        raise BackendError(f"no backend can be used on host {context.topology.host}: {'; '.join(others)}")
    cure = f"{lack.cure} No other backend can be used either. {'; '.join(others)}" if others else lack.cure
    raise CapacityError(lack.host, lack.where, lack.wanted, lack.free, cure)


def _report(context: Context, backend: Backend, nbytes: int, names: str | None, refusals: dict[str, str]) -> None:
    """Warns, once in a process that is a leader, of an array in a folder that nobody named, or of copies. Local."""
    topology = context.topology
    is_spilled = backend is MEMMAP_IN_FOLDER and context.config.directory is None
    is_copied = backend is PRIVATE and names is None and topology.node_size > 1
    if not (is_spilled or is_copied) or not topology.is_leader or backend.title in _reported:
        return
    _reported.add(backend.title)
    if is_spilled:
        callsite.warn(
            f"{nbytes:,} bytes did not fit in the memory of host {topology.host}. They lie in a file in the "
            f"folder {context.config.folder}. Set MPISHARE_DIR to a folder to choose it, or leave it empty "
            "(MPISHARE_DIR=) to get a CapacityError instead."
        )
    else:
        reasons = "; ".join(f"{title}: {text}" for title, text in refusals.items())
        callsite.log(
            f"{topology.node_size} ranks on host {topology.host} hold {topology.node_size} copies of an array of "
            f"{nbytes:,} bytes, as they can share no memory for it. {reasons}"
        )


def _order(context: Context, names: str | None) -> tuple[Sequence[Backend], dict[str, str]]:
    """The backends to try, in order, and by title why some are not tried first.

    Collective:
        Over the ranks of this node.
    """
    if names is not None:
        return _backends_named(names, BACKENDS), {}
    first = context.cached(_first_backend)
    postponed = {WINDOW.title: _PRINTS_ERRORS} if first == MEMMAP_IN_MEMORY.title else {}
    return sorted(BACKENDS, key=lambda backend: backend.title != first), postponed


def _first_backend(context: Context) -> str:
    """The title of a backend that this node tries before all others, as its leader decides; "" where the order stays.

    Collective:
        Over the ranks of this node.
    """
    title = MEMMAP_IN_MEMORY.title if window.may_print_errors(context) else ""
    if context.config.directory:
        title = MEMMAP_IN_FOLDER.title
    return str(context.node_collective_comm.bcast_obj(title, 0))


def _allocate_with_retry(backend: Backend, context: Context, nbytes: int, writable: bool) -> Mapping:
    """Like `_allocate`; where memory is short, the ranks of the node free what they keep, and it is tried again."""
    try:
        return _allocate(backend, context, nbytes, writable)
    except MpishareError as error:
        if severity_of(error, context.topology.node_size) != Severity.NO_ROOM:
            raise
    free_idle()
    context.node_collective_comm.barrier()
    return _allocate(backend, context, nbytes, writable)


def _allocate(backend: Backend, context: Context, nbytes: int, writable: bool) -> Mapping:
    """Memory with real pages. Each rank reserves the pages of its own parts, in the domain of memory of its core.

    Where little more memory is free, they do so in steps, and look at what is left before each.

    Raises:
        MpishareError: It could not be allocated on a rank of this node; on all ranks of the node.
    """
    topology, comm = context.topology, context.node_collective_comm
    with agree(comm) as agreement:
        if backend.is_shared and not IS_LINUX:
            raise BackendError("only Linux has it")
        if writable and not backend.is_shared and topology.node_size > 1:
            raise BackendError("each rank would write to a copy of its own, and the others would not see it")
        agreement.payload = ((1 << backend.check(context, nbytes)) - 1).to_bytes(PAYLOAD_BYTES, "little")
    steps = int.from_bytes(agreement.payload, "little").bit_length()  # the most that a rank has counted
    with agree(comm):
        if backend is WINDOW:  # the others may be in MPI's call when an exception from outside comes before it here
            this_thread.begun += 1
        with kernel_errors(backend.title, topology.host, nbytes):
            memory = backend.allocate(context, nbytes)
    ranks, rank = (topology.node_size, topology.node_rank) if backend.is_shared else (1, 0)
    for step in range(steps):
        if step:
            with agree(comm):  # while no rank reserves
                host_memory.check_memory(topology.host, nbytes, allocated=nbytes * step // steps)
        with agree(comm), kernel_errors(backend.title, topology.host, nbytes):
            memory.reserve(cut(nbytes, steps, step), ranks, rank)
    return memory


@contextmanager
def kernel_errors(title: str, host: str, nbytes: int) -> Iterator[None]:
    """Raises errors of the kernel within the block as ours: where memory of this title fails on this host.

    An error from outside passes: its rank must come to no agreement.
    """
    begun = this_thread.begun
    try:
        yield
    except (MemoryError, OSError) as error:
        if isinstance(error, MpishareError) or is_from_outside(error, begun):
            raise
        if isinstance(error, OSError):
            raise BackendError(f"{title} on host {host}: the kernel reports: {error}") from error
        cure = f"The kernel reports: {error}. Another process has taken the memory meanwhile; share less."
        raise CapacityError(host, title, nbytes, host_memory.memory_room().free, cure) from error
