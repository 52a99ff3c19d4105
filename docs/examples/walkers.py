"""Random walkers: the job saves, stops on SIGUSR1, and goes on later."""

import signal
import sys

import numpy as np
from mpi4py import MPI

import mpishare as ms

comm = MPI.COMM_WORLD
folder, last = sys.argv[1], int(sys.argv[2])
signals = []
signal.signal(signal.SIGUSR1, lambda *_: signals.append(1))

n = 10_000
rows = ms.partition(n)  # the walkers of this rank
checkpoint = ms.Checkpoint(folder, keep=2)
snapshot = checkpoint.latest()
if snapshot is None:
    step, places = 0, np.zeros(rows.stop - rows.start, int)
else:
    step, places = snapshot.step, snapshot.load("places", region=rows)
if comm.rank == 0:
    print(f"{comm.size} ranks begin at step {step}")

is_stopped = False
while step < last and not is_stopped:
    step += 1
    places += np.random.default_rng(step).choice([-1, 1], n)[rows]
    if step % 100 == 0 or step == last:
        is_stopped = comm.allreduce(len(signals)) > 0  # all ranks decide the same
        checkpoint.save(step, {"places": places}, distributed=["places"])

squares = comm.reduce(int((places**2).sum()))
if comm.rank == 0:
    print(f"step {step}: mean square {squares / n}")
sys.exit(75 if step < last else 0)  # 75: try again
