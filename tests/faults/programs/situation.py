"""Shares 64 MiB on all ranks, first as it comes and then in a file; rank 0 prints what came of it, as JSON.

Every rank compares every byte.
"""

import json

import numpy as np
from mpi4py import MPI

import mpishare as ms
from tests.processes import proportional_bytes

NBYTES, BLOCK = 64 << 20, 1 << 17
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


outcome(None, 4 << 20)  # what is allocated once is there now
outcomes = {backend or "default": outcome(backend, NBYTES) for backend in (None, "memmap")}
result = {"nodes": ms.topology().n_nodes, "outcomes": outcomes}
info = ms.info(probe=True)
if comm.rank == 0:
    print(json.dumps({**result, "info": info.as_dict()}))
