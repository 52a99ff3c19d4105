"""Memory from MPI shared-memory windows, mapped a second time so that its life is ours and local."""

from __future__ import annotations

from mpishare import machine, mpi
from mpishare.errors import CapacityError, MpishareError
from mpishare.segments.mapping import Mapping, populate
from mpishare.segments.protocol import Memory
from mpishare.topology import Topology

__all__ = ["Window"]

_SLACK_BYTES = 64 << 10
"""What an MPI adds to a window for itself. Open MPI 5.0: a page, and 128 bytes a rank."""

_LARGE_BYTES = 1 << 20
"""From here on it is worth 100 us to ask how much memory is free."""


class Window:
    """MPI_Win_allocate_shared, the standard's way to memory that all ranks of a node see. It satisfies `Kind`.

    The window is freed as soon as every rank of the node has a second map of its pages. So it costs no communicator
    and no descriptor while the memory lives, and to give the memory back is local. Where the pages cannot be mapped a
    second time, the window stays until MPI_Finalize.
    """

    name = "window"

    def refusal(self, topology: Topology, nbytes: int) -> MpishareError | None:
        """Compares with the free space of the directory in which Open MPI and MPICH put windows.

        Open MPI hangs all but the first rank of a node when that one finds no space, so this comes before. Between the
        look and the window others may take the space; what was looked at is not reserved.
        """
        host = topology.hosts[topology.node]
        memory = machine.memory_room() if nbytes >= _LARGE_BYTES else None
        if memory is not None and nbytes > memory.free:
            cure = "Ask the batch system for more memory, or share less."
            return CapacityError(host, memory.directory, nbytes, memory.free, cure)
        room = machine.room(topology.config.window_dir or machine.SHM_DIR)
        if topology.node_size > 1 and room is not None and nbytes + _SLACK_BYTES > room.free:
            cure = "Give the host more shared memory (docker: --shm-size), or share less."
            return CapacityError(host, room.directory, nbytes, room.free, cure)
        return None

    def allocate(self, topology: Topology, nbytes: int) -> Memory:
        """Allocates on the leader's side, so that the bytes are one run. Collective over `topology.node_comm`."""
        if topology.node_size == 1:
            return Mapping.anonymous(nbytes)
        node_comm = topology.node_comm
        window = mpi.Win.Allocate_shared(nbytes if topology.is_leader else 0, 1, comm=node_comm)
        address = window.Shared_query(0)[0].address
        mapping = _second_map(address, nbytes) if topology.config.second_map else None
        if node_comm.allreduce(mapping is not None, mpi.LAND):
            window.Free()
            assert mapping is not None
            return mapping
        return KeptWindow(window, address)


def _second_map(address: int, nbytes: int) -> Mapping | None:
    """A map of ours of the window's pages, None where the kernel refuses it."""
    try:
        return Mapping.second(address, nbytes)
    except OSError:
        return None


class KeptWindow:
    """The memory of a window that is never freed by us: MPI_Win_free is collective, and a view ends when it ends.

    It satisfies `Memory`. Its pages belong to MPI, so they stay writable, and are not mapped copy-on-write.
    """

    lifetime = "stays until MPI_Finalize"
    _kept: list[mpi.Win] = []  # noqa: RUF012 - all windows of the process, until MPI_Finalize

    def __init__(self, window: mpi.Win, address: int) -> None:
        self._kept.append(window)
        self.address = address

    def reserve(self, part: slice) -> None:
        """Faults the pages in, as a map of ours does."""
        populate(self.address, part)

    def protect(self) -> None:
        """Nothing: the pages are MPI's, and other arrays of MPI may lie on them."""

    def private(self) -> None:
        """None: the pages are MPI's to map."""
