"""What a message of an array costs: ours beside MPI's own with buffers that both sides know, and beside pickles.

    mpishare run -n 2 -m benchmarks.messages [--powers 3,6,10,13,16,20,22,24,26,28] [--rounds 9] [--gib 1]
    python -m benchmarks.messages --hosts    the same between two hosts, and compression on links of 400 Mbit/s

Rank 0 sends to rank 1, which sends back; half of that is the time of one message. Of more ranks all pairs do so at
once. Each round times every way, in an order that changes, and each message is another array. Where the receiver does
not know what comes, as with ours, MPI's own means are Mprobe, a new array, and Recv; both stand beside ours. Prints a
table and keeps it as results/messages.json, or messages-hosts.json, with a picture beside it.

Goals on 2 ranks of 2 cores, of medians: 8 B to 1 KiB in 2.5 us, and in 0.3 of lower-case send and recv, 8 B in 0.25;
64 KiB in 1.25 of Send and Recv; from 1 MiB on in 1.05 of that; the peak memory of a 1 GiB recv 8 MiB over the array.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.keep import keep, peak_bytes
from benchmarks.picture import lines
from benchmarks.rounds import MEDIAN, order, row

Figures = dict[str, dict[str, float]]
Way = tuple[Callable[[NDArray[Any]], object], Callable[[NDArray[Any]], object]]
"""How an array is sent, and how one is received where there is room for it."""

KNOWN, PROBED, OURS, OURS_OUT, PICKLED, PKL5 = (
    "Send, Recv, known buffers",
    "Send, Mprobe, Recv, new array",
    "mpishare",
    "mpishare, out=",
    "send, recv, pickled",
    "pkl5",
)
OVER_KNOWN = f"of {KNOWN}"
STRIDED = "every second of 1,048,576 float64"
AUTO, AS_THEY_ARE, OF_PLAIN = "compress='auto'", "as they are", "of as they are"
_ARRAYS = 3
_SLOW = "400mbit"
_TAG = 7


def main() -> None:
    """Measures here, or on two hosts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--powers", default="3,6,10,13,16,20,22,24,26,28", help="sizes, powers of two")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--gib", type=float, default=1, help="of the recv whose memory is looked at")
    parser.add_argument("--hosts", action="store_true", help="between two hosts of tests/cluster")
    parser.add_argument("--name", default="messages", help="of the result (default: %(default)s)")
    parser.add_argument("--inside", choices=["messages", "compression"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = [1 << int(power) for power in options.powers.split(",")]
    if options.hosts:
        between_hosts(options)
    elif options.inside == "compression":
        tell(compression(options.rounds))
    elif options.inside:
        tell({f"{nbytes:,} bytes": measure(nbytes, options.rounds) for nbytes in sizes})
    else:
        on_one_node(sizes, options.rounds, options.gib, options.name)


def on_one_node(sizes: list[int], rounds: int, gib: float, result: str) -> None:
    """All sizes, layouts that are not contiguous, and memory."""
    from mpi4py import MPI

    import mpishare as ms

    rank = MPI.COMM_WORLD.rank
    figures: dict[str, Any] = {}
    for nbytes in sizes:
        name = f"{nbytes:,} bytes"
        figures[name] = measure(nbytes, rounds)
        if rank == 0:
            show(name, figures[name])
    figures[STRIDED] = strided(rounds)
    figures[f"memory of a recv of {gib:g} GiB"] = {OURS: {"over the array, MiB": memory(int(gib * (1 << 30)))}}
    info = ms.info()
    if rank == 0:
        for name in list(figures)[len(sizes) :]:
            show(name, figures[name])
        keep(result, figures, info)
        draw(result, sizes, figures, "A message from rank to rank of one node")


def between_hosts(options: argparse.Namespace) -> None:
    """The same sizes between two hosts, on links held to a rate and free; then compression."""
    from benchmarks.places import on_cluster

    args = ["--powers", options.powers.replace(",28", ""), "--rounds", str(options.rounds)]
    figures, ground = {}, {}
    for rate in ("", _SLOW):
        rounds = args if not rate else ["--powers", "10,20,22", "--rounds", str(min(options.rounds, 9))]
        result = on_cluster(2, "1", rate, ["benchmarks.messages", "--inside", "messages", *rounds])
        ground = result["ground"]
        figures[rate or "free"] = result["figures"]
        for name, table in result["figures"].items():
            show(f"2 hosts, {rate or 'free'}, {name}", table)
    result = on_cluster(
        2, "1", _SLOW, ["benchmarks.messages", "--inside", "compression", "--rounds", str(min(options.rounds, 9))]
    )
    figures["compression"] = result["figures"]
    for name, table in result["figures"].items():
        show(name, table)
    keep("messages-hosts", figures, ground)


def tell(figures: Any) -> None:
    """Rank 0 of a cluster tells what was measured."""
    from mpi4py import MPI

    import mpishare as ms

    ground = ms.info().as_dict()
    if MPI.COMM_WORLD.rank == 0:
        print(json.dumps({"figures": figures, "ground": ground}))


def ways() -> dict[str, Way]:
    """All ways, by name."""
    from mpi4py import MPI
    from mpi4py.util import pkl5

    import mpishare as ms

    comm = MPI.COMM_WORLD
    peer = comm.rank ^ 1
    buffered = pkl5.Intracomm(comm)

    def probed(_: Any) -> NDArray[Any]:
        status = MPI.Status()
        message = comm.Mprobe(peer, _TAG, status)
        array = np.empty(status.Get_count(MPI.BYTE) // 8)
        message.Recv(array)
        return array

    return {
        KNOWN: (lambda array: comm.Send(array, peer, _TAG), lambda room: comm.Recv(room, peer, _TAG)),
        PROBED: (lambda array: comm.Send(array, peer, _TAG), probed),
        OURS: (lambda array: ms.send(array, peer), lambda room: ms.recv(peer)),
        OURS_OUT: (lambda array: ms.send(array, peer), lambda room: ms.recv(peer, out=room)),
        PICKLED: (lambda array: comm.send(array, peer, _TAG), lambda room: comm.recv(None, peer, _TAG)),
        PKL5: (lambda array: buffered.send(array, peer, _TAG), lambda room: buffered.recv(None, peer, _TAG)),
    }


def measure(nbytes: int, rounds: int) -> Figures:
    """The time of one message by each way, over that with known buffers, and the bytes a second."""
    from mpi4py import MPI

    room = np.ones(nbytes // 8)
    arrays = [np.full(nbytes // 8, float(number)) for number in range(_ARRAYS)]
    repeats = max(2, min(2000, (16 << 20) // nbytes))
    return table(MPI.COMM_WORLD, {name: (way, arrays, room) for name, way in ways().items()}, rounds, repeats, KNOWN)


def strided(rounds: int) -> Figures:
    """An array that is not contiguous: by a copy, as we send it, and by a derived datatype."""
    from mpi4py import MPI

    import mpishare as ms

    comm = MPI.COMM_WORLD
    peer = comm.rank ^ 1
    count = 1 << 20
    arrays, room = [np.full(2 * count, float(number))[::2] for number in range(_ARRAYS)], np.ones(count)
    vector = MPI.DOUBLE.Create_vector(count, 1, 2).Commit()
    by_type: Way = (
        lambda array: comm.Send([array.base, 1, vector], peer, _TAG),
        lambda room: comm.Recv(room, peer, _TAG),
    )
    ours: Way = (lambda array: ms.send(array, peer), lambda _: ms.recv(peer))
    matches = table(comm, {OURS: (ours, arrays, room), "derived datatype": (by_type, arrays, room)}, rounds, 5, OURS)
    vector.Free()
    return matches


def table(
    comm: Any, matches: dict[str, tuple[Way, list[NDArray[Any]], NDArray[Any]]], rounds: int, repeats: int, limit: str
) -> Figures:
    """Times every way between ranks 0 and 1, 2 and 3, and so on, at the same time."""
    times: dict[str, list[float]] = {name: [] for name in matches}
    for number in range(rounds + 1):  # the first round, in which everything is new, is left out
        for name in order(matches, number):
            (send, receive), arrays, room = matches[name]
            comm.Barrier()
            start = time.perf_counter()
            for turn in range(number * repeats, (number + 1) * repeats):
                if comm.rank % 2 == 0:
                    send(arrays[turn % len(arrays)])
                    receive(room)
                else:
                    receive(room)
                    send(arrays[turn % len(arrays)])
            times[name].append(comm.allreduce(time.perf_counter() - start, max) / repeats / 2)
    rows = {name: row(taken[1:]) for name, taken in times.items()}
    nbytes = matches[limit][2].nbytes
    for figures in rows.values():
        figures[f"of {limit}"] = round(figures[MEDIAN] / rows[limit][MEDIAN], 3)
        figures["GB/s"] = round(nbytes / figures[MEDIAN] / 1e6, 3)
    return rows


def memory(nbytes: int) -> float:
    """What rank 1 holds at most while it receives so many bytes, over the array, in MiB."""
    from mpi4py import MPI

    import mpishare as ms

    comm = MPI.COMM_WORLD
    over = 0.0
    if comm.rank == 0:
        ms.send(np.ones(1), 1)
        ms.send(np.ones(nbytes // 8), 1)
    elif comm.rank == 1:
        ms.recv(0)
        before = peak_bytes(reset=True)
        array = ms.recv(0)
        over = (peak_bytes() - before - array.nbytes) / (1 << 20)
    return float(round(comm.bcast(over, 1), 2))


def compression(rounds: int) -> dict[str, Any]:
    """32 MiB over a slow link with compress="auto" and without: what shrinks, and what does not."""
    from mpi4py import MPI

    import mpishare as ms

    comm = MPI.COMM_WORLD
    count = 4 << 20
    noise = np.random.default_rng(1)
    kinds: dict[str, list[NDArray[Any]]] = {
        "compressible": [np.repeat(noise.integers(0, 256, count // 8), 8) for _ in range(_ARRAYS)],
        "incompressible": [noise.standard_normal(count) for _ in range(_ARRAYS)],
    }
    figures: dict[str, Any] = {}
    for name, arrays in kinds.items():
        times: dict[str, list[float]] = {AS_THEY_ARE: [], AUTO: []}
        for number in range(rounds + 1):
            for way in order(times, number):
                comm.Barrier()
                start = time.perf_counter()
                if comm.rank == 0:
                    ms.send(arrays[number % _ARRAYS], 1, compress="auto" if way == AUTO else None)
                    comm.recv(None, 1)
                else:
                    ms.recv(0)
                    comm.send(None, 0)
                times[way].append(time.perf_counter() - start)
        rows = {way: row(taken[1:]) for way, taken in times.items()}
        rows[AUTO][OF_PLAIN] = round(rows[AUTO][MEDIAN] / rows[AS_THEY_ARE][MEDIAN], 3)
        rows[AUTO]["lz4's ratio"] = round(_shrunk(arrays[0]), 3)
        figures[f"32 MiB, {name}"] = rows
    return figures


def _shrunk(array: NDArray[Any]) -> float:
    import lz4.block

    return len(lz4.block.compress(array.tobytes())) / array.nbytes


def show(name: str, figures: Figures) -> None:
    """Prints one table."""
    print(f"\n{name}")
    for way, values in figures.items():
        print(
            f"  {way:30} "
            + "  ".join(f"{value:13,.4f} {column}" for column, value in values.items() if "quartile" not in column),
            flush=True,
        )


def draw(name: str, sizes: list[int], figures: dict[str, Figures], title: str) -> None:
    """Time against bytes."""
    tables = [figures[f"{nbytes:,} bytes"] for nbytes in sizes]
    series = {way: [table[way][OVER_KNOWN] for table in tables] for way in tables[0] if way != KNOWN}
    lines(name, sizes, series, "bytes", "time of a message over that into known buffers", title)


if __name__ == "__main__":
    main()
