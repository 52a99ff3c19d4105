"""Programs that map: a rank that is killed, an iterator larger than memory, pools that end badly."""

import pytest

from tests.blackbox.launch import run_code

KILLED = """
import os, signal, time, mpishare as ms
from mpi4py import MPI
def task(number):
    time.sleep(0.0005)
    if number == 0: print("mapping", flush=True)
    if number > 200 and MPI.COMM_WORLD.rank == {victim}: os.kill(os.getpid(), signal.SIGKILL)
ms.map(task, range(10**6), chunk=1)
"""


@pytest.mark.parametrize(("victim", "nodes"), [(0, ""), (2, "block:2")])
def test_a_rank_that_is_killed_within_a_task(victim, nodes):
    ended = run_code(4, KILLED.format(victim=victim), {"MPISHARE_NODES": nodes}, status="failure")
    assert ended.stdout == "mapping\n"


LAZY = """
import resource, numpy as np, mpishare as ms
rows = (np.full(1 << 17, number, float) for number in range(1000))  # 1 GiB in all
assert ms.map(np.max, rows, gather="all") == [float(number) for number in range(1000)]
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
"""


def test_an_iterator_takes_bounded_memory():
    assert max(map(int, run_code(2, LAZY).stdout.split())) < 350  # MiB, of which Python, MPI and NumPy take about 100


POOL = """
import mpishare as ms
pool = ms.Pool()
if ms.topology().rank: pool.serve()
else: print(pool.map(abs, [-1, -2]))
"""


def test_a_pool_that_nobody_closes():
    assert run_code(3, POOL).stdout == "[1, 2]\n"


POOL_RAISES = """
import mpishare as ms
with ms.Pool() as pool:
    if pool is not None: raise OSError("the body")
"""


def test_a_pool_whose_body_raises():
    assert "OSError: the body" in run_code(3, POOL_RAISES, status="failure").stderr
