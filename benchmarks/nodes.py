"""Several hosts: the time until every node has the root's array, beside MPI's broadcast, an expert's program, a socket.

    python -m benchmarks.nodes [--links pretend,free,1gbit] [--hosts 4] [--ranks 4] [--powers 10,16,20,24]
        [--rounds 9] [--rivals all,expert,forced,pshmem,socket] [--name nodes]

"pretend" are 2 nodes of this machine, which talk through shared memory. All other links join hosts that are namespaces
of this machine (tests/cluster), at a rate as tc writes it, or as fast as the machine is ("free"). Each way receives
into memory that it uses again, and ends with a barrier over all ranks. MPI_Bcast to one rank of each host does less
than ours, which brings the array to all ranks of a host; of its algorithms, each of which is forced once, the fastest
is named. The limit is one raw TCP socket between two hosts. `--rivals=` measures ours and MPI_Bcast alone.
"""

from __future__ import annotations

import ctypes
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.harness import Bytes, Place, Sources
from benchmarks.share import bcast, filled, make_pshmem, make_window, set_pshmem

OURS, OURS_KEPT = "mpishare.share", "mpishare.zeros and bcast, kept"
BCAST, EXPERT = "MPI_Bcast, one rank per host", "window by hand, kept, MPI_Bcast of leaders"
PICKLED, TO_ALL = "comm.bcast, pickled", "comm.Bcast, kept"
FORCED, PSHMEM, SOCKET = f"{BCAST}: ", "pshmem, kept", "limit: one raw socket"
PRETEND = [Place("2 pretend nodes of 1", 2, "block:1"), Place("2 pretend nodes of 2", 4, "block:2")]
ALGORITHMS = {
    "chain": 2,
    "pipeline": 3,
    "split binary tree": 4,
    "binary tree": 5,
    "binomial": 6,
    "knomial": 7,
    "scatter, allgather": 8,
}
"""Of coll_tuned_bcast_algorithm of Open MPI 5."""
SEGMENTS = {"64K": 64 << 10, "512K": 512 << 10}
Way = Callable[[Bytes | None, Bytes], Any]
"""Brings the first array, which rank 0 has, to the others, which may receive into the second."""


def main() -> None:
    """Measures in each place, prints and keeps."""
    options = harness.options(
        __doc__,
        links="pretend,free,1gbit",
        hosts="4",
        ranks="4",
        powers="10,16,20,24",
        rivals="all,expert,forced,pshmem,socket",
        name="nodes",
    )
    if options.inside:
        inside(options)
        return
    args = ["--rounds", str(options.rounds), "--powers", options.powers, "--rivals", options.rivals]
    figures = {}
    for place in places(options.links, options.hosts, options.ranks):
        figures[place.title] = place.run("nodes", *args)
        for size, table in figures[place.title].items():
            harness.show(f"{size} to {place.title}", table)
    harness.keep(options.name, figures)


def places(links: str, hosts: str, ranks: str) -> list[Place]:
    """The places of each link, with each number of hosts and of ranks on a host."""
    found = PRETEND if "pretend" in links.split(",") else []
    for link in links.split(","):
        for host_count in map(int, hosts.split(",") if link != "pretend" else []):
            for rank_count in map(int, ranks.split(",")):
                title = f"{host_count} hosts of {rank_count}, {link}"
                found = [*found, Place(title, rank_count, hosts=host_count, rate="" if link == "free" else link)]
    return found


def inside(options: Any) -> None:
    """The row of each way, for all sizes."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    ways = ways_of(comm, options.rivals.split(","))
    sizes = harness.powers(options.powers)
    harness.tell(comm, {harness.size_of(nbytes): measure(comm, ways, nbytes, options.rounds) for nbytes in sizes})


def measure(comm: Any, ways: dict[str, Way], nbytes: int, rounds: int) -> harness.Table:
    """The row of each way, for one size."""
    sources = Sources(comm, nbytes)

    def call(name: str, way: Way) -> harness.Call:
        room = np.ones(nbytes if name.startswith((BCAST, SOCKET, TO_ALL)) else 0, np.uint8)

        def turn(number: int) -> Any:
            array = way(sources.get(number), room)
            comm.Barrier()
            return array

        return turn

    made = {name: call(name, bound(way, comm, nbytes)) for name, way in ways.items()}
    trial = harness.measure(comm, {name: made[name] for name in made if name.startswith(FORCED)}, 1, 1, warm_up=0)
    for name in sorted(trial, key=lambda name: trial[name])[2:]:  # two of them are worth all rounds
        del made[name]
    times = harness.measure(comm, made, harness.repeats(nbytes), rounds)
    for name, turn in made.items():
        sources.check(comm, name, turn)
    table = harness.best_of(harness.rows(times), FORCED)
    return harness.compared(table, OURS, without=[SOCKET])


def bound(way: Any, comm: Any, nbytes: int) -> Way:
    """The way itself, or, of one that makes memory for each size, what it makes."""
    bound_way: Way = way(comm, nbytes) if way in (expert, pshmem, refilled) else way
    return bound_way


def ways_of(comm: Any, rivals: list[str]) -> dict[str, Any]:
    """All ways, by name."""
    import mpishare as ms

    nodes = ms.topology()
    ways: dict[str, Any] = {OURS: lambda source, room: ms.share(source), BCAST: to_leaders(nodes, nodes.leaders)}
    is_cluster = len(set(comm.allgather(socket.gethostname()))) == nodes.n_nodes > 1
    if "all" in rivals:
        ways[OURS_KEPT] = refilled
        ways[PICKLED] = lambda source, room: comm.bcast(source)
        ways[TO_ALL] = lambda source, room: bcast(comm, room if source is None else source)
    if "expert" in rivals:
        ways[EXPERT] = expert
    if "forced" in rivals and comm.bcast(nodes.is_leader and find_library() is not None):
        for name, settings in choices().items():
            ways[FORCED + name] = to_leaders(nodes, with_settings(nodes.leaders, settings) if nodes.is_leader else None)
    if "pshmem" in rivals and is_cluster:
        ways[PSHMEM] = pshmem
    if "socket" in rivals and is_cluster:
        ways[SOCKET] = by_socket(comm, nodes.ranks_of(nodes.n_nodes - 1)[0])
    return ways


def to_leaders(nodes: Any, leaders: Any) -> Way:
    """MPI_Bcast to one rank of each node."""

    def way(source: Bytes | None, room: Bytes) -> Any:
        return bcast(leaders, room if source is None else source) if nodes.is_leader else None

    return way


def expert(comm: Any, nbytes: int) -> Way:
    """A window on each node that is made once for a size, into which the root copies, then the leaders' MPI_Bcast."""
    import mpishare as ms

    nodes = ms.topology()
    window = make_window(nodes.node_comm, nbytes)[1]

    def way(source: Bytes | None, room: Bytes) -> Any:
        filled(window, source)
        if nodes.is_leader:
            nodes.leaders.Bcast(window)
        nodes.node_comm.Barrier()
        return window

    return way


def refilled(comm: Any, nbytes: int) -> Way:
    """An array of ours that is made once for a size, which the root fills and brings to the other nodes."""
    import mpishare as ms

    array = ms.zeros(nbytes, np.uint8, comm=comm)
    return lambda source, room: ms.bcast(filled(array, source), comm=comm)


def pshmem(comm: Any, nbytes: int) -> Way:
    """An array of pshmem that is made once for a size, and its set."""
    shared = make_pshmem(comm, nbytes)
    return lambda source, room: set_pshmem(shared, source)


def by_socket(comm: Any, far: int) -> Way:
    """One TCP connection from rank 0 to a rank of another host."""
    connection: Any = None
    if comm.rank == far:
        with socket.create_server(("", 0)) as server:
            comm.send((socket.gethostname(), server.getsockname()[1]), 0)
            connection = server.accept()[0]
    elif comm.rank == 0:
        connection = socket.create_connection(comm.recv(source=far))

    def way(source: Bytes | None, room: Bytes) -> None:
        if comm.rank == 0:
            connection.sendall(source)
            connection.recv(1)
        elif connection:
            got = 0
            while got < room.nbytes:
                got += connection.recv_into(room[got:])
            connection.sendall(b"!")

    return way


def choices() -> dict[str, dict[str, int]]:
    """The settings of each algorithm and each size of its segments, by name."""
    prefix = "coll_tuned_bcast_algorithm"
    common = {"coll_tuned_use_dynamic_rules": 1, "coll_tuned_priority": 90}
    return {
        f"{name}, {segment}": {**common, prefix: number, f"{prefix}_segmentsize": nbytes}
        for name, number in ALGORITHMS.items()
        for segment, nbytes in SEGMENTS.items()
    }


def with_settings(comm: Any, settings: dict[str, int]) -> Any:
    """A duplicate of `comm` that was made while MPI's control variables had these values.

    Source:
        MPI 4.1, section 15.3, control variables; coll_tuned_module.c of Open MPI 5, which reads them at that time.
    """
    before = {name: exchange(name, value) for name, value in settings.items()}
    duplicate = comm.Dup()
    for name, value in before.items():
        exchange(name, value)
    return duplicate


def exchange(name: str, value: int) -> int:
    """Writes a control variable and returns what it was."""
    library, index, handle, count = find_library(), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
    before = ctypes.c_int()
    statuses = [
        library.MPI_T_cvar_get_index(name.encode(), ctypes.byref(index)),
        library.MPI_T_cvar_handle_alloc(index, None, ctypes.byref(handle), ctypes.byref(count)),
        library.MPI_T_cvar_read(handle, ctypes.byref(before)),
        library.MPI_T_cvar_write(handle, ctypes.byref(ctypes.c_int(value))),
        library.MPI_T_cvar_handle_free(ctypes.byref(handle)),
    ]
    if any(statuses):
        raise SystemExit(f"MPI does not let {name} be {value}: {statuses}")
    return before.value


def find_library() -> Any:
    """The Open MPI that this process has loaded, its tool interface started; None where it is another MPI."""
    from mpi4py import MPI

    maps = Path("/proc/self/maps").read_text().splitlines()
    paths = {line.split(maxsplit=5)[-1] for line in maps if "/libmpi.so" in line}
    if "Open MPI" not in MPI.Get_library_version() or not paths:
        return None
    library = ctypes.CDLL(paths.pop())
    library.MPI_T_init_thread(0, ctypes.byref(ctypes.c_int()))
    return library


if __name__ == "__main__":
    main()
