"""What it costs to bring a file to every rank: our load beside what else there is, on one node and over hosts.

    python -m benchmarks.files [--mib 1024] [--chunked-mib 256] [--ranks 4] [--rounds 5] [--hosts 3]
        [--rate 400mbit] [--link-mib 64]

One dataset, contiguous, and one of compressed chunks, in files that the kernel has in its page cache. Each way is a
program of its own, whose processes are ready before the clock starts: the time until the last rank has the array, what
all ranks read by system calls, and, of a second run, the most that they hold more than before: looks at their memory
take time. The limit is one process that reads with h5py into an array that it has used before. HDF5 through MPI is that
of the system, if `make .venv-mpio/ready` has set it up: once as it is used, each rank all of it, and once each rank a
part, into memory of the node. Then over hosts of one rank, by links that are held to a rate, from a file that is on the
first alone, beside one raw TCP socket and bytes over bandwidth.
Then 600 datasets of 1,000 numbers on one dimension scale, as netCDF has them, with their attributes and without.
Prints tables and keeps them as results/files.json, with a picture beside it.

Bounds: the contiguous one on 4 ranks 1.3 times the limit, 1.05 times its bytes held, each byte read once; over hosts
1.15 times bytes over bandwidth; with attributes 1.5 times the time without.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.keep import keep
from benchmarks.picture import bars
from benchmarks.places import on_cluster
from benchmarks.rivals import SOCKET, socket_way
from benchmarks.watch import READY, watched

LIMIT, EACH, BCAST, MPIO, MPIO_PARTS = (
    "one process, h5py, warm array",
    "every rank reads, h5py",
    "rank 0 reads, MPI_Bcast",
    "every rank reads, h5py mpio",
    "a part each, h5py mpio, window",
)
FRESH, RECYCLED = "mpishare.load", "mpishare.load, memory used again"
CONTIGUOUS, CHUNKED = "contiguous", "chunked, shuffle and lzf"
SCALE = "600 datasets on one scale"
Way = Callable[[str, str], Any]
"""Brings a dataset of a file."""

_ROOT = Path(__file__).parent.parent
_MPIO_PYTHON = _ROOT / ".venv-mpio" / "bin" / "python"
_MPIO_ENVIRON = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_osc": "^ucx"}
_WATCHED_ROUNDS = 3


def main() -> None:
    """Runs each way as a program of its own, then the hosts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--chunked-mib", type=int, default=256)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hosts", type=int, default=3, help="0 for none")
    parser.add_argument("--rate", default="400mbit")
    parser.add_argument("--link-mib", type=int, default=64)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    parser.add_argument("--file", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way == SCALE:
        on_scale(options.file, options.rounds)
    elif options.way:
        in_program(options.way, options.file, options.rounds)
    elif options.file:
        over_hosts(Path(options.file), options.link_mib << 20, options.rounds)
    else:
        measure(options)


def measure(options: argparse.Namespace) -> None:
    """All of it, printed and kept."""
    sizes = {CONTIGUOUS: options.mib << 20, CHUNKED: options.chunked_mib << 20}
    figures: dict[str, Any] = {"bytes": sizes, "ranks": options.ranks, "rounds": options.rounds}
    with TemporaryDirectory() as folder:
        path = Path(folder, "file.h5")
        write(path, sizes)
        for name, nbytes in sizes.items():
            figures[name], ground = ways_of(path, name, nbytes, options)
            show(f"{nbytes >> 20} MiB, {name}", figures[name])
        args = ["-m", "benchmarks.files", "--file", str(Path(folder, "scale.h5")), "--way", SCALE]
        command = [*launch(SCALE, options.ranks), *args, "--rounds", str(options.rounds)]
        figures[SCALE], _ = watched(command, _ROOT, looks=False)
        show(SCALE, figures[SCALE])
    if options.hosts:
        args = ["benchmarks.files", "--file", "hosts.h5", "--link-mib", str(options.link_mib)]
        args += ["--rounds", str(options.rounds)]
        result = on_cluster(options.hosts, "1", options.rate, args)
        bare = (options.link_mib << 20) * 8 / (int(options.rate.removesuffix("mbit")) * 1e6)
        for row in result.values():
            row["over bytes over bandwidth"] = round(row["seconds"] / bare, 3)
        show(f"{options.link_mib} MiB to {options.hosts} hosts, {options.rate}", result)
        asked = {"bytes": options.link_mib << 20, "hosts": options.hosts, "rate": options.rate}
        figures["over hosts"] = {**asked, **result}
    keep("files", figures, ground)
    series = {name: {way: row["seconds"] for way, row in figures[name].items()} for name in (CONTIGUOUS, CHUNKED)}
    bars(
        "files",
        series,
        "seconds",
        f"{' and '.join(f'{size >> 20} MiB' for size in sizes.values())} from the page cache to {options.ranks} ranks",
    )


def write(path: Path, sizes: dict[str, int]) -> None:
    """A file with both datasets, of so many bytes each, of numbers that can be compressed."""
    import h5py

    flat, chunked = (np.arange(sizes[name] // 8).reshape(-1, 1 << 14) for name in (CONTIGUOUS, CHUNKED))
    with h5py.File(path, "w") as file:
        file[CONTIGUOUS] = flat
        file.create_dataset(CHUNKED, data=chunked, chunks=(8, 1 << 14), shuffle=True, compression="lzf")


def ways_of(path: Path, name: str, nbytes: int, options: argparse.Namespace) -> tuple[dict[str, Any], Any]:
    """The figures of each way to bring the dataset `name`, and the ground."""
    matches: dict[str, Any] = {}
    ground = None
    through_mpi = [MPIO, MPIO_PARTS] if _MPIO_PYTHON.exists() else []
    for way in [LIMIT, EACH, BCAST, *through_mpi, FRESH, RECYCLED]:
        ranks = 1 if way == LIMIT else options.ranks
        args = ["-m", "benchmarks.files", "--file", f"{path}::{name}", "--way", way, "--rounds"]
        timed = [*launch(way, ranks), *args, str(options.rounds)]
        environ = _MPIO_ENVIRON if way in (MPIO, MPIO_PARTS) else None
        result, _ = watched(timed, _ROOT, environ=environ, looks=False)
        _, peak = watched([*launch(way, ranks), *args, str(_WATCHED_ROUNDS)], _ROOT, environ=environ)
        ground = result["ground"] if way == FRESH else ground
        seconds = statistics.median(result["seconds"])
        matches[way] = {"seconds": round(seconds, 4), "read, of the bytes": round(result["read"] / nbytes, 3)}
        matches[way]["peak, of the bytes"] = round(peak / nbytes, 3)
        matches[way]["of the limit"] = round(seconds / matches[LIMIT]["seconds"], 3)
    return matches, ground


def launch(way: str, ranks: int) -> list[str]:
    """What starts so many ranks of Python, the one whose h5py reads through MPI if `way` does."""
    if way in (MPIO, MPIO_PARTS):
        return ["/usr/bin/mpiexec", "--oversubscribe", "-n", str(ranks), str(_MPIO_PYTHON)]
    return [sys.executable, "-m", "mpishare", "run", "-n", str(ranks)]


def in_program(way: str, file: str, rounds: int) -> None:
    """One way; rank 0 prints the seconds of each round, and what a round read."""
    os.environ["MPISHARE_RECYCLE"] = "90%" if way == RECYCLED else "0"
    from mpi4py import MPI

    import mpishare as ms

    comm = MPI.COMM_WORLD
    path, _, name = file.partition("::")
    bring = ways(comm, ms)[way]
    ground = ms.info().as_dict()
    ms.load(path, name, region=np.s_[:1])  # h5py is imported where it will be used
    bring(path, name) if way in (LIMIT, RECYCLED) else None
    if comm.rank == 0:
        print(READY, flush=True)
        sys.stdin.readline()
    seconds = []
    comm.Barrier()
    before = read_bytes()
    for _ in range(rounds):
        comm.Barrier()
        start = time.perf_counter()
        matches = bring(path, name)
        seconds.append(comm.allreduce(time.perf_counter() - start, MPI.MAX))
        assert matches[-1, -1] == matches.size - 1
        del matches
    read = comm.allreduce(read_bytes() - before)
    if comm.rank == 0:
        print(json.dumps({"seconds": seconds, "read": read / rounds, "ground": ground}), flush=True)


def on_scale(file: str, rounds: int) -> None:
    """What attributes cost where each leads to the scale, and the scale back; rank 0 prints the figures as JSON."""
    import h5py
    from mpi4py import MPI

    import mpishare as ms

    comm = MPI.COMM_WORLD
    if comm.rank == 0:
        with h5py.File(file, "w") as new:
            new["x"] = np.arange(1000.0)
            new["x"].make_scale()
            for number in range(600):
                new[f"values {number}"] = np.arange(1000.0)
                new[f"values {number}"].dims[0].attach_scale(new["x"])
        print(READY, flush=True)
        sys.stdin.readline()
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(rounds + 1):
        for attributes, times in seconds.items():
            comm.Barrier()
            start = time.perf_counter()
            ms.load(file, attributes=attributes)
            times.append(comm.allreduce(time.perf_counter() - start, MPI.MAX))
    without, with_them = (statistics.median(times[1:]) for times in seconds.values())  # h5py is imported in the first
    figures = {
        "without attributes": {"seconds": round(without, 4)},
        "with attributes": {"seconds": round(with_them, 4)},
    }
    figures["with attributes"]["of without"] = round(with_them / without, 3)
    if comm.rank == 0:
        print(json.dumps(figures), flush=True)


def ways(comm: Any, ms: Any) -> dict[str, Way]:
    """By name."""
    import h5py

    warm: list[Any] = []

    def limit(path: str, name: str) -> Any:
        with h5py.File(path) as file:
            if not warm:
                warm.append(np.ones(file[name].shape, file[name].dtype))
            file[name].read_direct(warm[0])
        return warm[0]

    def each(path: str, name: str) -> Any:
        with h5py.File(path) as file:
            return file[name][...]

    def bcast(path: str, name: str) -> Any:
        matches = each(path, name) if comm.rank == 0 else None
        result = comm.bcast(None if matches is None else (matches.shape, matches.dtype))
        matches = np.empty(*result) if matches is None else matches
        comm.Bcast(matches)
        return matches

    def mpio(path: str, name: str) -> Any:
        with h5py.File(path, driver="mpio", comm=comm) as file, file[name].collective:
            return file[name][...]

    def mpio_parts(path: str, name: str) -> Any:
        with h5py.File(path, driver="mpio", comm=comm) as file:
            dataset = file[name]
            array = ms.empty(dataset.shape, dataset.dtype)
            own = ms.partition(len(array), scope="node")
            with dataset.collective:
                dataset.read_direct(array, own, own)
            ms.fence()
        return array

    return {
        LIMIT: limit,
        EACH: each,
        BCAST: bcast,
        MPIO: mpio,
        MPIO_PARTS: mpio_parts,
        FRESH: ms.load,
        RECYCLED: ms.load,
    }


def read_bytes() -> int:
    """What this process has read by system calls."""
    args = Path("/proc/self/io").read_text().split()
    return int(args[args.index("rchar:") + 1])


def over_hosts(path: Path, nbytes: int, rounds: int) -> None:
    """On all hosts, from a file of the first; rank 0 tells the figures as JSON."""
    from mpi4py import MPI

    import mpishare as ms

    comm = MPI.COMM_WORLD
    with TemporaryDirectory() as folder:
        file = Path(comm.bcast(folder), path.name)
        if comm.rank == 0:
            write(file, {CONTIGUOUS: nbytes, CHUNKED: nbytes})
        room = np.ones(nbytes, np.uint8)
        by_socket = socket_way(comm, ms.topology())
        tries: dict[str, Callable[[], object]] = {
            f"{FRESH}, {CONTIGUOUS}": lambda: ms.load(file, CONTIGUOUS),
            f"{FRESH}, {CHUNKED}": lambda: ms.load(file, CHUNKED),
            SOCKET: lambda: by_socket(None, room),
        }
        figures = {}
        for name, call in tries.items():
            seconds = []
            for _ in range(rounds + 1):  # the first, in which everything is new, is left out
                comm.Barrier()
                start = time.perf_counter()
                call()
                seconds.append(comm.allreduce(time.perf_counter() - start, MPI.MAX))
            figures[name] = {"seconds": round(statistics.median(seconds[1:]), 4)}
    if comm.rank == 0:
        print(json.dumps(figures))


def show(title: str, figures: dict[str, dict[str, float]]) -> None:
    """Prints one table."""
    print(f"\n{title}")
    for name, row in figures.items():
        print(f"  {name:42} " + "  ".join(f"{value:8.3f} {what}" for what, value in row.items()), flush=True)


if __name__ == "__main__":
    main()
