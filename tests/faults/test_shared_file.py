"""Where the nameless file of a node's memory cannot be made, or handed to the other ranks, as it is elsewhere."""

import sys

import numpy as np

from tests.blackbox.launch import run_ranks

USER = ["--", "unshare", "--user", "--map-current-user", sys.executable, "-c"]
"""Python in a user namespace of each rank, as Apptainer makes it."""

PRIVATE = """
import os, sys, warnings, numpy as np, mpishare as ms
from tests.processes import anonymous_bytes
warnings.simplefilter("error")
file = sys.argv[1]
arrays = [ms.full(64 << 20, 1, "u1", backend="memmap"), ms.load(file, map=True, region=np.s_[100_000:])]
ms.fence()
if ms.topology().rank == 0:
    np.save(file + ".new.npy", np.zeros(10))
    os.replace(file + ".new.npy", file)
ms.fence()
for shared in arrays:
    before = anonymous_bytes()
    view = ms.private(shared)
    view[1] = 2
    is_small = anonymous_bytes() - before < 1 << 20
    print(view[:3].tolist(), shared[:3].tolist(), np.array_equal(view[2:], shared[2:]), is_small)
try: ms.private(ms.zeros(3, backend="window"))
except RuntimeWarning as warning: print(warning)
"""


def test_private_of_an_ordinary_user(tmp_path):
    """Of an array, and of a mapped file that another one has replaced."""
    np.save(file := tmp_path / "rows.npy", np.arange(1 << 20))
    ended = run_ranks(2, [*USER, PRIVATE, str(file)], {"MPISHARE_RECYCLE": "0"})
    for numbers in ("[1, 2, 1] [1, 1, 1]", "[100000, 2, 100002] [100000, 100001, 100002]"):
        assert ended.stdout.count(f"{numbers} True True\n") == 2
    assert ended.stdout.count("24 bytes were copied: memory of backend 'window' cannot be mapped again") == 1
    assert ended.stdout.count('memory of backend="memmap" can') == 1
    assert np.load(file).size == 10


COUNT = """
import mpishare as ms
from mpi4py import MPI
done = []
def task(number): done.append(number)
ms.map(task, range(30_000), chunk=1)
print(MPI.COMM_WORLD.allreduce(len(done)))
"""


def test_ranks_in_user_namespaces_do_each_task_once():
    """The lock of the counters keeps them apart although the file came over a socket."""
    assert run_ranks(2, [*USER, COUNT]).stdout == "30000\n" * 2
