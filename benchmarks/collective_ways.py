"""Ways to reduce and to gather for all ranks: ours, MPI's calls into an array of each rank, an expert's program."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.forced import ForcedComms, choices, with_settings
from benchmarks.rounds import Call

Array = NDArray[np.float64]

REDUCE, MPI_REDUCE = "mpishare.allreduce", "MPI_Allreduce, an array a rank"
GATHER, MPI_GATHER = "mpishare.allgather", "MPI_Allgather, an array a rank"
RIVALS = {REDUCE: "MPI_Allreduce", GATHER: "MPI_Allgather"}
"""How the names of the rivals begin; of those with a forced algorithm it follows a colon."""
_NODE = ", an array a node"
"""In the name of an expert's program."""
_MAX_SOURCES, _MAX_SOURCE_BYTES = 4, 256 << 20


def ways_of(comm: Any, nbytes: int) -> dict[str, Call]:
    """Each gives a result of `nbytes`; rivals write to memory that is there and warm. Collective."""
    import mpishare as ms

    count = max(2, min(_MAX_SOURCES, _MAX_SOURCE_BYTES // nbytes))
    arrays = [np.arange(first, first + nbytes // 8, dtype=float) for first in range(count)]
    parts = [array[: array.size // comm.size].copy() for array in arrays]
    return {
        REDUCE: lambda number: ms.allreduce(arrays[number % count]),
        **_rivals(comm, "allreduce", RIVALS[REDUCE], arrays, arrays[0].size),
        GATHER: lambda number: ms.allgather(parts[number % count]),
        **_rivals(comm, "allgather", RIVALS[GATHER], parts, parts[0].size * comm.size),
    }


def _rivals(comm: Any, collective: str, name: str, sources: list[Array], size: int) -> dict[str, Call]:
    """By default, with each algorithm, and by HAN between hosts; an expert's where nodes have several ranks."""
    import mpishare as ms

    nodes, room = ms.topology(), np.zeros(size)
    comms = _forced.setdefault(collective, ForcedComms(comm, collective))
    chosen = choices(collective, size * 8) if comms.is_possible else {}

    def flat(used: Any, result: Array = room) -> Call:
        begin = used.Allreduce if collective == "allreduce" else used.Allgather
        return _flat(begin, sources, result)

    ways = {f"{name}, an array a rank": flat(comm)}
    ways |= {f"{name}, an array a rank: {algorithm}": flat(comms.get(*choice)) for algorithm, choice in chosen.items()}
    if comm.size == nodes.n_nodes:
        return ways
    if comms.is_possible and "MPISHARE_NODES" not in os.environ:
        ways[f"{name}, an array a rank, HAN"] = flat(with_settings(comm, {"coll_han_priority": 95}), np.zeros(size))
    return ways | _experts(nodes, collective, f"{name}{_NODE}", sources, size)


_forced: dict[str, ForcedComms] = {}


def _flat(begin: Callable[..., object], sources: list[Array], result: Array) -> Call:
    def call(number: int) -> Array:
        begin(sources[number % len(sources)], result)
        return result

    return call


def _experts(nodes: Any, collective: str, name: str, sources: list[Array], size: int) -> dict[str, Call]:
    """One result a node, in a window that is used again, whose leaders call MPI: by default and with each algorithm."""
    from mpi4py import MPI

    window = MPI.Win.Allocate_shared(size * 8 if nodes.is_leader else 0, 8, comm=nodes.node_comm)
    memory: Any = window.Shared_query(0)[0]
    result: Array = np.frombuffer(memory, float)

    def expert(leaders: Any) -> Call:
        return (_reduce_on_node if collective == "allreduce" else _write_parts)(nodes, leaders, sources, result)

    key = f"{collective} of leaders"
    comms = nodes.is_leader and (_forced.get(key) or _forced.setdefault(key, ForcedComms(nodes.leaders, collective)))
    chosen = choices(collective, size * 8) if _forced[collective].is_possible else {}
    forced = {f"{name}: {algorithm}": expert(comms and comms.get(*choice)) for algorithm, choice in chosen.items()}
    return {name: expert(nodes.leaders), **forced}


def _reduce_on_node(nodes: Any, leaders: Any, sources: list[Array], result: Array) -> Call:
    from mpi4py import MPI

    def call(number: int) -> Array:
        nodes.node_comm.Reduce(sources[number % len(sources)], result if nodes.is_leader else None)
        if nodes.is_leader:
            leaders.Allreduce(MPI.IN_PLACE, result)
        nodes.node_comm.Barrier()
        return result

    return call


def _write_parts(nodes: Any, leaders: Any, sources: list[Array], result: Array) -> Call:
    """For ranks whose numbers follow each other on a node, and as many on each."""
    from mpi4py import MPI

    own = slice(nodes.rank * sources[0].size, (nodes.rank + 1) * sources[0].size)

    def call(number: int) -> Array:
        result[own] = sources[number % len(sources)]
        nodes.node_comm.Barrier()
        if nodes.is_leader:
            leaders.Allgather(MPI.IN_PLACE, result)
        nodes.node_comm.Barrier()
        return result

    return call
