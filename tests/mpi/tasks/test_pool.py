"""Pool: one rank has the tasks, the others serve it, in the shape that other codes expect."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, as_completed
from functools import partial
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import mpishare as ms
from mpishare.comm import mpi
from tests.mpi.tasks.objects import NotPicklable, NotUnpicklable, fail_at

pytestmark = pytest.mark.timeout(60)

Raised = Callable[[Callable[[], object]], list[tuple[str, str]]]


def with_pool(body: Callable[[ms.Pool], object], **kwargs: Any) -> None:
    """Calls `body` on the root of a pool, which the other ranks serve."""
    with ms.Pool(**kwargs) as pool:
        if pool is not None:
            body(pool)


def rank_of(number: int) -> int:
    """The rank that runs it."""
    time.sleep(0.002)
    return MPI.COMM_WORLD.rank


def test_the_root_has_the_pool_and_the_others_serve(comm: MPI.Intracomm) -> None:
    root = comm.size - 1
    with ms.Pool(root=root) as pool:
        assert (pool is not None) == (comm.rank == root)
        if pool is not None:
            assert pool.size == comm.size
            assert pool.map(abs, range(-50, 0)) == list(range(50, 0, -1))
            assert pool.map(abs, []) == []
            assert pool.map(abs, iter([-1, 2]), chunksize=1) == [1, 2]
            assert pool.starmap(pow, [(2, 3), (3, 2)]) == [8, 9]
            assert set(pool.map(rank_of, range(60 * comm.size), 1)) == set(range(comm.size))


def test_a_pool_without_with(comm: MPI.Intracomm) -> None:
    pool = ms.Pool(comm)
    if comm.rank == 0:
        assert pool.map(abs, [-1]) == [1]
        with pytest.raises(ms.ArgumentError, match="chunksize is 0"):
            list(pool.imap(abs, [1], 0))
        pool.close()
        pool.close()
        for call in (lambda: pool.map(abs, [1]), lambda: pool.submit(abs, 1), lambda: pool.starmap(pow, [])):
            with pytest.raises(ms.ArgumentError, match="closed"):
                call()
    else:
        with pytest.raises(ms.ArgumentError, match="only the root, rank 0"):
            pool.map(abs, [1])
        pool.serve()


def test_imap(comm: MPI.Intracomm) -> None:
    expected, read = list(range(100)), []

    def items() -> Iterator[int]:
        for number in range(1000):
            read.append(number)
            yield number

    def body(pool: ms.Pool) -> None:
        for chunksize in (1, 7):
            assert list(pool.imap(abs, range(0, -100, -1), chunksize)) == expected
            assert sorted(pool.imap_unordered(abs, range(0, -100, -1), chunksize)) == expected
        assert list(pool.imap(abs, [])) == list(pool.imap_unordered(abs, [])) == []
        results = pool.imap(abs, items())
        assert [next(results) for _ in range(5)] == [0, 1, 2, 3, 4]
        assert len(read) <= 5 + 2 * max(1, comm.size - 1)

    with_pool(body)


def test_imap_yields_what_there_is_before_an_error(comm: MPI.Intracomm) -> None:
    def items() -> Iterator[int]:
        yield from range(3)
        raise OSError("no more")

    def body(pool: ms.Pool) -> None:
        results: list[int] = []
        with pytest.raises(OSError, match="no more"):
            results.extend(pool.imap(abs, items()))
        assert results == [0, 1, 2]
        pool.submit(abs, 1).result()
        for chunksize in (1, 4):
            with pytest.raises(ms.TaskError, match="of 6") as raised:
                list(pool.imap(partial(fail_at, item=6), range(10), chunksize))
            assert raised.value.item == 6

    with_pool(body)


def test_submit(comm: MPI.Intracomm) -> None:
    left: list[Future[int]] = []

    def body(pool: ms.Pool) -> None:
        futures = [pool.submit(pow, number, exp=2) for number in range(50)]
        assert [future.result() for future in futures] == [number**2 for number in range(50)]
        assert {future.result() for future in as_completed(futures)} == {number**2 for number in range(50)}
        array = np.arange(100_000.0)
        assert (pool.submit(np.sqrt, array).result() == np.sqrt(array)).all()
        for _ in range(5):
            left.extend(pool.submit(rank_of, number) for number in range(10))
            assert pool.map(abs, range(100)) == list(range(100))

    with_pool(body)
    assert all(future.done() for future in left)
    if comm.rank == 0:
        assert {future.result() for future in left} == (set(range(1, comm.size)) or {0})


def test_submit_without_threads_in_mpi(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi, "Query_thread", lambda: MPI.THREAD_SERIALIZED, raising=False)

    def body(pool: ms.Pool) -> None:
        assert pool.submit(abs, -3).result() == 3
        assert list(pool.imap(abs, range(-3, 0))) == [3, 2, 1]
        assert isinstance(pool.submit(fail_at, 1, 1).exception(), ms.TaskError)

    with_pool(body)


def test_a_task_that_fails_raises_on_the_root_alone(comm: MPI.Intracomm) -> None:
    def body(pool: ms.Pool) -> None:
        for item in (5, 99):
            with pytest.raises(ms.TaskError, match=f"item {item} failed.*of {item}"):
                pool.map(partial(fail_at, item=item), range(100))
        with pytest.raises(ms.SpecError, match="cannot pickle"):
            pool.map(partial(abs, threading.Lock()), [1])  # type: ignore[arg-type]
        with pytest.raises(ms.ArgumentError, match="chunk is 0"):
            pool.map(abs, [1], 0)
        with pytest.raises(ms.TaskError, match="ZeroDivisionError: of 3") as raised:
            pool.submit(fail_at, 3, item=3).result()
        assert "in fail_at" in raised.value.traceback
        assert pool.map(abs, [-1]) == [1]

    with_pool(body)


class Falsy:
    """A function that is not true."""

    def __len__(self) -> int:
        return 0

    def __call__(self, number: int) -> int:
        return -number


def leave(number: int) -> None:
    raise SystemExit(3)


@pytest.mark.ranks(2)
def test_a_call_that_fails_leaves_the_pool_usable(comm: MPI.Intracomm) -> None:
    def body(pool: ms.Pool) -> None:
        assert pool.submit(abs, -1).result() == 1
        assert "not to be pickled" in str(pool.submit(abs, NotPicklable()).exception())
        assert "not to be pickled" in str(pool.submit(NotPicklable).exception())
        assert "not to be unpickled" in str(pool.submit(round, NotUnpicklable()).exception())
        assert pool.submit(round, 2.6).result() == 3
        assert pool.submit(Falsy(), 3).result() == -3
        assert pool.map(Falsy(), [3]) == [-3]
        with pytest.raises(ms.TaskError, match="SystemExit"):
            pool.submit(leave, 1).result()
        with pytest.raises((ms.PeerError, SystemExit)):
            pool.map(leave, range(50), 1)
        assert pool.map(abs, [-2]) == [2]

    with_pool(body)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("ends", ["error", "shutdown"])
def test_calls_that_have_not_begun_are_cancelled(comm: MPI.Intracomm, ends: str) -> None:
    futures: list[Future[int]] = []

    def body(pool: ms.Pool) -> None:
        futures.extend(pool.submit(rank_of, number) for number in range(200))
        if ends == "error":
            raise OSError("from the body")
        pool.shutdown(cancel_futures=True)

    if ends == "error" and comm.rank == 0:
        with pytest.raises(OSError, match="from the body"):
            with_pool(body)
    else:
        with_pool(body)
    if comm.rank == 0:
        assert all(future.done() for future in futures)
        with pytest.raises(CancelledError):
            futures[-1].result()


_unpickled: list[str] = []


class State:
    """An object whose method is mapped. It notes where it is unpickled."""

    def __init__(self) -> None:
        self.array = np.arange(1000)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _unpickled.append("State")

    def look(self, number: int) -> int:
        """One item."""
        return int(self.array[number])

    def times_unpickled(self, number: int) -> tuple[int, int]:
        """This rank, and how often it has unpickled such an object."""
        time.sleep(0.001)
        return MPI.COMM_WORLD.rank, len(_unpickled)


def test_the_same_function_is_sent_once(comm: MPI.Intracomm) -> None:
    _unpickled.clear()
    state = State()

    def body(pool: ms.Pool) -> None:
        for times in (1, 2, 2, 2):  # a digest is made when the same function comes again
            results = pool.map(state.times_unpickled, range(20 * comm.size), 1)
            assert dict(results) == dict.fromkeys(range(comm.size), times)

    with_pool(body)


def test_what_the_root_changes_in_the_state_of_a_function_is_seen_by_all(comm: MPI.Intracomm) -> None:
    state = State()

    def body(pool: ms.Pool) -> None:
        for number in range(4):
            state.array[:] = number
            assert set(pool.map(state.look, range(40), 1)) == {number}
            assert pool.submit(state.look, 3).result() == number

    with_pool(body)


class OnlyOnTheRoot:
    """A function that other ranks cannot unpickle."""

    def __init__(self) -> None:
        self.number = 1

    def __setstate__(self, state: dict[str, Any]) -> None:
        if MPI.COMM_WORLD.rank:
            raise KeyError("only on the root")
        self.__dict__.update(state)

    def __call__(self, number: int) -> int:
        return number


@pytest.mark.ranks(2)
def test_a_function_that_cannot_be_unpickled_raises_on_the_root_alone(comm: MPI.Intracomm) -> None:
    def body(pool: ms.Pool) -> None:
        with pytest.raises(ms.PeerError, match="only on the root"):
            pool.map(OnlyOnTheRoot(), range(5))
        assert pool.map(abs, [-2]) == [2]

    with_pool(body)


@pytest.mark.two_launches
@pytest.mark.parametrize("kwargs", [{"root": 99}, {"per": "core"}])
def test_wrong_arguments(comm: MPI.Intracomm, raised: Raised, kwargs: dict[str, Any]) -> None:
    assert {error for error, _ in raised(lambda: ms.Pool(**kwargs))} == {"ArgumentError"}


_states: list[int] = []


def with_state(number: int) -> tuple[int, int]:
    """Uses the state; how often it was made."""
    return _states[-1] + number, len(_states)


def make_state(number: int) -> None:
    """Makes a state."""
    _states.append(number)


def test_an_initializer_is_called_once(comm: MPI.Intracomm) -> None:
    _states.clear()

    def body(pool: ms.Pool) -> None:
        for _ in range(3):
            assert pool.map(with_state, range(20)) == [(7 + number, 1) for number in range(20)]

    with_pool(body, initializer=make_state if comm.rank == 0 else None, initargs=(7,))
    assert _states == [7]


def nested(_: int) -> Any:
    """Makes another pool."""
    return ms.Pool()


@pytest.mark.ranks(2)
def test_a_pool_within_a_task(comm: MPI.Intracomm) -> None:
    def body(pool: ms.Pool) -> None:
        with pytest.raises(ms.TaskError, match="within a task"):
            pool.map(nested, [1])
        assert "within a task" in str(pool.submit(nested, 1).exception())

    with_pool(body)


@pytest.mark.ranks(2)
def test_workers_sleep_while_the_root_computes(comm: MPI.Intracomm) -> None:
    def body(pool: ms.Pool) -> None:
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            sum(range(1000))

    before = os.times()
    with_pool(body)
    after = os.times()
    cpu_s = after.user + after.system - before.user - before.system
    assert cpu_s < (0.25 if comm.rank else 2)


def log_normal(x: Any) -> float:
    """A density for emcee."""
    return float(-0.5 * np.sum(x**2))


def test_emcee_unchanged(comm: MPI.Intracomm) -> None:
    import emcee

    start = np.random.default_rng(1).standard_normal((16, 3))

    def chain(pool: Any) -> Any:
        sampler = emcee.EnsembleSampler(16, 3, log_normal, pool=pool)
        sampler._random = np.random.RandomState(2)
        sampler.run_mcmc(start, 20)
        return sampler.get_chain().tolist()

    def body(pool: ms.Pool) -> None:
        assert chain(pool) == chain(None)

    with_pool(body)


def rosenbrock(x: Any) -> float:
    """A valley for scipy."""
    return float(np.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2))


@pytest.mark.filterwarnings("ignore:differential_evolution")
def test_differential_evolution_unchanged(comm: MPI.Intracomm) -> None:
    from scipy import optimize

    kwargs = {"bounds": [(-2, 2)] * 3, "seed": 3, "maxiter": 10, "updating": "deferred", "polish": False}

    def body(pool: ms.Pool) -> None:
        minimum = optimize.differential_evolution(rosenbrock, workers=pool.map, **kwargs)
        expected = optimize.differential_evolution(rosenbrock, **kwargs)
        assert (minimum.x.tolist(), minimum.fun) == (expected.x.tolist(), expected.fun)

    with_pool(body)
