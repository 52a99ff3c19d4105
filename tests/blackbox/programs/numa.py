"""Binds rank r to the CPUs argv[r + 1], shares an array on each NUMA node; prints the groups of ranks."""

import os
import sys

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
os.sched_setaffinity(0, map(int, sys.argv[comm.rank + 1].split(",")))  # as the launcher does

import mpishare as ms  # noqa: E402

topology = ms.topology()
own = [rank for rank in topology.ranks_of(topology.node) if sys.argv[rank + 1] == sys.argv[comm.rank + 1]]
near = topology.numa_comm
assert near.allgather(comm.rank) == own
assert (near == topology.node_comm) == (len(own) == topology.node_size)

table = ms.share(np.arange(1e6) if comm.rank == 0 else None)
copy = ms.share(table if near.rank == 0 else None, comm=near)
assert (copy == table).all()
assert sorted(item.node_size for item in ms.report().segments) == sorted([topology.node_size, near.size])
assert all(item.copies == 1 for item in ms.report().segments)
assert near == topology.node_comm or not np.shares_memory(copy, table)

for _ in range(3):
    duplicate = comm.Dup()
    facts = ms.topology(duplicate)
    assert facts.numa_comm != near
    assert facts.numa_comm.allgather(comm.rank) == own
    duplicate.Free()
    assert facts.numa_comm == facts.node_comm == MPI.COMM_NULL
groups = comm.gather(own)
if comm.rank == 0:
    print(groups)
