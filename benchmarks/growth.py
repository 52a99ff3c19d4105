"""How the cost grows: with the bytes, with the ranks of a node, with the nodes; and what that means at 1,024 nodes.

    python -m benchmarks.growth [--ranks 1,2,4] [--hosts 2,4,8] [--rate 400mbit] [--rounds 9]
        [--only node,links,paper]

Within a node: runs our share with each number of ranks, and fits t = a + b N by least squares, where N is the bytes.

Between nodes: measures what messages cost over a cluster of 2 hosts (tests/cluster), and plays on paper
(`benchmarks/simulation.py`) what `transfer/plan.py` chooses for 2 to 1,024 nodes with such links, whose ranks are late
by an exponential law with a fixed seed. The play of each number of hosts is compared with our share there, which is to
be within a tenth; the time of a share of 1 KiB there counts for what a call takes besides. Each kind of link in
nodes-links.json, if that is kept of this commit, is played likewise, and compared with the times that stand there; a
delay of what a call takes besides is not in the play. Then the same for a fabric
of 200 Gbit/s, with this machine's time of a message through shared memory and with ranks as late: no such fabric was
measured. The bound is bytes over bandwidth, and the latency times log2 of the nodes; the goal is 1.15 of it at 512
nodes and 32 MiB. The same is played with other times of a message, as Python's decides whether the goal is met. Prints
tables and keeps them as results/growth.json, with a picture beside it.

Source of the fabric:
    D. De Sensi, S. Di Girolamo, K. H. McMahon, D. Roweth, T. Hoefler, "An in-depth analysis of the Slingshot
    interconnect", SC 2020: 200 Gbit/s, some 350 ns a switch, at most three hops between switches, so four switches.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np

from benchmarks.keep import RESULTS, keep, kept_figures
from benchmarks.picture import lines
from benchmarks.places import NO_DELAY, on_cluster, on_pretend_nodes
from benchmarks.rivals import AGAIN, NEW, SHARE, Way, socket_way
from benchmarks.rounds import MEDIAN, Call, measure
from benchmarks.simulation import Fabric, Step, simulate
from mpishare.transfer import plan

POWERS = (25,)
"""A link that is held to a rate lets some 256 KiB pass at once, which counts in fewer bytes."""
NODE_POWERS = (10, 16, 20, 24, 26)
_NEW, _AGAIN = (f"mpishare, memmap, {memory}" for memory in (NEW, AGAIN))
PARTS = ("node", "links", "paper")
PAPER_NODES = [1 << power for power in range(1, 11)]
GOAL_NODES, GOAL_BYTES, GOAL = 512, 32 << 20, 1.15
TOLERANCE = 0.1
FABRIC_BYTE_S, FABRIC_LATENCY_S = 8 / 200e9, 4 * 350e-9
OVER_BOUND, OF_MEASURED = "over the bound", "played over measured"
OTHER_LINKS, SMALL_SHARE = "other links", "share of 1 KiB, s"
BY_MESSAGE, MESSAGES_US = f"over the bound on {GOAL_NODES} nodes, by us of a message", (0.5, 1.0, 2.0, 4.0)
FABRIC, PRETENDED = "a fabric of 200 Gbit/s", "2 pretend nodes of 1"
_STREAM, _IN_FLIGHT, _PINGS = 64, 4, 20
_STREAMED_BYTES = (60 << 10, 68 << 10)
"""A message that Open MPI over TCP sends at once, and one for which it first asks the receiver."""
_SOCKET_BYTES = (4 << 20, 20 << 20)
_SHARED_BYTES, _CHUNKS = 8 << 20, (8 << 10, 64 << 10)
_LEAST_MESSAGE_S = 1e-6
"""Less was not measured of any message from Python; noise of a busy machine may say less."""


def main() -> None:
    """Measures, fits, plays, prints and keeps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--hosts", default="2,4,8")
    parser.add_argument("--rate", default="400mbit")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default=",".join(PARTS), help="parts to measure (default: %(default)s)")
    parser.add_argument("--name", default="growth", help="of the result (default: %(default)s)")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        inside(options.inside, options.rounds)
        return
    parts, figures, ground = options.only.split(","), dict[str, Any](), dict[str, Any]()
    if "node" in parts:
        figures["one node"] = {ranks: one_node(ranks, options.rounds) for ranks in options.ranks.split(",")}
        ground = next(result.pop("ground") for result in figures["one node"].values())
        show_node(figures["one node"])
    if "links" in parts:
        figures["several nodes"], ground = several_nodes(options.hosts.split(","), options.rate, options.rounds)
        show_links(figures["several nodes"])
        figures[OTHER_LINKS] = other_links(figures["several nodes"], options.rounds)
        show_others(figures[OTHER_LINKS])
    if "paper" in parts:
        figures[FABRIC], ground = fabric(options.rounds)
        show_curve(FABRIC, figures[FABRIC])
        print(f"  {BY_MESSAGE}: {figures[FABRIC][BY_MESSAGE]}")
    keep(options.name, figures, ground)
    draw(options.name, figures)


def one_node(ranks: str, rounds: int) -> dict[str, Any]:
    """Times on one node by size, and the fitted law, from `benchmarks.share`."""
    name = f"growth-{ranks}"
    powers = ",".join(map(str, NODE_POWERS))
    args = ["--powers", powers, "--rounds", str(rounds), "--name", name, "--ours"]
    subprocess.run([sys.executable, "-m", "mpishare", "run", "-n", ranks, "-m", "benchmarks.share", *args], check=True)
    kept = json.loads((RESULTS / f"{name}.json").read_text())
    for suffix in ("json", "png"):
        (RESULTS / f"{name}.{suffix}").unlink(missing_ok=True)
    matches: dict[str, Any] = {"ground": kept["ground"]}
    for way in (_NEW, _AGAIN):
        rows = {1 << power: kept["figures"][f"{1 << power:,} bytes"][way] for power in NODE_POWERS}
        points = {nbytes: row[MEDIAN] * 1e3 for nbytes, row in rows.items()}
        matches[way] = {"times": rows, "law: us, us per MiB": fit_line(points)}
    return matches


def fit_line(points: dict[int, float]) -> list[float]:
    """The a and b of t = a + b N, weighted so that each point counts by its relative error."""
    sizes, times = np.array(list(points)) / (1 << 20), np.array(list(points.values()))
    rows = np.stack([np.ones_like(sizes), sizes], axis=1) / times[:, None]
    solution = np.linalg.lstsq(rows, np.ones_like(times), rcond=None)[0]
    return [round(float(item), 3) for item in solution]


def several_nodes(hosts: list[str], rate: str, rounds: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Costs of messages, seconds measured and played by hosts and size, and what the play says of more nodes."""
    message = on_pretend_nodes(PRETENDED, ["benchmarks.growth", "--inside", "message", "--rounds", str(rounds)])[
        "costs"
    ]
    link = on_cluster(2, "1", rate, ["benchmarks.growth", "--inside", "link", "--rounds", str(rounds)])["costs"]
    fabric = Fabric(**message, **link)
    powers = ",".join(map(str, (10, *POWERS)))
    rows, ground = [], dict[str, Any]()
    for count in hosts:
        args = ["benchmarks.nodes", "--inside", "--rivals=", "--powers", powers, "--rounds", str(rounds)]
        result = on_cluster(int(count), "1", rate, args)
        medians = {size: ways[SHARE][MEDIAN] / 1e3 for size, ways in result["figures"].items()}
        for nbytes in (1 << power for power in POWERS):
            taken_s, small_s = medians[f"{nbytes:,} bytes"], medians["1,024 bytes"]
            rows.append(compared(int(count), nbytes, taken_s, small_s, fabric))
        ground = result["ground"]
    return {"rate": rate, "costs": asdict(fabric), "hosts": rows, OVER_BOUND: over_bound(fabric)}, ground


def compared(count: int, nbytes: int, taken_s: float, small_s: float, fabric: Fabric) -> dict[str, float]:
    """The play of so many bytes to so many hosts beside the measured time; `small_s` is that of a share of 1 KiB."""
    played_s = small_s + simulate(schedule(nbytes, count, fabric), fabric)
    figures = {"hosts": count, "bytes": nbytes, "measured, s": taken_s, "played, s": round(played_s, 5)}
    return {**figures, SMALL_SHARE: small_s, OF_MEASURED: round(played_s / taken_s, 3)}


def other_links(between: dict[str, Any], rounds: int) -> dict[str, list[dict[str, float]]]:
    """By kind of link, the plays beside the times in nodes-links.json; none where that is of another commit."""
    small = {row["hosts"]: row[SMALL_SHARE] for row in between["hosts"]}
    message = {name: between["costs"][name] for name in ("message_s", "late_s")}
    kept: dict[str, list[tuple[int, int, float]]] = {}
    for title, tables in kept_figures("nodes-links").items():
        place, _, kind = title.partition(", ")
        size, ways = [*tables.items()][-1]
        row = int(place.split()[0]), int(size.split()[0].replace(",", "")), ways[SHARE][MEDIAN] / 1e3
        kept.setdefault(kind, []).append(row)
    result = {}
    for kind, rows in kept.items():
        rate, _, delay = kind.partition(", ")
        program = ["benchmarks.growth", "--inside", "link", "--rounds", str(rounds)]
        fabric = Fabric(**message, **on_cluster(2, "1", rate, program, delay=delay or NO_DELAY)["costs"])
        result[kind] = [
            compared(count, nbytes, taken_s, small[count], fabric) for count, nbytes, taken_s in rows if count in small
        ]
    return result


def measured_points(between: dict[str, Any]) -> list[float]:
    """The measured times over the bound for `PAPER_NODES`; no number where there were no such hosts."""
    fabric = Fabric(**between["costs"])
    points = {row["hosts"]: row["measured, s"] for row in between["hosts"] if row["bytes"] == GOAL_BYTES}
    return [points.get(count, math.nan) / bound_s(GOAL_BYTES, count, fabric) for count in PAPER_NODES]


def fabric(rounds: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the play says of a fabric that no one measured."""
    result = on_pretend_nodes(PRETENDED, ["benchmarks.growth", "--inside", "message", "--rounds", str(rounds)])
    message = result["costs"]
    fabric = Fabric(FABRIC_LATENCY_S, FABRIC_BYTE_S, eager_s=0.0, large_s=0.0, **message)
    played = {taken: over_bound(replace(fabric, message_s=taken * 1e-6), [GOAL_NODES]) for taken in MESSAGES_US}
    by_message = {taken: ratios[GOAL_NODES] for taken, ratios in played.items()}
    return {"costs": asdict(fabric), OVER_BOUND: over_bound(fabric), BY_MESSAGE: by_message}, result["ground"]


def schedule(nbytes: int, count: int, fabric: Fabric) -> Sequence[Sequence[Step]]:
    """What the library would do between the nodes of a fabric."""
    link = plan.Link(fabric.byte_s, fabric.eager_s + fabric.message_s, fabric.large_s + fabric.message_s)
    choice = plan.choose(nbytes, count, link)
    return [plan.steps(nbytes, range(count), place, choice) for place in range(count)]


def over_bound(fabric: Fabric, counts: Sequence[int] = PAPER_NODES) -> dict[int, float]:
    """The time of the play over the least that any way could take, by nodes."""
    played = {count: simulate(schedule(GOAL_BYTES, count, fabric), fabric) for count in counts}
    return {count: round(taken_s / bound_s(GOAL_BYTES, count, fabric), 3) for count, taken_s in played.items()}


def bound_s(nbytes: int, count: int, fabric: Fabric) -> float:
    """Bytes over bandwidth, and the latency of as many hops as any way needs."""
    return nbytes * fabric.byte_s + math.log2(count) * fabric.latency_s


def inside(part: str, rounds: int) -> None:
    """Measures costs of messages on all ranks of a place; rank 0 tells them as JSON."""
    from mpi4py import MPI

    import mpishare as ms

    comm = MPI.COMM_WORLD
    measured = message_costs(comm, rounds) if part == "message" else link_costs(comm, rounds)
    ground = ms.info().as_dict()
    if comm.rank == 0:
        print(json.dumps({"costs": measured, "ground": ground}))


def message_costs(comm: Any, rounds: int) -> dict[str, float]:
    """How long a rank is busy with a message: what a share in many chunks takes longer than one in few, by chunk.

    The least of all rounds is what it costs, and what the median is above that is how late ranks are.
    """
    import mpishare as ms

    source = np.ones(_SHARED_BYTES, np.uint8) if comm.rank == 0 else None
    times = []
    for chunk in _CHUNKS:
        os.environ["MPISHARE_CHUNK"] = str(chunk)
        duplicate = comm.Dup()
        ms.topology(duplicate)
        times.append(_times(comm, partial(_share, source, duplicate), rounds))
    del os.environ["MPISHARE_CHUNK"]
    more = _SHARED_BYTES // _CHUNKS[0] - _SHARED_BYTES // _CHUNKS[1]
    least, median = ((of(times[0]) - of(times[1])) / more for of in (min, statistics.median))
    return {"message_s": max(least, _LEAST_MESSAGE_S), "late_s": max(median - least, 0.0)}


def _share(source: Any, comm: Any, _: int) -> None:
    import mpishare as ms

    ms.share(source, comm=comm)


def link_costs(comm: Any, rounds: int) -> dict[str, float]:
    """What a message costs on the link between ranks 0 and 1, on two hosts."""
    import mpishare as ms

    way = socket_way(comm, ms.topology())
    times = {nbytes: _median_s(comm, partial(_over_socket, way, nbytes), rounds) for nbytes in _SOCKET_BYTES}
    few, many = _SOCKET_BYTES  # a link that is held to a rate lets some bytes pass at once
    byte_s = (times[many] - times[few]) / (many - few)
    eager_s, large_s = (_median_s(comm, partial(_stream, comm, nbytes), rounds) for nbytes in _STREAMED_BYTES)
    besides = [
        stream_s / _STREAM - nbytes * byte_s
        for stream_s, nbytes in zip((eager_s, large_s), _STREAMED_BYTES, strict=True)
    ]
    latency_s = _median_s(comm, partial(_ping, comm), rounds) / (2 * _PINGS)
    return {
        "byte_s": byte_s,
        "latency_s": latency_s,
        "eager_s": max(besides[0], 0.0),
        "large_s": max(besides[1], besides[0], 0.0),
    }


def _over_socket(way: Way, nbytes: int, _: int) -> None:
    way(None, np.ones(nbytes, np.uint8))


def _stream(comm: Any, nbytes: int, _: int) -> None:
    """Messages from rank 0 to rank 1, a few at the same time."""
    buffers = np.ones((_IN_FLIGHT, nbytes), np.uint8)
    requests: list[Any] = []
    for number in range(_STREAM):
        if len(requests) == _IN_FLIGHT:
            requests.pop(0).Wait()
        buffer = buffers[number % _IN_FLIGHT]
        requests.append(comm.Isend(buffer, 1) if comm.rank == 0 else comm.Irecv(buffer, 0))
    for request in requests:
        request.Wait()


def _ping(comm: Any, _: int) -> None:
    byte = np.ones(1, np.uint8)
    for _ in range(_PINGS):
        if comm.rank == 0:
            comm.Send(byte, 1)
            comm.Recv(byte, 1)
        else:
            comm.Recv(byte, 0)
            comm.Send(byte, 0)


def _median_s(comm: Any, call: Call, rounds: int) -> float:
    return statistics.median(_times(comm, call, rounds))


def _times(comm: Any, call: Call, rounds: int) -> list[float]:
    return measure(comm, {"": call}, 1, rounds)[""][1:]


def show_node(within: dict[str, Any]) -> None:
    """Prints the laws of one node."""
    for ranks, matches in within.items():
        for way in (_NEW, _AGAIN):
            start, slope = matches[way]["law: us, us per MiB"]
            print(f"one node, {ranks} ranks, {way}: {start:.0f} us + {slope:.0f} us per MiB")


def show_links(between: dict[str, Any]) -> None:
    """Prints what was measured beside what was played, and whether they are near enough."""
    for row in between["hosts"]:
        result = f"{row['measured, s']:.4f} s measured, {row['played, s']:.4f} s played"
        word = "within" if abs(row[OF_MEASURED] - 1) <= TOLERANCE else "NOT within"
        print(f"{row['hosts']} hosts, {row['bytes']:,} bytes, {between['rate']}: {result}, {word} {TOLERANCE:.0%}")
    show_curve(between["rate"], between)


def show_others(links: dict[str, list[dict[str, float]]]) -> None:
    """Prints how far the play is from what was measured, by kind of link."""
    for kind, rows in links.items():
        ratios = ", ".join(f"{row['hosts']} hosts {row[OF_MEASURED]:.3f}" for row in rows)
        print(f"{kind}: {OF_MEASURED}: {ratios}", flush=True)


def show_curve(name: str, played: dict[str, Any]) -> None:
    """Prints how the play grows."""
    line = "; ".join(f"{field} {value:.3g}" for field, value in played["costs"].items())
    print(f"{name}: {line}")
    for count, ratio in played[OVER_BOUND].items():
        print(f"  {count:5} nodes, {GOAL_BYTES:,} bytes: {ratio:.3f} of the bound", flush=True)
    reached = played[OVER_BOUND][GOAL_NODES]
    print(f"  {GOAL_NODES} nodes: {reached:.3f}, the goal of {GOAL} is {'met' if reached <= GOAL else 'missed'}")


def draw(name: str, figures: dict[str, Any]) -> None:
    """Time over the least possible against nodes."""
    series: dict[str, list[float]] = {}
    if "several nodes" in figures:
        between = figures["several nodes"]
        series[f"mpishare, simulated, links of {between['rate']}"] = [*between[OVER_BOUND].values()]
        series[f"mpishare, measured, links of {between['rate']}"] = measured_points(between)
    if FABRIC in figures:
        series[f"mpishare, simulated, {FABRIC}"] = [*figures[FABRIC][OVER_BOUND].values()]
    if series:
        title = f"{GOAL_BYTES >> 20} MiB to every node: simulated, and measured on few"
        lines(name, PAPER_NODES, series, "nodes", "time over bytes / bandwidth + latency x log2(nodes)", title)


if __name__ == "__main__":
    main()
