"""`mpishare clean`: removes the shared memory that killed jobs of this user left on this host."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from mpishare.cli import Parser
from mpishare.config import counted, format_bytes
from mpishare.host.leftovers import files_of_mpi, unused
from mpishare.host.memory import SHM_DIR


def main(argv: list[str]) -> int:
    """Lists the files, asks, and removes them; returns 1 if it can ask nobody and so leaves them."""
    parser = Parser(
        prog="mpishare clean",
        description="Lists the files that MPI jobs of yours left in shared memory on this host when they were killed, "
        "asks, and removes them. A file that a process still uses, that is someone else's, or that MPI did not make, "
        "stays.",
    )
    parser.add_argument("--dry-run", action="store_true", help="list the files and leave them")
    parser.add_argument("--yes", action="store_true", help="remove the files without asking, for scripts")
    parser.add_argument("--dir", type=Path, default=Path(SHM_DIR), help="where MPI puts windows (default: %(default)s)")
    options = parser.parse_args(argv)
    if not options.dir.is_dir():
        parser.error(f"there is no folder {options.dir}")
    if not os.geteuid() and (others := files_of_mpi(str(options.dir), of_others=True)):
        print(f"left {counted(len(others), 'file')} of other users: run it as each of them, by runuser(1)")
    sizes = {}
    for file in files_of_mpi(str(options.dir)):
        if (nbytes := _unused_bytes(file)) is not None:
            print(f"{file}, {format_bytes(nbytes)}")
            sizes[file] = nbytes
    if not sizes:
        print(f"nothing to remove in {options.dir}")
        return 0
    print(f"{counted(len(sizes), 'file')} that no process uses, {format_bytes(sum(sizes.values()))}")
    if options.dry_run:
        return 0
    if not options.yes:
        if not sys.stdin.isatty():
            print("mpishare clean: nothing is removed, as there is no terminal to ask at: pass --yes", file=sys.stderr)
            return 1
        if input("Remove them? [y/N] ").strip().lower() not in {"y", "yes"}:
            return 0
    removed = [nbytes for file in sizes if (nbytes := _unused_bytes(file, Path.unlink)) is not None]
    print(f"removed {counted(len(removed), 'file')}, {format_bytes(sum(removed))}")
    return 0


def _unused_bytes(file: Path, action: Callable[[Path], None] | None = None) -> int | None:
    """The bytes of a file that no process uses, after an action on it. For another one, says why it stays: None."""
    try:
        with unused(file) as status:
            if action:
                action(file)
            return status.st_blocks * 512
    except FileNotFoundError:  # its job has removed it meanwhile
        return None
    except BlockingIOError:
        reason = "a process uses it, or has just made it"
    except OSError as error:
        reason = str(error.strerror) if action else f"whether a process uses it cannot be known: {error.strerror}"
    print(f"left {file}: {reason}")
    return None
