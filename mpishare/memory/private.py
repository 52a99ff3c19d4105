"""One copy per rank: the last resort where no memory can be shared, and the reference for tests of the other kinds."""

from __future__ import annotations

from mpishare.comm.context import Context
from mpishare.host import memory as host_memory
from mpishare.memory.hugepages import aligned_bytes
from mpishare.memory.kinds import Kind
from mpishare.memory.mapping import Mapping


def _check(context: Context, nbytes: int) -> int:
    """Compares the bytes of all ranks of the node with the free memory."""
    host_memory.check_limits(context.topology.host, nbytes, map_bytes=aligned_bytes(nbytes))
    return host_memory.check_memory(context.topology.host, nbytes * context.topology.node_size)


def _allocate(_: Context, nbytes: int) -> Mapping:
    """Memory of this rank. Local."""
    return Mapping.anonymous(nbytes)


PRIVATE = Kind("private", "private", False, _check, _allocate)
"""Memory of each rank alone, filled on every rank."""
