"""The rows of all ranks as one array: one copy per node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare import mpi, plan, ringplan
from mpishare.agreement import agree
from mpishare.ring import circulate, exchange
from mpishare.rows import note_rows, rows_of, stacked, told_row
from mpishare.segments.allocation import allocate, seal
from mpishare.segments.registry import check_backend
from mpishare.spec import Block, copy_bytes
from mpishare.topology import Topology, topology
from mpishare.transfer import copy_to_node, tell_node

__all__ = ["allgather"]


def allgather(local: NDArray[Any], *, comm: mpi.Comm | None = None, backend: str | None = None) -> NDArray[Any]:
    """Stacks the rows of all ranks, in the order of the ranks, to one array per node, which all ranks of the node see.

    Each rank writes its rows to the memory of its node, and each node's rows cross to each other node once.

    Args:
        local: This rank's rows: an array of one dimension or more. Its first length may differ between ranks, and be
            0; the others and the dtype must be equal. Any strides, any dtype without Python objects.
        comm: The ranks that gather; MPI_COMM_WORLD when None.
        backend: The segment kind to use, or several with commas in the order to try; None lets each node choose.

    Returns:
        A `numpy.ndarray` in C order, with the rows of rank 0 first. It is read-only, as those of `share` are, and valid
        as long as it or a view of it exists.

    Raises:
        SpecError: `local` is no array, has no dimension, or holds Python objects; or the rows of all ranks are more
            than an array can have.
        ArgumentError: `backend` is unknown.
        CapacityError: The bytes do not fit on this node, or, as a `PeerCapacityError`, on another.
        BackendError: The segment kind that was asked for cannot be used on this node.
        MismatchError: The ranks gave rows of different shapes or dtypes, or made different calls.
        PeerError: Another rank raised one of these.

    Collective:
        Over `comm`.

    Source:
        MPI 3.1, section 5.7 (MPI_Allgatherv); R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective
        communication operations in MPICH", Int. J. High Perform. Comput. Appl. 19 (2005).

    Example:
        >>> import mpishare as ms, numpy as np
        >>> from mpi4py import MPI
        >>> rank = MPI.COMM_WORLD.rank
        >>> every = ms.allgather(np.full((rank + 1, 2), rank))  # rank 0 has one row, rank 1 has two
        >>> every[0].tolist(), every.flags.writeable
        ([0, 0], False)
    """
    found: NDArray[Any] = topology(comm).in_step(_allgather, local, backend)
    return found


def _allgather(here: Topology, local: NDArray[Any], backend: str | None) -> NDArray[Any]:
    with agree(here.channel, "allgather") as together:
        here.begin()
        spec = rows_of(local)
        kind = check_backend(backend, here)
        together.call = f"allgather(rows of {told_row(spec)}, backend={kind})"
        together.note = note_rows(here, spec.shape[0])
    ends, whole = stacked(here, together.note, spec)
    segment = allocate(here, whole.nbytes, backend=kind, label="allgather", writable=False)
    copy_bytes(segment.view(whole)[ends[here.rank] : ends[here.rank + 1]], local)
    if whole.nbytes:
        row_bytes = whole.nbytes // ends[-1]
        _fill(here, segment.block(), [end * row_bytes for end in ends], together=segment.origin.together)
    seal(here, segment)
    return segment.view(whole)


def _fill(here: Topology, block: Block, starts: Sequence[int], *, together: bool) -> None:
    """Brings what all ranks have in `block`, each from its place of `starts` on, to all nodes."""
    if not together:
        for node_rank, rank in enumerate(here.ranks_of(here.node)):
            for run in ringplan.runs([rank], starts):
                tell_node(here, block[run], node_rank)
    if here.n_nodes == 1:
        return
    here.node_channel.Barrier()
    rails = plan.rail_count(here.layout, block.nbytes, here.config.rails)
    if here.node_rank < rails:
        _between(here, block, starts, rails)
    if not together:
        copy_to_node(here, 0, block, rails)


def _between(here: Topology, block: Block, starts: Sequence[int], rails: int) -> None:
    """Brings what the nodes have to all nodes, or a part of it on each of several rails."""
    rail = here.node_rank
    path = plan.chain(here.layout, 0, rail)
    runs = [ringplan.runs(ranks, starts) for ranks in here.layout.nodes]
    if ringplan.is_little(block.nbytes):
        _exchange(here, path, block, runs)
        return
    parts = [[ringplan.part_of(run, rails, rail) for run in one] for one in runs]
    most = max(sum(part.stop - part.start for part in one) for one in parts)
    ring = ringplan.gather_ring(parts, here.node, ringplan.piece_bytes(most, here.config.chunk_bytes))
    circulate(here, path, block, ring)


def _exchange(here: Topology, path: Sequence[int], block: Block, runs: Sequence[Sequence[slice]]) -> None:
    """The same for few bytes, which are packed."""
    sizes = [sum(run.stop - run.start for run in one) for one in runs]
    mine = np.concatenate([block[:0], *(block[run] for run in runs[here.node])])
    found = exchange(here, path, mine, sizes)
    for node, packed in enumerate(found):
        at = 0
        for run in runs[node] if node != here.node else ():
            length = run.stop - run.start
            block[run] = packed[at : at + length]
            at += length
