"""Ranks that raise, that call something else, that do not come: runs the function argv[1], with argv[2:], on each."""

import ctypes
import gc
import os
import random
import sys
import threading
import time
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


def raise_inside() -> None:
    """One rank gives a bad array."""
    with printed():
        ms.share(np.array([None]) if rank == 1 else None, root=1)
    assert ms.zeros(3).sum() == 0


def differ() -> None:
    """The last rank calls with another argument."""
    with printed():
        ms.zeros(3 + rank // 2)


def differ_in_collective() -> None:
    """One rank calls another collective."""
    with printed():
        if rank == 1:
            ms.fence()
        else:
            ms.zeros(3)


def differ_on_one_node() -> None:
    """One rank of the first of two nodes calls another collective, and all go on."""
    for step in range(2):
        with printed():
            if rank == 1 and step == 0:
                ms.zeros(3)
            else:
                print("right", ms.share(np.full(3, step) if rank == 0 else None).tolist() == [step] * 3)


def do_not_come() -> None:
    """The last rank comes too late."""
    if rank == 2:
        wait_for_the_others()
    with printed():
        ms.zeros(3)
    release(2)


def call_on_another_communicator() -> None:
    """The last rank waits on another communicator."""
    other = comm.Dup()
    ms.topology(other)
    with printed():
        ms.zeros(3, comm=other if rank == 2 else comm)


def do_not_come_first() -> None:
    """The last rank does not come to the first call on a communicator."""
    other = comm.Dup()
    with printed():
        if rank == 2:
            wait_for_the_others()
        else:
            ms.zeros(3, comm=other)
    release(2)


def call_after_a_stall() -> None:
    """Three calls, of which the first waits in vain for rank 0."""
    if rank == 0:
        wait_for_the_others()
    for _ in range(3):
        with printed():
            ms.zeros(3)
    release(0)


def receive_after_a_stall() -> None:
    """Rank 0 sends chunks of an array when the others have given up and dropped it."""
    other, channel = comm.Dup(), type(context_of().collective_comm)
    isend = channel.isend

    def send_late(*args: Any) -> MPI.Request:
        channel.isend = isend  # type: ignore[method-assign]
        wait_for_the_others()
        return isend(*args)

    if rank == 0:
        channel.isend = send_late  # type: ignore[assignment, method-assign]
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


def store_from_c() -> None:
    """A child of one rank stores into a shared array, past NumPy."""
    table = ms.share(np.arange(100_000))
    child = os.fork() if rank == 1 else -1
    if child == 0:
        ctypes.memset(table.ctypes.data, 255, table.nbytes)
        os._exit(0)
    if rank == 1:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -11
    comm.Barrier()
    assert table.tolist() == list(range(100_000))


def collect_in_any_order() -> None:
    """Each rank drops other arrays at other times."""
    chance, kept = random.Random(rank), []
    for number in range(120):
        kept.append(ms.share(np.full(10_000, number) if rank == number % 3 else None, root=number % 3))
        chance.shuffle(kept)
        if chance.random() < 0.5:
            del kept[: chance.randrange(len(kept))]
            gc.collect()
        assert all((array == array[0]).all() for array in kept)


def free_the_communicator() -> None:
    """Views outlive their communicator."""
    for _ in range(50):
        own = comm.Dup()
        table, grid = ms.share(np.arange(1000), comm=own), ms.zeros(10, comm=own)
        own.Free()
        assert table.sum() == 499500
        grid[rank] = 1
        comm.Barrier()
        assert grid[:3].sum() == 3


def run_threads() -> None:
    """Threads share, each on its own communicator."""
    comms, wrong = [comm.Dup() for _ in range(3)], []
    for own in comms:
        ms.topology(own)

    def work(own: MPI.Intracomm, seed: int) -> None:
        kept: list[Any] = []
        for number in range(40):
            array = ms.share(np.full(20_000, 100 * seed + number) if rank == seed else None, root=seed, comm=own)
            kept = [*kept[-5:], array]
            if not (array == 100 * seed + number).all():
                wrong.append((seed, number))
            ms.fence(comm=own)
            ms.report()

    threads = [threading.Thread(target=work, args=(own, seed)) for seed, own in enumerate(comms)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert MPI.Query_thread() == MPI.THREAD_MULTIPLE
    assert not wrong, wrong


globals()[sys.argv[1]](*sys.argv[2:])
