"""What it costs to bring a file to every rank: our load beside what else there is, on one node and over hosts.

    python -m benchmarks.files [--mib 512] [--chunked-mib 128] [--ranks 4] [--rounds 9] [--hosts 3]
        [--rate 400mbit] [--link-mib 64]

Contiguous datasets of three sizes, and one of compressed chunks, in files that the kernel has in its page cache, and
then a contiguous one that was dropped from it: read from the disk says whether it was. Each way runs in programs of its
own, three times, in an order that changes, whose processes are ready before the clock starts: the time until the last
rank has the array, what all ranks read by system calls, and, of one more run, the most that they hold more than before:
looks at their memory take time. The limit is one process that reads with h5py into an array that it has used before.
NumPy's memory map is of a .npy file with the same bytes. As a map is there before its bytes are, each rank of each way
reads one number of each page before the clock stops. HDF5 through MPI is that of the system, if
`make .venv-mpio/ready` has set it up: once as it is used, each rank all of it, and once each rank a part, into a
hand-written window of the node, as by plain h5py, too. Then over hosts of one rank, by links that are held to a rate,
from a file that is on the first alone, beside one raw TCP socket and bytes over bandwidth. Then 600
datasets of 1,000 numbers on one dimension scale, as netCDF has them, with their attributes and without. Prints tables
and keeps them as results/files.json, with a picture beside it.

What they cannot do: a map and h5py read no file that is on another host's disk, and a map reads no HDF5.

Goals: the contiguous one on 4 ranks 1.3 times the limit, 1.05 times its bytes held, each byte read once; over hosts
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
from benchmarks.rounds import in_blocks, order, seconds_row
from benchmarks.watch import READY, watched

LIMIT, EACH, MAPPED, BCAST, PARTS, MPIO, MPIO_PARTS = (
    "one process, h5py, warm array",
    "every rank reads, h5py",
    "every rank maps, numpy.load",
    "rank 0 reads, MPI_Bcast",
    "a part each, h5py, window",
    "every rank reads, h5py mpio",
    "a part each, h5py mpio, window",
)
LOADED, LOADED_AGAIN = "mpishare.load", "mpishare.load, memory used again"
CONTIGUOUS, CHUNKED = "contiguous", "chunked, shuffle and lzf"
SMALL, MIDDLE, COLD = "contiguous, 1 MiB", "contiguous, 32 MiB", "contiguous, not in the page cache"
FROM_DISK = "read from the disk, of the bytes"
STORED = "chunked, stored over bytes"
SCALE = "600 datasets on one scale"
Way = Callable[[str, str], Any]
"""Brings a dataset of a file."""

_ROOT = Path(__file__).parent.parent
_MPIO_PYTHON = _ROOT / ".venv-mpio" / "bin" / "python"
_MPIO_ENVIRON = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_osc": "^ucx"}
_PAGE_BYTES, _BETWEEN = 4096, "|"


def main() -> None:
    """Runs each way as a program of its own, then the hosts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--chunked-mib", type=int, default=128)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--hosts", type=int, default=3, help="0 for none")
    parser.add_argument("--rate", default="400mbit")
    parser.add_argument("--link-mib", type=int, default=64)
    parser.add_argument("--name", default="files", help="of the result (default: %(default)s)")
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
    sizes = {SMALL: 1 << 20, MIDDLE: 32 << 20, CONTIGUOUS: options.mib << 20, CHUNKED: options.chunked_mib << 20}
    sizes[COLD] = options.chunked_mib << 20
    figures: dict[str, Any] = {"bytes": sizes, "ranks": options.ranks, "rounds": options.rounds}
    figures["not installed"] = [] if _MPIO_PYTHON.exists() else [MPIO, MPIO_PARTS]
    with TemporaryDirectory() as folder:
        path = Path(folder, "file.h5")
        figures[STORED] = write(path, sizes)
        tables, ground = ways_of(path, sizes, options)
        for name, table in tables.items():
            show(f"{sizes[name] >> 20} MiB, {name}", table)
        figures |= tables
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
    keep(options.name, figures, ground)
    drawn = (CONTIGUOUS, CHUNKED)
    series = {name: {way: row["seconds"] for way, row in figures[name].items()} for name in drawn}
    title = " and ".join(f"{sizes[name] >> 20} MiB" for name in drawn)
    bars(options.name, series, "time, s", f"{title} from the page cache to {options.ranks} ranks")


def write(path: Path, sizes: dict[str, int]) -> float:
    """A file with datasets of so many bytes each, of numbers one after the other; beside it some for NumPy.

    Returns:
        What the compressed dataset takes in the file, over its bytes.
    """
    import h5py

    with h5py.File(path, "w") as file:
        for name, nbytes in sizes.items():
            array = np.arange(nbytes // 8).reshape(-1, 1 << 14)
            chunks = {"chunks": (8, 1 << 14), "shuffle": True, "compression": "lzf"} if name == CHUNKED else {}
            file.create_dataset(name, data=array, **chunks)
            if name != CHUNKED:
                np.save(sibling(path, name), array)
        return round(float(file[CHUNKED].id.get_storage_size()) / sizes[CHUNKED], 4)


def sibling(path: Path, name: str) -> Path:
    """The same for NumPy."""
    return path.with_name(f"{name}.npy")


def drop(path: Path) -> None:
    """Takes the files out of the page cache, once they are on the disk."""
    for file in (path, sibling(path, COLD)):
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def ways_of(path: Path, sizes: dict[str, int], options: argparse.Namespace) -> tuple[dict[str, Any], Any]:
    """The figures of each way to bring each dataset, and the ground."""
    ways = [
        LIMIT,
        EACH,
        MAPPED,
        BCAST,
        PARTS,
        *([MPIO, MPIO_PARTS] if _MPIO_PYTHON.exists() else []),
        LOADED,
        LOADED_AGAIN,
    ]
    results: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}

    def names_of(way: str) -> list[str]:
        return [name for name in sizes if (way, name) != (MAPPED, CHUNKED)]

    def result_of(way: str, names: list[str], rounds: int, *, looks: bool) -> tuple[dict[str, Any], int]:
        args = ["--file", f"{path}::{_BETWEEN.join(names)}", "--way", way, "--rounds", str(rounds)]
        command = [*launch(way, 1 if way == LIMIT else options.ranks), "-m", "benchmarks.files", *args]
        return watched(command, _ROOT, environ=_MPIO_ENVIRON if way in (MPIO, MPIO_PARTS) else None, looks=looks)

    for number, rounds in enumerate(in_blocks(options.rounds)):
        for way in order(ways, number):
            results[way].append(result_of(way, names_of(way), rounds, looks=False)[0])
    tables: dict[str, Any] = {name: {} for name in sizes}
    for way in ways:
        for name in names_of(way):
            parts = [result[name] for result in results[way]]
            row = seconds_row([taken for part in parts for taken in part["seconds"]])
            row["read, of the bytes"] = round(parts[0]["read"] / sizes[name], 3)
            row[FROM_DISK] = round(parts[0]["from disk"] / sizes[name], 3)
            if name in (CONTIGUOUS, CHUNKED):
                row["peak, of the bytes"] = round(result_of(way, [name], 1, looks=True)[1] / sizes[name], 3)
            tables[name][way] = row
            row["of the limit"] = round(row["seconds"] / tables[name][LIMIT]["seconds"], 3)
    return tables, results[LOADED][0]["ground"]


def launch(way: str, ranks: int) -> list[str]:
    """What starts so many ranks of Python, the one whose h5py reads through MPI if `way` does."""
    if way in (MPIO, MPIO_PARTS):
        return ["/usr/bin/mpiexec", "--oversubscribe", "-n", str(ranks), str(_MPIO_PYTHON)]
    return [sys.executable, "-m", "mpishare", "run", "-n", str(ranks)]


def in_program(way: str, file: str, rounds: int) -> None:
    """One way; rank 0 prints the seconds of each round, and what a round read."""
    os.environ["MPISHARE_RECYCLE"] = "90%" if way == LOADED_AGAIN else "0"
    from mpi4py import MPI

    import mpishare as ms

    comm = MPI.COMM_WORLD
    path, _, names = file.partition("::")
    bring = ways(comm, ms)[way]
    result: dict[str, Any] = {"ground": ms.info().as_dict()}
    ms.load(path, names.split(_BETWEEN)[0], region=np.s_[:1])  # h5py is imported where it will be used
    if comm.rank == 0:
        print(READY, flush=True)
        sys.stdin.readline()
    for name in names.split(_BETWEEN):
        result[name] = measured(comm, bring, path, name, rounds)
    if comm.rank == 0:
        print(json.dumps(result), flush=True)


def measured(comm: Any, bring: Way, path: str, name: str, rounds: int) -> dict[str, Any]:
    """The seconds of each round but the first, and what a round read."""
    from mpi4py import MPI

    seconds, before = [], read_bytes()
    for _ in range(rounds + 1):
        if name == COLD and comm.rank == 0:
            drop(Path(path))
        comm.Barrier()
        start = time.perf_counter()
        matches = bring(path, name)
        matches.reshape(-1)[:: _PAGE_BYTES // matches.itemsize].max()
        seconds.append(comm.allreduce(time.perf_counter() - start, MPI.MAX))
        assert matches[-1, -1] == matches.size - 1
        del matches
        comm.Barrier()
        while _windows:
            _windows.pop().Free()
    read, from_disk = (comm.allreduce(float(value)) / (rounds + 1) for value in read_bytes() - before)
    return {"seconds": seconds[1:], "read": read, "from disk": from_disk}


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
    for number in range(rounds + 1):
        for attributes in (False, True) if number % 2 else (True, False):
            comm.Barrier()
            start = time.perf_counter()
            ms.load(file, attributes=attributes)
            seconds[attributes].append(comm.allreduce(time.perf_counter() - start, MPI.MAX))
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

    warm: dict[str, Any] = {}

    def limit(path: str, name: str) -> Any:
        with h5py.File(path) as file:
            if name not in warm:
                warm[name] = np.ones(file[name].shape, file[name].dtype)
            file[name].read_direct(warm[name])
        return warm[name]

    def each(path: str, name: str) -> Any:
        with h5py.File(path) as file:
            return file[name][...]

    def mapped(path: str, name: str) -> Any:
        return np.load(sibling(Path(path), name), mmap_mode="r")

    def bcast(path: str, name: str) -> Any:
        matches = each(path, name) if comm.rank == 0 else None
        result = comm.bcast(None if matches is None else (matches.shape, matches.dtype))
        matches = np.empty(*result) if matches is None else matches
        comm.Bcast(matches)
        return matches

    def mpio(path: str, name: str) -> Any:
        with h5py.File(path, driver="mpio", comm=comm) as file, file[name].collective:
            return file[name][...]

    def own_part(dataset: Any) -> Any:
        array = _window(comm, dataset)
        own = np.s_[comm.rank * len(array) // comm.size : (comm.rank + 1) * len(array) // comm.size]
        dataset.read_direct(array, own, own)
        return array

    def parts(path: str, name: str) -> Any:
        with h5py.File(path) as file:
            array = own_part(file[name])
        comm.Barrier()
        return array

    def mpio_parts(path: str, name: str) -> Any:
        with h5py.File(path, driver="mpio", comm=comm) as file, file[name].collective:
            array = own_part(file[name])
        comm.Barrier()
        return array

    return {
        LIMIT: limit,
        EACH: each,
        MAPPED: mapped,
        BCAST: bcast,
        PARTS: parts,
        MPIO: mpio,
        MPIO_PARTS: mpio_parts,
        LOADED: ms.load,
        LOADED_AGAIN: ms.load,
    }


_windows: list[Any] = []
"""Of one call, freed when the clock has stopped."""


def _window(comm: Any, dataset: Any) -> Any:
    """A new array in a window of all ranks, which are those of one node."""
    from mpi4py import MPI

    _windows.append(MPI.Win.Allocate_shared(0 if comm.rank else dataset.nbytes, 1, comm=comm))
    return np.ndarray(dataset.shape, dataset.dtype, _windows[-1].Shared_query(0)[0])


def read_bytes() -> Any:
    """What this process has read by system calls, and of that, or of its maps, from a disk."""
    args = Path("/proc/self/io").read_text().split()
    return np.array([int(args[args.index(field) + 1]) for field in ("rchar:", "read_bytes:")])


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
            f"{LOADED}, {CONTIGUOUS}": lambda: ms.load(file, CONTIGUOUS),
            f"{LOADED}, {CHUNKED}": lambda: ms.load(file, CHUNKED),
            SOCKET: lambda: by_socket(None, room),
        }
        seconds: dict[str, list[float]] = {name: [] for name in tries}
        for number in range(rounds + 1):  # the first, in which everything is new, is left out
            for name in order(tries, number):
                comm.Barrier()
                start = time.perf_counter()
                tries[name]()
                seconds[name].append(comm.allreduce(time.perf_counter() - start, MPI.MAX))
        figures = {name: seconds_row(taken[1:]) for name, taken in seconds.items()}
    if comm.rank == 0:
        print(json.dumps(figures))


def show(title: str, figures: dict[str, dict[str, float]]) -> None:
    """Prints one table."""
    print(f"\n{title}")
    for name, row in figures.items():
        print(f"  {name:42} " + "  ".join(f"{value:8.3f} {column}" for column, value in row.items()), flush=True)


if __name__ == "__main__":
    main()
