"""What is shared now, and on what ground: the live segments of this process, and the facts about the job's nodes."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, dataclass
from typing import Any

import mpi4py
import numpy as np

from mpishare._version import VERSION
from mpishare.comm import mpi
from mpishare.comm.collective import collective
from mpishare.host.memory import Machine
from mpishare.memory.hugepages import huge_areas, huge_bytes
from mpishare.memory.segment import Segment, live_segments
from mpishare.memory.selection import probe


@dataclass(frozen=True)
class SegmentReport:
    """One live segment as this rank sees it.

    Attributes:
        made_by: The call that made it.
        backend: Its segment kind.
        nbytes: Bytes of the array, or of all arrays of an object.
        node_size: Ranks on the node.
        copies: How many times the node holds the bytes: once, or once a rank.
        page_bytes: Size of its memory pages, as far as this rank has used them.
        refusals: For each kind that was tried before, why it did not do.
        bytes_copied: Bytes that each rank holds for itself of the object that was shared, such as Python objects in
            its columns; 0 for an array.
    """

    made_by: str
    backend: str
    nbytes: int
    node_size: int
    copies: int
    page_bytes: int
    refusals: dict[str, str]
    bytes_copied: int

    @property
    def bytes_held(self) -> int:
        """Bytes that the node holds of it."""
        return self.nbytes * self.copies

    @property
    def bytes_saved(self) -> int:
        """Bytes that one copy per rank would take on this node beyond these."""
        return self.nbytes * (self.node_size - self.copies)


@dataclass(frozen=True)
class Report:
    """The live segments of which this rank has a view; printing it gives a table.

    Attributes:
        segments: The largest first.
    """

    segments: tuple[SegmentReport, ...]

    @property
    def bytes_shared(self) -> int:
        """Bytes that this node holds."""
        return sum(segment.bytes_held for segment in self.segments)

    @property
    def bytes_saved(self) -> int:
        """Bytes that one copy per rank would take on this node beyond these."""
        return sum(segment.bytes_saved for segment in self.segments)

    @property
    def bytes_copied(self) -> int:
        """Bytes that this rank holds for itself of objects that were shared."""
        return sum(segment.bytes_copied for segment in self.segments)

    def __str__(self) -> str:
        head = f"{len(self.segments)} live segments, {self.bytes_shared:,} bytes shared, {self.bytes_saved:,} saved"
        rows = [line for segment in self.segments for line in _segment_lines(segment)]
        return "\n".join([head, *rows])


def _segment_lines(one: SegmentReport) -> list[str]:
    held = "once" if one.copies == 1 else f"{one.copies} times"
    size = f"{one.nbytes:>18,} bytes {held} for {one.node_size} ranks"
    refused = [f"    not {title}: {reason}" for title, reason in one.refusals.items()]
    copied = [f"    and {one.bytes_copied:,} bytes copied to each rank"] if one.bytes_copied else []
    return [f"  {one.made_by:8} {size}, {one.backend}, page {one.page_bytes:,}", *copied, *refused]


def report() -> Report:
    """Tells what node-shared memory this rank has views of, and what it saves.

    Returns:
        A `Report`, in bytes; `print` it for a table.

    Collective:
        No, local.

    Example:
        >>> import mpishare as ms
        >>> table = ms.zeros((1000, 8))
        >>> ms.report().segments[0].nbytes
        64000
    """
    areas = huge_areas()
    live = [
        SegmentReport(
            made_by=segment.origin.label,
            backend=segment.origin.kind,
            nbytes=segment.nbytes,
            node_size=segment.origin.node_size,
            copies=1 if segment.origin.is_shared else segment.origin.node_size,
            page_bytes=_page_bytes(segment, areas),
            refusals=dict(segment.origin.refusals),
            bytes_copied=segment.copied_bytes,
        )
        for segment in live_segments()
        if segment.key is not None
    ]
    return Report(tuple(sorted(live, key=lambda one: one.nbytes, reverse=True)))


def _page_bytes(segment: Segment, huge: list[range]) -> int:
    is_huge = any(segment.address + segment.nbytes // 2 in area for area in huge)
    return huge_bytes() if is_huge else os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class NodeInfo:
    """One node of a job.

    Attributes:
        host: Its name.
        ranks: Its ranks in the communicator.
        machine: What its kernel says.
        segments: For each segment kind whether it fits and what it gives, or why it does not fit.
    """

    host: str
    ranks: tuple[int, ...]
    machine: Machine
    segments: dict[str, str]


@dataclass(frozen=True)
class Info:
    """The ground that a job stands on; printing it gives a text to put into a report of a problem.

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
            lines += [f"  {line}" for line in _machine_lines(node.machine)]
            lines += [f"  segment {name:18} {fit}" for name, fit in node.segments.items()]
        return "\n".join(lines)


def info(*, comm: mpi.Comm | None = None) -> Info:
    """Tells the versions, the placement of the ranks, the memory of each node, and which segment kinds fit there.

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
        with call.begin() as agreement:
            agreement.call = "info()"
        own = NodeInfo(topology.host, topology.ranks_of(topology.node), Machine.here(), probe(context))
        all_nodes = context.collective_comm.allgather_obj(own if topology.is_leader else None)
        nodes = tuple(node for node in all_nodes if node is not None)
        return Info(_versions(), str(context.config), topology.size, nodes)


def _versions() -> dict[str, str]:
    library = mpi.Get_library_version().split("\0")[0].strip()
    return {
        "mpishare": VERSION,
        "Python": sys.version.split()[0],
        "NumPy": np.__version__,
        "mpi4py": mpi4py.__version__,
        "MPI library": library.splitlines()[0],
        "MPI standard": ".".join(map(str, mpi.Get_version())),
    }


def _machine_lines(machine: Machine) -> list[str]:
    shm = machine.shm
    limit = machine.memory_limit
    return [
        f"Linux {machine.kernel}, {machine.cores} cores, {machine.memory_bytes:,} bytes of memory, "
        + (f"limited to {limit:,} by its control group" if limit is not None else "not limited by a control group"),
        f"{shm.directory}: {shm.total:,} bytes, {shm.free:,} free" if shm is not None else "no /dev/shm",
        f"pages of {machine.page_bytes:,}; huge pages {machine.huge_pages}, of shared memory {machine.shm_huge_pages}",
    ]
