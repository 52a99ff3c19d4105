"""Holds argv[1] live shares; prints, on rank 0, how the descriptors and the next communicator's number changed."""

import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

import mpishare as ms

comm = MPI.COMM_WORLD


def held():
    """Open descriptors, and the number that MPI gives to a new communicator."""
    duplicate = comm.Dup()
    number = duplicate.py2f()
    duplicate.Free()
    return len(list(Path("/proc/self/fd").iterdir())), number


first = ms.share(np.zeros(1) if comm.rank == 0 else None)
before = held()
count = int(sys.argv[1])
arrays = [ms.share(np.full(100, number) if comm.rank == 0 else None) for number in range(count)]
after = held()
assert all(array[0] == number == array[-1] for number, array in enumerate(arrays))
assert len(ms.report().segments) == count + 1
worst = comm.allreduce(max(after[0] - before[0], after[1] - before[1]), MPI.MAX)
if comm.rank == 0:
    print(worst)
