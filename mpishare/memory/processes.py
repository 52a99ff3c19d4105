"""Node-shared memory in processes that are not ranks, such as children of a rank: found by the file that holds it."""

# Theory of operation: how a process that is no rank gets the memory of an array, and how long the memory lives.
#
# Memory can be handed on by a descriptor of its file alone. Nameless files have one; a rank keeps the newest open (see
# `memory.mapping`). A window has none: MPI has removed its file, and the kernel opens a file that is only mapped for
# privileged processes alone (proc(5), /proc/pid/map_files).
#
# The rules:
# 1. A process offers a file by its own id, the number of its descriptor, and the file's device and inode. Another
#    process opens it at /proc/PID/fd, which the kernel allows to processes of the same user, and compares device and
#    inode: so a number that was used again for another file is noticed. Nothing serves the file: no thread, no socket,
#    no name that could be left.
# 2. An offer holds while the process that made it keeps its descriptor. Who has opened the file keeps it by a
#    descriptor of its own, and offers that. Memory lives as long as any process has a descriptor or a map.
# 3. Memory that is offered is retired (see `memory.pool`): no later array gets it, as no rank hears of the last view
#    in a process that is no rank. This holds for a slot of a slab as well.
# 4. A read-only array without a file is moved into one. Its rank maps the file over the array's read-only pages: the
#    same bytes at the same addresses, so that all views stay as they are, and the old memory is freed with its last
#    rank. An array that ranks may write to is never moved: the others would write to the old memory.
# 5. The ranks of a node that move one array need not meet, and still make one file. A rank makes an empty file whose
#    label in /proc names the array, locks it, and binds an abstract socket of that name. The kernel lets one rank bind
#    it, which fills its file and unlocks it. The others connect to learn its process id (SO_PEERCRED), find its file by
#    the label, and wait for the lock. Nothing is sent, so nobody accepts.
# 6. The first rank keeps the socket with the file, and both as long as its views. Where it ends or is killed, the
#    kernel ends the lock and the name; its file is at /proc/PID/fd no more, and the next rank makes another.
#
# Why this suffices: a file is used only if it is at /proc/PID/fd after its lock was released, so its process lived on
# and had filled it: it closes the file where that fails. A lock of fcntl(2) belongs to the process: forked children,
# who have the descriptor, do not hold it. Within one process, `_moving` keeps threads apart. Ranks that do not see
# each other's /proc or sockets, as in containers, make a file each: more memory, but the same bytes.
#
# What would break it: to close any descriptor of a file while it is filled, as that ends the lock; to put it in place
# of pages that another rank may write.

from __future__ import annotations

import fcntl
import mmap
import os
import platform
import struct
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from mpishare.arrays.raw import Block
from mpishare.comm.context import become_child
from mpishare.comm.descriptors import peer_of, unix_socket
from mpishare.errors import BackendError
from mpishare.host import memory as host_memory
from mpishare.host.procfs import scope
from mpishare.memory.backends import kernel_errors
from mpishare.memory.mapping import Mapping, OpenFile, Origin
from mpishare.memory.pool import Slot
from mpishare.memory.segment import Segment
from mpishare.memory.shared_file import memory_file

_ORIGIN = Origin("memory of a handle", node_size=1)
_ATTEMPTS, _PAUSE_S = 100, 1e-3
"""A rank tries again where the first does not listen yet, or has just ended. Where it cannot see the first, in vain."""

_MOVED = "has no descriptor, so handle() moved the array on this rank, and on the others that made a handle"

_IDENTITY = slice(1, 3)
"""Where os.fstat has the inode and the device."""

_MAX_CALLERS = 4096
"""How many ranks can ask for the file of one array. The kernel takes no more by default (net.core.somaxconn)."""

_moving = threading.Lock()


class FilePart:
    """Bytes of a file. It can be pickled for processes of this host and user, which then have the file open as well."""

    def __init__(self, file: OpenFile | None, part: slice, problem: str = "") -> None:
        """The bytes `part` of a file that is open in this process, or None, and a `problem` that says why not."""
        self._file = file
        self._part = part
        self._problem = problem

    def map(self, key: int) -> Block:
        """The bytes, read-only.

        Raises:
            BackendError: This process could not open the file, or the kernel cannot map it.
        """
        if self._file is None:
            raise BackendError(self._problem)
        nbytes = self._part.stop - self._part.start
        with kernel_errors(_ORIGIN.backend, platform.node(), nbytes):
            memory = Mapping.read_only(self._file.descriptor, self._part)
        segment = Segment(Slot(memory, _ORIGIN, nbytes, readable=memory), nbytes, key, "handle")
        segment.seal(is_final=False)  # ranks may write to the file
        return segment.block()

    def __reduce__(self) -> Any:
        """What another process needs to open the file; see the theory of operation."""
        if self._file is None:
            return FilePart, (None, self._part, self._problem)
        descriptor = self._file.descriptor
        maker = platform.node(), scope(), os.getpid()
        return _open_part, (*maker, descriptor, tuple(os.fstat(descriptor))[_IDENTITY], self._part)


def _open_part(
    host: str, host_scope: int, pid: int, descriptor: int, identity: tuple[int, ...], part: slice
) -> FilePart:
    """The part of a file that another process has open. It raises nothing: many pools hang where unpickling fails.

    Args:
        host: The name of the other process's host.
        host_scope: What `host.procfs.scope` returns there.
        pid: Its id.
        descriptor: The number of the descriptor there.
        identity: The inode and the device of the file.
        part: The bytes.
    """
    if pid != os.getpid():
        become_child(f"process {pid} on host {host}")
    problem = "is gone: that process has ended, or has dropped the handle. Keep it there until all others have it."
    try:
        file = OpenFile(os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC))
        if scope() == host_scope and tuple(os.fstat(file.descriptor))[_IDENTITY] == identity:
            return FilePart(file, part)
    except OSError as error:
        if not isinstance(error, FileNotFoundError):
            problem = f"cannot be opened: {error.strerror}."
            if isinstance(error, PermissionError):
                problem += " Only processes of the same user and container can open it."
    if scope() != host_scope:
        problem = f"is not on host {platform.node()}, or in another container. Make a handle in a process there."
    return FilePart(None, part, f"the memory of a handle of process {pid} on host {host} {problem}")


def new_file(nbytes: int, label: str = "") -> OpenFile:
    """A nameless file in memory, for `reserved_block`.

    Raises:
        BackendError: The kernel refuses it.
    """
    with kernel_errors(_ORIGIN.backend, platform.node(), nbytes):
        return memory_file(nbytes, label)


def reserved_block(file: OpenFile, nbytes: int) -> Block:
    """The bytes of a new file, with real pages, to be written.

    Raises:
        CapacityError: There is no room.
        BackendError: The kernel refuses it.
    """
    host_memory.check_memory(platform.node(), nbytes)
    with kernel_errors(_ORIGIN.backend, platform.node(), nbytes):
        memory = Mapping.of_file(file.descriptor, nbytes)
        memory.keep_file(file)
        memory.reserve(slice(0, nbytes))
    return Segment(Slot(memory, _ORIGIN, nbytes), nbytes, None, "handle").block()


def move_into_file(segment: Segment) -> tuple[OpenFile, int]:
    """Moves a read-only array, which has memory of its own, into a nameless file; see the theory of operation.

    Returns:
        The file, and where the bytes begin in it.

    Raises:
        CapacityError: There is no room.
        BackendError: The kernel refuses it.
    """
    slot = segment.slot
    with _moving:
        found = slot.memory.file(slot.write_address)
        if found is None:
            origin, start = slot.origin, segment.address % mmap.PAGESIZE
            name = struct.pack("<qi", segment.key, origin.node) if origin.is_shared else b""
            file = _file_of_node(segment.block(), start, name)
            with kernel_errors(_ORIGIN.backend, platform.node(), segment.nbytes):
                slot.move_to(file, segment.nbytes)
            refusals = {**origin.refusals, origin.backend: _MOVED}
            slot.origin = origin._replace(backend="memmap in memory", refusals=refusals)
            found = file, start
    return found


def _file_of_node(content: Block, start: int, name: bytes) -> OpenFile:
    """A file with `content` from `start` on. The first rank of the node to ask for the array of this name makes it.

    Without a name it is a file of this rank alone.
    """
    nbytes = start + content.nbytes
    file = new_file(nbytes, name.hex())
    fcntl.lockf(file.descriptor, fcntl.LOCK_EX)
    for _ in range(_ATTEMPTS if name else 0):
        with ExitStack() as sockets:
            unix = unix_socket(sockets, name, _MAX_CALLERS)
            if not isinstance(unix, str):
                file.keeps = OpenFile(unix.detach())
                break
        if (first := _file_of_first(name)) is not None:
            return first
        time.sleep(_PAUSE_S)
    reserved_block(file, nbytes)[start:] = content
    fcntl.lockf(file.descriptor, fcntl.LOCK_UN)
    return file


def _file_of_first(name: bytes) -> OpenFile | None:
    """The file of the process that has bound the name, once it is filled; None where it cannot be had."""
    with ExitStack() as sockets, suppress(OSError):
        unix = unix_socket(sockets, name)
        pid, user = (0, -1) if isinstance(unix, str) else peer_of(unix)
        for link in Path(f"/proc/{pid}/fd").iterdir() if user == os.geteuid() else ():
            if str(link.readlink()).startswith(f"/memfd:mpishare{name.hex()} "):
                file = OpenFile(os.open(link, os.O_RDONLY | os.O_CLOEXEC))
                fcntl.lockf(file.descriptor, fcntl.LOCK_SH)
                fcntl.lockf(file.descriptor, fcntl.LOCK_UN)
                return file if link.exists() else None
    return None
