"""Memory from MPI_Win_allocate_shared, the MPI standard's way to memory that all ranks of a node see.

The window is freed as soon as every rank of the node has a second map of its pages. So live memory takes no
communicator and no descriptor, and to free it is local.
"""

from __future__ import annotations

import mmap
import os
import re
from contextlib import suppress
from functools import partial
from pathlib import Path

from mpishare.arrays.slices import LINE_BYTES, PAGE_BYTES, round_up
from mpishare.comm import mpi
from mpishare.comm.callsite import log
from mpishare.comm.context import Context
from mpishare.errors import BackendError, CapacityError
from mpishare.host import filesystems
from mpishare.host import memory as host_memory
from mpishare.memory import pages
from mpishare.memory.mapping import Mapping
from mpishare.memory.pages import aligned_bytes, file_offset, huge_bytes

_SLACK_BYTES = mmap.PAGESIZE + (60 << 10)
"""What is added to a window: by an MPI for itself, in Open MPI 5.0 a page and 128 bytes per rank; and a cache line."""

_MARGIN_BYTES, _MARGIN_PART = 16 << 20, 16
"""Free space required besides a window: its own size, these bytes, or this part of /dev/shm, whichever is the most. In
the 1 ms from `check` to MPI's own look a core fills some 2 MB, so 128 cores 256 MB; of 64 GB the part is 4 GB."""

_MAP_SLACK_BYTES = 4 << 20
"""What an MPI may map besides, while it makes a window."""


def check(context: Context, nbytes: int) -> int:
    """Compares with the free space of the directory in which Open MPI and MPICH put windows, and with all limits.

    One rank of Open MPI compares the free space again, and the other ranks hang if it finds too little. Nothing keeps
    the space for us between the two checks. So more must be free than other processes fill in that time. To refuse a
    window costs nothing, as a file in memory is as fast. Windows made at the same time do not matter: they take space
    only when their pages are reserved, where an error is one of ours.
    """
    host, is_file = context.topology.host, context.topology.node_size > 1
    if not pages.can_populate():
        raise BackendError(f"the kernel of host {host} cannot reserve a window's pages; it is older than Linux 5.14")
    file_bytes = aligned_bytes(nbytes) + _SLACK_BYTES if is_file else 0
    host_memory.check_limits(host, nbytes, map_bytes=aligned_bytes(nbytes) + _MAP_SLACK_BYTES, file_bytes=file_bytes)
    steps = host_memory.check_memory(host, nbytes)
    try:  # whether MPI can open its files: Open MPI one, MPICH two. If it could not on one rank, the others would hang
        for descriptor in os.pipe():
            os.close(descriptor)
    except OSError as error:
        raise BackendError(f"no file can be opened on host {host}: {error.strerror}") from error
    directory = context.config.window_dir or host_memory.SHM_DIR
    space = filesystems.room(directory)
    if is_file and space is not None:
        required = aligned_bytes(nbytes) + max(nbytes, _MARGIN_BYTES, space.total // _MARGIN_PART) + _SLACK_BYTES
        if required > space.free:
            cure = (
                f"MPI may hang where other processes fill it meanwhile, so that {required:,} must be free for this "
                "window. Give the host more shared memory (docker: --shm-size), or share less."
            )
            raise CapacityError(host, directory, nbytes, space.free, cure)
    return steps


def _trial(context: Context) -> tuple[str, int]:
    """What a window of one page shows. Collective over the ranks of this node.

    Returns:
        Why windows are not used here, "" if they are; and where the pages of a window begin in its file, behind what
        MPI keeps there for itself.
    """
    if context.mpi_nodes > 1:
        return f"MPI puts the ranks of host {context.topology.host} on {context.mpi_nodes} nodes", 0
    comm = context.node_collective_comm
    try:
        comm.call_together(comm.comm.Dup).Free()  # MPICH 5 ends the process if none is left for the window
        window = _make_shared(context, PAGE_BYTES)
    except mpi.Exception as error:
        return f"this MPI makes no shared-memory windows: {error}", 0
    offset = file_offset(_address_of(window))
    mapping = _map_again(context, window, PAGE_BYTES, offset)
    comm.call_together(window.Free)
    return "" if mapping else "the pages of MPI's windows cannot be mapped a second time on every rank", offset


def allocate(context: Context, nbytes: int) -> Mapping:
    """The second map of a window, which is freed. Collective over the ranks of this node."""
    if context.topology.node_size == 1:
        return Mapping.anonymous(nbytes)
    refusal, offset = context.cached(_trial)
    if refusal:
        raise BackendError(refusal)
    room = aligned_bytes(nbytes)  # untouched pages take no memory
    window = _make(context, nbytes, room)
    mapping = _map_again(context, window, room, offset)
    context.node_collective_comm.call_together(window.Free)
    if mapping is None:
        raise BackendError("a rank of this node cannot map the window's pages a second time; see vm.max_map_count")
    if room > nbytes:
        mapping.address += -mapping.address % huge_bytes()
    return mapping


def _make(context: Context, nbytes: int, room: int) -> mpi.Win:
    """A window of `room` bytes for `nbytes`; an error of MPI ends the job. Collective over the ranks of this node."""
    try:
        return _make_shared(context, room)
    except mpi.Exception as error:
        # The other ranks may never leave MPI. It happens only where another process fills /dev/shm after `check`.
        log(
            f"MPI could not make a window of {nbytes:,} bytes on host {context.topology.host}: {error}. "
            "Ending the job, as the other ranks of the node may wait in MPI for ever."
        )
        mpi.COMM_WORLD.Abort(1)
        raise


def _make_shared(context: Context, nbytes: int) -> mpi.Win:
    """All bytes are the leader's part of the window, so that they are contiguous, plus 64, to align to a cache line."""
    own = nbytes + LINE_BYTES if context.topology.is_leader else 0
    allocate = partial(mpi.Win.Allocate_shared, own, 1, comm=context.node_collective_comm.comm)
    return context.node_collective_comm.call_together(allocate)


def _map_again(context: Context, window: mpi.Win, nbytes: int, offset: int) -> Mapping | None:
    """A second map on every rank of this node, or None on all of them. Collective over the ranks of this node."""
    mapping = None
    with suppress(OSError):
        mapping = Mapping.of_pages(_address_of(window), nbytes, offset)
    has_failed = context.node_collective_comm.allreduce_or(bytes([mapping is None]))
    return None if any(has_failed) else mapping


def _address_of(window: mpi.Win) -> int:
    """Where the first cache line of the window begins. Open MPI 4.1 starts the window itself 8 bytes behind a line."""
    address: int = window.Shared_query(0)[0].address
    return round_up(address, LINE_BYTES)


def may_print_errors(context: Context) -> bool:
    """Whether MPI may print an error on each rank for each window, though it makes it.

    Open MPI does from version 5 on where its component for UCX finds no network, unless that is left out
    (ompi #12517, #14086).
    """
    if context.topology.node_size == 1 or context.config.window_components is not None:
        return False
    library = re.match(r"Open MPI v(\d+)", mpi.Get_library_version())  # one ABI may stand for several libraries
    return library is not None and int(library[1]) >= 5 and not Path("/sys/class/infiniband").is_dir()
