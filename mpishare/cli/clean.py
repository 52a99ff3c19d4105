"""`mpishare clean`: removes the shared memory that killed jobs of this user left on this host."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from mpishare.host.leftovers import is_of_mpi, unused
from mpishare.host.memory import SHM_DIR


def main(argv: list[str]) -> int:
    """Removes the files and prints the name of each."""
    parser = argparse.ArgumentParser(
        prog="mpishare clean",
        description="Removes the files that MPI jobs of yours left in shared memory on this host when their launcher "
        "was killed. A file that a process still uses, that is someone else's, or that MPI did not make, stays. The "
        "first call of a job does the same on its hosts, without a word.",
    )
    parser.add_argument("--dry-run", action="store_true", help="name the files and leave them")
    parser.add_argument("--dir", type=Path, default=Path(SHM_DIR), help="where MPI puts windows (default: %(default)s)")
    options = parser.parse_args(argv)
    if not options.dir.is_dir():
        parser.error(f"there is no folder {options.dir}")
    with os.scandir(options.dir) as entries:
        files = sorted(Path(entry) for entry in entries if is_of_mpi(entry))
    total = sum(_clean(file, is_dry=options.dry_run) for file in files)
    print(f"{total:,} bytes {'could be' if options.dry_run else 'are'} free again")
    return 0


def _clean(file: Path, *, is_dry: bool) -> int:
    """Removes a file that no process uses, or prints why it stays; returns the bytes that it took."""
    try:
        with unused(file):
            nbytes = file.stat().st_blocks * 512
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
    print(f"{'would remove' if is_dry else 'removed'} {file}, {nbytes:,} bytes")
    return nbytes
