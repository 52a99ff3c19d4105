"""Memory from a nameless file that all ranks of a node map: in the kernel's own tmpfs, or in a folder of the node.

The leader makes the file and sends it to the other ranks over a Unix socket. It is never in a directory, so nothing is
left of it however its processes end.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from mpishare.comm.agreement import Deferred, agree
from mpishare.comm.context import Context
from mpishare.comm.descriptors import open_file_of_leader
from mpishare.errors import BackendError, CapacityError
from mpishare.host import filesystems
from mpishare.host import memory as host_memory
from mpishare.memory.mapping import Mapping, OpenFile
from mpishare.memory.pages import aligned_bytes


def check_memory(context: Context, nbytes: int) -> int:
    """Compares with the free memory, within the control groups and the limits of this process."""
    if context.config.directory:
        raise BackendError(f"MPISHARE_DIR={context.config.directory} names another place; unset it to allow this one")
    host_memory.check_limits(context.topology.host, nbytes, map_bytes=aligned_bytes(nbytes), file_bytes=nbytes)
    return host_memory.check_memory(context.topology.host, nbytes)


def check_folder(context: Context, nbytes: int) -> int:
    """Compares with the free space of the folder. A folder that may be on a network is refused.

    A folder on a file system in memory takes memory as well. The file of another one has all its blocks from the start:
    the kernel can write a page to its block and read it again.
    """
    folder, host = context.config.folder, context.topology.host
    if context.config.directory == "":
        raise BackendError("MPISHARE_DIR is set and empty, which allows no folder")
    if refusal := filesystems.refusal_of(folder):
        raise BackendError(f"{refusal}. Set MPISHARE_DIR to a folder on this node's own disk.")
    space = filesystems.room(folder)
    if space is None or nbytes > space.free:
        cure = "Set MPISHARE_DIR to a folder of this node with more room, or share less."
        raise CapacityError(host, folder, nbytes, space.free if space else 0, cure)
    host_memory.check_limits(host, nbytes, map_bytes=aligned_bytes(nbytes), file_bytes=nbytes)
    return host_memory.check_memory(host, nbytes) if _is_in_memory(folder) else 0


def allocate_in_memory(context: Context, nbytes: int) -> Mapping:
    """A map of a new file in the kernel's own tmpfs. Collective over the ranks of this node."""
    return _map_shared(context, nbytes, partial(memory_file, nbytes))


def allocate_in_folder(context: Context, nbytes: int) -> Mapping:
    """A map of a new file in a folder. Collective over the ranks of this node."""
    return _map_shared(context, nbytes, partial(_file_in_folder, context.config.folder, nbytes))


def _map_shared(context: Context, nbytes: int, create: Callable[[], OpenFile]) -> Mapping:
    """Maps one new file on all ranks. Collective over the ranks of this node; see `open_shared`."""
    file, mapping = open_shared(context, create), Deferred()
    with mapping:
        memory = Mapping.of_file(file.descriptor, nbytes)
    mapping.raise_first()
    memory.keep_file(file)
    return memory


def memory_file(nbytes: int, label: str = "") -> OpenFile:
    """A new nameless file of `nbytes` zeros, in the kernel's own tmpfs, which no mount limits.

    /proc shows the `label`.

    Raises:
        OSError: It cannot be created, or may not be so large (RLIMIT_FSIZE).
    """
    return _sized(OpenFile(filesystems.memfd_create(label)), nbytes, has_blocks=False)


def _file_in_folder(folder: str, nbytes: int) -> OpenFile:
    """The same in a folder; on a disk, with its blocks allocated."""
    return _sized(OpenFile(filesystems.nameless_file(folder)), nbytes, has_blocks=not _is_in_memory(folder))


def _is_in_memory(folder: str) -> bool:
    return filesystems.type_of(folder) in filesystems.IN_MEMORY


def _sized(file: OpenFile, nbytes: int, *, has_blocks: bool) -> OpenFile:
    """Gives a new file its size, and on a disk its blocks. Pages of memory are allocated by `Mapping.reserve`."""
    if has_blocks:
        os.posix_fallocate(file.descriptor, 0, nbytes)
    else:
        os.truncate(file.descriptor, nbytes)
    return file


def open_shared(context: Context, create: Callable[[], OpenFile]) -> OpenFile:
    """Opens one new file on every rank of this node.

    Args:
        context: The context of the communicator.
        create: Called on the leader; returns a new file without a name.

    Returns:
        The file, with an open file description of this rank's own.

    Raises:
        BackendError: The leader cannot create the file, or send it to this rank.
        PeerError: The same on another rank.

    Collective:
        Over the ranks of this node.
    """
    comm, file = context.node_collective_comm, None
    with agree(comm):
        if context.topology.is_leader:
            try:
                file = create()
            except OSError as error:
                raise BackendError(f"no file for the node can be created: {error.strerror}") from error
    opened = open_file_of_leader(comm, -1 if file is None else file.descriptor) if comm.size > 1 else ""
    with agree(comm):
        if file is None and isinstance(opened, str):
            raise BackendError(f"the file of the node's leader cannot be shared: {opened}")
        return file or OpenFile(int(opened))
