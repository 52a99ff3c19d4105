"""A program of one rank that makes every public call and prints what it gets.

    python -m tests.blackbox.programs.alone FOLDER [--without-mpi]

With the option mpi4py cannot be imported, as where it is not installed.
"""

import sys
from itertools import chain
from pathlib import Path

if "--without-mpi" in sys.argv:
    sys.modules["mpi4py"] = None  # type: ignore[assignment]

import numpy as np

import mpishare as ms
from mpishare.comm import mpi
from tests.everything import everything


def statuses():
    """Of messages, and what is received in place."""
    comm = ms.topology().comm
    comm.Send(np.ones((2, 2))[:, 0], mpi.PROC_NULL)  # whose buffer MPI does not look at
    status, out = mpi.Status(), np.empty(3)
    for given in (None, out):
        ms.send(np.ones(3), 0, 5)
        yield ms.recv(status=status, out=given), status.source, status.tag, status.Get_count()
    yield out, ms.share(np.ones(2), comm=ms.SELF), ms.topology(ms.SELF).size, ms.SELF.size


def errors(folder):
    with ms.Pool() as pool:
        for call in (
            lambda: pool.map(int, ["1", "one"]),
            lambda: ms.recv(99),
            lambda: ms.load(folder / "nothing.npy"),
        ):
            try:
                call()
            except (ms.MpishareError, ValueError) as error:
                yield type(error).__name__, isinstance(error, ms.TaskError), str(error).replace(str(folder), "")


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folders = {n: folder / str(n) for n in (6, 1 << 15)}  # small messages, and large ones
    for own in folders.values():
        own.mkdir(exist_ok=True)
    calls = (everything(ms, None, own, n) for n, own in folders.items())
    for values in chain(*calls, statuses(), errors(folder)):
        print(values)
