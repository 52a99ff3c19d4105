"""One copy per rank: the last resort where no memory can be shared, and what the other kinds are compared with."""

from __future__ import annotations

from mpishare import machine
from mpishare.segments.mapping import Mapping
from mpishare.segments.protocol import Memory
from mpishare.topology import Topology

__all__ = ["Private"]


class Private:
    """Memory of each rank's own, filled on every rank. It satisfies `Kind`."""

    name = title = "private"
    together = False

    def check(self, topology: Topology, nbytes: int) -> None:
        """Compares what all ranks of the node need with the free memory."""
        machine.check_memory(topology.host, nbytes * topology.node_size)

    def allocate(self, topology: Topology, nbytes: int) -> Memory:
        """Local work alone."""
        return Mapping.anonymous(nbytes)
