"""Reads files of /proc and /sys, in which the kernel describes this host and its processes."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from zlib import crc32


def text_of(file: Path | str) -> str:
    """The text of a kernel file; "" if it does not exist or may not be read."""
    try:
        return Path(file).read_text(errors="surrogateescape")
    except OSError:
        return ""


def number_of(file: Path | str) -> int | None:
    """The number in a kernel file that holds nothing else; None if there is none."""
    text = text_of(file).strip()
    return int(text) if text.isdigit() else None


def table_of(file: Path | str) -> dict[str, int]:
    """The numbers of a kernel file with a name and a number in each line, by name, such as /proc/meminfo."""
    rows = (line.split() for line in text_of(file).splitlines())
    return {row[0].rstrip(":"): int(row[1]) for row in rows}


@cache
def boot_id() -> str:
    """What names the run of this host's kernel, since it was booted; "" if that is not known.

    Source:
        random(4), boot_id.
    """
    return text_of("/proc/sys/kernel/random/boot_id")


def scope() -> int:
    """A number of 32 bits for the processes of one PID namespace since the host started, whose ids mean the same.

    Source:
        pid_namespaces(7).
    """
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:  # no /proc, or another namespace's
        namespace = ""
    return crc32(os.fsencode(f"{os.uname().nodename} {boot_id()} {namespace}"))


def has_ended(pid: int) -> bool:
    """Whether no process of this PID namespace has the id, but for a zombie.

    Where the first process of a container waits for no orphans, a rank that its mpiexec has left stays a zombie.

    Source:
        proc_pid_stat(5): the state follows the name, which may have parentheses of its own.
    """
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, ProcessLookupError)
    return text_of(f"/proc/{pid}/stat").rpartition(") ")[2].startswith("Z")
