"""Meetings of the ranks of several nodes: those of a node on its board, and the leaders of all nodes in MPI.

The ranks of a node come to their board. When its leader sees that all have, it brings what they brought to an
MPI_Allreduce among the leaders, and writes the outcome on the board, for which the others look. So each rank waits
once, where ranks share cores, and only as many ranks are in the collective as there are nodes.

An exception from outside may take the leader out at any place. What it has done by then it does not do again: that it
has come and that the outcome is there stand on the board, and the outcome among the leaders has the meeting's number.
When it next meets it goes on from there, and the others wait for it until then as they would in a collective.

Source:
    R. Graham et al., "Cheetah: a framework for scalable hierarchical collective operations", CCGrid 2011.
"""

from __future__ import annotations

from mpi4py import MPI

from mpishare import board, meanwhile
from mpishare.agreement import BROUGHT_BYTES
from mpishare.board import Boarded, Side, number_bytes
from mpishare.topology import Topology

__all__ = ["Bridged", "boards_bytes", "put_boards"]


def boards_bytes(topology: Topology) -> int:
    """How much memory the boards of this node take; 0 where they are of no use, or ranks are not to meet on them."""
    if topology.is_watched or not board.does_for(max(map(len, topology.layout.nodes))):
        return 0
    return 2 * board.size_bytes(topology.node_size)


def put_boards(topology: Topology, memory: object, address: int) -> None:
    """From here on the ranks meet on boards in `memory`, which begin at `address` and are zero.

    Collective:
        Over `topology.comm`.
    """
    if topology.n_nodes == 1:
        topology.channel = topology.node_channel = Boarded(topology.channel, memory, address)
        return
    first, second = address, address + board.size_bytes(topology.node_size)
    topology.node_channel = Boarded(topology.node_channel, memory, first)
    leaders = topology.leaders
    if topology.is_leader:
        leaders = leaders.Dup()  # callers can see the other, and may free it
        topology.further.append(leaders)
    topology.channel = Bridged(topology.channel, memory, second, topology.node_comm, leaders)


class Bridged(Boarded):
    """A communicator of several nodes with a board on each. All of its ranks have it, or none."""

    def __init__(
        self, comm: MPI.Intracomm, memory: object, address: int, node_comm: MPI.Intracomm, leaders: MPI.Intracomm
    ) -> None:
        """`node_comm` has the ranks of this node; its first is the one that is in `leaders`."""
        self._set_board(memory, address, node_comm.size, node_comm.rank)
        self._leaders = leaders
        self._leads = node_comm.rank == 0
        self._found = bytearray(len(number_bytes(0)) + BROUGHT_BYTES)

    def _finish(self) -> bytes:
        number = self._met + 1
        side = self._sides[number & 1]
        told = number_bytes(number)
        if self._leads:
            self._look_for(told * side.ranks, side.numbers)
            self._tell(told, side)
        else:
            self._look_for(told, side.over)
        self._met = number
        return bytes(side.outcome)

    def _tell(self, number: bytes, side: Side) -> None:
        """The leader's part, once all ranks of its node have come."""
        if not self._found.startswith(number):
            brought = number + side.together()
            meanwhile.call(self._leaders.Allreduce, [brought, MPI.BYTE], [self._found, MPI.BYTE], MPI.BOR)
        side.outcome[:] = self._found[len(number) :]
        side.over[:] = number
