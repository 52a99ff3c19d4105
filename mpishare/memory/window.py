"""Memory from MPI shared-memory windows, mapped a second time so that mpishare alone decides when it is released."""

from __future__ import annotations

import os

from mpishare.arrays.slices import PAGE_BYTES
from mpishare.comm import mpi
from mpishare.comm.abort import end_job
from mpishare.comm.context import Context
from mpishare.errors import BackendError, CapacityError
from mpishare.host import filesystems
from mpishare.host import memory as host_memory
from mpishare.memory.hugepages import aligned_bytes, huge_bytes
from mpishare.memory.kinds import Kind
from mpishare.memory.mapping import Mapping

_SLACK_BYTES = 64 << 10
"""What an MPI adds to a window for itself. Open MPI 5.0: a page, and 128 bytes a rank."""

_ROOM_PER_BYTE = 2
"""Free space required, over the size of a window. See `_check`."""

_MAP_SLACK_BYTES = 4 << 20
"""What an MPI may map besides, while it makes a window."""


def _check(context: Context, nbytes: int) -> int:
    """Compares with the free space of the directory in which Open MPI and MPICH put windows, and with all limits.

    One rank of Open MPI compares the free space again, and the other ranks hang if it finds too little. So twice
    the size must be free: no other process takes that much between the two checks.
    """
    host, is_file = context.topology.host, context.topology.node_size > 1
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
    if is_file and space is not None and _ROOM_PER_BYTE * nbytes + _SLACK_BYTES > space.free:
        cure = (
            f"A window needs {_ROOM_PER_BYTE} times its size of free space there while it is made. Give the host "
            "more shared memory (docker: --shm-size), or share less."
        )
        raise CapacityError(host, directory, nbytes, space.free, cure)
    return steps


def _allocate(context: Context, nbytes: int) -> Mapping:
    """Allocates all bytes on the leader, so that they are contiguous. Collective over the ranks of this node."""
    if context.topology.node_size == 1:
        return Mapping.anonymous(nbytes)
    refusal = context.keep(_refusal_of_mpi)
    if refusal:
        raise BackendError(refusal)
    room = aligned_bytes(nbytes)  # untouched pages take no memory
    try:
        window = _allocate_shared(context, room)
    except mpi.Exception as error:
        # The other ranks may never leave MPI. It happens only where another process fills /dev/shm after `_check`.
        end_job(
            f"MPI could not make a window of {nbytes:,} bytes on host {context.topology.host}: {error}. "
            "Ending the job, as the other ranks of the node may wait in MPI for ever."
        )
        raise
    address = window.Shared_query(0)[0].address
    mapping = Mapping.of_pages(address, room) if context.config.second_map else None
    is_kept = context.node_collective_comm.allreduce_or(bytes([mapping is None]))
    if mapping is None or any(is_kept):
        return KeptWindow(window, address)
    window.Free()
    if room > nbytes:
        mapping.address += -mapping.address % huge_bytes()
    return mapping


def _refusal_of_mpi(context: Context) -> str:
    """Why this MPI makes no shared-memory windows; "" if it does. All ranks learn it from a window of one page.

    Collective:
        Over the ranks of this node.
    """
    try:
        _allocate_shared(context, PAGE_BYTES).Free()
    except mpi.Exception as error:
        return f"this MPI makes no shared-memory windows: {error}"
    return ""


def _allocate_shared(context: Context, nbytes: int) -> mpi.Win:
    return mpi.Win.Allocate_shared(nbytes if context.topology.is_leader else 0, 1, comm=context.topology.node_comm)


class KeptWindow(Mapping):
    """The memory of a window that is never freed: MPI_Win_free is collective, while views are deleted locally.

    Its pages belong to MPI, which may put other data on them: their protection stays as it is.
    """

    lifetime = "stays until MPI_Finalize"
    can_protect = False
    kept: list[mpi.Win] = []  # noqa: RUF012 - all windows of the process, until MPI_Finalize

    def __init__(self, window: mpi.Win, address: int) -> None:
        self.kept.append(window)
        self.address = address

    def _nothing(self) -> None:
        """Nothing, and None: the pages are MPI's."""

    protect = unprotect = second_map = copy_on_write = _nothing


WINDOW = Kind("window", "window", True, _check, _allocate)
"""MPI_Win_allocate_shared, the MPI standard's way to memory that all ranks of a node see.

The window is freed as soon as every rank of the node has a second map of its pages. So live memory takes no
communicator and no descriptor, and releasing it is local. Where the pages cannot be mapped a second time, the window
stays until MPI_Finalize.
"""
