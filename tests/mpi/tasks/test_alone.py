"""Collectives where the other ranks do not come: within a task, in the block of a pool. They are errors at once."""

import threading
from contextlib import nullcontext
from functools import partial
from importlib import import_module

import numpy as np
import pytest
from mpi4py import MPI

import mpishare as ms
from mpishare.compat.schwimmbad import MPIPool
from tests.mpi.tasks.objects import until
from tests.processes import wait_until

of_all = unused = MPI.COMM_NULL

COLLECTIVES = {
    "share": lambda comm: ms.share({"a": np.ones(3)}, comm=comm),
    "fence of a node": lambda comm: ms.fence(scope="node", comm=comm),
    "save": lambda comm: ms.save("no such folder/a.npy", np.ones(3), comm=comm),
    "map": lambda comm: ms.map(abs, [1], comm=comm),
    "Pool": lambda comm: ms.Pool(comm),
    "share over another communicator": lambda comm: ms.share(np.ones(3), comm=of_all),
    "a first call": lambda comm: ms.topology(unused),
}


@pytest.fixture(autouse=True)
def _communicators(comm):
    global of_all, unused
    of_all, unused = comm.Dup(), comm.Dup()
    ms.topology(of_all)
    yield
    of_all.Free()
    unused.Free()


def refused(name, comm=None):
    """A task that makes a collective call. It returns the error."""
    try:
        COLLECTIVES[name](comm)
    except ms.ArgumentError as error:
        return str(error)
    return "nothing"


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", COLLECTIVES)
def test_within_a_task(comm, name):
    """Of map on any rank, of Pool.map, of submit and of imap."""
    task = partial(refused, name)
    for error in ms.map(lambda _: task(), range(3 * comm.size), chunk=1, gather="all"):
        assert "was called within a task" in error or "first call" in error
    with ms.Pool() as pool:
        if pool is not None:
            errors = [*pool.map(lambda _: task(), range(9), 1), pool.submit(task).result(), pool.apply(task)]
            errors += pool.imap(lambda _: task(), range(3))
            assert all("within a task, where other ranks" in error for error in errors), errors


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", COLLECTIVES)
def test_of_the_root_while_the_others_serve(name, shared_folder):
    """In the block of the pool, in a callback, by the items of a map, and beside a map of another thread."""
    errors, ended = [], threading.Event()
    may_end = shared_folder / "may end"  # the call ends after it has its callback, which else this thread would call

    def note(_):
        errors.append(refused(name))
        ended.set()

    with ms.Pool() as pool:
        if pool is not None:
            assert "by the root of a Pool that the others serve" in refused(name)
            result = pool.apply_async(wait_until, (may_end.exists, 50), callback=note)
            may_end.touch()
            result.get(50)
            assert ended.wait(50)
            assert "by a callback" in errors.pop()
            assert all("by the items of a map" in error for error in pool.map(str, (refused(name) for _ in range(5))))
            assert pool.map(abs, [-1]) == [1]
    assert ms.map(abs, [-1], gather="all") == [1]


def served_by_wait():
    pool = ms.Pool()
    pool.wait()
    return pool


def served_from_the_first_call():
    pool = ms.Pool()
    if pool.is_worker():
        pool.serve()
    else:
        pool.submit(abs, -1)
    return pool


def registered():
    pytest.importorskip("joblib")
    return import_module("mpishare.compat.joblib").register()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("make", [MPIPool, registered, served_by_wait, served_from_the_first_call])
def test_of_the_root_while_the_others_serve_without_with(comm, make, name):
    """A collective of the root while the other ranks serve its pool, in each way.

    Outcome: ArgumentError on the root at once; the pool goes on.
    """
    with pytest.raises(SystemExit) if comm.rank and make in (MPIPool, registered) else nullcontext():
        pool = make()
        if comm.rank == 0:
            assert "by the root of a Pool that the others serve" in refused(name)
            assert pool.map(abs, [-1]) == [1]
            pool.close()
    assert ms.map(abs, [-1], gather="all") == [1]


def whole(number, alone=MPI.COMM_SELF):
    """A task that makes collective calls that are legal."""
    array = ms.share(np.full(3, number), comm=alone)
    return int(ms.allreduce(array, comm=alone).sum()) + sum(ms.map(abs, [number], comm=alone) or [])


def test_over_the_rank_alone(comm):
    for task in (whole, partial(whole, alone=ms.SELF)):
        assert ms.map(task, range(9), chunk=1, gather="all") == [4 * number for number in range(9)]
    with ms.Pool() as pool:
        if pool is not None:
            assert pool.map(whole, range(9), 1) == [4 * number for number in range(9)]
            assert pool.submit(whole, 5).result() == 20
            assert whole(5) == 20
            assert pool.map(partial(whole, alone=ms.SELF), range(9), 1) == [4 * number for number in range(9)]
            with ms.Pool(MPI.COMM_SELF) as alone:
                assert alone.map(whole, [5]) == [20]


group = MPI.COMM_NULL
"""Some ranks, of which one has tasks and the others help it."""


def with_helpers(number):
    """A task that a group of ranks does together."""
    group.bcast(number)
    return int(ms.allreduce(np.array([number]), comm=group)[0])


@pytest.mark.ranks(4)
def test_over_the_ranks_that_help_with_a_task(comm):
    """Only the first rank of each group is in the pool. The others come to its collectives."""
    global group
    group = comm.Split(comm.rank % 2)
    tasks = comm.Split(group.rank > 0)
    ms.topology(group)
    if group.rank == 0:
        with ms.Pool(tasks) as pool:
            if pool is not None:
                assert pool.map(with_helpers, range(9), 1) == [number * group.size for number in range(9)]
                assert pool.submit(with_helpers, 5).result() == 5 * group.size
        group.bcast(None)
    else:
        while (number := group.bcast(None)) is not None:
            ms.allreduce(np.array([number]), comm=group)
    tasks.Free()
    group.Free()


begun, ended = threading.Event(), threading.Event()


def wait(folder, number):
    """A task that takes until the root has one, and another thread there has made its call."""
    if MPI.COMM_WORLD.rank == 0:
        begun.set()
        ended.wait(50)
        (folder / "end").touch()
    return until(folder / "end", number)


@pytest.mark.ranks(2)
def test_beside_a_map_of_another_thread(comm, shared_folder):
    """Over the same communicator; over another one the other ranks may come."""
    errors = []

    def call():
        begun.wait(50)
        errors.append(refused("share", comm))
        ended.set()

    begun.clear()
    ended.clear()
    pool = ms.Pool()
    if comm.rank == 0:
        thread = threading.Thread(target=call)
        thread.start()
        assert pool.map(partial(wait, shared_folder), range(8 * comm.size), 1) == list(range(8 * comm.size))
        thread.join()
        assert "within a task" in errors[0]
        pool.close()
    pool.wait()


def test_after_the_pool_has_been_closed(comm):
    with ms.Pool() as pool:
        if pool is not None:
            pool.map(abs, [1])
            pool.close()
        assert ms.allreduce(np.array([1]))[0] == comm.size


counted = []


def count_ranks():
    """An initializer that makes a collective call."""
    counted.append(int(ms.allreduce(np.array([1]))[0]))


def test_an_initializer_may_make_collective_calls(comm):
    """On each rank all come; on one rank of each node only the leaders do."""
    counted.clear()
    ms.map(abs, [1], initializer=count_ranks)
    assert counted == [comm.size]
    if ms.topology().n_nodes == 1 < comm.size:
        with pytest.raises(ms.MpishareError, match="by an initializer of each node"):
            ms.map(abs, [1], initializer=count_ranks, per="node")
