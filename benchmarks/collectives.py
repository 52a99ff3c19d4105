"""Sums and gathers for all ranks: one result per node, beside MPI's calls into an array of each rank.

    python -m benchmarks.collectives [--rounds 9] [--powers 10,16,20,24] [--hosts 4] [--rate 1gbit]

On 2 and 4 ranks of this machine as 2 pretend nodes, then on hosts of 2 ranks that are namespaces of this machine, with
links of a rate. The rivals: MPI's call by default and with the fastest of the algorithms that are forced once, and what
an expert writes, one result per node in a window that is kept: the ranks of a node reduce or write into it, and the
leaders make MPI's call in place. What is reduced is another array in each call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import harness
from benchmarks.harness import Place
from benchmarks.nodes import PRETEND, find_library, with_settings

Array = NDArray[np.float64]
ALGORITHMS = {
    "allreduce": {"nonoverlapping": 2, "recursive doubling": 3, "ring": 4, "segmented ring": 5, "rabenseifner": 6},
    "allgather": {"linear": 1, "bruck": 2, "recursive doubling": 3, "ring": 4},
}
"""Of Open MPI 5, by collective."""


def main() -> None:
    """Measures in each place, prints and keeps."""
    options = harness.options(__doc__, powers="10,16,20,24", hosts=4, rate="1gbit")
    if options.inside:
        inside(options)
        return
    places = [*PRETEND]
    if options.hosts:
        places.append(Place(f"{options.hosts} hosts of 2, {options.rate}", 2, hosts=options.hosts, rate=options.rate))
    figures = {}
    for place in places:
        told = place.run("collectives", "--rounds", str(options.rounds), "--powers", options.powers)
        figures[place.title] = told
        for collective, sizes in told.items():
            for size, table in sizes.items():
                harness.show(f"{collective} of {size}, {place.title}", table)
    harness.keep("collectives", figures)


def inside(options: Any) -> None:
    """The row of each way, for both collectives and all sizes."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    figures = {
        collective: {
            harness.size_of(nbytes): measure(comm, collective, nbytes, options.rounds)
            for nbytes in harness.powers(options.powers)
        }
        for collective in ALGORITHMS
    }
    harness.tell(comm, figures)


def measure(comm: Any, collective: str, nbytes: int, rounds: int) -> harness.Table:
    """The row of each way, for a result of `nbytes`."""
    calls = ways_of(comm, collective, nbytes)
    forced = f"MPI_{collective.capitalize()}: "
    trial = harness.measure(comm, {name: calls[name] for name in calls if name.startswith(forced)}, 1, 1, warm_up=0)
    for name in sorted(trial, key=lambda name: trial[name])[2:]:
        del calls[name]
    times = harness.measure(comm, calls, harness.repeats(nbytes), rounds)
    results = [np.array(call(1)) for call in calls.values()]
    if not all(np.array_equal(result, results[0]) for result in results):
        raise SystemExit(f"rank {comm.rank}: {collective}: not all ways have the same result")
    return harness.compared(harness.best_of(harness.rows(times), forced), f"mpishare.{collective}")


def ways_of(comm: Any, collective: str, nbytes: int) -> dict[str, harness.Call]:
    """All ways, by name. Sums of such numbers are exact."""
    import mpishare as ms

    size = nbytes // 8 if collective == "allreduce" else nbytes // 8 // comm.size
    arrays = [np.arange(first, first + size, dtype=float) + comm.rank for first in range(2)]
    room = np.zeros(size if collective == "allreduce" else size * comm.size)
    name, ours = f"MPI_{collective.capitalize()}", getattr(ms, collective)
    ways: dict[str, harness.Call] = {
        f"mpishare.{collective}": lambda number: ours(arrays[number % 2]),
        name: by_mpi(getattr(comm, collective.capitalize()), arrays, room),
    }
    if find_library() is not None:
        for algorithm, number in ALGORITHMS[collective].items():
            settings = {"coll_tuned_use_dynamic_rules": 1, "coll_tuned_priority": 90}
            used = with_settings(comm, {**settings, f"coll_tuned_{collective}_algorithm": number})
            ways[f"{name}: {algorithm}"] = by_mpi(getattr(used, collective.capitalize()), arrays, room)
    if comm.size > ms.topology().n_nodes:
        ways["window by hand, kept, MPI among leaders"] = expert(comm, collective, arrays, room.nbytes)
    return ways


def by_mpi(begin: Callable[..., object], arrays: list[Array], room: Array) -> harness.Call:
    """MPI's call into an array of each rank, which is there."""

    def call(number: int) -> Array:
        begin(arrays[number % 2], room)
        return room

    return call


def expert(comm: Any, collective: str, arrays: list[Array], nbytes: int) -> harness.Call:
    """One result per node, for nodes of as many ranks, whose numbers follow each other."""
    from mpi4py import MPI

    import mpishare as ms

    nodes = ms.topology()
    window = MPI.Win.Allocate_shared(nbytes if nodes.is_leader else 0, 8, comm=nodes.node_comm)
    memory: Any = window.Shared_query(0)[0]
    result: Array = np.frombuffer(memory, float)
    own = slice(comm.rank * arrays[0].size, (comm.rank + 1) * arrays[0].size)

    def reduce(number: int) -> Array:
        nodes.node_comm.Reduce(arrays[number % 2], result if nodes.is_leader else None)
        if nodes.is_leader:
            nodes.leaders.Allreduce(MPI.IN_PLACE, result)
        nodes.node_comm.Barrier()
        return result

    def gather(number: int) -> Array:
        result[own] = arrays[number % 2]
        nodes.node_comm.Barrier()
        if nodes.is_leader:
            nodes.leaders.Allgather(MPI.IN_PLACE, result)
        nodes.node_comm.Barrier()
        return result

    return reduce if collective == "allreduce" else gather


if __name__ == "__main__":
    main()
