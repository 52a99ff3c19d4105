"""Rank 0 saves checkpoints every 10 ms in turn in two folders of argv[1], of which it keeps 1 and 2; others read them.

Each rank is a job of its own, which shares nothing but the files. For argv[2] seconds the others call `latest()`, of
whose results none may be None, an error, or of an earlier step than the one before.
"""

import os
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from mpi4py import MPI

import mpishare as ms

PERIOD_S = 0.01
warnings.simplefilter("error", RuntimeWarning)  # of a checkpoint that is left out
comm = MPI.COMM_WORLD
checkpoints = [ms.Checkpoint(Path(sys.argv[1], f"keep {n}"), keep=n, comm=MPI.COMM_SELF) for n in (1, 2)]


def save(step):
    """Saves `step` in one of the two folders."""
    checkpoints[step % 2].save(step, {"x": np.full(1000, step)}, values={"step": step})


if comm.rank == 0:
    save(0)
    save(1)
else:
    os.nice(9)  # rank 0 is to save in time though ranks share cores
comm.Barrier()
end_s, step, last = time.monotonic() + float(sys.argv[2]), 1, 0
while time.monotonic() < end_s:
    if comm.rank == 0:
        step += 1
        save(step)
        time.sleep(PERIOD_S)
    else:
        snapshot = checkpoints[comm.rank % 2].latest()
        assert snapshot is not None
        assert snapshot.step >= last
        assert snapshot.values == {"step": snapshot.step}
        last = snapshot.step
