"""Small blocks between nodes: one MPI_Bcast of the leaders, straight from the block of one node to those of the others.

The rule: after the agreement of a call a rank owes the others these collectives. An exception, such as a signal
handler's, ends them on no rank but its own: it still begins those that are left, and the communicator is refused from
then on (`comm.collective`).
"""

from __future__ import annotations

from itertools import starmap
from typing import Any

import numpy as np

from mpishare.comm import mpi
from mpishare.comm.agreement import agree
from mpishare.comm.communicator import CollectiveComm
from mpishare.comm.context import Context
from mpishare.comm.requests import keep_alive
from mpishare.transfer import plan
from mpishare.transfer.link import link_of, measure_link
from mpishare.transfer.pipeline import broadcast_chunks


def broadcast_filled(context: Context, root: int, block: Any) -> None:
    """Brings a block of node memory, which is filled on the node of `root`, to the other nodes.

    Args:
        context: The context of the communicator.
        root: A rank of the node whose block is filled. All its ranks see the bytes, as after an agreement.
        block: The bytes on this node: a uint8 array, or a memoryview.

    Collective:
        Over the communicator, but a rank may return before others have come.
    """
    if plan.is_by_mpi(block.nbytes, context.topology.n_nodes, link_of(context), context.config.chunk_bytes):
        broadcast_by_mpi(context, root, block, is_final=False)
        return
    measure_link(context, block.nbytes)
    with agree(context.node_collective_comm):  # its other ranks wait for the one that receives
        broadcast_chunks(context, root, np.asarray(block))


def broadcast_by_mpi(context: Context, root: int, block: Any, *, is_final: bool) -> None:
    """Does the same for bytes of which `plan.is_by_mpi` says that they go by one MPI_Bcast of the leaders.

    Args:
        context: See `broadcast_filled`.
        root: See there.
        block: See there. On a root that is alone on its node it may be any memory.
        is_final: Whether no rank writes to the block after the call, so that a rank of the root's node need not wait
            for the one that sends it.

    Collective:
        See there.
    """
    topology = context.topology
    root_node = topology.node_of(root)
    calls: list[tuple[CollectiveComm, Any, tuple[Any, ...]]] = []
    if context.leader_comm is not None:
        calls.append((context.leader_comm, context.leader_comm.begin_bcast, ([block, mpi.BYTE], root_node)))
    if topology.node_size > 1 and not (is_final and topology.node == root_node):
        calls.append((context.node_collective_comm, context.node_collective_comm.begin_barrier, ()))
    begun: list[mpi.Request | None] = []
    try:
        for comm, begin, args in calls:
            begun.extend(starmap(begin, (args,)))  # in one call of C: no signal handler runs between the two
            comm.finish(begun[-1])
    except BaseException:
        for number, (comm, begin, args) in enumerate(calls):
            if comm.is_given_up:  # all ranks hear of it
                break
            if number == len(begun):
                begun.append(begin(*args))
            if number < len(calls) - 1:
                comm.finish(begun[number])  # the barrier tells the node that the bytes are there
        keep_alive([block, begun])
        raise
