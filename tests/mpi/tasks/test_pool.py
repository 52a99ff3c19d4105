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
from mpishare.tasks.errors import call_as_task as within_task

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60)]

Raised = Callable[[Callable[[], object]], list[tuple[str, str]]]


@pytest.fixture(autouse=True)
def _next_call_works(comm: MPI.Intracomm) -> Iterator[None]:
    """Whatever came of a pool, the communicator is usable, and the caller's has no message of ours."""
    yield
    assert ms.map(abs, range(-2, 0), gather="all") == [2, 1]
    assert not comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)


def fail_at(number: int, item: int) -> int:
    """Fails for one item."""
    if number == item:
        raise ZeroDivisionError(f"of {number}")
    return number


def rank_of(number: int) -> int:
    """Who runs it."""
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
        pool.close()
        pool.close()
    else:
        pool.serve()


def test_imap(comm: MPI.Intracomm) -> None:
    with ms.Pool() as pool:
        if pool is not None:
            wanted = list(range(100))
            assert list(pool.imap(abs, range(0, -100, -1))) == wanted
            assert list(pool.imap(abs, range(0, -100, -1), chunksize=7)) == wanted
            assert sorted(pool.imap_unordered(abs, range(0, -100, -1), chunksize=3)) == wanted
            assert list(pool.imap(abs, [])) == []
            assert list(pool.imap_unordered(abs, [])) == []


def test_imap_reads_a_few_ahead(comm: MPI.Intracomm) -> None:
    read = []

    def items() -> Iterator[int]:
        for number in range(1000):
            read.append(number)
            yield number

    with ms.Pool() as pool:
        if pool is not None:
            results = pool.imap(abs, items())
            assert [next(results) for _ in range(5)] == [0, 1, 2, 3, 4]
            assert len(read) <= 5 + 2 * max(1, comm.size - 1)


def test_submit(comm: MPI.Intracomm) -> None:
    with ms.Pool() as pool:
        if pool is not None:
            futures = [pool.submit(pow, number, exp=2) for number in range(50)]
            assert [future.result() for future in futures] == [number**2 for number in range(50)]
            assert {future.result() for future in as_completed(futures)} == {number**2 for number in range(50)}
            array = np.arange(100_000.0)
            assert (pool.submit(np.sqrt, array).result() == np.sqrt(array)).all()
            assert pool.map(abs, [-3]) == [3]
            left = [pool.submit(rank_of, number) for number in range(20)]
    if comm.rank == 0:
        assert all(future.done() for future in left)
        assert {future.result() for future in left} == (set(range(1, comm.size)) or {0})


def test_submit_and_map_at_the_same_time(comm: MPI.Intracomm) -> None:
    with ms.Pool() as pool:
        if pool is not None:
            for _ in range(5):
                futures = [pool.submit(rank_of, number) for number in range(10)]
                assert pool.map(abs, range(100)) == list(range(100))
                assert len([future.result() for future in futures]) == 10


def test_submit_without_threads_in_mpi(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi, "Query_thread", lambda: MPI.THREAD_SERIALIZED, raising=False)
    with ms.Pool() as pool:
        if pool is not None:
            assert pool.submit(abs, -3).result() == 3
            assert list(pool.imap(abs, range(-3, 0))) == [3, 2, 1]
            assert isinstance(pool.submit(fail_at, 1, 1).exception(), ms.TaskError)


def test_a_task_that_fails_is_the_roots_matter(comm: MPI.Intracomm) -> None:
    with ms.Pool() as pool:
        if pool is not None:
            for number in (5, 99):
                with pytest.raises(ms.TaskError, match=f"item {number} failed.*of {number}"):
                    pool.map(partial(fail_at, item=number), range(100))
            with pytest.raises(ms.SpecError, match="cannot pickle"):
                pool.map(partial(abs, threading.Lock()), [1])  # type: ignore[arg-type]
            with pytest.raises(ms.ArgumentError, match="chunk is 0"):
                pool.map(abs, [1], 0)
            future = pool.submit(fail_at, 3, item=3)
            with pytest.raises(ms.TaskError, match="ZeroDivisionError: of 3") as told:
                future.result()
            assert "in fail_at" in told.value.traceback
            with pytest.raises(ms.TaskError, match="of 3"):
                list(pool.imap(partial(fail_at, item=3), range(9)))
            assert pool.map(abs, [-1]) == [1]


class Unsendable:
    """Cannot be pickled."""

    def __init__(self, *_: Any) -> None:
        pass

    def __reduce__(self) -> Any:
        raise TypeError("not to be pickled")


@pytest.mark.ranks(2)
def test_calls_and_results_that_cannot_be_sent(comm: MPI.Intracomm) -> None:
    with ms.Pool() as pool:
        if pool is not None:
            assert "not to be pickled" in str(pool.submit(abs, Unsendable()).exception())
            assert "not to be pickled" in str(pool.submit(Unsendable).exception())
            assert pool.submit(abs, -1).result() == 1


def test_the_body_that_raises_releases_the_others(comm: MPI.Intracomm) -> None:
    futures: list[Future[int]] = []

    def body() -> None:
        with ms.Pool() as pool:
            if pool is not None:
                futures.extend(pool.submit(rank_of, number) for number in range(200))
                raise OSError("mine")

    if comm.rank == 0:
        with pytest.raises(OSError, match="mine"):
            body()
        assert all(future.done() for future in futures)
        assert any(future.cancelled() for future in futures) == (comm.size > 1)
    else:
        body()


@pytest.mark.ranks(2)
def test_calls_that_are_given_up(comm: MPI.Intracomm) -> None:
    with ms.Pool() as pool:
        if pool is not None:
            futures = [pool.submit(rank_of, number) for number in range(200)]
            pool.shutdown(cancel_futures=True)
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
    with ms.Pool() as pool:
        if pool is not None:
            state = State()
            for times in (1, 2, 2, 2):  # a digest is made when the same function comes again
                results = pool.map(state.times_unpickled, range(20 * comm.size), 1)
                assert dict(results) == dict.fromkeys(range(comm.size), times)


def test_what_the_root_changes_in_the_state_of_a_function_is_seen_by_all(comm: MPI.Intracomm) -> None:
    with ms.Pool() as pool:
        if pool is not None:
            state = State()
            for number in range(4):
                state.array[:] = number
                assert set(pool.map(state.look, range(40), 1)) == {number}
                assert pool.submit(state.look, 3).result() == number


class Broken:
    """Cannot be made again."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


class Falsy:
    """A function that is not true."""

    def __len__(self) -> int:
        return 0

    def __call__(self, number: int) -> int:
        return -number


def test_a_call_that_fails_leaves_no_function_behind(comm: MPI.Intracomm) -> None:
    with ms.Pool() as pool:
        if pool is not None:
            assert pool.submit(abs, -1).result() == 1
            assert pool.submit(round, Broken()).exception() is not None or comm.size == 1
            assert pool.submit(round, 2.6).result() == 3
            assert pool.submit(Falsy(), 3).result() == -3
            assert pool.map(Falsy(), [3]) == [-3]


def leave(number: int) -> None:
    raise SystemExit(3)


def test_a_task_that_leaves_ends_no_rank_that_serves(comm: MPI.Intracomm) -> None:
    with ms.Pool() as pool:
        if pool is not None and comm.size > 1:
            with pytest.raises(ms.TaskError, match="SystemExit"):
                pool.submit(leave, 1).result()
            with pytest.raises((ms.PeerError, SystemExit)):
                pool.map(leave, range(50), 1)
            assert pool.map(abs, [-2]) == [2]


class OnlyAtHome:
    """A function that other ranks than the first cannot make again."""

    def __init__(self) -> None:
        self.number = 1

    def __setstate__(self, state: dict[str, Any]) -> None:
        if MPI.COMM_WORLD.rank:
            raise KeyError("not here")
        self.__dict__.update(state)

    def __call__(self, number: int) -> int:
        return number


def test_a_function_that_cannot_be_made_again_is_the_roots_matter(comm: MPI.Intracomm) -> None:
    with ms.Pool() as pool:
        if pool is not None and comm.size > 1:
            with pytest.raises(ms.PeerError, match="not here"):
                pool.map(OnlyAtHome(), range(5))
            assert pool.map(abs, [-2]) == [2]


def test_a_map_of_the_pool_within_a_task_is_refused(comm: MPI.Intracomm) -> None:
    with ms.Pool() as pool:
        if pool is not None and comm.size > 1:
            with pytest.raises(ms.ArgumentError, match="within a task"):
                within_task(pool.map, abs, [1])


def test_what_a_pool_refuses(comm: MPI.Intracomm) -> None:
    pool = ms.Pool()
    if comm.rank == 0:
        with pytest.raises(ms.ArgumentError, match="chunksize is 0"):
            list(pool.imap(abs, [1], 0))
        pool.shutdown()
        for call in (lambda: pool.map(abs, [1]), lambda: pool.submit(abs, 1), lambda: pool.starmap(pow, [])):
            with pytest.raises(ms.ArgumentError, match="closed"):
                call()
    else:
        with pytest.raises(ms.ArgumentError, match="only the root, rank 0"):
            pool.map(abs, [1])
        pool.serve()


def test_wrong_roots(comm: MPI.Intracomm, raised: Raised) -> None:
    assert {error for error, _ in raised(lambda: ms.Pool(root=99))} == {"ArgumentError"}
    assert {error for error, _ in raised(lambda: ms.Pool(per="core"))} == {"ArgumentError"}


_states: list[int] = []


def begin(number: int) -> None:
    """Makes a state."""
    _states.append(number)


def with_state(number: int) -> tuple[int, int]:
    """Uses it; how often it was made."""
    return _states[-1] + number, len(_states)


def test_an_initializer_is_called_once(comm: MPI.Intracomm) -> None:
    _states.clear()
    with ms.Pool(initializer=begin if comm.rank == 0 else None, initargs=(7,)) as pool:
        if pool is not None:
            for _ in range(3):
                assert pool.map(with_state, range(20)) == [(7 + number, 1) for number in range(20)]
    assert _states == [7]


def nested(_: int) -> Any:
    """Wants another pool."""
    return ms.Pool()


@pytest.mark.ranks(2)
def test_a_pool_within_a_task(comm: MPI.Intracomm) -> None:
    with ms.Pool() as pool:
        if pool is not None:
            with pytest.raises(ms.TaskError, match="within a task"):
                pool.map(nested, [1])
            assert "within a task" in str(pool.submit(nested, 1).exception())


@pytest.mark.ranks(2)
def test_workers_sleep_while_the_root_computes(comm: MPI.Intracomm) -> None:
    before = os.times()
    with ms.Pool() as pool:
        if pool is not None:
            end = time.monotonic() + 0.5
            while time.monotonic() < end:
                sum(range(1000))
    after = os.times()
    if comm.rank:
        assert after.user + after.system - before.user - before.system < 0.25


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
        return sampler.get_chain()

    with ms.Pool() as pool:
        if pool is not None:
            assert (chain(pool) == chain(None)).all()


def rosenbrock(x: Any) -> float:
    """A valley for scipy."""
    return float(np.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2))


@pytest.mark.filterwarnings("ignore:differential_evolution")
def test_differential_evolution_unchanged(comm: MPI.Intracomm) -> None:
    from scipy import optimize

    bounds = [(-2, 2)] * 3
    with ms.Pool() as pool:
        if pool is not None:
            words = {"seed": 3, "maxiter": 10, "updating": "deferred", "polish": False}
            found = optimize.differential_evolution(rosenbrock, bounds, workers=pool.map, **words)
            alone = optimize.differential_evolution(rosenbrock, bounds, **words)
            assert (found.x == alone.x).all()
            assert found.fun == alone.fun


def broken_after(number: int) -> Iterator[int]:
    """Some items, and then an error."""
    yield from range(number)
    raise OSError("no more")


def test_imap_gives_what_there_is_before_the_iterable_raises(comm: MPI.Intracomm) -> None:
    with ms.Pool() as pool:
        if pool is not None:
            found: list[int] = []
            with pytest.raises(OSError, match="no more"):
                for one in pool.imap(abs, broken_after(3)):
                    found.append(one)
            assert found == [0, 1, 2]


def test_imap_names_the_item_that_fails(comm: MPI.Intracomm) -> None:
    with ms.Pool() as pool:
        if pool is not None:
            pool.submit(abs, 1).result()
            for chunksize in (1, 4):
                with pytest.raises(ms.TaskError) as told:
                    list(pool.imap(partial(fail_at, item=6), range(10), chunksize))
                assert told.value.item == 6
