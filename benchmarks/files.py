"""A file for all ranks of a node: our load beside h5py on each rank, a map, and what an expert writes.

    python -m benchmarks.files [--rounds 9] [--ranks 4] [--mib 512] [--chunked-mib 128]

A contiguous dataset and one of compressed chunks of an HDF5 file that the kernel has in its page cache, and the
contiguous one when it has dropped it. The limit is one process that reads with h5py into an array that it has used
before. NumPy's map is of a .npy file with the same bytes, and is there before its bytes are, so each rank reads one
number of each page before the clock stops. Memory is what all ranks hold more with the array, over its bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.harness import Place

OURS = "mpishare.load"
LIMIT, MAPPED = "limit: one process, h5py, warm array", "every rank maps, numpy.load"
CONTIGUOUS, CHUNKED, COLD = "contiguous", "chunked, shuffle and lzf", "contiguous, not in the page cache"
Way = Callable[[Path, str], Any]
"""Brings a dataset of a file."""


def main() -> None:
    """Writes the file, measures on the ranks of this machine, prints and keeps."""
    options = harness.options(__doc__, ranks=4, mib=512, chunked_mib=128, file="")
    if options.inside:
        inside(options)
        return
    sizes = {CONTIGUOUS: options.mib, CHUNKED: options.chunked_mib, COLD: options.chunked_mib}
    with TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as folder:
        path = Path(folder, "file.h5")
        write(path, sizes)
        figures = Place("", options.ranks).run("files", "--rounds", str(options.rounds), "--file", str(path))
    for name, table in figures.items():
        harness.show(f"{sizes[name]} MiB, {name}, {options.ranks} ranks", table)
    harness.keep("files", {"ranks": options.ranks, "MiB": sizes, **figures})


def write(path: Path, sizes: dict[str, int]) -> None:
    """Datasets of these sizes in MiB, and the contiguous ones as .npy files beside it."""
    import h5py

    with h5py.File(path, "w") as file:
        for name, mib in sizes.items():
            array = np.arange(mib << 17).reshape(-1, 1 << 14)
            chunks = {"chunks": (8, 1 << 14), "shuffle": True, "compression": "lzf"} if name == CHUNKED else {}
            file.create_dataset(name, data=array, **chunks)
            np.save(path.with_name(f"{name}.npy"), array)


def inside(options: Any) -> None:
    """The row of each way, for all datasets."""
    from mpi4py import MPI

    comm, path = MPI.COMM_WORLD, Path(options.file)
    harness.tell(comm, {name: measure(comm, path, name, options.rounds) for name in (CONTIGUOUS, CHUNKED, COLD)})


def measure(comm: Any, path: Path, name: str, rounds: int) -> harness.Table:
    """The row of each way, for one dataset."""
    ways = {way: bring for way, bring in ways_of(comm).items() if (way, name) != (MAPPED, CHUNKED)}

    def call(bring: Way) -> harness.Call:
        def turn(_: int) -> Any:
            array = bring(path, name)
            if array is not None:
                array.reshape(-1)[::512].max()
            return array

        return turn

    def after() -> None:
        while WINDOWS:
            WINDOWS.pop().Free()
        if name == COLD and comm.rank == 0:
            for file in (path, path.with_name(f"{name}.npy")):
                drop(file)
        comm.Barrier()

    after()
    calls = {way: call(bring) for way, bring in ways.items()}
    table = harness.rows(harness.measure(comm, calls, 1, rounds, warm_up=0, after=after))
    for way, turn in calls.items():
        before = harness.held(comm)
        array = turn(0)
        held = harness.held(comm) - before
        if array is not None and array[-1, -1] != array.size - 1:
            raise SystemExit(f"{way}: the last number is {array[-1, -1]}")
        nbytes = comm.bcast(0 if array is None else array.nbytes)
        table[way]["held by all ranks, arrays"] = round(held / nbytes, 3)
        del array
        after()
    return harness.compared(table, OURS, without=[LIMIT])


def drop(file: Path) -> None:
    """Takes a file out of the page cache, once it is on the disk."""
    descriptor = os.open(file, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


WINDOWS: list[Any] = []
"""Of the last call; all ranks free them together."""


def ways_of(comm: Any) -> dict[str, Way]:
    """All ways, by name."""
    import h5py
    from mpi4py import MPI

    import mpishare as ms

    warm: dict[str, Any] = {}

    def limit(path: Path, name: str) -> Any:
        if comm.rank:
            return None
        with h5py.File(path) as file:
            if name not in warm:
                warm[name] = np.ones(file[name].shape, file[name].dtype)
            file[name].read_direct(warm[name])
        return warm[name]

    def each(path: Path, name: str) -> Any:
        with h5py.File(path) as file:
            return file[name][...]

    def mapped(path: Path, name: str) -> Any:
        return np.load(path.with_name(f"{name}.npy"), mmap_mode="r")

    def bcast(path: Path, name: str) -> Any:
        array = each(path, name) if comm.rank == 0 else None
        spec = comm.bcast(None if array is None else (array.shape, array.dtype))
        array = np.empty(*spec) if array is None else array
        comm.Bcast(array)
        return array

    def parts(path: Path, name: str) -> Any:
        with h5py.File(path) as file:
            dataset = file[name]
            WINDOWS.append(MPI.Win.Allocate_shared(0 if comm.rank else dataset.nbytes, 1, comm=comm))
            array = np.ndarray(dataset.shape, dataset.dtype, WINDOWS[-1].Shared_query(0)[0])
            own = np.s_[comm.rank * len(array) // comm.size : (comm.rank + 1) * len(array) // comm.size]
            dataset.read_direct(array, own, own)
        comm.Barrier()
        return array

    return {
        LIMIT: limit,
        OURS: lambda path, name: ms.load(path, name),
        "every rank reads, h5py": each,
        MAPPED: mapped,
        "rank 0 reads, comm.Bcast": bcast,
        "a part each, h5py, window by hand": parts,
    }


if __name__ == "__main__":
    main()
