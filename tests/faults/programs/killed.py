"""Rank 0 gets SIGKILL at the system call argv[1] that makes the first memory of a node."""

import sys

import numpy as np
from mpi4py import MPI

import mpishare as ms
from tests.faults.strace import injected

ms.topology()
if MPI.COMM_WORLD.rank == 0:
    with injected(sys.argv[1], "signal=SIGKILL:when=1"):
        ms.share(np.arange(1 << 20))
else:
    ms.share(None)
