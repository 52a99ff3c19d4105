"""A file without a name that the ranks of a node open through the leader's entry in /proc.

The file is never in a directory, so nothing is left of it however its processes end.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from mpishare.comm.agreement import agree
from mpishare.comm.context import Context
from mpishare.errors import BackendError
from mpishare.memory import syscalls


def open_shared(context: Context, create: Callable[[], int]) -> int:
    """Opens one new file on every rank of this node.

    Args:
        context: The context of the communicator.
        create: Called on the leader; returns the descriptor of a new file without a name.

    Returns:
        A descriptor of this rank, with an open file description of its own.

    Raises:
        BackendError: A rank may not open the leader's file.
        PeerError: The same on another rank.
        Exception: What `create` raised.

    Collective:
        Over the ranks of this node.
    """
    comm, descriptor, entry = context.node_collective_comm, -1, None
    try:
        with agree(comm):
            if context.topology.is_leader:
                descriptor = create()
                entry = f"/proc/{os.getpid()}/fd/{descriptor}", os.fstat(descriptor)
        path, status = comm.bcast_obj(entry, 0)
        with agree(comm):
            if descriptor < 0:
                descriptor = _open(path, status)
    except BaseException:
        if descriptor >= 0:
            os.close(descriptor)
        raise
    return descriptor


def _open(path: str, status: os.stat_result) -> int:
    """A descriptor of the file at `path`, which must be the one of `status`.

    Raises:
        BackendError: It cannot be opened, or it is another file.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise BackendError(f"{path} of the node's leader cannot be opened: {error.strerror}") from error
    if not os.path.samestat(os.fstat(descriptor), status):
        os.close(descriptor)
        raise BackendError(f"{path} is not the leader's file: the ranks of this node have different /proc")
    return descriptor


def memory_file(nbytes: int) -> int:
    """The descriptor of a new nameless file of `nbytes` zeros, in the kernel's own tmpfs, which no mount limits.

    Raises:
        BackendError: It cannot be created, or may not be so large (RLIMIT_FSIZE).
    """
    descriptor = -1
    try:
        descriptor = syscalls.memfd_create("mpishare")
        os.truncate(descriptor, nbytes)
    except OSError as error:
        if descriptor >= 0:
            os.close(descriptor)
        raise BackendError(f"no file of {nbytes:,} bytes can be created in memory: {error.strerror}") from error
    return descriptor
