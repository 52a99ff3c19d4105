"""Ranks that raise, that call something else, that do not come: runs the function argv[1], with argv[2:], on each."""

import ctypes
import gc
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from mpi4py import MPI

import mpishare as ms
from mpishare.comm.lookup import context_of
from tests.faults.programs.errors import printed

comm = MPI.COMM_WORLD
rank = comm.rank
ms.topology()


def wait_for_the_others() -> None:
    """Waits in no call of mpishare, until all others have called `release`."""
    for other in set(range(comm.size)) - {rank}:
        comm.recv(source=other)


def release(waiting: int) -> None:
    """Ends the wait of that rank."""
    if rank != waiting:
        comm.send(None, waiting)


def raise_between(bad: str) -> None:
    """One rank raises between two collectives."""
    if rank == int(bad):
        raise ValueError("no data")
    ms.share(np.arange(3))
    comm.Barrier()
    ms.fence()


def differ() -> None:
    """Rank 1 calls another collective once."""
    for turn in range(2):
        with printed():
            if rank == 1 and turn == 0:
                ms.fence()
            else:
                print("right", ms.share(np.full(3, turn) if rank == 0 else None).tolist() == [turn] * 3)


def come_late(late: str, calls: str, is_first: str = "") -> None:
    """One rank comes to all its calls when the others have given up; on a new communicator if `is_first`."""
    own = comm.Dup() if is_first else comm
    if rank == int(late):
        wait_for_the_others()
    for _ in range(int(calls)):
        with printed():
            ms.zeros(3, comm=own)
    release(int(late))


def call_on_another_communicator() -> None:
    """The last rank waits on another communicator."""
    other = comm.Dup()
    ms.topology(other)
    with printed():
        ms.zeros(3, comm=other if rank == 2 else comm)


def receive_after_a_stall() -> None:
    """Rank 0 sends chunks of an array when the others have given up and dropped it."""
    other, channel = comm.Dup(), context_of().collective_comm
    isend = channel.isend

    def send_late(*args: Any) -> MPI.Request:
        channel.isend = isend
        wait_for_the_others()
        return isend(*args)

    if rank == 0:
        channel.isend = send_late
    with printed():
        ms.share(np.ones(1 << 21) if rank == 0 else None)
    gc.collect()
    blocks = [np.full(8 << 20, 7, "u1") for _ in range(4)]
    release(0)
    comm.Barrier()  # rank 0 has sent
    end = time.monotonic() + 1
    while time.monotonic() < end:
        other.Iprobe()
        time.sleep(0.001)
    assert all((block == 7).all() for block in blocks)
    print("right", flush=True)
    other.Barrier()
    os._exit(0)


def fork() -> None:
    """A child reads, drops, and calls a collective."""
    table, grid = ms.share(np.arange(1000)), ms.zeros(1000)
    child = os.fork()
    if child == 0:
        try:
            assert table.sum() == 499500
            del table, grid
            gc.collect()
            ms.zeros(3)
        except ms.ArgumentError as error:
            os._exit(7 if "was forked from rank" in str(error) else 1)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert table.sum() == 499500
    grid[rank] = 1
    ms.fence()
    assert grid.sum() == 3 == ms.zeros(3).size


def store_from_c() -> None:
    """A child of each rank stores into a shared array, past NumPy."""
    table = ms.share(np.arange(100_000))
    child = os.fork()
    if child == 0:
        ctypes.memset(table.ctypes.data, 255, table.nbytes)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGSEGV
    comm.Barrier()
    assert table.tolist() == list(range(100_000))


def run_threads() -> None:
    """Threads share, each on its own communicator."""
    comms = [comm.Dup() for _ in range(3)]
    assert MPI.Query_thread() == MPI.THREAD_MULTIPLE

    def work(root: int) -> None:
        kept: list[Any] = []
        for number in range(15):
            array = ms.share(np.full(20_000, number) if rank == root else None, root=root, comm=comms[root])
            kept = [*kept[-5:], array]
            assert (array == number).all()
            ms.fence(comm=comms[root])
            ms.report()

    with ThreadPoolExecutor() as pool:
        list(pool.map(work, range(3)))


globals()[sys.argv[1]](*sys.argv[2:])
