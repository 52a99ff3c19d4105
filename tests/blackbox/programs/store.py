"""Rank 1 stores into a shared array from C, past NumPy's flag; the other ranks would see it."""

import ctypes

import numpy as np
from mpi4py import MPI

import mpishare as ms

shared = ms.share(np.arange(1000) if MPI.COMM_WORLD.rank == 0 else None)
MPI.COMM_WORLD.Barrier()
if MPI.COMM_WORLD.rank == 1:
    ctypes.memset(shared.__array_interface__["data"][0], 7, 8)
    print("the store went through", flush=True)
MPI.COMM_WORLD.Barrier()
