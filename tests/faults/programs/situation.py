"""Shares 64 MiB on all ranks, first as it comes and then in a file; rank 0 prints what came of it, as JSON.

Every rank compares every byte. With argv[1], a number of rounds, it shares 256 MiB, and then times in turn, in
milliseconds until the last rank is done: a share in fresh memory, one in memory that is used again, and one memcpy on
rank 0. Then what `private` of 1 GiB in a nameless file takes.
"""

import json
import os
import statistics
import sys
import time

import numpy as np
from mpi4py import MPI

import mpishare as ms
from tests.processes import anonymous_bytes, proportional_bytes

NBYTES, BLOCK = (256 if len(sys.argv) > 1 else 64) << 20, 1 << 17
comm = MPI.COMM_WORLD


def numbers(first, count):
    """The items of the array from `first` on: no two of the same value."""
    return np.arange(first, first + count)


def outcome(backend, nbytes):
    """The backends of the ranks, whether all bytes are right on all, and the memory held over the array's."""
    before = proportional_bytes(comm)
    array = ms.share(numbers(0, nbytes // 8) if comm.rank == 0 else None, backend=backend)
    firsts = range(0, array.size, BLOCK)
    is_right = all(np.array_equal(array[first : first + BLOCK], numbers(first, BLOCK)) for first in firsts)
    gained = proportional_bytes(comm) - before
    segment = ms.report().segments[0]
    return {
        "kinds": sorted(set(comm.allgather(segment.backend))),
        "refusals": segment.refusals,
        "right": comm.allreduce(is_right, MPI.LAND),
        "memory over the array": round(gained / nbytes, 4),
    }


def timed(call):
    """Milliseconds until the last rank is done."""
    comm.Barrier()
    start = time.perf_counter()
    kept = call()
    taken = comm.allreduce(time.perf_counter() - start, MPI.MAX) * 1e3
    comm.Barrier()
    del kept
    return taken


def private(rounds):
    """The median time of the slowest rank, in milliseconds, and the most memory that one then holds, in MiB."""
    array = ms.empty(1 << 30, "u1", backend="memmap")
    taken, before = [], anonymous_bytes()
    for _ in range(rounds):
        start = time.perf_counter()
        view = ms.private(array)
        taken.append((time.perf_counter() - start) * 1e3)
    view[0] = 1
    gained = (anonymous_bytes() - before) / (1 << 20)
    return round(comm.allreduce(statistics.median(taken), MPI.MAX), 3), round(comm.allreduce(gained, MPI.MAX), 3)


def times(rounds):
    """Of each way the times of all rounds but the first, in which everything is new."""
    os.environ["MPISHARE_RECYCLE"] = "0"
    fresh = comm.Dup()
    ms.topology(fresh)
    os.environ["MPISHARE_RECYCLE"] = "50%"
    again = comm.Dup()
    ms.topology(again)
    source = numbers(0, NBYTES // 8 if comm.rank == 0 else 0)
    warm = np.ones_like(source)
    calls = {
        "fresh": lambda: ms.share(source if source.size else None, comm=fresh),
        "again": lambda: ms.share(source if source.size else None, comm=again),
        "memcpy": lambda: np.copyto(warm, source),
    }
    taken = [{name: timed(call) for name, call in calls.items()} for _ in range(rounds + 1)][1:]
    return {name: [round(turn[name], 3) for turn in taken] for name in calls}


outcome(None, 4 << 20)  # what is allocated once is there now
outcomes = {backend or "default": outcome(backend, NBYTES) for backend in (None, "memmap")}
result = {"nodes": ms.topology().n_nodes, "outcomes": outcomes}
if len(sys.argv) > 1:
    result["ms"] = times(int(sys.argv[1]))
    result["private"] = private(int(sys.argv[1]))
info = ms.info()
if comm.rank == 0:
    print(json.dumps({**result, "info": str(info), "ground": info.as_dict()}))
