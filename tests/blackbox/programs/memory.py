"""Shares argv[1] MiB; prints, on rank 0, the PSS of all ranks before and after, once the root dropped its source."""

import gc
import sys

import numpy as np
from mpi4py import MPI

import mpishare as ms
from tests.processes import pss_bytes

comm = MPI.COMM_WORLD
ms.share(np.arange(10) if comm.rank == 0 else None)  # whatever MPI and we allocate once is there now
comm.Barrier()
before = comm.allreduce(pss_bytes())
nbytes = int(sys.argv[1]) << 20
source = np.arange(nbytes // 8) if comm.rank == 0 else None
shared = ms.share(source)
del source
gc.collect()
total = int(shared.sum())  # every rank reads every page
comm.Barrier()
after = comm.allreduce(pss_bytes())
assert total == (nbytes // 8) * (nbytes // 8 - 1) // 2
if comm.rank == 0:
    print(before, after, nbytes)
