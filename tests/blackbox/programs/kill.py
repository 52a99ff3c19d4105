"""Shares and makes arrays without end; rank argv[1] kills itself after argv[2] rounds."""

import os
import signal
import sys

import numpy as np
from mpi4py import MPI

import mpishare as ms

comm = MPI.COMM_WORLD
victim, rounds = int(sys.argv[1]), int(sys.argv[2])
kept: list[object] = []
for number in range(10_000):
    kept = [*kept[-5:], ms.share(np.full(300_000, number) if comm.rank == 0 else None), ms.zeros(1000)]
    if comm.rank == victim and number == rounds:
        os.kill(os.getpid(), signal.SIGKILL)
