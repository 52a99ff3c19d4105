"""Which kind of segment a node uses, chosen alike by all its ranks, and the segment made of it."""

from __future__ import annotations

import numpy as np

from mpishare import machine, mpi, plan
from mpishare.agreement import agree
from mpishare.errors import ArgumentError, BackendError, CapacityError
from mpishare.segments.protocol import Kind, Memory
from mpishare.segments.segment import Segment
from mpishare.segments.window import Window
from mpishare.topology import Topology

__all__ = ["KINDS", "allocate", "check_backend", "probe"]

KINDS: tuple[Kind, ...] = (Window(),)
"""In the order in which a node tries them."""


def check_backend(backend: str | None, topology: Topology) -> str | None:
    """The kind that is asked for, by argument or else by MPISHARE_BACKEND; None for the node's own choice.

    Raises:
        ArgumentError: There is no such kind.
    """
    wanted = topology.config.backend if backend is None else backend
    names = [kind.name for kind in KINDS]
    if wanted is not None and wanted not in names:
        asked = "MPISHARE_BACKEND" if backend is None else "backend"
        raise ArgumentError(f"{asked} {wanted!r} is unknown. Known here: {', '.join(names)}.")
    return wanted


def allocate(topology: Topology, nbytes: int, *, backend: str | None, label: str) -> Segment:
    """A segment of `nbytes` on every node, with real pages behind it.

    Args:
        topology: Where the ranks sit.
        nbytes: Bytes on each node.
        backend: A kind that `check_backend` knows, or None.
        label: The call that asks, for reports.

    Raises:
        CapacityError: No kind has room on this node.
        PeerError: The same on another node.

    Collective:
        Over `topology.comm`.
    """
    topology.segments_made += 1
    room = max(nbytes, 1)  # no map and no window can be empty; an array of no items takes the same path as any other
    with agree(topology.channel):
        kind = _choose(topology, room, backend)
        memory = _obtain(kind, topology, room)
    key = topology.uid + topology.segments_made
    return Segment(memory, nbytes, kind=kind.name, label=label, node_size=topology.node_size, key=key)


def probe(topology: Topology) -> dict[str, str]:
    """For each kind whether it fits on this node and what it gives, or why it does not, found by making a page of it.

    Collective:
        Over `topology.node_comm`.
    """
    return {kind.name: _try(kind, topology) for kind in KINDS}


def _try(kind: Kind, topology: Topology) -> str:
    refusal = kind.refusal(topology, plan.PAGE_BYTES)
    refusals = [told for told in topology.node_comm.allgather(refusal and str(refusal)) if told]
    if refusals:
        return f"does not fit: {refusals[0]}"
    memory = kind.allocate(topology, plan.PAGE_BYTES)
    own = "is copy-on-write" if memory.private() is not None else "copies"
    alone = ", a map of its own as this node has one rank" if topology.node_size == 1 else ""
    return f"fits{alone}; {memory.lifetime}; private() {own}"


def _choose(topology: Topology, nbytes: int, backend: str | None) -> Kind:
    """The first kind that no rank of this node refuses, or an error on all its ranks. Collective over the node."""
    kinds = [kind for kind in KINDS if backend in (None, kind.name)]
    refusals = [kind.refusal(topology, nbytes) for kind in kinds]
    refused = np.array([refusal is not None for refusal in refusals], np.int8)
    topology.node_comm.Allreduce(mpi.IN_PLACE, refused, mpi.MAX)
    if refused.all():
        mine = next((refusal for refusal in refusals if refusal is not None), None)
        raise mine or BackendError("other ranks of this node refused every segment kind that this rank could use")
    return kinds[int(refused.argmin())]


def _obtain(kind: Kind, topology: Topology, nbytes: int) -> Memory:
    """Memory with real pages. Each rank of the node gets those of its own slice, on the memory nearest to its core."""
    try:
        memory = kind.allocate(topology, nbytes)
        memory.reserve(plan.byte_slice(nbytes, topology.node_size, topology.node_rank))
    except (MemoryError, OSError) as error:
        host = topology.hosts[topology.node]
        cure = f"The kernel says: {error}. Other arrays took the room since it was checked, so share less."
        raise CapacityError(host, "the shared memory", nbytes, machine.memory_room().free, cure) from error
    return memory
