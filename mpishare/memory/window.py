"""Memory from MPI shared-memory windows, mapped a second time so that its life is ours and local."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import numpy as np

from mpishare.arrays import slices
from mpishare.comm import mpi
from mpishare.comm.agreement import any_rank
from mpishare.comm.context import Context
from mpishare.errors import BackendError, CapacityError
from mpishare.host import filesystems
from mpishare.host import memory as host_memory
from mpishare.memory.hugepages import huge_bytes
from mpishare.memory.kinds import Memory
from mpishare.memory.mapping import Mapping, populate

_SLACK_BYTES = 64 << 10
"""What an MPI adds to a window for itself. Open MPI 5.0: a page, and 128 bytes a rank."""

_ROOM_PER_BYTE = 2
"""Free space asked for, over the size of a window. See `Window.check`."""


_DESCRIPTORS = 2
"""Files that an MPI has open while it makes a window: Open MPI one, MPICH two."""


class Window:
    """MPI_Win_allocate_shared, the standard's way to memory that all ranks of a node see. It satisfies `Kind`.

    The window is freed as soon as every rank of the node has a second map of its pages. So it costs no communicator
    and no descriptor while the memory lives, and to give the memory back is local. Where the pages cannot be mapped a
    second time, the window stays until MPI_Finalize.
    """

    name = title = "window"
    is_shared = True

    def check(self, context: Context, nbytes: int) -> None:
        """Compares with the free space of the directory in which Open MPI and MPICH put windows.

        Open MPI looks at the free space again, on one rank, and if that finds too little, the others hang. So a window
        is made only where as much again is free: nobody takes that between the two looks.
        """
        host_memory.check_memory(context.topology.host, nbytes)
        _check_descriptors(context)
        directory = context.config.window_dir or host_memory.SHM_DIR
        found = filesystems.room(directory)
        if context.topology.node_size > 1 and found is not None and _ROOM_PER_BYTE * nbytes + _SLACK_BYTES > found.free:
            cure = (
                f"A window takes {_ROOM_PER_BYTE} times its size of free space there while it is made. Give the host "
                "more shared memory (docker: --shm-size), or share less."
            )
            raise CapacityError(context.topology.host, directory, nbytes, found.free, cure)

    def allocate(self, context: Context, nbytes: int) -> Memory:
        """Allocates on the leader's side, so that the bytes are one run. Collective over the ranks of this node."""
        if context.topology.node_size == 1:
            return Mapping.anonymous(nbytes)
        refusal = context.keep(_refusal_of_mpi)
        if refusal:
            raise BackendError(refusal)
        room = nbytes + huge_bytes() if nbytes >= huge_bytes() else nbytes  # what is never touched costs nothing
        try:
            window = _window(context, room)
        except mpi.Exception as error:
            _end_job(context, nbytes, error)
        address = window.Shared_query(0)[0].address
        mapping = _second_map(address, room) if context.config.second_map else None
        is_refused = any_rank(context.node_collective_comm, np.array([mapping is None]))[0]
        if mapping is not None and not is_refused:
            window.Free()
            if room > nbytes:
                mapping.begin_on_huge_page()
            return mapping
        return KeptWindow(window, address)


def _refusal_of_mpi(context: Context) -> str:
    """Why this MPI makes no shared-memory windows; "" if it does. It refuses a small one at once, on all ranks.

    Collective:
        Over the ranks of this node.
    """
    try:
        _window(context, slices.PAGE_BYTES).Free()
    except mpi.Exception as error:
        return f"this MPI makes no shared-memory windows: {error}"
    return ""


def _check_descriptors(context: Context) -> None:
    """Returns when MPI can open the file of a window; a rank that cannot would leave the others waiting.

    Raises:
        BackendError: No file can be opened.
    """
    taken: list[int] = []
    try:
        while len(taken) < _DESCRIPTORS:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        raise BackendError(f"no file can be opened on host {context.topology.host}: {error.strerror}") from error
    finally:
        for descriptor in taken:
            os.close(descriptor)


def _window(context: Context, nbytes: int) -> mpi.Win:
    return mpi.Win.Allocate_shared(nbytes if context.topology.is_leader else 0, 1, comm=context.topology.node_comm)


def _end_job(context: Context, nbytes: int, error: mpi.Exception) -> NoReturn:
    """Ends the job with words: the other ranks of the node are in MPI_Win_allocate_shared, and may never leave it.

    It takes another process that fills /dev/shm in the microseconds since it was checked to come here.
    """
    told = f"MPI could not make a window of {nbytes:,} bytes on host {context.topology.host}: {error}"
    sys.stderr.write(f"mpishare: {told}. Ending the job, as the other ranks cannot be told.\n")
    sys.stderr.flush()
    mpi.COMM_WORLD.Abort(1)
    raise error


def _second_map(address: int, nbytes: int) -> Mapping | None:
    """A map of ours of the window's pages, None where the kernel refuses it."""
    try:
        return Mapping.of_pages(address, nbytes)
    except OSError:
        return None


class KeptWindow:
    """The memory of a window that is never freed by us: MPI_Win_free is collective, and a view ends when it ends.

    It satisfies `Memory`. Its pages belong to MPI, so they stay writable, and are not mapped copy-on-write.
    """

    lifetime = "stays until MPI_Finalize"
    _kept: list[mpi.Win] = []  # noqa: RUF012 - all windows of the process, until MPI_Finalize

    def __init__(self, window: mpi.Win, address: int) -> None:
        self._kept.append(window)
        self.address = address

    def reserve(self, part: slice) -> None:
        """Faults the pages in, as a map of ours does."""
        populate(self.address, part)

    def protect(self) -> None:
        """Nothing: the pages are MPI's, and other arrays of MPI may lie on them."""

    def unprotect(self) -> None:
        """Nothing: they are writable."""

    def second(self) -> None:
        """None: windows are kept where there can be no second map."""

    def private(self) -> None:
        """None: the pages are MPI's to map."""
