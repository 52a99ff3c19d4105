"""info: the versions, settings and nodes of a job, and what each node can use. configure: settings by call."""

from __future__ import annotations

import platform
import sys
import textwrap
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from mpishare._version import VERSION
from mpishare.comm import mpi
from mpishare.comm.collective import collective
from mpishare.comm.context import Context, context_of, is_in_use
from mpishare.config import by_call, counted, format_bytes, variables_of
from mpishare.errors import ArgumentError, name_ranks
from mpishare.host.leftovers import unused_files
from mpishare.host.memory import SHM_DIR, Machine
from mpishare.memory.backends import MEMMAP_IN_MEMORY, PRIVATE, check_backend, probe

_PLURALS = {"window": "windows", "memmap in memory": "memmaps in memory", "memmap in a folder": "memmaps in a folder"}

_LISTED_NODES = 4
"""How many nodes a summary lists."""


@dataclass(frozen=True)
class NodeInfo:
    """One node of a job. A rank that has asked no other knows of other nodes the host and the ranks alone.

    Attributes:
        host: Its name.
        ranks: Its ranks in the communicator.
        machine: The facts that its kernel reports; None where they are not known.
        mpi_nodes: How many nodes MPI sees in these ranks. Where it is not 1, they were found to share memory all the
            same, by files and not by windows.
        segments: With `probe`, for each backend the size up to which an array fits there now and what it provides, or
            why it cannot be used. The backends that the node tries come first, in order. An array gets the first that
            fits.
        largest: For each backend that size in bytes; 0 if it does not fit or is not tried.
        leftovers: The files that MPI made in shared memory for jobs of this user which were killed, and that no process
            uses any more. `mpishare clean` removes them.
    """

    host: str
    ranks: tuple[int, ...]
    machine: Machine | None = None
    mpi_nodes: int = 1
    segments: dict[str, str] = field(default_factory=dict)
    largest: dict[str, int] = field(default_factory=dict)
    leftovers: tuple[str, ...] = ()

    @property
    def shared(self) -> tuple[str, int] | None:
        """The backend that shares memory here, and up to how many bytes the node's memory takes; None without one."""
        sizes = {title: nbytes for title, nbytes in self.largest.items() if nbytes}
        first = next(iter(sizes), PRIVATE.title)
        if first == PRIVATE.title:
            return None
        return first, max(sizes[first], sizes.get(MEMMAP_IN_MEMORY.title, 0))

    def __str__(self) -> str:
        machine, place = self.machine, f"{self.host}, {name_ranks([*self.ranks])}"
        if machine is None:
            return place
        shm = machine.shm
        room = f"{format_bytes(shm.free)} free in {shm.directory}" if shm else "no /dev/shm"
        nbytes = min(machine.memory_bytes, machine.memory_limit or machine.memory_bytes)
        memory = f"{format_bytes(nbytes)} of memory"
        return f"{place}; {counted(machine.host_cores, 'core')}, {memory}, {room}"


@dataclass(frozen=True)
class Info:
    """The environment of a job; printing it gives a text for a bug report, which begins with the summary.

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

    @property
    def unshared(self) -> list[str]:
        """The hosts with several ranks that share no memory; with `probe` alone."""
        return [node.host for node in self.nodes if node.segments and len(node.ranks) > 1 and node.shared is None]

    @property
    def summary(self) -> str:
        """A verdict, whether the ranks of each node share memory, and a few lines."""
        lines = [self._verdict(), *(f"node {number}: {node}" for number, node in enumerate(self.nodes[:_LISTED_NODES]))]
        if len(self.nodes) > _LISTED_NODES:
            lines.append(f"and {len(self.nodes) - _LISTED_NODES} more nodes")
        lines.append(", ".join(f"{name} {version.split(',')[0]}" for name, version in self.versions.items()))
        left = [len(node.leftovers) for node in self.nodes if node.leftovers]
        lines += [f"{counted(sum(left), 'file')} left by killed jobs; `mpishare clean` removes them"] if left else []
        return "\n".join(lines)

    def _verdict(self) -> str:
        job = f"{counted(self.size, 'rank')} on {counted(len(self.nodes), 'node')}"
        if not any(node.segments for node in self.nodes):
            return f"{job}; whether they share memory, `mpishare info` finds out, or info(probe=True) on all of them"
        if self.unshared:
            return f"NOT SHARED: {job}; the ranks of host {self.unshared[0]} share no memory and hold a copy each"
        shared = [node.shared for node in self.nodes if node.shared]
        ways = " and ".join(dict.fromkeys(_PLURALS.get(backend, backend) for backend, _ in shared))
        fitting = f"; arrays up to {format_bytes(min(nbytes for _, nbytes in shared))}" if shared else ""
        if "MPI" in self.versions:  # why there is none
            return f"OK: MPI is {self.versions['MPI']}{fitting}"
        if self.size == len(self.nodes):
            return f"OK: {job}, so no rank has another to share memory with{fitting}"
        return f"OK: {job} share memory by {ways}{fitting}"

    def __str__(self) -> str:
        settings = textwrap.fill(self.settings, 100, subsequent_indent=" " * 15, break_on_hyphens=False)
        lines = [self.summary, "", *(f"{name:14} {version}" for name, version in self.versions.items())]
        lines.append(f"{'settings':14} {settings}")
        for number, node in enumerate(self.nodes):
            lines += ["", f"node {number}: {node.host}, ranks {', '.join(map(str, node.ranks))}"]
            if node.mpi_nodes > 1:
                lines.append(f"  MPI sees {node.mpi_nodes} nodes in these ranks, but they can share memory")
            lines += [f"  {line}" for line in _machine_lines(node.machine)] if node.machine else []
            lines += [f"  {title:18} {fit}" for title, fit in node.segments.items()]
            lines += [f"  {'leftover files':18} {len(node.leftovers)}, of killed jobs"] if node.leftovers else []
        return "\n".join(lines)


def configure(**settings: object) -> None:
    """Sets what the MPISHARE variables set, for a program or a library that embeds mpishare.

    A variable of the environment goes before the call: whoever starts the program has the last word.

    Args:
        settings: Values by the name of the variable, in lower case without `MPISHARE_`: `recycle="2G"` for
            `MPISHARE_RECYCLE=2G`, or `excepthook=False` for `MPISHARE_EXCEPTHOOK=0`.

    Raises:
        ArgumentError: There is no such setting, its value is not allowed, or a communicator has been used already.

    Collective:
        No, local, but all ranks make it with equal values.

    Example:
        >>> import mpishare as ms
        >>> try:
        ...     ms.configure(recycel=0)
        ... except ms.ArgumentError as error:
        ...     print(error)
        recycel is no setting; did you mean recycle?
    """
    variables = variables_of(settings)
    if is_in_use():
        raise ArgumentError(
            "configure() comes too late: a communicator has been used, with the settings of then. Call it before the "
            "first collective."
        )
    by_call.update(variables)


def info(*, probe: bool = False, comm: mpi.Comm | None = None) -> Info:
    """Returns the versions, the settings, the placement of the ranks, and the memory of this node.

    Args:
        probe: Whether all ranks also try each backend together, and tell each other the facts of their nodes.
        comm: The ranks asked about; MPI_COMM_WORLD when None.

    Returns:
        An `Info`, with `probe` the same on every rank; `print` it for people, `as_dict()` for programs.

    Collective:
        With `probe`, over `comm`. Without it, over `comm` the first time it is used; local after that.

    Example:
        >>> import mpishare as ms
        >>> ms.info().size == ms.topology().size
        True
    """
    if probe:
        return _probed(comm)
    context = context_of(comm)
    topology = context.topology
    others = map(NodeInfo, topology.hosts, topology.placement.nodes)
    own = NodeInfo(topology.host, topology.ranks_of(topology.node), Machine(), context.mpi_nodes)
    return _info(context, (own if number == topology.node else node for number, node in enumerate(others)))


def _info(context: Context, nodes: Iterable[NodeInfo]) -> Info:
    versions = {"mpishare": VERSION, "Python": sys.version.split()[0], "NumPy": np.__version__, **mpi.versions()}
    return Info(versions, str(context.config), context.topology.size, tuple(nodes))


def _probed(comm: mpi.Comm | None) -> Info:
    """The facts of all nodes, each of which tries its backends. Collective over `comm`."""
    with collective("info", comm) as call:
        context, topology = call.context, call.context.topology
        check_backend(None, context)
        machine = Machine()
        folder = context.config.window_dir or SHM_DIR
        # Two ranks that try one file at the same time each find it in use, so one rank of a node looks.
        leftovers = unused_files(folder) if topology.is_leader else ()
        call.agree("info(probe=True)")
        ranks, fits = topology.ranks_of(topology.node), probe(context)
        texts = {title: text for title, (text, _) in fits.items()}
        largest = {title: nbytes for title, (_, nbytes) in fits.items()}
        node = NodeInfo(topology.host, ranks, machine, context.mpi_nodes, texts, largest, leftovers)
        return _info(context, filter(None, context.collective_comm.allgather_obj(node if topology.is_leader else None)))


def _machine_lines(machine: Machine) -> list[str]:
    shm, limit = machine.shm, machine.memory_limit
    merged = "merged on demand" if machine.merges_pages else "not merged on demand, as by Linux 6.1"
    huge = f"{machine.huge_pages}, in shared memory {machine.shm_huge_pages}, {merged}"
    return [
        f"{'kernel':18} {platform.system()} {machine.kernel}",
        f"{'cores':18} {machine.host_cores}, of which a rank may use {machine.cores}",
        f"{'memory':18} {format_bytes(machine.memory_bytes)} in {counted(machine.memory_domains, 'domain')}, "
        + (f"limited to {format_bytes(limit)} by its control group" if limit is not None else "not limited"),
        f"{SHM_DIR:18} " + (f"{format_bytes(shm.total)}, {format_bytes(shm.free)} free" if shm else "none"),
        f"{'pages':18} {format_bytes(machine.page_bytes)}; huge ones {huge}",
    ]
