"""What the ranks of a node hold together when each has the same array: one copy with us, one a rank without.

    mpishare run -n 4 -m benchmarks.memory [--mib 256]

Proportional set size (PSS) of all ranks, gained since before the array, once the root has dropped its own and every
rank has read all of it; while rank after rank drops its view; and after the last has. A window of MPI's and an array of
pshmem stay until all ranks free them together, which is done last. What we keep for arrays to come, at most
MPISHARE_RECYCLE, counts. Prints a table and keeps it as results/memory-RANKS.json. Goal: 1.05 times the array.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import mpishare as ms
from benchmarks.keep import keep, pss_bytes

comm = MPI.COMM_WORLD
Source = NDArray[np.uint8] | None
_kept: list[Callable[[], object]] = []
"""What frees memory that goes on all ranks at once."""


def main() -> None:
    """Measures each way; rank 0 prints and keeps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mib", type=int, default=256)
    nbytes = parser.parse_args().mib << 20
    ms.share(np.arange(10) if comm.rank == 0 else None)  # what MPI and we allocate once is there now
    ways: dict[str, Callable[[Source], NDArray[np.uint8]]] = {
        "mpishare.share": ms.share,
        "mpishare.share, memmap": lambda source: ms.share(source, backend="memmap"),
        "comm.bcast": lambda source: comm.bcast(source),
        "comm.Bcast": lambda source: _bcast(source, nbytes),
        "hand-written window": lambda source: _window(source, nbytes),
        "pshmem": lambda source: _pshmem(source, nbytes),
    }
    figures = {name: measure(way, nbytes) for name, way in ways.items()}
    info = ms.info()
    if comm.rank == 0:
        for name, row in figures.items():
            print(f"{name:24} " + "  ".join(f"{column} {value}" for column, value in row.items()))
        keep(f"memory-{comm.size}", {"array, bytes": nbytes, "ranks": comm.size, **figures}, info)


def measure(way: Callable[[Source], NDArray[np.uint8]], nbytes: int) -> dict[str, Any]:
    """What all ranks have gained, as multiples of the array: with all views, and after each rank dropped its own."""
    before = _held()
    array: NDArray[np.uint8] | None = way(np.ones(nbytes, np.uint8) if comm.rank == 0 else None)
    assert array is not None
    assert array.sum() == nbytes
    gained = [(_held() - before) / nbytes]
    for rank in range(comm.size):
        if comm.rank == rank:
            array = None
        gained.append((_held() - before) / nbytes)
    while _kept:
        _kept.pop()()
        gained[-1] = (_held() - before) / nbytes
    return {"all ranks": round(gained[0], 4), "as ranks drop it": [round(item, 3) for item in gained]}


def _bcast(source: Source, nbytes: int) -> NDArray[np.uint8]:
    array = np.empty(nbytes, np.uint8) if source is None else source
    comm.Bcast(array)
    return array


def _window(source: Source, nbytes: int) -> NDArray[np.uint8]:
    window = MPI.Win.Allocate_shared(nbytes if comm.rank == 0 else 0, 1, comm=comm)
    _kept.append(window.Free)
    memory: Any = window.Shared_query(0)[0]
    array: NDArray[np.uint8] = np.frombuffer(memory, np.uint8)
    if source is not None:
        np.copyto(array, source)
    comm.Barrier()
    return array


def _pshmem(source: Source, nbytes: int) -> NDArray[np.uint8]:
    from pshmem import MPIShared

    shared = MPIShared((nbytes,), np.uint8, comm)
    _kept.append(shared.close)
    shared.set(source, (0,), fromrank=0)
    array: NDArray[np.uint8] = shared[:]
    return array


def _held() -> float:
    """Proportional set size of all ranks, bytes."""
    gc.collect()
    comm.Barrier()
    return float(comm.allreduce(pss_bytes()))


if __name__ == "__main__":
    main()
