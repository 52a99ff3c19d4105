"""info: the versions, settings and nodes of a job, and the backends that each node can use."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mpishare._version import VERSION
from mpishare.comm import mpi
from mpishare.comm.collective import collective
from mpishare.host.leftovers import unused_files
from mpishare.host.memory import SHM_DIR, Machine
from mpishare.memory.backends import probe


@dataclass(frozen=True)
class NodeInfo:
    """One node of a job.

    Attributes:
        host: Its name.
        ranks: Its ranks in the communicator.
        mpi_nodes: How many nodes MPI sees in these ranks. Where it is not 1, they were found to share memory all the
            same, by files and not by windows.
        machine: The facts that its kernel reports.
        segments: For each backend the size up to which an array fits there now and what it provides, or why it
            cannot be used. The backends that the node tries come first, in order. An array gets the first that fits.
        leftovers: The files that MPI made in shared memory for jobs of this user which were killed, and that no process
            uses any more. `mpishare clean` removes them.
    """

    host: str
    ranks: tuple[int, ...]
    mpi_nodes: int
    machine: Machine
    segments: dict[str, str]
    leftovers: tuple[str, ...]


@dataclass(frozen=True)
class Info:
    """The environment of a job; printing it gives a text for a bug report.

    Attributes:
        versions: Name and version of each piece of software.
        settings: The MPISHARE variables in force.
        size: Number of ranks.
        nodes: The nodes, by number.
    """

    versions: dict[str, str]
    settings: str
    size: int
    nodes: tuple[NodeInfo, ...]

    def as_dict(self) -> dict[str, Any]:
        """The same as plain data for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"{name:14} {version}" for name, version in self.versions.items()]
        lines += [f"{'settings':14} {self.settings}", f"{'job':14} {self.size} ranks on {len(self.nodes)} nodes"]
        for number, node in enumerate(self.nodes):
            lines += ["", f"node {number}: {node.host}, ranks {', '.join(map(str, node.ranks))}"]
            if node.mpi_nodes > 1:
                lines.append(f"  MPI sees {node.mpi_nodes} nodes in these ranks, but they can share memory")
            lines += [f"  {line}" for line in _machine_lines(node.machine)]
            lines += [f"  segment {title:18} {fit}" for title, fit in node.segments.items()]
            lines += [f"  left by a killed job: {file}; `mpishare clean` removes it" for file in node.leftovers]
        return "\n".join(lines)


def info(*, comm: mpi.Comm | None = None) -> Info:
    """Collects the versions, the placement of the ranks, and the memory and backends of each node.

    Args:
        comm: The ranks asked about; MPI_COMM_WORLD when None.

    Returns:
        An `Info`, the same on every rank; `print` it for people, `as_dict()` for programs.

    Collective:
        Over `comm`.

    Example:
        >>> import mpishare as ms
        >>> ms.info().size == ms.topology().size
        True
    """
    with collective("info", comm) as call:
        context, topology = call.context, call.context.topology
        with call.agree_on_arguments() as agreement:
            agreement.call = "info()"
            machine = Machine.probe()
            folder = context.config.window_dir or SHM_DIR
            # Two ranks that try one file at the same time each find it in use, so one rank of a node looks.
            leftovers = unused_files(folder) if topology.is_leader else ()
        ranks = topology.ranks_of(topology.node)
        node = NodeInfo(topology.host, ranks, context.mpi_nodes, machine, probe(context), leftovers)
        nodes = context.collective_comm.allgather_obj(node if topology.is_leader else None)
        known_nodes = tuple(node for node in nodes if node is not None)
        return Info(_versions(), str(context.config), topology.size, known_nodes)


def _versions() -> dict[str, str]:
    return {"mpishare": VERSION, "Python": sys.version.split()[0], "NumPy": np.__version__, **mpi.versions()}


def _machine_lines(machine: Machine) -> list[str]:
    shm = machine.shm
    limit = machine.memory_limit
    huge = f"{machine.huge_pages}, of shared memory {machine.shm_huge_pages}"
    return [
        f"Linux {machine.kernel}, {machine.cores} cores, {machine.memory_bytes:,} bytes of memory, "
        + (f"limited to {limit:,} by its control group" if limit is not None else "not limited by a control group"),
        f"{shm.directory}: {shm.total:,} bytes, {shm.free:,} free" if shm is not None else "no /dev/shm",
        f"pages of {machine.page_bytes:,}; the kernel's setting for huge pages {huge}",
    ]
