"""One copy per rank: the last resort where no memory can be shared, and what the other kinds are compared with."""

from __future__ import annotations

from mpishare.comm.context import Context
from mpishare.host import memory as host_memory
from mpishare.memory.kinds import Memory
from mpishare.memory.mapping import Mapping


class Private:
    """Memory of each rank's own, filled on every rank. It satisfies `Kind`."""

    name = title = "private"
    is_shared = False

    def check(self, context: Context, nbytes: int) -> None:
        """Compares what all ranks of the node need with the free memory."""
        host_memory.check_memory(context.topology.host, nbytes * context.topology.node_size)

    def allocate(self, context: Context, nbytes: int) -> Memory:
        """Local work alone."""
        return Mapping.anonymous(nbytes)
