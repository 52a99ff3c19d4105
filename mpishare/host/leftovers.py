"""Files that MPI jobs of this user left in shared memory when they were killed: which ones, and their removal."""

from __future__ import annotations

import errno
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fcntl import F_GETLEASE, F_SETLEASE, F_SETSIG, F_WRLCK, LOCK_EX, LOCK_NB, fcntl, flock
from functools import cache
from itertools import islice
from pathlib import Path
from stat import S_ISREG

from mpishare.host.filesystems import is_node_local

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

_OPENING_S = 1.0
"""How long a file that exists may wait for the process that makes it to have it open. See `unused`."""

_MOST_NAMES = 10_000
"""How many files of a directory the first call of a job looks at, so that it takes milliseconds at most."""


@cache
def remove_leftovers(*directories: str) -> None:
    """Removes them from directories where MPI puts windows, once in a process. It says nothing and raises no OSError.

    A file whose use cannot be known stays; `mpishare clean` names it.
    """
    for directory in set(directories):
        with suppress(OSError):
            _remove_from(directory)


def _remove_from(directory: str) -> None:
    """Removes the leftovers in a directory, unless another process is about it.

    Two processes that try the same file at the same time each find it in use. So one holds a lock on the directory.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        flock(descriptor, LOCK_EX | LOCK_NB)
        running = set()  # Of the files of a running job only one is tried: that takes 10 us
        with os.scandir(directory) as entries:
            for entry in islice(entries, _MOST_NAMES):
                if not _NAMES.fullmatch(entry.name):
                    continue
                job = entry.name.rpartition(".")[0]  # "" for MPICH
                if job in running or not _is_own(entry):
                    continue
                try:
                    with unused(Path(entry)) as file:
                        file.unlink()
                except BlockingIOError:
                    running.add(job or entry.name)
                except OSError:  # it is gone meanwhile, or its use cannot be known
                    continue
    finally:
        os.close(descriptor)


def is_of_mpi(entry: os.DirEntry[str]) -> bool:
    """Whether a file has a name as MPI gives it, is a regular one, and is of this user."""
    return _NAMES.fullmatch(entry.name) is not None and _is_own(entry)


def _is_own(entry: os.DirEntry[str]) -> bool:
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:  # its job has removed it meanwhile
        return False
    return S_ISREG(status.st_mode) and status.st_uid == os.geteuid()


@contextmanager
def unused(file: Path) -> Iterator[Path]:
    """Holds a write lease on a file that no process uses. Another process that opens it waits meanwhile.

    The kernel counts the users of a file in all PID namespaces; /proc shows the processes of its own one alone. Open
    MPI and MPICH have a file open or mapped from its making until they remove it. But the kernel gives a file its name
    first, and counts its maker as a user then: microseconds later, or more where another process gets the core. So the
    lease on a young file is held until the file is a second old, and given back if the maker has come.

    Source:
        fcntl(2), F_SETLEASE: "A write lease may be placed on a file only if there are no other open file descriptors
        for the file." A map keeps its file open. F_SETSIG replaces SIGIO, which would end this process where another
        one waits. Open MPI 4.0 to 5.0, opal/mca/shmem/mmap; MPICH 3.4 to 5.0, src/mpl/src/shm.

    Raises:
        BlockingIOError: A process has the file open, maps it, or is about to open it.
        FileNotFoundError: It is gone.
        OSError: The file cannot be opened, or its file system has no leases, or none that other hosts respect.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl(descriptor, F_SETSIG, signal.SIGURG)
        fcntl(descriptor, F_SETLEASE, F_WRLCK)
        if not _is_node_local(str(file.parent)):
            raise OSError(errno.EREMOTE, "other hosts may use its file system")
        age_s = time.time() - _mtime(descriptor)
        if 0 <= age_s < _OPENING_S:
            time.sleep(_OPENING_S - age_s)
            _mtime(descriptor)
        if fcntl(descriptor, F_GETLEASE) != F_WRLCK:
            raise BlockingIOError(errno.EAGAIN, "a process waits for it")
        yield file
    finally:
        os.close(descriptor)


def _mtime(descriptor: int) -> float:
    """When a file was made.

    Raises:
        FileNotFoundError: It has been removed. Its name may be that of another file: Open MPI uses names again.
    """
    status = os.fstat(descriptor)
    if status.st_nlink == 0:
        raise FileNotFoundError(errno.ENOENT, "it was removed")
    return status.st_mtime


_is_node_local = cache(is_node_local)
"""It takes 0.1 ms and more to read the table of mounts."""
