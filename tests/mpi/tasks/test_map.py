"""map: every item once, results in order and with their bits, and one failure for all ranks."""

import itertools
import operator
import pickle
import resource
import signal
import time
from contextlib import nullcontext
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import mpishare as ms
from mpishare.comm import mpi
from tests.mpi.tasks.objects import NotPicklable, NotUnpicklable, State, fail_at, made, make, memory_of, with_made
from tests.processes import limited
from tests.signals import outside_coverage


class Unlike:
    """An item of a class of its own."""

    def __init__(self, number):
        self.number = number


def changing(row):
    """The same array again and again, with other items."""
    for number in range(300):
        row[:] = number
        yield row


ALIKE: list[Any] = [np.zeros((0, 3)), np.array(["ab", "c"]), np.ones(3, ">f8"), np.array(1.5), np.zeros(2, "O")]
ALIKE += [np.zeros(2, [("a", "i4")]), np.ma.zeros(2), np.datetime64(1, "s")]
"""Values of which several are one array, and values that stay a list."""
ITEMS: dict[str, Any] = {
    "range": lambda: range(10, 1000, 7),
    "strided rows": lambda: np.arange(700.0).reshape(5, 140)[:, ::-2],
    "array of objects": lambda: np.array([None, 1, "a"], object),
    "arrays in dicts": lambda: [{"a": np.arange(number), "b": number} for number in range(50)],
    "mixed": lambda: [1, "b" * 9999, Unlike(2), 2.5, (4, 5), [1, None], 2**80, (6, Unlike(7)), True] * 9,
    "arrays alike": lambda: [np.arange(5.0) + number for number in range(70)],
    **{f"alike, {number}": lambda value=value: [value] * 40 for number, value in enumerate(ALIKE)},
    "tuples of numbers": lambda: [(number, "a") for number in range(40)],
    "arrays alike on some ranks only": lambda: [np.zeros(2), np.zeros(2, "i4"), np.zeros(3)] * 9,
    "NumPy scalars": lambda: [np.float32(number) for number in range(50)],
    "nothing": lambda: range(0),
    "one": lambda: [1],
    "iterator of nothing": lambda: iter(()),
    "iterator": lambda: (number * 2 for number in range(3000)),
    "iterator of arrays": lambda: (np.full(3, number) for number in range(300)),
    "iterator that changes its array": lambda: changing(np.zeros(3)),
}


def pickled(items):
    """The class and the bits of each item, which alone decide about its pickle of protocol 4."""
    return items if items is None else [pickle.dumps(item, 4) for item in items]


@pytest.mark.parametrize(("chunk", "gather"), [(None, "root"), (1, "all"), (7, "none")])
@pytest.mark.parametrize("name", ITEMS)
def test_items_and_results_keep_their_bits_and_order(comm, name, chunk, gather):
    root = comm.size - 1
    results = ms.map(deepcopy, ITEMS[name]() if comm.rank == root else None, root=root, chunk=chunk, gather=gather)
    is_given = gather == "all" or (gather == "root" and comm.rank == root)
    assert pickled(results) == (pickled(ITEMS[name]()) if is_given else None)


RAN: list[int] = []
"""The tasks that this rank has run."""


def run_task(number):
    RAN.append(number)


def test_each_task_runs_once(comm):
    RAN.clear()
    ms.map(run_task, range(5000), chunk=1, gather="none")
    assert sorted(itertools.chain(*comm.allgather(RAN))) == list(range(5000))


@pytest.mark.parametrize("items", [np.arange(60.0).reshape(20, 3), [np.arange(9.0)] * 20], ids=["rows", "arrays"])
def test_items_and_results_are_views_of_the_nodes_one_copy(items):
    assert ms.map(memory_of, items, gather="all") == [(False, True)] * 20
    results = ms.map(np.sqrt, items, gather="all") or []
    assert {memory_of(row) for row in results} == {(False, True)}
    assert len({id(row.base) for row in results}) == 1


def test_functions_of_many_kinds(comm):
    state = State()
    for func in (abs, partial(pow, 2), state.look, state):
        assert ms.map(func, range(9), gather="all") == [func(number) for number in range(9)]
    origins = ms.map(state.origin, range(50 * comm.size), chunk=1, gather="all") or []
    memories = {rank: memory for rank, _, *memory in origins}
    assert memories == {rank: [not rank, rank > 0] for rank in range(comm.size)}  # the root has its own


def test_on_another_communicator(comm):
    half = comm.Split(comm.rank % 2, -comm.rank)
    results = ms.map(abs, range(-9, 1), comm=half, root=half.size - 1)
    assert results == ([9, 8, 7, 6, 5, 4, 3, 2, 1, 0] if half.rank == half.size - 1 else None)
    half.Free()


@pytest.mark.parametrize("make", [list, iter])
@pytest.mark.parametrize("missing", ["a common file", "threads"])
def test_without(configured, monkeypatch, missing, make):
    if missing == "threads":
        monkeypatch.setattr(mpi, "Query_thread", lambda: MPI.THREAD_SINGLE, raising=False)
    fresh = configured()
    for count in (5000, 1):
        is_limited = missing == "a common file" and fresh.rank == 0
        with limited(resource.RLIMIT_FSIZE, 0) if is_limited else nullcontext():
            results = ms.map(operator.neg, make(range(count)), gather="all", comm=fresh)
        assert results == [-number for number in range(count)]
    with pytest.raises(ms.TaskError, match="item 4321 failed"):
        ms.map(partial(fail_at, item=4321), make(range(5000)), comm=fresh)


class StrangeError(Exception):
    """An error that cannot be pickled, and whose text cannot be made."""

    def __str__(self):
        raise ValueError("no text")


def fail_strangely(number):
    """Fails for each item."""
    raise StrangeError(lambda: None)


FAILING = [
    (partial(fail_at, item=0), ZeroDivisionError, "ZeroDivisionError: of 0"),
    (partial(fail_at, item=99), ZeroDivisionError, "ZeroDivisionError: of 99"),
    (fail_strangely, StrangeError, "StrangeError, whose text cannot be made"),
]


@pytest.mark.parametrize(("func", "cause", "reason"), FAILING)
def test_tasks_that_fail(comm, func, cause, reason):
    with pytest.raises(cause, match=None if func is fail_strangely else reason) as raised:
        ms.map(func, range(100), chunk=1)
    error = raised.value
    assert isinstance(error, ms.TaskError)
    assert len(set(comm.allgather((error.item, error.rank, error.host, error.reason, error.traceback)))) == 1
    assert error.reason == reason
    assert str(error.item) in reason or func is fail_strangely
    assert "in fail_" in error.traceback
    assert error.host == ms.topology().hosts[ms.topology().node_of(error.rank)]
    assert type(error.__cause__) is cause
    assert error.args == error.__cause__.args or func is fail_strangely


def result_of(number):
    """A result that cannot be pickled for one item."""
    time.sleep(0.0005)  # so that other ranks than the root have some
    return NotPicklable() if number == 70 else str(number)


@pytest.mark.parametrize("make", [list, iter])
def test_an_item_that_cannot_be_unpickled_and_a_result_that_cannot_be_pickled(make):
    with pytest.raises(ms.TaskError, match=r"item 40 failed.*not to be unpickled"):
        ms.map(id, make([*range(40), NotUnpicklable(), *range(40)]))
    with pytest.raises(ms.TaskError, match=r"item 70 failed.*not to be pickled"):
        ms.map(result_of, make(range(100)), gather="all")


def interrupted(number, rank, error):
    """Is interrupted on one rank."""
    time.sleep(0.0002)
    if number > 20 and MPI.COMM_WORLD.rank == rank:
        raise error("now")
    return number


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
@pytest.mark.parametrize("place", [0, -1])
def test_an_error_on_one_rank_cancels_the_rest(comm, error, place):
    """The tasks are so many that they would not end."""
    rank = place % comm.size
    own, others = (error, ms.PeerError) if error is KeyboardInterrupt else (ms.TaskError, ms.TaskError)
    with pytest.raises(own if comm.rank == rank else others, match=f"{'' if own is error else error.__name__}.*now"):
        ms.map(partial(interrupted, rank=rank, error=error), range(10**9), chunk=1)


_begun: list[MPI.Request] = []


def wait_for_the_last(number):
    """The last rank's first task takes until the root is interrupted, and all others until that has begun."""
    comm = MPI.COMM_WORLD
    if comm.rank != comm.size - 1:
        _begun[0].Wait()
    elif not _begun:
        _begun.append(MPI.REQUEST_NULL)
        for rank in range(comm.size - 1):
            comm.send(None, rank)
        comm.recv(source=0)


@pytest.mark.ranks(2)
def test_an_interrupt_while_the_others_have_tasks(comm, configured, monkeypatch):
    """As of Ctrl-C on the root, which has no task left, where no wait is watched."""
    monkeypatch.delenv("MPISHARE_CHECK", raising=False)
    unwatched, looks = configured(timeout=""), itertools.count()

    @outside_coverage
    def interrupt(*_):
        """The second time that the last rank is found at work, this one has ended its own tasks."""
        if _begun[0].Test() and next(looks):
            signal.setitimer(signal.ITIMER_REAL, 0)
            comm.send(None, comm.size - 1)
            raise KeyboardInterrupt("now")

    _begun[:] = [comm.irecv(source=comm.size - 1)] if comm.rank != comm.size - 1 else []
    usual = signal.signal(signal.SIGALRM, interrupt)
    try:
        if comm.rank == 0:
            signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
        with pytest.raises(KeyboardInterrupt if comm.rank == 0 else ms.PeerError, match="now"):
            ms.map(wait_for_the_last, range(10 * comm.size), chunk=1, comm=unwatched)
    finally:
        signal.signal(signal.SIGALRM, usual)
    if comm.rank != comm.size - 1:
        _begun[0].Wait()
    assert ms.map(abs, [-1], gather="all", comm=unwatched) == [1]


@pytest.mark.once
@pytest.mark.ranks(2)
def test_arguments_that_differ(comm, raised):
    for kind, message in raised(lambda: ms.map(abs, [1], gather="all" if comm.rank else "root")):
        assert (kind, "gather='all'" in message) == ("MismatchError", True)


@pytest.mark.parametrize("per", ["rank", "node"])
def test_an_initializer(comm, per):
    made.clear()
    results = ms.map(with_made, range(99), initializer=make, initargs=(2, 5), per=per, gather="all")
    assert made == ([7] if per == "rank" or ms.topology().is_leader else [])
    assert results == [7 + number for number in range(99)]


@pytest.mark.once
def test_no_bar_where_there_is_no_terminal(capfd):
    for items in (range(100), iter(range(100))):
        assert ms.map(abs, items, progress=True, gather="all") == list(range(100))
    assert capfd.readouterr().err == ""
