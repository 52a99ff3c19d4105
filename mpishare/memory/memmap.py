"""Memory from a nameless file that all ranks of the node map: in the kernel's own tmpfs, or in a folder of the node."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from mpishare.comm.context import Context
from mpishare.errors import BackendError, CapacityError
from mpishare.host import filesystems
from mpishare.host import memory as host_memory
from mpishare.memory.hugepages import aligned_bytes
from mpishare.memory.kinds import Kind
from mpishare.memory.mapping import Mapping
from mpishare.memory.shared_file import memory_file, open_shared


def _check_memory(context: Context, nbytes: int) -> int:
    """Compares with the free memory, within the control groups and the limits of this process."""
    if context.config.directory is not None:
        raise BackendError(f"MPISHARE_DIR={context.config.directory} names another place; unset it to allow this one")
    host_memory.check_limits(context.topology.host, nbytes, map_bytes=aligned_bytes(nbytes), file_bytes=nbytes)
    return host_memory.check_memory(context.topology.host, nbytes)


def _allocate_in_memory(context: Context, nbytes: int) -> Mapping:
    return _map_shared(context, nbytes, lambda: memory_file(nbytes), Mapping)


MEMMAP_IN_MEMORY = Kind("memmap", "memmap in memory", True, _check_memory, _allocate_in_memory)
"""A file in the kernel's own tmpfs. It takes memory as a window does, but no mount such as /dev/shm limits it."""


class _MappingOnDisk(Mapping):
    """A map of a file whose blocks on disk are allocated from the start."""

    def reserve(self, part: slice) -> None:
        """Nothing: the kernel can write a page to its block and read it again."""


def _check_folder(context: Context, nbytes: int) -> int:
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


def _is_in_memory(folder: str) -> bool:
    return filesystems.type_of(folder) in filesystems.IN_MEMORY


def _allocate_in_folder(context: Context, nbytes: int) -> Mapping:
    mapping = Mapping if _is_in_memory(context.config.folder) else _MappingOnDisk
    return _map_shared(context, nbytes, lambda: _file_in_folder(context, nbytes, mapping), mapping)


MEMMAP_IN_FOLDER = Kind("memmap", "memmap in a folder", True, _check_folder, _allocate_in_folder)
"""A nameless file in MPISHARE_DIR or the temporary folder, if its file system belongs to this node alone."""


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


def _file_in_folder(context: Context, nbytes: int, mapping: type[Mapping]) -> int:
    """The descriptor of a new nameless file of `nbytes`; on a disk, with its blocks allocated."""
    descriptor = filesystems.nameless_file(context.config.folder)
    try:
        if mapping is _MappingOnDisk:
            os.posix_fallocate(descriptor, 0, nbytes)
        else:
            os.truncate(descriptor, nbytes)
    except OSError as error:
        os.close(descriptor)
        if error.errno == errno.ENOSPC:
            raise _no_room(context, nbytes) from error
        raise
    return descriptor


def _no_room(context: Context, nbytes: int) -> CapacityError:
    space = filesystems.room(context.config.folder)
    cure = "Set MPISHARE_DIR to a folder of this node with more room, or share less."
    return CapacityError(context.topology.host, context.config.folder, nbytes, space.free if space else 0, cure)
