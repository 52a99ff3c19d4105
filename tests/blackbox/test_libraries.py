"""Other libraries take as private what they refuse as read-only."""

from tests.blackbox.launch import run_code

PROGRAM = """
import tracemalloc
import numpy as np
import mpishare as ms
from mpi4py import MPI
from sklearn.cluster import KMeans
from sklearn.utils.arrayfuncs import cholesky_delete

def cluster(rows):
    KMeans(2, copy_x=False, n_init=1, max_iter=2, tol=0, init=rows[:2].copy()).fit(rows)

def delete_row(factor):  # by a function that Cython has compiled
    cholesky_delete(factor, 3)

shared = ms.share(np.eye(1000) + 1 if MPI.COMM_WORLD.rank == 0 else None, backend="memmap")
before, lines = shared.tobytes(), []
for call in (cluster, delete_row):
    try:
        call(shared)
    except ValueError as error:
        lines.append(error)
    call(shared.copy())  # which allocates what is allocated once
    view = ms.private(shared)
    tracemalloc.start()
    call(view)
    lines += [tracemalloc.get_traced_memory()[1] < shared.nbytes // 4, shared.tobytes() == before]
    tracemalloc.stop()
print(*lines)
"""


def test_what_is_refused_read_only_is_taken_private():
    ended = run_code(2, PROGRAM, {"OMP_NUM_THREADS": "1"})
    assert ended.stdout == "output array is read-only True True buffer source array is read-only True True\n" * 2
