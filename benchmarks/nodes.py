"""What it costs to bring an array to every node: our share beside MPI's broadcast and beside the bare link.

    python -m benchmarks.nodes [--hosts 2,4,8] [--ranks 1,4] [--powers 10,16,20,25] [--rates 400mbit,free] [--rounds 5]
    python -m benchmarks.nodes --chunks    compares sizes of the chunks with the choice of the model in plan.py

Makes clusters of several hosts on this machine (tests/cluster; root, or a user allowed user namespaces), whose links
are held to a rate, or are as fast as the machine is. The limit is what one raw TCP socket between two hosts needs for
the same bytes in the same run. Prints a table and keeps it as results/nodes.json, with a picture beside it.

Bounds, of medians, at 32 MiB and 400 Mbit/s: 1.10 of bytes over bandwidth on 4 hosts, 1.15 on 8; with 4 ranks a host
1.05 of the time with 1; at no size slower than MPI_Bcast of the same bytes to one rank a host.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.keep import keep
from benchmarks.picture import lines

Figures = dict[str, dict[str, float]]
SHARE, BCAST, BCAST_ALL, SENDS, SOCKET = (
    "mpishare.share",
    "MPI_Bcast, a rank a host",
    "MPI_Bcast, all ranks",
    "one send a rank",
    "raw socket, one link",
)
CHUNKS = ["", "16K", "32K", "60K", "64K", "128K", "256K", "1M", "4M"]
_PATIENCE_S = 1200


def main() -> None:
    """Makes the clusters, has `inside` run on each, prints and keeps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--hosts", default="2,4,8")
    parser.add_argument("--ranks", default="1,4", help="ranks a host (default: %(default)s)")
    parser.add_argument("--powers", default="10,16,20,25", help="sizes, as powers of two (default: %(default)s)")
    parser.add_argument("--rates", default="400mbit,free")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--chunks", action="store_true", help="try sizes of chunks instead of rivals")
    parser.add_argument("--ours", action="store_true", help="leave out what others use")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = [1 << int(power) for power in options.powers.split(",")]
    if options.inside:
        inside(sizes, options.rounds, chunks=options.chunks, ours=options.ours)
        return
    figures: dict[str, dict[str, Figures]] = {}
    ground: dict[str, Any] = {}
    for rate in options.rates.split(","):
        for hosts in map(int, options.hosts.split(",")):
            for ranks in options.ranks.split(","):
                args = [word for word in sys.argv[1:] if word in ("--chunks", "--ours")]
                args += ["--powers", options.powers, "--rounds", str(options.rounds)]
                result = on_cluster(
                    hosts, ranks, "" if rate == "free" else rate, ["benchmarks.nodes", "--inside", *args]
                )
                ground = result["ground"]
                figures[f"{hosts} hosts of {ranks}, {rate}"] = result["figures"]
                show(f"{hosts} hosts of {ranks}, {rate}", result["figures"])
    name = "nodes-chunks" if options.chunks else "nodes"
    keep(name, figures, ground)
    if not options.chunks:
        draw(figures, f"{sizes[-1]:,} bytes", options.hosts.split(","), options.ranks.split(",")[0], options.rates)


def on_cluster(hosts: int, ranks: str, rate: str, program: list[str]) -> dict[str, Any]:
    """What a program that runs on all hosts of a cluster told as JSON."""
    from tests.cluster.cluster import cluster
    from tests.cluster.spec import make_spec

    with cluster(make_spec(hosts, ranks=ranks, rate=rate)) as hosts_up:
        ended = hosts_up.mpiexec([sys.executable, "-m", *program], limit_s=_PATIENCE_S)
    result: dict[str, Any] = json.loads(ended.stdout)
    return result


def inside(sizes: list[int], rounds: int, *, chunks: bool, ours: bool) -> None:
    """Measures on all ranks of a cluster; rank 0 tells the figures as JSON."""
    from mpi4py import MPI

    import mpishare as ms

    comm = MPI.COMM_WORLD
    ms.topology()
    ways = _chunked(comm) if chunks else _rivals(comm)
    if ours:
        ways = {name: way for name, way in ways.items() if name in (SHARE, SOCKET)}
    figures = {f"{nbytes:,} bytes": _measure(comm, ways, nbytes, rounds) for nbytes in sizes}
    ground = ms.info().as_dict()
    if comm.rank == 0:
        print(json.dumps({"figures": figures, "ground": ground}))


Way = Callable[[Any, NDArray[np.uint8]], None]
"""Brings the second array, on rank 0, to the others, which have one of that length to receive into."""


def _rivals(comm: Any) -> dict[str, Way]:
    import mpishare as ms

    nodes = ms.topology()

    def share(source: Any, room: NDArray[np.uint8]) -> None:
        ms.share(source)

    def bcast(source: Any, room: NDArray[np.uint8]) -> None:
        if nodes.is_leader:
            nodes.leaders.Bcast(room)

    def bcast_all(source: Any, room: NDArray[np.uint8]) -> None:
        comm.Bcast(room)

    def sends(source: Any, room: NDArray[np.uint8]) -> None:
        if comm.rank == 0:
            for rank in range(1, comm.size):
                comm.Send(room, rank)
        else:
            comm.Recv(room, 0)

    return {SHARE: share, BCAST: bcast, BCAST_ALL: bcast_all, SENDS: sends, SOCKET: socket_way(comm, nodes)}


def socket_way(comm: Any, nodes: Any) -> Way:
    """One TCP connection from rank 0 to the last host, kept open."""
    far = nodes.ranks_of(nodes.n_nodes - 1)[0]
    connection: socket.socket | None = None
    if comm.rank == far:
        with socket.create_server(("", 0)) as server:
            comm.send((socket.gethostname(), server.getsockname()[1]), 0)
            connection = server.accept()[0]
    elif comm.rank == 0:
        connection = socket.create_connection(comm.recv(source=far))

    def way(source: Any, room: NDArray[np.uint8]) -> None:
        if comm.rank == 0 and connection is not None:
            connection.sendall(memoryview(room))  # type: ignore[arg-type]
            connection.recv(1)
        elif connection is not None:
            view, got = memoryview(room), 0  # type: ignore[arg-type]
            while got < room.nbytes:
                got += connection.recv_into(view[got:])
            connection.sendall(b"!")

    return way


def _chunked(comm: Any) -> dict[str, Way]:
    """Our share with each size of chunks, by communicators of which each has its own."""
    import mpishare as ms

    values: dict[str, Way] = {}
    for chunk in CHUNKS:
        os.environ["MPISHARE_CHUNK"] = chunk
        duplicate = comm.Dup()
        ms.topology(duplicate)

        def way(source: Any, room: NDArray[np.uint8], used: Any = duplicate) -> None:
            ms.share(source, comm=used)

        values[f"chunks of {chunk}" if chunk else SHARE] = way
    del os.environ["MPISHARE_CHUNK"]
    return {**values, SOCKET: socket_way(comm, ms.topology())}


def _measure(comm: Any, ways: dict[str, Way], nbytes: int, rounds: int) -> Figures:
    """Each way's median time until the last rank is done, and its ratio to the socket's."""
    room = np.ones(nbytes, np.uint8)
    source = room if comm.rank == 0 else None
    times: dict[str, list[float]] = {name: [] for name in ways}
    repeats = max(1, min(50, (1 << 18) // nbytes))
    for _ in range(rounds + 1):  # the first round, in which everything is new, is left out
        for name, way in ways.items():
            comm.Barrier()
            start = time.perf_counter()
            for _ in range(repeats):
                way(source, room)
            times[name].append(comm.allreduce(time.perf_counter() - start, _max()) / repeats)
    medians = {name: statistics.median(taken[1:]) for name, taken in times.items()}
    return {
        name: {"median, ms": round(median * 1e3, 4), "of the socket": round(median / medians[SOCKET], 3)}
        for name, median in medians.items()
    }


def _max() -> Any:
    from mpi4py import MPI

    return MPI.MAX


def show(title: str, figures: dict[str, Figures]) -> None:
    """Prints the table of one cluster."""
    print(f"\n{title}")
    for size, ways in figures.items():
        result = "; ".join(
            f"{way} {row['median, ms']:,.3f} ms ({row['of the socket']:.2f})" for way, row in ways.items()
        )
        print(f"  {size}: {result}", flush=True)


def draw(figures: dict[str, dict[str, Figures]], size: str, hosts: list[str], ranks: str, rates: str) -> None:
    """Time over that of the raw socket against the number of hosts, at the first rate."""
    rate = rates.split(",")[0]
    columns = [figures[f"{count} hosts of {ranks}, {rate}"][size] for count in hosts]
    series = {way: [column[way]["of the socket"] for column in columns] for way in columns[0]}
    title = f"{size} to every host, links of {rate}"
    lines("nodes", [int(count) for count in hosts], series, "hosts", "time over that of one raw socket", title)


if __name__ == "__main__":
    main()
