"""`mpishare clean`: removes the shared memory that killed jobs of this user left on this host."""

from __future__ import annotations

import argparse
import os
import re
from contextlib import suppress
from pathlib import Path

# Open MPI 5, Open MPI 4 and MPICH name the files of windows, and of messages within a host, like this. mpishare itself
# makes no file with a name.
_NAMES = re.compile(r"(osc_sm|sm_segment|vader_segment)\.[\w.-]+|mpich_shar_tmp\w+")

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
    total = 0
    for file in leftovers(options.dir):
        size = file.stat().st_blocks * 512
        if not options.dry_run:
            file.unlink(missing_ok=True)
        print(f"{'would remove' if options.dry_run else 'removed'} {file}, {size:,} bytes")
        total += size
    print(f"{total:,} bytes {'could be' if options.dry_run else 'are'} free again")
    return 0


def leftovers(folder: Path) -> list[Path]:
    """The files of this user's MPI jobs in `folder` that no process maps or has open any more."""
    files = [file for file in sorted(folder.iterdir()) if _NAMES.fullmatch(file.name) and _is_own(file)]
    used: set[tuple[int, int]] = set()
    for process in Path("/proc").glob("[0-9]*") if files else ():
        with suppress(OSError):  # it has ended, or has more rights than this one, as no rank of this user has
            used |= _used_by(process)
    return [file for file in files if file.exists() and _identity(file) not in used]


def _is_own(file: Path) -> bool:
    return file.is_file() and not file.is_symlink() and file.stat().st_uid == os.geteuid()


def _identity(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_dev, status.st_ino


def _used_by(process: Path) -> set[tuple[int, int]]:
    """The files that a process maps or has open, by device and inode."""
    files = set()
    for line in (process / "maps").read_text(errors="replace").splitlines():
        device, inode = line.split()[3:5]
        major, minor = (int(number, 16) for number in device.split(":"))
        files.add((os.makedev(major, minor), int(inode)))
    for entry in (process / "fd").iterdir():
        with suppress(FileNotFoundError):  # it has been closed, or is not a file
            files.add(_identity(entry))
    return files
