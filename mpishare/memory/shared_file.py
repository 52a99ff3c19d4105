"""A file without a name that the ranks of a node open through the leader's entry in /proc, or receive from it.

The file is never in a directory, so nothing is left of it however its processes end.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from mpishare.comm.agreement import agree
from mpishare.comm.context import Context
from mpishare.comm.descriptors import open_file_of
from mpishare.errors import BackendError
from mpishare.host.memfd import memfd_create


def open_shared(context: Context, create: Callable[[], int]) -> int:
    """Opens one new file on every rank of this node.

    Args:
        context: The context of the communicator.
        create: Called on the leader; returns the descriptor of a new file without a name.

    Returns:
        A descriptor of this rank, with an open file description of its own.

    Raises:
        BackendError: A rank can neither open the leader's file nor receive it.
        PeerError: The same on another rank.
        Exception: What `create` raised.

    Collective:
        Over the ranks of this node.
    """
    comm, descriptor = context.node_collective_comm, -1
    try:
        with agree(comm):
            if context.topology.is_leader:
                descriptor = create()
        opened = open_file_of(comm, 0, descriptor)
        with agree(comm):
            if isinstance(opened, str):
                raise BackendError(f"the file of the node's leader cannot be shared: {opened}")
            descriptor = opened
    except BaseException:
        if descriptor >= 0:
            os.close(descriptor)
        raise
    return descriptor


def memory_file(nbytes: int) -> int:
    """The descriptor of a new nameless file of `nbytes` zeros, in the kernel's own tmpfs, which no mount limits.

    Raises:
        BackendError: It cannot be created, or may not be so large (RLIMIT_FSIZE).
    """
    descriptor = -1
    try:
        descriptor = memfd_create()
        os.truncate(descriptor, nbytes)
    except OSError as error:
        if descriptor >= 0:
            os.close(descriptor)
        raise BackendError(f"no file of {nbytes:,} bytes can be created in memory: {error.strerror}") from error
    return descriptor
