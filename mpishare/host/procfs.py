"""Reads files of /proc and /sys, in which the kernel describes this host and its processes."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from zlib import crc32

IS_LINUX = sys.platform == "linux"
"""Elsewhere ranks share no memory, and what is here and in `host.memory` knows less."""


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


def reopening_path(descriptor: int, path: Path | str) -> str:
    """A path that opens the file of a descriptor anew, whatever its own `path` names by now; that path off Linux."""
    return f"/proc/self/fd/{descriptor}" if IS_LINUX else str(path)


def rank_above(variables: Mapping[str, str]) -> int | None:
    """The process that is the rank which the environment of this process names; None if that may be this process.

    `variables` name the rank and its launcher in the environment of this process; without a launcher there are none.

    A rank's children inherit its environment, and in them MPI_Init would wait for ever, or end them. Such a child
    descends from a process with the same variables that has loaded mpi4py.MPI. A shell or another wrapper between the
    launcher and a rank has not. A launcher that a rank has started gives other variables, or another socket.

    Source:
        proc_pid_environ(5), which has the environment that a process was started with; proc_pid_maps(5).
    """
    pid = os.getpid()
    while variables and (parent := re.match(r".*\) \S (\d+)", text_of(f"/proc/{pid}/stat"), re.DOTALL)):
        pid = int(parent[1])
        if not variables.items() <= dict(re.findall("([^=\0]+)=([^\0]*)", text_of(f"/proc/{pid}/environ"))).items():
            return None
        if re.search(r"/mpi4py/MPI\.[^/\n]*\.so\n", text_of(f"/proc/{pid}/maps")):
            sockets = {_socket_of_launcher(number, variables) for number in (os.getpid(), pid)} - {""}
            return pid if len(sockets) < 2 else None
    return None


def _socket_of_launcher(pid: int, variables: Mapping[str, str]) -> str:
    """The socket by which a process of MPICH has its launcher; "" if it has none."""
    try:
        link = str(Path(f"/proc/{pid}/fd/{variables.get('PMI_FD')}").readlink())
    except OSError:
        return ""
    return link if link.startswith("socket:") else ""


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
