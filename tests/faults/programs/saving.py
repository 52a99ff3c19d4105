"""Saves into the folder argv[1] without end; in turn 2, rank argv[2] kills itself at a random moment."""

import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import mpishare as ms

comm = MPI.COMM_WORLD
folder, victim = Path(sys.argv[1]), int(sys.argv[2])
checkpoint = ms.Checkpoint(folder / "run")


def kill_soon() -> None:
    """Ends this rank from a second thread."""
    time.sleep(random.uniform(0, 0.06))
    os.kill(os.getpid(), signal.SIGKILL)


for turn in range(1000):
    if turn == 2 and comm.rank == 0:
        print("saved", flush=True)
    comm.Barrier()  # nobody is killed before that
    if comm.rank == victim and turn == 2:
        threading.Thread(target=kill_soon, daemon=True).start()
    rows = np.full((1 << 17, 4), turn)
    ms.save(folder / "rows.npy", rows, distributed=True)
    ms.save(folder / "both.h5", rows, "rows", distributed=True)
    ms.save(folder / "both.h5", rows, "root")
    checkpoint.save(turn, {"rows": rows, "root": rows}, distributed=["rows"])
