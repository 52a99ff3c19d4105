"""Rank 0 and a child of it have the same arrays, and `argv[1]` of them are killed once the child `argv[2]`.

The folder `argv[3]` gets the child's process id, and what a child that outlived its rank read then.
"""

import os
import signal
import sys
import warnings
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

import numpy as np

import mpishare as ms

N_ITEMS = 3 << 17
"""Of an array that has memory of its own: 3 MiB."""


def total(arrays):
    """The sum of the items of all arrays."""
    return float(sum(array.sum() for array in arrays))


def child(handle, moment, connection, folder):
    """Waits for the end of its rank, in a session of its own, as mpiexec ends that of the rank."""
    os.setsid()
    if moment == "reads":
        total(handle.get())
    connection.send(moment)
    with suppress(EOFError):
        connection.recv()
    Path(folder, "answer").write_text(str(total(handle.get())))


def start_and_kill(handle, victims, moment, folder):
    """Starts the child, and kills the victims at the moment."""
    ours, theirs = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=child, args=(handle, moment, theirs, folder))
    process.start()
    theirs.close()
    Path(folder, "child").write_text(str(process.pid))
    if moment != "starts":
        ours.recv()
    if victims in ("child", "both"):
        process.kill()
        process.join()
    if victims in ("rank", "both"):
        os.kill(os.getpid(), signal.SIGKILL)


def main(*args):
    """Lets rank 0 do so while rank 1 waits for it."""
    warnings.filterwarnings("ignore", "handle.* bytes were copied into a nameless file")
    rank = ms.topology().rank
    arrays = [ms.share(np.ones(N_ITEMS) if rank == 0 else None, backend=backend) for backend in ("window", "memmap")]
    handle = ms.handle(arrays)
    if rank == 0:
        start_and_kill(handle, *args)
    ms.fence()
    print(total(handle.get()))


if __name__ == "__main__":
    main(*sys.argv[1:])
