"""`mpishare clean`: removes the shared memory that killed jobs of this user left on this host."""

from __future__ import annotations

import argparse
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import F_SETLEASE, F_SETSIG, F_WRLCK, fcntl
from pathlib import Path
from stat import S_ISREG

_HOST, _HEX, _CID = r"[\w.-]+", "[0-9a-f]+", r"(\d+|0x[0-9a-f]+)"
_NAMES = re.compile(
    # Open MPI 4 and 5: windows, and messages within a host, by host, user, job, rank, communicator and process.
    rf"osc_sm\.{_HOST}\.{_HEX}\.\d+\.{_CID}|osc_rdma\.{_HOST}\.{_HEX}\.{_CID}(\.\d+)?"
    rf"|(sm|vader)_segment\.{_HOST}\.(\d+\.)?{_HEX}\.\d+"
    # MPICH 3 to 5: windows by mkstemp(3), and messages within a host, by job and node.
    rf"|mpich_shar_tmp[A-Za-z0-9]{{6}}|mpich_(shm|vci)_{_HEX}_\d+",
    re.ASCII,
)
"""The whole names of MPI's files. mpishare itself makes no file with a name."""

_SHM = "/dev/shm"  # noqa: S108 - MPI's choice


def main(argv: list[str]) -> int:
    """Removes the files and prints the name of each."""
    parser = argparse.ArgumentParser(
        prog="mpishare clean",
        description="Removes the files that MPI jobs of yours left in shared memory on this host when their launcher "
        "was killed. A file that a process still uses, that is someone else's, or that MPI did not make, stays.",
    )
    parser.add_argument("--dry-run", action="store_true", help="name the files and leave them")
    parser.add_argument("--dir", type=Path, default=Path(_SHM), help="where MPI puts windows (default: %(default)s)")
    options = parser.parse_args(argv)
    if not options.dir.is_dir():
        parser.error(f"there is no folder {options.dir}")
    total = 0
    for file in sorted(options.dir.iterdir()):
        if _NAMES.fullmatch(file.name):
            total += _clean(file, is_dry=options.dry_run)
    print(f"{total:,} bytes {'could be' if options.dry_run else 'are'} free again")
    return 0


def _clean(file: Path, *, is_dry: bool) -> int:
    """Removes a file of this user that no process uses, or prints why it stays; returns the bytes that it took."""
    try:
        status = file.lstat()
        if not S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            return 0
        with _leased(file):
            if not is_dry:
                file.unlink()
    except FileNotFoundError:  # its job has removed it meanwhile
        return 0
    except BlockingIOError:
        print(f"left {file}: a process uses it")
        return 0
    except OSError as error:
        print(f"left {file}: whether a process uses it cannot be known: {error.strerror}")
        return 0
    nbytes = status.st_blocks * 512
    print(f"{'would remove' if is_dry else 'removed'} {file}, {nbytes:,} bytes")
    return nbytes


@contextmanager
def _leased(file: Path) -> Iterator[None]:
    """Holds a write lease on a file that no process uses. Another process that opens it waits meanwhile.

    The kernel counts the users of a file in all PID namespaces; /proc shows the processes of its own one alone.

    Source:
        fcntl(2), F_SETLEASE: "A write lease may be placed on a file only if there are no other open file descriptors
        for the file." A map keeps its file open. F_SETSIG replaces SIGIO, which would end this process where another
        one waits.

    Raises:
        BlockingIOError: A process has the file open, or maps it.
        OSError: The file cannot be opened, or its file system has no leases.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl(descriptor, F_SETSIG, signal.SIGURG)
        fcntl(descriptor, F_SETLEASE, F_WRLCK)
        yield
    finally:
        os.close(descriptor)
