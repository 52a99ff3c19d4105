"""Memory from a nameless file that all ranks of a node map: in the kernel's own tmpfs, or in a folder of the node.

The leader makes the file and sends it to the other ranks over a Unix socket. It is never in a directory, so nothing is
left of it however its processes end.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from mpishare.comm.agreement import agree
from mpishare.comm.context import Context
from mpishare.comm.descriptors import open_file_of
from mpishare.errors import BackendError, CapacityError
from mpishare.host import filesystems
from mpishare.host import memory as host_memory
from mpishare.memory import syscalls
from mpishare.memory.hugepages import aligned_bytes
from mpishare.memory.mapping import Mapping


def check_memory(context: Context, nbytes: int) -> int:
    """Compares with the free memory, within the control groups and the limits of this process."""
    if context.config.directory is not None:
        raise BackendError(f"MPISHARE_DIR={context.config.directory} names another place; unset it to allow this one")
    host_memory.check_limits(context.topology.host, nbytes, map_bytes=aligned_bytes(nbytes), file_bytes=nbytes)
    return host_memory.check_memory(context.topology.host, nbytes)


def allocate_in_memory(context: Context, nbytes: int) -> Mapping:
    """A map of a new file in the kernel's own tmpfs. Collective over the ranks of this node."""
    return _map_shared(context, nbytes, lambda: memory_file(nbytes), Mapping)


class _MappingOnDisk(Mapping):
    """A map of a file whose blocks on disk are allocated from the start."""

    def reserve(self, part: slice) -> None:
        """Nothing: the kernel can write a page to its block and read it again."""


def check_folder(context: Context, nbytes: int) -> int:
    """Compares with the free space of the folder. A folder that may be on a network is refused.

    A folder on a file system in memory takes memory as well.
    """
    folder = context.config.folder
    if refusal := filesystems.refusal_of(folder):
        raise BackendError(f"{refusal}. Set MPISHARE_DIR to a folder on this node's own disk.")
    space = filesystems.room(folder)
    if space is None or nbytes > space.free:
        raise _no_room(context, nbytes)
    host_memory.check_limits(context.topology.host, nbytes, map_bytes=aligned_bytes(nbytes), file_bytes=nbytes)
    return host_memory.check_memory(context.topology.host, nbytes) if _is_in_memory(folder) else 1


def allocate_in_folder(context: Context, nbytes: int) -> Mapping:
    """A map of a new file in a folder. Collective over the ranks of this node."""
    mapping = Mapping if _is_in_memory(context.config.folder) else _MappingOnDisk
    return _map_shared(context, nbytes, lambda: _file_in_folder(context, nbytes, mapping), mapping)


def _is_in_memory(folder: str) -> bool:
    return filesystems.type_of(folder) in filesystems.IN_MEMORY


def _map_shared(context: Context, nbytes: int, create: Callable[[], int], mapping: type[Mapping]) -> Mapping:
    """Maps one new file on all ranks. Collective over the ranks of this node; see `open_shared`."""
    descriptor = open_shared(context, create)
    try:
        memory = mapping.of_file(descriptor, nbytes)
    except BaseException:
        os.close(descriptor)
        raise
    memory.keep_file(descriptor)
    return memory


def memory_file(nbytes: int) -> int:
    """The descriptor of a new nameless file of `nbytes` zeros, in the kernel's own tmpfs, which no mount limits.

    Raises:
        BackendError: It cannot be created, or may not be so large (RLIMIT_FSIZE).
    """
    descriptor = -1
    try:
        descriptor = filesystems.memfd_create()
        _set_size(descriptor, nbytes, has_blocks=False)
    except OSError as error:
        if descriptor >= 0:
            os.close(descriptor)
        raise BackendError(f"no file of {nbytes:,} bytes can be created in memory: {error.strerror}") from error
    return descriptor


def _file_in_folder(context: Context, nbytes: int, mapping: type[Mapping]) -> int:
    """The descriptor of a new nameless file of `nbytes`; on a disk, with its blocks allocated."""
    descriptor = filesystems.nameless_file(context.config.folder)
    try:
        _set_size(descriptor, nbytes, has_blocks=mapping is _MappingOnDisk)
    except OSError as error:
        os.close(descriptor)
        if error.errno == errno.ENOSPC:
            raise _no_room(context, nbytes) from error
        raise
    return descriptor


def _set_size(descriptor: int, nbytes: int, *, has_blocks: bool) -> None:
    """Makes a file of `nbytes`. Its blocks are allocated here if the ranks cannot populate its pages later."""
    if has_blocks or not syscalls.can_populate():
        os.posix_fallocate(descriptor, 0, nbytes)
    else:
        os.truncate(descriptor, nbytes)


def _no_room(context: Context, nbytes: int) -> CapacityError:
    space = filesystems.room(context.config.folder)
    cure = "Set MPISHARE_DIR to a folder of this node with more room, or share less."
    return CapacityError(context.topology.host, context.config.folder, nbytes, space.free if space else 0, cure)


def open_shared(context: Context, create: Callable[[], int]) -> int:
    """Opens one new file on every rank of this node.

    Args:
        context: The context of the communicator.
        create: Called on the leader; returns the descriptor of a new file without a name.

    Returns:
        A descriptor of this rank, with an open file description of its own.

    Raises:
        BackendError: The leader cannot send the file to this rank.
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
        if comm.size > 1:
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
