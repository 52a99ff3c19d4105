"""Programs that map: a rank that is killed, an iterator larger than memory, pools that end badly, the bar."""

import fcntl
import os
import struct
import subprocess
import sys
import termios

import pytest

from tests.blackbox.launch import ROOT, environment, run_code

KILLED = (
    "import os, signal, time, mpishare as ms\n"
    "from mpi4py import MPI\n"
    "def task(number):\n"
    "    time.sleep(0.0005)\n"
    "    if number == 0: print('mapping', flush=True)\n"
    "    if number > 200 and MPI.COMM_WORLD.rank == {victim}:\n"
    "        os.kill(os.getpid(), signal.SIGKILL)\n"
    "ms.map(task, range(10**6), chunk=1)\n"
)


@pytest.mark.parametrize(("victim", "nodes"), [(0, ""), (2, "block:2")])
def test_a_rank_that_is_killed_within_a_task(victim: int, nodes: str) -> None:
    ended = run_code(4, KILLED.format(victim=victim), {"MPISHARE_NODES": nodes}, status="failure")
    assert ended.stdout == "mapping\n"


LAZY = (
    "import resource, numpy as np, mpishare as ms\n"
    "rows = (np.full(1 << 17, number, float) for number in range(1000))\n"  # 1 GiB in all
    "results = ms.map(np.max, rows, gather='all')\n"
    "assert results == [float(number) for number in range(1000)]\n"
    "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)\n"
)


def test_an_iterator_takes_bounded_memory() -> None:
    assert max(map(int, run_code(2, LAZY).stdout.split())) < 350  # MiB, of which Python, MPI and NumPy take about 100


POOL_LEFT_OPEN = (
    "import mpishare as ms\n"
    "from mpi4py import MPI\n"
    "pool = ms.Pool()\n"
    "if MPI.COMM_WORLD.rank == 0: print(pool.map(abs, [-1, -2]))\n"
    "else: pool.serve()\n"
)


def test_a_pool_that_nobody_closes() -> None:
    assert run_code(3, POOL_LEFT_OPEN).stdout == "[1, 2]\n"


POOL_RAISES = (
    "import mpishare as ms\n"
    "with ms.Pool() as pool:\n"
    "    if pool is not None: raise OSError('the body')\n"
    "print('behind')\n"
)


def test_a_pool_whose_body_raises() -> None:
    assert "OSError: the body" in run_code(3, POOL_RAISES, status="failure").stderr


def test_the_bar_on_a_terminal() -> None:
    code = "import mpishare as ms; ms.map(abs, range(100), progress=True)"
    reader, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 25, 80, 0, 0))
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment({}), stderr=terminal, timeout=60, check=True)
    os.close(terminal)
    shown = os.read(reader, 1 << 16).decode()
    os.close(reader)
    assert "100/100" in shown
    assert "tasks/s" in shown
