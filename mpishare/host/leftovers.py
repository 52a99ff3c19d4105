"""Files that MPI jobs of this user left in shared memory when they were killed, and whether a process uses one."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISREG

from mpishare.host.filesystems import is_node_local
from mpishare.host.procfs import IS_LINUX

_HOST, _HEX, _CID = r"[\w.-]+", "[0-9a-f]+", r"(\d+|0x[0-9a-f]+)"
_NAMES = re.compile(
    # Open MPI 4 and 5: windows, and messages within a host, by host, user, job, rank, communicator and process.
    rf"osc_(sm|ucx)\.{_HOST}\.{_HEX}\.\d+\.{_CID}|osc_rdma\.{_HOST}\.{_HEX}\.{_CID}(\.\d+)?"
    rf"|(sm|vader)_segment\.{_HOST}\.(\d+\.)?{_HEX}\.\d+"
    # MPICH 3 to 5: windows by mkstemp(3), and messages within a host, by job and node.
    rf"|mpich_shar_tmp[A-Za-z0-9]{{6}}|mpich_(shm|vci)_{_HEX}_\d+",
    re.ASCII,
)
"""The whole names of MPI's files. mpishare itself makes no file with a name."""

_YOUNG_S = 1.0
"""How long a file may wait for the process that makes it to open it: the kernel gives it its name first."""


def files_of_mpi(directory: str, *, of_others: bool = False) -> list[Path]:
    """The regular files of this user, or of others, with a name as MPI gives it, sorted."""
    found = []
    for file in Path(directory).iterdir():
        with suppress(FileNotFoundError):  # its job has removed it meanwhile
            status = file.lstat()
            is_of_others = status.st_uid != os.geteuid()
            if _NAMES.fullmatch(file.name) and S_ISREG(status.st_mode) and is_of_others == of_others:
                found.append(file)
    return sorted(found)


def unused_files(directory: str) -> tuple[str, ...]:
    """The files of MPI in a directory that no process uses; none where that cannot be known."""
    found = []
    with suppress(OSError):
        for file in files_of_mpi(directory):
            with suppress(OSError), unused(file):
                found.append(str(file))
    return tuple(found)


@contextmanager
def unused(file: Path) -> Iterator[os.stat_result]:
    """Holds a write lease on a file that no process uses. Another process that opens it waits meanwhile.

    The kernel counts the users of a file in all PID namespaces; /proc shows the processes of its own one alone. Open
    MPI and MPICH have a file open or mapped from its making until they remove it.

    Source:
        fcntl(2), F_SETLEASE: "A write lease may be placed on a file only if there are no other open file descriptors
        for the file." A map keeps its file open. F_SETSIG replaces SIGIO, which would end this process where another
        one waits. Open MPI 4.0 to 5.0, opal/mca/shmem/mmap; MPICH 3.4 to 5.0, src/mpl/src/shm.

    Raises:
        BlockingIOError: A process has the file open, maps it, or may be about to open it.
        FileNotFoundError: It is gone.
        OSError: The file cannot be opened, or its file system has no leases, or none that other hosts respect.
    """
    if not IS_LINUX:
        raise OSError(errno.ENOSYS, "only Linux has leases")
    descriptor = os.open(file, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        if not is_node_local(str(file.parent)):
            raise OSError(errno.EREMOTE, "other hosts may use its file system")
        status = os.fstat(descriptor)
        if status.st_nlink == 0:  # another file may have its name: Open MPI uses names again
            raise FileNotFoundError(errno.ENOENT, "it was removed")
        if 0 <= time.time() - status.st_mtime < _YOUNG_S:
            raise BlockingIOError(errno.EAGAIN, "the process that makes it may not have opened it yet")
        yield status
    finally:
        os.close(descriptor)
