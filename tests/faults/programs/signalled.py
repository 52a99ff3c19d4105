"""Shares without end; in round 5, rank argv[1] sends itself the signal argv[2]: argv[3] is before, during or after.

During means at a random time within the first milliseconds of a share of 64 MiB, by a second thread. Rank 0 prints
"sharing" after the first round, and "sharing again" after the third, from where on no window is made: arrays use the
memory of earlier ones.
"""

import os
import random
import signal
import sys
import threading
from functools import partial

import numpy as np
from mpi4py import MPI

import mpishare as ms

LINES = {0: "sharing", 2: "sharing again"}

comm = MPI.COMM_WORLD
victim, number, moment = int(sys.argv[1]), signal.Signals[sys.argv[2]], sys.argv[3]
kill = partial(os.kill, os.getpid(), number)
source = np.arange(8 << 20) if comm.rank == 0 else None
kept = []
for turn in range(1_000):
    if turn == 5:
        comm.Barrier()  # rank 0 has printed
    hit = comm.rank == victim and turn == 5
    if hit and moment == "before":
        kill()
    if hit and moment == "during":
        timer = threading.Timer(random.uniform(0, 0.1), kill)
        timer.daemon = True
        timer.start()
    kept = [*kept[-3:], ms.share(source), ms.zeros(1000)]
    if hit and moment == "after":
        kill()
    if turn in LINES and comm.rank == 0:
        print(LINES[turn], flush=True)
