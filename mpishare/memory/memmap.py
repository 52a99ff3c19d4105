"""Memory from a file without a name on this node, which its ranks open through the leader's entry in /proc and map.

The file never stands in a directory, so nothing is left of it however its processes end. It lies in the kernel's own
tmpfs, which no mount limits, or else in a folder on a file system of this node.
"""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from mpishare.comm.agreement import agree
from mpishare.comm.context import Context
from mpishare.errors import BackendError, CapacityError
from mpishare.host import filesystems
from mpishare.host import memory as host_memory
from mpishare.memory.kinds import Memory
from mpishare.memory.mapping import Mapping


@dataclass(frozen=True)
class _File:
    """How the ranks of the leader's node find its open file, and know that it is the one."""

    path: str
    device: int
    inode: int


class _Memmap(ABC):
    """What the two places for the file have in common. With a place, it satisfies `Kind`."""

    name = "memmap"
    is_shared = True
    _mapping: type[Mapping]

    @abstractmethod
    def check(self, context: Context, nbytes: int) -> None:
        """Compares with the room of the place; see `Kind`."""

    @abstractmethod
    def _create(self, context: Context, nbytes: int) -> int:
        """The descriptor of a new nameless file of `nbytes`, for the leader."""

    def allocate(self, context: Context, nbytes: int) -> Memory:
        """The leader makes the file; all map it while the leader holds it open. Collective over the node."""
        with ExitStack() as stack:
            with agree(context.node_collective_comm):
                made = stack.enter_context(self._made(context, nbytes)) if context.topology.is_leader else None
            file = context.node_collective_comm.bcast_obj(made, 0)
            assert file is not None
            with agree(context.node_collective_comm):
                return self._mapped(file, nbytes)

    @contextmanager
    def _made(self, context: Context, nbytes: int) -> Iterator[_File]:
        descriptor = self._create(context, nbytes)
        try:
            status = os.fstat(descriptor)
            yield _File(f"/proc/{os.getpid()}/fd/{descriptor}", status.st_dev, status.st_ino)
        finally:
            os.close(descriptor)

    def _mapped(self, file: _File, nbytes: int) -> Mapping:
        try:
            descriptor = os.open(file.path, os.O_RDWR | os.O_CLOEXEC)
        except (PermissionError, FileNotFoundError) as error:
            raise BackendError(f"{file.path} of the leader cannot be opened: {error.strerror}") from error
        try:
            status = os.fstat(descriptor)
            if (status.st_dev, status.st_ino) != (file.device, file.inode):
                raise BackendError(f"{file.path} is not the leader's: the ranks of this node differ in what /proc is")
            return self._mapping.of_file(descriptor, nbytes)
        finally:
            os.close(descriptor)


class MemmapInMemory(_Memmap):
    """A file in the kernel's own tmpfs. It takes memory as a window does, but no mount such as /dev/shm limits it.

    Source:
        memfd_create(2).
    """

    title = "memmap in memory"
    _mapping = Mapping

    def check(self, context: Context, nbytes: int) -> None:
        """Compares with the free memory, within the control groups."""
        if context.config.directory is not None:
            raise BackendError(f"MPISHARE_DIR={context.config.directory} names another place")
        host_memory.check_memory(context.topology.host, nbytes)

    def _create(self, context: Context, nbytes: int) -> int:
        if not hasattr(os, "memfd_create"):  # a Python that was built on an old system
            raise BackendError("this Python has no os.memfd_create")
        descriptor = os.memfd_create("mpishare")
        os.truncate(descriptor, nbytes)
        return descriptor


class _OnDisk(Mapping):
    """A map of a file whose blocks on disk are reserved from the start."""

    def reserve(self, part: slice) -> None:
        """Nothing: a page that memory lacks can be had again from its blocks."""


class MemmapInFolder(_Memmap):
    """A nameless file in MPISHARE_DIR or the temporary folder, if that is on a file system of this node alone.

    Source:
        open(2), O_TMPFILE.
    """

    title = "memmap in a folder"
    _mapping = _OnDisk

    def check(self, context: Context, nbytes: int) -> None:
        """Compares with the free space of the folder; a folder that may be on a network is refused."""
        folder = context.config.folder
        found = filesystems.room(folder)
        if found is None:
            raise BackendError(f"there is no folder {folder}. Set MPISHARE_DIR to one on this node's own disk.")
        if not filesystems.is_node_local(folder):
            system = filesystems.type_of(folder)
            raise BackendError(
                f"{folder} is on {system}, which other hosts may share. Set MPISHARE_DIR to a local one."
            )
        if nbytes > found.free:
            raise _no_room(context, nbytes)

    def _create(self, context: Context, nbytes: int) -> int:
        folder = context.config.folder
        try:
            descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise BackendError(f"no nameless file can be made in {folder}: {error.strerror}") from error
        try:
            os.posix_fallocate(descriptor, 0, nbytes)
        except OSError as error:
            os.close(descriptor)
            if error.errno == errno.ENOSPC:
                raise _no_room(context, nbytes) from error
            raise
        return descriptor


def _no_room(context: Context, nbytes: int) -> CapacityError:
    folder = context.config.folder
    found = filesystems.room(folder)
    cure = "Set MPISHARE_DIR to a folder of this node with more room, or share less."
    return CapacityError(context.topology.host, folder, nbytes, found.free if found else 0, cure)
