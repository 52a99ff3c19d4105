"""Programs that map: the job, a rank that is killed, an iterator that is larger than memory should be."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import subprocess
import sys
import termios
import time

import pytest

from tests.blackbox.launch import ROOT, environment, nothing_left, run, run_code, run_ranks


@pytest.mark.parametrize(("size", "nodes"), [(1, ""), (3, ""), (4, "block:2")])
def test_task_map_job(size: int, nodes: str) -> None:
    words = ["jobs/task_map.py", "--items", "20000", "--bits", "12", "--serial", "--progress"]
    ended = run_ranks(size, words, {"MPISHARE_NODES": nodes})
    assert ended.returncode == 0, ended.stderr
    assert f"20,000 items on {size} ranks" in ended.stdout
    assert "each number is the sum of its bits" in ended.stdout
    assert ended.stderr == ""


def test_task_map_job_as_json() -> None:
    ended = run_ranks(2, ["jobs/task_map.py", "--items", "100", "--bits", "5", "--work", "20", "--json"])
    figures = json.loads(ended.stdout)
    assert (figures["ranks"], figures["items"], figures["right"]) == (2, 100, True)


@pytest.mark.parametrize("words", [["--items", "-1"], ["--bits", "60"]])
def test_task_map_job_with_bad_input(words: list[str]) -> None:
    ended = run_ranks(2, ["--", sys.executable, "jobs/task_map.py", *words], limit_s=20)
    assert ended.returncode != 0
    assert "--items takes 0 or more" in ended.stderr


def test_task_map_job_without_items() -> None:
    assert run_ranks(2, ["jobs/task_map.py", "--items", "0", "--bits", "5"]).returncode == 0


KILLED = (
    "import os, signal, time, mpishare as ms\n"
    "from mpi4py import MPI\n"
    "def task(number):\n"
    "    time.sleep(0.0005)\n"
    "    if number > 200 and MPI.COMM_WORLD.rank == {victim}:\n"
    "        os.kill(os.getpid(), signal.SIGKILL)\n"
    "ms.map(task, range(10**6), chunk=1)\n"
)


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("nodes", ["", "block:2"])
def test_a_rank_that_is_killed_within_a_task(victim: int, nodes: str) -> None:
    with nothing_left():
        start = time.monotonic()
        ended = run_code(4, KILLED.format(victim=victim), {"MPISHARE_NODES": nodes})
    assert ended.returncode != 0
    assert time.monotonic() - start < 30


LAZY = (
    "import resource, numpy as np, mpishare as ms\n"
    "rows = (np.full(1 << 17, number, float) for number in range(1000))\n"  # 1 GiB in all
    "found = ms.map(np.max, rows, gather='all')\n"
    "assert found == [float(number) for number in range(1000)]\n"
    "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)\n"
)


def test_an_iterator_takes_bounded_memory() -> None:
    ended = run_code(2, LAZY)
    assert ended.returncode == 0, ended.stderr
    assert max(map(int, ended.stdout.split())) < 350  # MiB, of which Python, MPI and NumPy take about 100


POOL_LEFT_OPEN = (
    "import mpishare as ms\n"
    "from mpi4py import MPI\n"
    "pool = ms.Pool()\n"
    "if MPI.COMM_WORLD.rank == 0: print(pool.map(abs, [-1, -2]))\n"
    "else: pool.serve()\n"
)


def test_a_pool_that_nobody_closes() -> None:
    ended = run_code(3, POOL_LEFT_OPEN)
    assert (ended.returncode, ended.stdout) == (0, "[1, 2]\n"), ended.stderr


POOL_RAISES = (
    "import mpishare as ms\n"
    "with ms.Pool() as pool:\n"
    "    if pool is not None: raise OSError('the body')\n"
    "print('behind')\n"
)


def test_a_pool_whose_body_raises() -> None:
    with nothing_left():
        ended = run_code(3, POOL_RAISES)
    assert ended.returncode != 0
    assert "OSError: the body" in ended.stderr


WAYS = {
    "a loop": 0,
    "multiprocessing.Pool, bound method": 0,
    "multiprocessing.Pool, initializer": 0,
    "mpi4py.futures, bound method": 3,
    "mpishare.map, bound method": 2,
    "mpishare.Pool, bound method": 2,
    "overhead": 2,
    "work": 2,
    "uneven": 2,
}


@pytest.mark.parametrize("way", WAYS)
def test_each_way_of_the_benchmark(way: str) -> None:
    words = ["-m", "benchmarks.pool", "--way", way, "--items", "2000", "--bits", "6", "--rounds", "1"]
    ended = run_ranks(WAYS[way], words) if WAYS[way] else run([sys.executable, *words])
    assert ended.returncode == 0, ended.stderr
    assert any(json.loads(line) for line in ended.stdout.splitlines())


def test_the_bar_on_a_terminal() -> None:
    code = "import mpishare as ms; ms.map(abs, range(100), progress=True)"
    mine, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 25, 80, 0, 0))
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment({}), stderr=theirs, timeout=60, check=True)
    os.close(theirs)
    shown = os.read(mine, 1 << 16).decode()
    os.close(mine)
    assert "100/100" in shown
    assert "tasks/s" in shown
