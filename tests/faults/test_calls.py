"""Ranks that raise, that call something else, that do not come; forks, threads, and ends in any order."""

from __future__ import annotations

import sys

import pytest

from tests.blackbox.launch import Ended, nothing_left, run_code, run_ranks

HEAD = """
import gc, os, sys, threading, time
import numpy as np, mpishare as ms
from mpi4py import MPI
comm = MPI.COMM_WORLD
rank = comm.rank
ms.topology()
def wait_for_the_others():
    for one in set(range(comm.size)) - {rank}: comm.recv(source=one)
"""


def run(code: str, size: int = 3, **environ: str) -> Ended:
    """Runs code on ranks by plain python, and looks at what it leaves."""
    with nothing_left():
        return run_code(size, HEAD + code, environ)


RAISES = "if rank == {rank}: raise ValueError('no data')\nms.share(np.arange(3))\ncomm.Barrier()\nms.fence()\n"
ENDED = "the job ends at once with its traceback, exit status 1"


@pytest.mark.fault("an exception on one rank between two collectives, plain python", ENDED)
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_exception(rank: int) -> None:
    ended = run(RAISES.format(rank=rank))
    assert ended.returncode == 1
    assert "ValueError: no data" in ended.stderr
    assert f"mpishare: rank {rank} on host" in ended.stderr


@pytest.mark.fault("an exception on one rank between two collectives, python -m mpi4py", ENDED)
def test_exception_under_mpi4py() -> None:
    with nothing_left():
        ended = run_ranks(3, [sys.executable, "-c", HEAD + RAISES.format(rank=1)])
    assert ended.returncode == 1
    assert "ValueError: no data" in ended.stderr


@pytest.mark.fault(
    "an exception inside a collective: bad input, no room, a missing file", "its own error there, PeerError elsewhere"
)
def test_exception_in_a_collective() -> None:
    code = (
        "try: ms.share(np.array([None]) if rank == 1 else None, root=1)\n"
        "except ms.MpishareError as error: print(type(error).__name__, error)\n"
        "assert ms.zeros(3).sum() == 0"
    )
    ended = run(code)
    assert ended.returncode == 0, ended.stderr
    told = ended.stdout.splitlines()
    assert sorted(line.split()[0] for line in told) == ["PeerError", "PeerError", "SpecError"]
    assert all("dtype object cannot be shared" in line for line in told)


@pytest.mark.fault("the same collective with different arguments", "MismatchError on all ranks, with both calls")
def test_different_arguments() -> None:
    ended = run("try: ms.zeros(3 + rank // 2)\nexcept ms.MismatchError as error: print(error)")
    assert ended.returncode == 0, ended.stderr
    told = ended.stdout.splitlines()
    assert len(told) == 3
    assert all("ranks 0, 1: zeros(shape=(3,)" in line and "rank 2: zeros(shape=(4,)" in line for line in told)


@pytest.mark.fault(
    "different collectives, with MPISHARE_CHECK=1",
    "MismatchError on all ranks of the node, with each call, its file and line",
)
@pytest.mark.parametrize("nodes", ["", "block:3", "block:2"])
def test_different_collectives(nodes: str) -> None:
    code = (
        "try:\n if rank == 1: ms.fence()\n else: ms.zeros(3)\nexcept ms.MismatchError as error: print('told:', error)\n"
    )
    ended = run(code, MPISHARE_CHECK="1", MPISHARE_TIMEOUT="3", MPISHARE_NODES=nodes)
    told = [line for line in ended.stdout.splitlines() if line.startswith("told:")]
    assert len(told) == 3
    assert all("fence at <string>:" in line and "zeros at <string>:" in line for line in told)


STALL = "except ms.StallError as error: print('told:', error, flush=True)\n"


@pytest.mark.fault("a rank that does not come, with MPISHARE_TIMEOUT", "StallError on the others: which, on which host")
def test_a_rank_that_does_not_come() -> None:
    code = "if rank == 2: wait_for_the_others()\ntry: ms.zeros(3)\n" + STALL + "if rank != 2: comm.send(None, 2)\n"
    ended = run(code, MPISHARE_TIMEOUT="1")
    assert ended.returncode == 0, ended.stderr
    told = [line for line in ended.stdout.splitlines() if line.startswith("told:")]
    assert len(told) == 3  # the late one is told, too
    for line in told:
        assert "zeros at <string>:" in line
        assert "have not come: rank 2 on host" in line


@pytest.mark.fault(
    "ranks that call on different communicators, with MPISHARE_TIMEOUT",
    "StallError: which rank waits in which call, its file and line",
)
def test_calls_on_different_communicators() -> None:
    code = "other = comm.Dup(); ms.topology(other)\ntry: ms.zeros(3, comm=other if rank == 2 else comm)\n"
    ended = run(code + STALL, MPISHARE_TIMEOUT="1")
    assert ended.returncode == 0, ended.stderr
    assert "rank 2 on host" in ended.stdout
    assert "waits in zeros at <string>:" in ended.stdout
    assert "on another communicator" in ended.stdout


@pytest.mark.fault("the first call on a communicator, to which a rank does not come", "StallError, without names")
def test_the_first_call() -> None:
    code = "other = comm.Dup()\ntry:\n if rank == 2: wait_for_the_others()\n else: ms.zeros(3, comm=other)\n" + STALL
    ended = run(code + "if rank != 2: comm.send(None, 2)\n", MPISHARE_TIMEOUT="1")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("the first call on a communicator has waited 1 s") == 2


@pytest.mark.fault(
    "a call after a StallError", "the same error at once, as the ranks no longer agree on what comes next"
)
def test_a_call_after_a_stall() -> None:
    code = "if rank == 0: wait_for_the_others()\nfor _ in range(3):\n try: ms.zeros(3)\n " + STALL
    ended = run(code + "if rank != 0: comm.send(None, 0)\n", MPISHARE_TIMEOUT="1")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("told:") == 9


@pytest.mark.fault(
    "a fork after MPI_Init",
    "the child reads the arrays; a collective in it is an ArgumentError; the parent is not disturbed",
)
def test_fork() -> None:
    code = """
table, grid = ms.share(np.arange(1000)), ms.zeros(1000)
child = os.fork()
if child == 0:
    status = 1
    try:
        assert table.sum() == 499500
        del table, grid
        gc.collect()
        ms.zeros(3)
    except ms.ArgumentError as error:
        status = 7 if "was forked from rank" in str(error) else 2
    finally:
        os._exit(status)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert table.sum() == 499500
grid[rank] = 1
ms.fence()
assert grid.sum() == 3 == ms.zeros(3).size
"""
    ended = run(code)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.fault(
    "a store into a shared array from C: ctypes, Cython, numba",
    "SIGSEGV of the rank that stores, as its pages are read-only; the data of all others stay",
)
def test_stray_store() -> None:
    code = """
import ctypes
table = ms.share(np.arange(100_000))
child = os.fork() if rank == 1 else 0
if rank == 1 and child == 0:
    ctypes.memset(table.ctypes.data, 255, table.nbytes)
    os._exit(0)
if rank == 1:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -11
comm.Barrier()
assert table.tolist() == list(range(100_000))
"""
    ended = run(code)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.fault("garbage collection in different orders on different ranks", "nothing: to release is local")
def test_garbage_in_any_order() -> None:
    code = """
import random
chance = random.Random(rank)
kept = []
for number in range(300):
    kept.append(ms.share(np.full(10_000, number) if rank == number % 3 else None, root=number % 3))
    chance.shuffle(kept)
    if chance.random() < 0.5:
        del kept[: chance.randrange(len(kept))]
        gc.collect()
    assert all((array == array[0]).all() for array in kept)
"""
    assert run(code).returncode == 0


@pytest.mark.fault("the caller's communicator freed while views live", "nothing: the views stay")
def test_communicator_freed() -> None:
    code = """
for _ in range(50):
    own = comm.Dup()
    table, grid = ms.share(np.arange(1000), comm=own), ms.zeros(10, comm=own)
    own.Free()
    assert table.sum() == 499500
    grid[rank] = 1
    comm.Barrier()
    assert grid[:3].sum() == 3
"""
    ended = run(code)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.fault(
    "threads, each on its own communicator, with MPI_THREAD_MULTIPLE", "nothing: they do not disturb each other"
)
def test_threads() -> None:
    code = """
comms = [comm.Dup() for _ in range(3)]
for one in comms: ms.topology(one)
wrong = []
def work(one, seed):
    kept = []
    for number in range(40):
        array = ms.share(np.full(20_000, 100 * seed + number) if rank == seed else None, root=seed, comm=one)
        kept = [*kept[-5:], array]
        if not (array == 100 * seed + number).all(): wrong.append((seed, number))
        ms.fence(comm=one)
        ms.report()
threads = [threading.Thread(target=work, args=(one, seed)) for seed, one in enumerate(comms)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert MPI.Query_thread() == MPI.THREAD_MULTIPLE and not wrong, wrong
"""
    ended = run(code)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.fault(
    "a StallError while messages into an array are on their way, and the array dropped",
    "they keep their memory: nobody else's bytes change, and no rank dies",
)
def test_messages_that_come_after_a_stall() -> None:
    code = """
from mpishare.transfer import node_fill
other = comm.Dup()
source = None
if rank == 0:
    source = np.ones((2048, 2048), 'f4')[:, ::2]  # not contiguous: the root copies before it sends
    copy = node_fill.copy_bytes
    def slow(target, source):
        node_fill.copy_bytes = copy
        copy(target, source)
        wait_for_the_others()  # until they have given up
    node_fill.copy_bytes = slow
try: ms.share(source)
except ms.StallError: print('stalled')
gc.collect()
mine = [np.full(8 << 20, 7, 'u1') for _ in range(4)]
if rank: comm.send(None, 0)
comm.Barrier()  # the root has sent
end = time.monotonic() + 1
while time.monotonic() < end:
    other.Iprobe()
    time.sleep(0.001)
assert all((one == 7).all() for one in mine)
print('intact', flush=True)
other.Barrier()
os._exit(0)
"""
    ended = run(code, MPISHARE_TIMEOUT="1", MPISHARE_NODES="block:1", MPISHARE_RECYCLE="0")
    assert ended.stdout.count("intact") == 3, ended.stderr
    assert ended.stdout.count("stalled") >= 2


@pytest.mark.fault(
    "ranks of one of several nodes that call different collectives, with MPISHARE_CHECK, and go on",
    "MismatchError on all ranks of all nodes; the next call works",
)
def test_one_node_that_differs() -> None:
    code = """
for step in range(2):
    try:
        if rank == 1 and step == 0: ms.zeros(3)
        else: print('right', ms.share(np.full(3, step) if rank == 0 else None).tolist() == [step] * 3)
    except ms.MismatchError: print('mismatch')
"""
    ended = run(code, 4, MPISHARE_CHECK="1", MPISHARE_NODES="block:2")
    assert ended.returncode == 0, ended.stderr
    assert (ended.stdout.count("mismatch"), ended.stdout.count("right True")) == (4, 4)
