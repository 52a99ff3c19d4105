"""What it costs to bring an array to every node: our share beside MPI's broadcast at its best and the bare link.

    python -m benchmarks.nodes [--links pretend,mpich,free,400mbit] [--delays 0]
        [--hosts 2,4,8] [--ranks 1] [--powers 10,16,20,24] [--rounds 9]
        [--rivals default,all,forced,han,expert,pshmem] [--add] [--name nodes]
    python -m benchmarks.nodes --chunks    compares sizes of the chunks with the choice of the model in plan.py

"pretend" is MPI through shared memory, a link as fast as memory: 2 pretend nodes of 1 and of 2 ranks of this machine.
"mpich" is the same with MPICH, which takes a broadcast's algorithm for a whole job, so that each has a job of its own.
All others are clusters of several hosts on this machine (tests/cluster; root, or a user allowed user namespaces), whose
links are held to a rate, or are as fast as the machine is ("free"); a delay is that of the path, on each way. The limit
is what one raw TCP socket between two hosts needs for the same bytes in the same run, its answer of a byte included.
Where that is more than the cores of this machine carry for all hosts at once, sockets from host to host say so. They
bring the bytes to every host, so they are a rival, too.

The rivals: MPI_Bcast to one rank a host, by default and with each of Open MPI's algorithms forced, of which the three
fastest of the first round go on; MPI_Bcast to all ranks, by default and by HAN in segments; and what an expert writes,
who copies into a window that is used again, broadcasts from window to window, and has a barrier on the node and one
over all. A barrier over all ends each call, ours too. The source is another array in each call. Each way receives into
memory of its own that it uses again, as ours does, and pshmem too. That sees one node where nodes are pretended, and is
left out there. After the first round each way is called some times more, as our small arrays then use memory again. The
order of the ways changes. Prints a table and keeps it as results/nodes.json, with pictures beside it; `--add` keeps
what is there of other links. MPICH on several hosts is not measured.

Goals, of medians, for the largest size and 400 Mbit/s: 1.10 of bytes over bandwidth on 4 hosts, 1.15 on 8; with 4
ranks a host 1.05 of the time with 1; at no size slower than MPI_Bcast of the same bytes to one rank a host.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.keep import keep, kept_figures
from benchmarks.picture import lines
from benchmarks.places import FREE, MPICH, PRETEND, PRETEND_NODES, on_cluster, on_pretend_nodes, title_of
from benchmarks.rivals import (
    ALL,
    BCAST,
    EXPERT,
    FORCED,
    HAN,
    PSHMEM,
    SHARE,
    SOCKET,
    SOCKETS,
    Bytes,
    Sources,
    Way,
    forced_ways,
    ways_of,
)
from benchmarks.rounds import MEDIAN, Call, Row, hopeless, measure, repeats_of, row

Figures = dict[str, dict[str, Row]]
"""Rows of ways, by size."""
OF_THE_SOCKET, OF_THE_BEST, OF_THE_EXPERT = "of the socket", "over the best rival", "over the expert"
ROUND_TRIP = "round trip, ms"
CHUNKS = ["", "32K", "60K", "128K", "256K", "1M"]
RIVALS = {"default": BCAST, "all": ALL, "forced": FORCED, "han": HAN, "expert": EXPERT, "pshmem": PSHMEM}
MPICH_ALGORITHMS = (
    "binomial",
    "scatter_recursive_doubling_allgather",
    "scatter_ring_allgather",
    "pipelined_tree",
    "tree",
)
_WARM_UP, _WARM_UP_BYTES = 16, 2 << 20
"""Calls of each way after the first round, of up to so many bytes: ours use memory again from the ninth on."""
_PRUNED_BYTES = 1 << 20
"""From here on an algorithm that is far behind for fewer bytes is not tried for more."""


def main() -> None:
    """Makes the clusters, has `inside` run on each, prints and keeps."""
    options = parsed()
    sizes = [1 << int(power) for power in options.powers.split(",")]
    if options.inside:
        inside(sizes, options.rounds, options.rivals, chunks=options.chunks)
        return
    name = "nodes-chunks" if options.chunks else options.name
    args = ["benchmarks.nodes", "--inside", "--powers", options.powers, "--rounds", str(options.rounds)]
    args += ["--rivals", options.rivals, *(["--chunks"] if options.chunks else [])]
    figures = kept_figures(name) if options.add else {}
    ground: dict[str, Any] = {}
    for title, run in places(options):
        result = run(args)
        figures[title], ground = result["figures"], result["ground"]
        show(title, figures[title])
        keep(name, figures, ground)
    if name == "nodes" and not options.add:
        links = [link for link in options.links.split(",") if link not in (PRETEND, MPICH)]
        held = next((link for link in links if link != FREE), FREE)
        for link, picture in ((held, "nodes"), (FREE, "nodes-free")):
            draw(figures, sizes, title_of(options.hosts.split(",")[-1], options.ranks.split(",")[0], link), picture)


def parsed() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--links", default="pretend,mpich,free,400mbit")
    parser.add_argument("--delays", default="0", help="of the path, on each way (default: %(default)s)")
    parser.add_argument("--hosts", default="2,4,8")
    parser.add_argument("--ranks", default="1", help="ranks a host (default: %(default)s)")
    parser.add_argument("--powers", default="10,16,20,24", help="sizes, as powers of two (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--rivals", default=",".join(RIVALS), help="which of them (default: %(default)s)")
    parser.add_argument("--add", action="store_true", help="keep what results/ has of other links at this commit")
    parser.add_argument("--name", default="nodes", help="of the result (default: %(default)s)")
    parser.add_argument("--chunks", action="store_true", help="try sizes of chunks instead of rivals")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def places(options: argparse.Namespace) -> Iterable[tuple[str, Callable[[list[str]], dict[str, Any]]]]:
    """A title, and what runs a program there, for each link, delay, number of hosts and of ranks."""
    for link in options.links.split(","):
        if link == PRETEND:
            yield from ((title, partial(on_pretend_nodes, title)) for title in PRETEND_NODES)
            continue
        if link == MPICH:
            yield from ((f"{title}, MPICH", partial(on_mpich, title)) for title in PRETEND_NODES)
            continue
        for delay in options.delays.split(","):
            for hosts in options.hosts.split(","):
                for ranks in options.ranks.split(","):
                    title = title_of(hosts, ranks, link, delay)
                    yield title, partial(on_cluster, int(hosts), ranks, link, delay=delay)


def on_mpich(title: str, args: list[str]) -> dict[str, Any]:
    """The figures of pretend nodes by MPICH, those with a forced algorithm from a job of each."""
    result = on_pretend_nodes(title, args, {})
    for name in MPICH_ALGORITHMS:
        settings = {"MPIR_CVAR_DEVICE_COLLECTIVES": "none", "MPIR_CVAR_BCAST_INTRA_ALGORITHM": name}
        forced = on_pretend_nodes(title, [*args, "--rivals", "default"], settings)["figures"]
        for size, rows in forced.items():
            result["figures"][size][f"{FORCED}{name}"] = rows[BCAST]
    for rows in result["figures"].values():
        compared(rows)
    return result


def inside(sizes: list[int], rounds: int, rivals: str, *, chunks: bool) -> None:
    """Measures on all ranks of a place; rank 0 tells the figures as JSON."""
    from mpi4py import MPI

    import mpishare as ms

    comm = MPI.COMM_WORLD
    ms.topology()
    names = [SHARE, SOCKET, SOCKETS, *(RIVALS[rival] for rival in rivals.split(",") if rival)]
    ways = {name: way for name, way in ways_of(comm).items() if name in names or (HAN in names and HAN in name)}
    if chunks:
        ways = {**_chunked(comm), **{name: way for name, way in ways.items() if name == SOCKET}}
    figures, left_out = dict[str, dict[str, Row]](), set[str]()
    round_trip = _round_trip(comm, ways[SOCKET]) if SOCKET in ways else {}
    for nbytes in sizes:
        forced = forced_ways(comm, nbytes) if FORCED in names and not chunks else {}
        forced = {name: way for name, way in forced.items() if name not in left_out}
        figures[f"{nbytes:,} bytes"], trial = measured(comm, {**ways, **forced}, nbytes, rounds, list(forced))
        figures[f"{nbytes:,} bytes"].get(SOCKET, {}).update(round_trip)
        if nbytes >= _PRUNED_BYTES:
            left_out |= hopeless(trial, list(forced))
    ground = ms.info().as_dict()
    if comm.rank == 0:
        print(json.dumps({"figures": figures, "ground": ground}))


def _round_trip(comm: Any, way: Way) -> Row:
    """How long a byte and its answer take: the delay there and back, and what a socket costs."""
    byte = np.ones(1, np.uint8)
    times = measure(comm, {SOCKET: lambda number: way(None, byte)}, 20, 9)
    return {ROUND_TRIP: row(times[SOCKET][1:])[MEDIAN]}


def measured(
    comm: Any, ways: dict[str, Way], nbytes: int, rounds: int, forced: list[str]
) -> tuple[dict[str, Row], dict[str, float]]:
    """A row for each way, and the seconds that each took in the first round."""
    sources = Sources(comm.rank, nbytes)
    calls = {name: _call(way, sources, np.ones(nbytes, np.uint8)) for name, way in ways.items()}
    warm_up = _WARM_UP if nbytes <= _WARM_UP_BYTES else 0
    times = measure(comm, calls, repeats_of(nbytes), rounds, forced, warm_up)
    for name, call in calls.items():
        if len(times[name]) > 1 and name != SOCKET:  # a socket goes to one host
            sources.check(name, call(1), 1)
            comm.Barrier()
    rows = {name: row(taken[1:]) for name, taken in times.items() if len(taken) > 1}
    return compared(rows), {name: taken[0] for name, taken in times.items()}


def _call(way: Way, sources: Sources, room: Bytes) -> Call:
    return lambda number: way(sources.get(number), room)


def best_rival(rows: dict[str, Row]) -> str | None:
    """The fastest of those that bring all of it to each host; None where there was none."""
    rivals = [name for name in rows if name not in (SHARE, SOCKET) and not name.startswith("chunks")]
    return min(rivals, key=lambda name: rows[name][MEDIAN], default=None)


def compared(rows: dict[str, Row]) -> dict[str, Row]:
    """The rows with their ratios to the socket, and with ours to the best rival's."""
    for figures in rows.values():
        if SOCKET in rows:
            figures[OF_THE_SOCKET] = round(figures[MEDIAN] / rows[SOCKET][MEDIAN], 3)
    best = best_rival(rows)
    if best is not None:
        rows[SHARE][OF_THE_BEST] = round(rows[SHARE][MEDIAN] / rows[best][MEDIAN], 3)
    if EXPERT in rows:
        rows[SHARE][OF_THE_EXPERT] = round(rows[SHARE][MEDIAN] / rows[EXPERT][MEDIAN], 3)
    return rows


def _chunked(comm: Any) -> dict[str, Way]:
    """Our share with each size of chunks, by communicators of which each has its own."""
    import mpishare as ms

    values: dict[str, Way] = {}
    for chunk in CHUNKS:
        os.environ["MPISHARE_CHUNK"] = chunk
        duplicate = comm.Dup()
        ms.topology(duplicate)

        def way(source: Any, room: Any, used: Any = duplicate) -> Any:
            array = ms.share(source, comm=used)
            comm.Barrier()
            return array

        values[f"chunks of {chunk}" if chunk else SHARE] = way
    del os.environ["MPISHARE_CHUNK"]
    return values


def show(title: str, figures: Figures) -> None:
    """Prints the table of one place."""
    print(f"\n{title}")
    for size, ways in figures.items():
        print(f"  {size}")
        for way, figure in sorted(ways.items(), key=lambda item: item[1][MEDIAN]):
            result = (f"{value:,.3f} {column}" for column, value in figure.items() if "quartile" not in column)
            print(f"    {way:50} " + "  ".join(result), flush=True)


def draw(figures: dict[str, Figures], sizes: list[int], place: str, picture: str) -> None:
    """Time over that of the raw socket against bytes, at a place, if that was measured.

    pshmem and the expert call MPI_Bcast by default, and are left out.
    """
    tables = [*figures.get(place, {}).values()]
    if not tables:
        return
    ways = [way for way in (SHARE, BCAST, SOCKETS) if way in tables[0]]
    series = {way: [table[way][OF_THE_SOCKET] for table in tables] for way in ways}
    forced = [[row[OF_THE_SOCKET] for way, row in table.items() if way.startswith(FORCED)] for table in tables]
    if all(forced):
        series[f"{FORCED}the best forced algorithm"] = [min(ratios) for ratios in forced]
    title = f"An array to {place}".replace(FREE, "links as fast as the machine")
    lines(picture, sizes, series, "bytes", "time over that of one raw socket", title)


if __name__ == "__main__":
    main()
