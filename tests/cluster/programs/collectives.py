"""Reduces or gathers argv[2] MiB by argv[1]; prints what each host's link received and sent meanwhile, as JSON."""

import json
import sys

import numpy as np
from mpi4py import MPI

import mpishare as ms
from tests.cluster.programs.counters import link_bytes

comm = MPI.COMM_WORLD
here = ms.topology()
items = (int(sys.argv[2]) << 20) // 8


def call(count: int) -> np.ndarray:
    """The call that is asked for, for a result of so many items."""
    if sys.argv[1] == "allreduce":
        return ms.allreduce(np.arange(count) * (comm.rank + 1))
    return ms.allgather(np.arange(count)[ms.partition(count)])


call(1000)  # opens the connections
call(100_000)
comm.Barrier()
before = link_bytes()
comm.Barrier()
found = call(items)
comm.Barrier()
mine = (link_bytes() - before).tolist()
factor = comm.size * (comm.size + 1) // 2 if sys.argv[1] == "allreduce" else 1
assert (found == np.arange(items) * factor).all()
links = comm.allgather((here.node, mine))
if comm.rank == 0:
    print(json.dumps({here.hosts[node]: link for node, link in links}))
