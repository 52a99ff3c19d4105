"""One node: the time until every rank has the root's array, and the memory it then takes, beside what else is used.

    python -m benchmarks.share [--rounds 9] [--ranks 2] [--powers 10,16,20,22,24,26,28] [--mib 256]

Each way brings another array in each call and ends with a barrier. "new" ways take memory that nobody used before,
"kept" ways an array that was made before and that all ranks still see; MPISHARE_RECYCLE is as it is by default, but for
our way with new memory. Memory is what 1 to 8 ranks hold together, over the array, once the root has dropped its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.harness import Bytes, Place, Sources

MEMCPY = "limit: one warm memcpy"
MEMORY_RANKS = (1, 2, 4, 8)
OURS, OURS_NEW, OURS_KEPT = "mpishare.share", "mpishare.share, new memory", "mpishare.zeros and fence, kept"
BY_HAND = "window by hand, kept"
Way = Callable[[Bytes | None], Bytes]

_new: list[Any] = []
"""What "new" ways have made in a call: windows and arrays of pshmem live until all ranks free them together."""


def main() -> None:
    """Measures on the ranks of this machine, prints and keeps."""
    options = harness.options(__doc__, ranks=2, powers="10,16,20,22,24,26,28", mib=256)
    if options.inside:
        inside(options)
        return
    args = ["--rounds", str(options.rounds), "--powers", options.powers]
    times = Place("", options.ranks).run("share", *args)
    for size, table in times.items():
        harness.show(f"{size} to {options.ranks} ranks", table)
    memory = {}
    for ranks in MEMORY_RANKS:
        memory[str(ranks)] = Place("", ranks).run("share", "--mib", str(options.mib), "--powers", "")
        harness.show(f"{options.mib} MiB for {ranks} ranks", memory[str(ranks)])
    harness.keep("share", {"ranks": options.ranks, "times": times, "memory, MiB": options.mib, "memory": memory})


def inside(options: Any) -> None:
    """All sizes, or memory where there are none."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    if options.powers:
        sizes = harness.powers(options.powers)
        harness.tell(comm, {harness.size_of(nbytes): measure(comm, nbytes, options.rounds) for nbytes in sizes})
    else:
        nbytes = options.mib << 20
        ways = ways_of(comm, nbytes)
        harness.tell(comm, {name: memory(comm, ways[name], nbytes) for name in ways if is_new(name)})


def is_new(name: str) -> bool:
    """Whether a way's memory is not there before the call."""
    return name != MEMCPY and not name.endswith("kept")


def measure(comm: Any, nbytes: int, rounds: int) -> dict[str, harness.Row]:
    """The row of each way, for one size."""
    sources, ways = Sources(comm, nbytes), ways_of(comm, nbytes)

    def call(way: Way) -> Callable[[int], Any]:
        def turn(number: int) -> Any:
            array = way(sources.get(number))
            comm.Barrier()
            return array

        return turn

    calls = {name: call(way) for name, way in ways.items()}
    times = harness.measure(comm, calls, harness.repeats(nbytes, 200), rounds, after=free)
    for name in [*calls][1:]:  # all but one memcpy, on the root alone
        sources.check(comm, name, calls[name])
    free()
    return harness.compared(harness.rows(times), OURS, without=[MEMCPY])


def ways_of(comm: Any, nbytes: int) -> dict[str, Way]:
    """All ways, by name; the memory of those that keep theirs is made here."""
    from mpi4py.util.pkl5 import Intracomm as Pkl5

    import mpishare as ms

    kept, new = np.ones(nbytes, np.uint8), without_reuse(comm)
    ours = ms.zeros(nbytes, np.uint8)
    window, shared = make_window(comm, nbytes)[1], make_pshmem(comm, nbytes)

    def by_window(source: Bytes | None) -> Bytes:
        made, array = make_window(comm, nbytes)
        _new.append(made.Free)
        return filled(array, source)

    def by_pshmem(source: Bytes | None) -> Bytes:
        made = make_pshmem(comm, nbytes)
        _new.append(made.close)
        return set_pshmem(made, source)

    return {
        MEMCPY: lambda source: filled(kept, source),
        OURS: ms.share,
        OURS_NEW: lambda source: ms.share(source, comm=new),
        OURS_KEPT: lambda source: fenced(filled(ours, source)),
        "comm.bcast, pickled": comm.bcast,
        "mpi4py.util.pkl5 bcast": Pkl5(comm).bcast,
        "comm.Bcast": lambda source: bcast(comm, np.empty(nbytes, np.uint8) if source is None else source),
        "comm.Bcast, kept": lambda source: bcast(comm, kept if source is None else source),
        "window by hand, new": by_window,
        BY_HAND: lambda source: filled(window, source),
        "pshmem, new": by_pshmem,
        "pshmem, kept": lambda source: set_pshmem(shared, source),
    }


def without_reuse(comm: Any) -> Any:
    """The same ranks with MPISHARE_RECYCLE=0, which is read when a communicator is first used."""
    import mpishare as ms

    before = os.environ.get("MPISHARE_RECYCLE")
    os.environ["MPISHARE_RECYCLE"] = "0"
    duplicate = comm.Dup()
    ms.topology(duplicate)
    del os.environ["MPISHARE_RECYCLE"]
    os.environ.update({} if before is None else {"MPISHARE_RECYCLE": before})
    return duplicate


def bcast(comm: Any, array: Bytes) -> Bytes:
    """MPI_Bcast into an array of each rank."""
    comm.Bcast(array)
    return array


def filled(array: Bytes, source: Bytes | None) -> Bytes:
    """The array, into which the root has copied."""
    if source is not None:
        np.copyto(array, source)
    return array


def fenced(array: Bytes) -> Bytes:
    """The array, once all ranks see what the root has written."""
    import mpishare as ms

    ms.fence()
    return array


def make_window(comm: Any, nbytes: int) -> tuple[Any, Bytes]:
    """The lines that everybody writes."""
    from mpi4py import MPI

    window = MPI.Win.Allocate_shared(nbytes if comm.rank == 0 else 0, 1, comm=comm)
    memory: Any = window.Shared_query(0)[0]
    return window, np.frombuffer(memory, np.uint8)


def make_pshmem(comm: Any, nbytes: int) -> Any:
    """An array of pshmem."""
    from pshmem import MPIShared

    return MPIShared((nbytes,), np.uint8, comm)


def set_pshmem(shared: Any, source: Bytes | None) -> Bytes:
    """Its set, and a view of it."""
    shared.set(source, (0,), fromrank=0)
    array: Bytes = shared[:]
    return array


def free() -> None:
    """Frees what the last call made."""
    while _new:
        _new.pop()()


def memory(comm: Any, way: Way, nbytes: int) -> harness.Row:
    """What all ranks hold more with the array than without it, over the array."""
    before = harness.held(comm)
    array = way(np.ones(nbytes, np.uint8) if comm.rank == 0 else None)
    comm.Barrier()
    assert array.sum(dtype=int) == nbytes
    held = round((harness.held(comm) - before) / nbytes, 3)
    del array
    free()
    return {"held by all ranks, arrays": held}


if __name__ == "__main__":
    main()
