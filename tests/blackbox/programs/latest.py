"""Rank 0 saves checkpoints every 10 ms in turn in two folders of argv[1], of which it keeps 1 and 2; others read them.

Each rank is a job of its own, which shares nothing but the files. For argv[2] seconds the others call `latest()`, of
whose results none may be None, an error, or of an earlier step than the one before. Rank 0 prints as JSON how many
saves and calls there were in each folder, and what was wrong.
"""

import json
import os
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
from mpi4py import MPI

import mpishare as ms

PERIOD_S = 0.01
warnings.simplefilter("error", RuntimeWarning)  # of a checkpoint that is left out
comm = MPI.COMM_WORLD
keep = 1 + comm.rank % 2
checkpoints = [ms.Checkpoint(Path(sys.argv[1], f"keep {n}"), keep=n, comm=MPI.COMM_SELF) for n in (1, 2)]


def save(step):
    """Saves `step` in one of the two folders."""
    checkpoints[step % 2].save(step, {"x": np.full(1000, step)}, values={"step": step})


def save_until(end_s):
    """Returns how many checkpoints were saved."""
    counts, step, next_s = Counter(), 2, time.monotonic()
    while next_s < end_s:
        save(step)
        counts[f"saves, keep={1 + step % 2}"] += 1
        step, next_s = step + 1, max(next_s + PERIOD_S, time.monotonic())
        time.sleep(max(next_s - time.monotonic(), 0))
    return counts


def read_until(end_s):
    """Returns what came of the calls of `latest`."""
    counts, last = Counter(), 0
    while time.monotonic() < end_s:
        try:
            snapshot = checkpoints[keep - 1].latest()
            outcome = "None" if snapshot is None else "good"
        except (ms.MpishareError, RuntimeWarning) as error:
            snapshot, outcome = None, type(error).__name__
            print(error, file=sys.stderr)
        if snapshot is not None:
            if snapshot.step < last or snapshot.values != {"step": snapshot.step}:
                outcome = "wrong"
            last = snapshot.step
        counts[f"{outcome}, keep={keep}"] += 1
    return counts


if comm.rank == 0:
    save(0)
    save(1)
else:
    os.nice(9)  # rank 0 is to save in time though ranks share cores
comm.Barrier()
end_s = time.monotonic() + float(sys.argv[2])
totals = comm.reduce(read_until(end_s) if comm.rank else save_until(end_s))
if comm.rank == 0:
    print(json.dumps(totals))
