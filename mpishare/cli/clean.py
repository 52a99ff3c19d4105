"""`mpishare clean`: removes the shared memory that killed jobs of this user left on this host."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

# How Open MPI 5 and 4 and MPICH name the files behind windows and behind messages within a host. mpishare itself makes
# no file with a name.
_NAMES = re.compile(r"(osc_sm|sm_segment|vader_segment)\.[\w.-]+|mpich_shar_tmp\w+")

_SHM = "/dev/shm"  # noqa: S108 - where MPI puts them


def main(argv: list[str]) -> int:
    """Removes the files and names each."""
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


def leftovers(folder: Path, proc: Path = Path("/proc")) -> list[Path]:
    """The files of this user's MPI jobs in `folder` that no process maps or has open any more."""
    return unused([file for file in sorted(folder.iterdir()) if _NAMES.fullmatch(file.name) and _is_mine(file)], proc)


def unused(files: list[Path], proc: Path = Path("/proc")) -> list[Path]:
    """Those of `files` that no process maps or has open."""
    used: set[tuple[int, int]] = set()
    for process in proc.glob("[0-9]*") if files else ():
        try:
            used |= _mapped(process) | _opened(process)
        except OSError:
            continue  # it ended meanwhile, or has more rights than this one, as no rank of this user has
    return [file for file in files if file.exists() and _identity(file) not in used]


def _is_mine(file: Path) -> bool:
    return file.is_file() and not file.is_symlink() and file.stat().st_uid == os.geteuid()


def _identity(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_dev, status.st_ino


def _mapped(process: Path) -> set[tuple[int, int]]:
    """The files that a process maps, by device and inode."""
    found = set()
    for line in (process / "maps").read_text(errors="replace").splitlines():
        _, _, _, device, inode, *_ = line.split(maxsplit=5)
        major, minor = (int(number, 16) for number in device.split(":"))
        found.add((os.makedev(major, minor), int(inode)))
    return found


def _opened(process: Path) -> set[tuple[int, int]]:
    """The files that a process has open, by device and inode."""
    found = set()
    for entry in (process / "fd").iterdir():
        try:
            found.add(_identity(entry))
        except FileNotFoundError:
            continue  # it was closed meanwhile, or is no file
    return found
