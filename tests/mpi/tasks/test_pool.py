"""Pool: one rank has the tasks, the others serve it, in the shape that other codes expect."""

import copy
import multiprocessing
import pickle
import sys
import threading
import time
from concurrent.futures import CancelledError, Executor, ThreadPoolExecutor, as_completed
from concurrent.futures import TimeoutError as FuturesTimeoutError
from contextlib import contextmanager, nullcontext
from functools import partial
from inspect import signature
from itertools import count, islice

import numpy as np
import pytest
from mpi4py import MPI
from tqdm.contrib.concurrent import process_map

import mpishare as ms
from mpishare.comm import mpi
from tests.mpi.tasks.objects import NotPicklable, NotUnpicklable, State, fail_at, made, make, until, with_made
from tests.signals import interrupted


def on_the_root(body):
    """A test that calls `body` on the root of a pool, which the other ranks serve. It may have fixtures."""

    def test(**fixtures):
        with ms.Pool() as pool:
            if pool is not None:
                body(pool, **fixtures)

    _, *fixtures = signature(body).parameters.values()
    test.__signature__ = signature(body).replace(parameters=fixtures)  # type: ignore[attr-defined]
    return test


def rank_of(number):
    """The rank that runs it."""
    time.sleep(0.002)
    return MPI.COMM_WORLD.rank


def test_the_root_has_the_pool_and_the_others_serve(comm):
    root = comm.size - 1
    with ms.Pool(root=root) as pool:
        assert (pool is not None) == (comm.rank == root)
        if pool is not None:
            assert pool.map(abs, []) == []
            assert pool.map(abs, iter([-1, 2]), chunksize=1) == [1, 2]
            assert set(pool.map(rank_of, range(60 * comm.size), 1)) == set(range(comm.size))


@on_the_root
def test_imap(pool):
    expected, read = list(range(100)), count()
    for chunksize in (1, 7):
        assert list(pool.imap(abs, range(0, -100, -1), chunksize)) == expected
        assert sorted(pool.imap_unordered(abs, range(0, -100, -1), chunksize)) == expected
    assert list(pool.imap(abs, [])) == list(pool.imap_unordered(abs, [])) == []
    results = pool.imap(abs, islice(read, 1000))
    assert [next(results) for _ in range(5)] == [0, 1, 2, 3, 4]
    assert next(read) <= 5 + 2 * max(1, pool.size - 1)


@on_the_root
def test_a_library_that_opens_and_closes_an_executor_per_call(pool):
    for _ in range(2):
        with pool.lent() as executor:
            future = executor.submit(abs, -3)
            assert list(executor.map(abs, [-1, 2])) == [1, 2]
        assert future.done()
        lent = pool.lent()
        assert list(lent.imap(abs, [-5, 6])) == [5, 6]
        lent.terminate()
        lent.join()
    assert (lent._max_workers, lent.size) == (pool._max_workers, pool.size)
    assert pool.map(abs, [-4]) == [4]


def n_made(_):
    return len(made)


EXECUTORS = [
    ((), {"max_workers": 2, "mp_context": None, "max_tasks_per_child": 9}, 0),
    ((2, None, make, (1, 2)), {}, 1),
]


@pytest.mark.parametrize(("args", "options", "n_calls"), EXECUTORS, ids=["by name", "by place"])
def test_an_executor_is_opened_with_its_arguments(args, options, n_calls):
    """The arguments of concurrent.futures, by name and by place; also of a pool that was sent to another rank."""
    made.clear()

    with ms.Pool() as pool:
        if pool is not None:
            with pool.lent(*args, **options) as executor:
                assert set(executor.map(n_made, range(9))) == {n_calls}
                assert executor.submit(n_made, None).result() == n_calls
            with pickle.loads(pickle.dumps(pool)).lent(*args, **options) as alone:
                assert alone.map(n_made, [1]) == [2 * n_calls]


@on_the_root
def test_process_map_of_tqdm(pool, monkeypatch):
    monkeypatch.setattr("concurrent.futures.ProcessPoolExecutor", pool.lent)
    with pytest.warns(RuntimeWarning, match="the initializer is not called"):
        assert process_map(abs, range(-9, 0), max_workers=2, disable=True) == [*range(9, 0, -1)]


@on_the_root
def test_a_map_reads_no_more_items_than_its_buffer_has_calls(pool):
    """With buffersize, as in concurrent.futures from Python 3.14 on."""
    for chunksize in (1, 3):
        numbers = count()
        results = pool.lent().map(abs, numbers, chunksize=chunksize, buffersize=4)
        assert [next(results) for _ in range(2 * chunksize)] == [*range(2 * chunksize)]
        assert next(numbers) == (4 + 2) * chunksize
        results.close()
    assert list(pool.map(pow, [2, 3], [3, 2], buffersize=1)) == [8, 9]
    with pytest.raises(FuturesTimeoutError) if pool.size > 1 else nullcontext():  # one rank runs it at once
        list(pool.map(time.sleep, [0.1], buffersize=1, timeout=0))
    with pytest.raises(ValueError, match="buffersize is 0"):
        pool.map(abs, [1], buffersize=0)


@pytest.mark.ranks(2)
@on_the_root
def test_imap_with_a_timeout(pool, shared_folder):
    """A result that comes late can be asked for again, as in multiprocessing."""
    for number, imap in enumerate((pool.imap, pool.imap_unordered)):
        ended = shared_folder / str(number)
        results = imap(partial(until, ended), [1])
        with pytest.raises(multiprocessing.TimeoutError):
            results.next(0)
        ended.touch()
        assert results.next() == 1
        with pytest.raises(StopIteration):
            results.next(0)


@on_the_root
def test_submit(pool):
    futures = [pool.submit(pow, number, exp=2) for number in range(50)]
    assert {future.result() for future in as_completed(futures)} == {number**2 for number in range(50)}
    array = np.arange(100_000.0)
    assert (pool.submit(np.sqrt, array).result() == np.sqrt(array)).all()
    left = []
    for _ in range(5):
        left.extend(pool.submit(rank_of, number) for number in range(10))
        assert pool.map(abs, range(100)) == list(range(100))
    pool.close()
    assert all(future.done() for future in left)
    assert {future.result() for future in left} == (set(range(1, pool.size)) or {0})


@on_the_root
def test_threads_map_and_submit_at_once(pool):
    ready = threading.Barrier(7)

    def work(number):
        ready.wait()
        if number < 4:
            return [pool.submit(abs, -item).result(50) for item in range(20)]
        return [pool.map(partial(pow, number), range(20), 1) for _ in range(20)]

    with ThreadPoolExecutor(7) as threads:
        results = list(threads.map(work, range(7)))
    assert results[:4] == [list(range(20))] * 4
    assert results[4:] == [[[number**item for item in range(20)]] * 20 for number in range(4, 7)]


def begin_and_wait(folder, number):
    """A task that takes until there is a file, of which another one tells that it has begun."""
    (folder / "begun").touch()
    return until(folder / "end", number)


@contextmanager
def while_another_thread_maps(pool, folder):
    """Within the block, a thread maps on the root of the pool. It ends when `folder` has a file `end`."""
    with ThreadPoolExecutor(1) as threads:
        results = threads.submit(pool.map, partial(begin_and_wait, folder), range(20))
        until(folder / "begun", 0)
        try:
            yield
        finally:
            (folder / "end").touch()
        assert results.result() == list(range(20))


@on_the_root
def test_a_pool_that_is_closed_while_threads_map(pool, shared_folder):
    with while_another_thread_maps(pool, shared_folder):
        pool.submit(abs, -1)  # so that there is a thread that ends the service
        with ThreadPoolExecutor(1) as threads:
            late = threads.submit(pool.map, abs, [-1])  # waits, or comes when the pool is closed
            pool.shutdown(wait=False)
            with pytest.raises(ms.ArgumentError, match="closed"):
                pool.map(abs, [-1])
            (shared_folder / "end").touch()
            with pytest.raises(ms.ArgumentError, match="closed"):
                late.result(50)
        pool.join()
        with pytest.raises(ms.ArgumentError, match="closed"):
            pool.submit(abs, -1)


@on_the_root
def test_an_interrupt_while_another_thread_maps(pool, shared_folder):
    with while_another_thread_maps(pool, shared_folder):
        with interrupted():
            pool.map(abs, [-1])
        (shared_folder / "end").touch()
        assert pool.map(abs, [-1]) == [1]


def used(pool, number):
    (cube,) = pool.starmap(pow, [(number, 3)])
    return cube + pool.submit(abs, -1).result() + sum(pool.imap(abs, [-1, -1]))


@on_the_root
def test_the_items_of_a_map_may_use_the_pool(pool):
    """Serially, since the other ranks are in the map. What was submitted before it is made by them."""
    assert pool.map(abs, (used(pool, number) for number in range(50))) == [number**3 + 3 for number in range(50)]
    assert pool.map(abs, pool.imap(rank_of, range(50))) >= [0] * 50
    with pytest.raises((ms.PeerError, ms.ArgumentError), match="initialize was called"):
        pool.map(abs, (pool.initialize(abs, (number,)) for number in range(3)))
    assert pool.map(abs, [-1]) == [1]


@on_the_root
def test_the_items_of_a_map_may_close_the_pool(pool):
    """While a call waits for the end of the map."""
    futures = []

    def items():
        with ThreadPoolExecutor(1) as threads:
            futures.append(threads.submit(pool.submit, abs, -1).result())
        pool.close()
        yield from range(50)

    assert pool.map(abs, items()) == list(range(50))
    pool.join()
    assert futures[0].result(0) == 1


@on_the_root
def test_a_callback_may_map(pool):
    """Serially, since it is called where the results of the other ranks arrive."""
    mapped = threading.Event()

    def map_again(row):
        assert pool.map(np.sum, [row] * 3) == [row.sum()] * 3
        if pool.size > 1:
            with pytest.raises(ms.ArgumentError, match="by a callback"):
                pool.initialize(abs, (1,))
        mapped.set()

    results = [pool.apply_async(np.ones, (1_000_000,), callback=map_again) for _ in range(2 * pool.size)]
    assert {result.get(50).size for result in results} == {1_000_000}
    assert mapped.wait(50)


def test_submit_without_threads_in_mpi(monkeypatch):
    monkeypatch.setattr(mpi, "Query_thread", lambda: MPI.THREAD_SERIALIZED, raising=False)

    with ms.Pool() as pool:
        if pool is not None:
            assert pool.submit(abs, -3).result() == 3
            assert list(pool.imap(abs, range(-3, 0))) == [3, 2, 1]
            assert isinstance(pool.submit(fail_at, 1, 1).exception(), ms.TaskError)
            assert isinstance(pool.submit(sys.exit, 1).exception(), ms.TaskError)


def leave(error):
    raise error("now")


@pytest.mark.ranks(2)
@on_the_root
def test_a_call_that_fails_leaves_the_pool_usable(pool):
    assert pool.submit(abs, -1).result() == 1
    assert "not to be pickled" in str(pool.submit(abs, NotPicklable()).exception())
    assert "not to be pickled" in str(pool.submit(NotPicklable).exception())
    assert "not to be unpickled" in str(pool.submit(round, NotUnpicklable()).exception())
    for error in (SystemExit, KeyboardInterrupt):
        assert f"{error.__name__}: now" in str(pool.submit(leave, error).exception())
        with pytest.raises(ms.TaskError if error is SystemExit else (ms.PeerError, error), match="now"):
            pool.map(leave, [error] * 50, 1)
    assert pool.submit(round, 2.6).result() == 3
    assert (pool.submit(State(), 3).result(), pool.map(State(), [3])) == (3, [3])
    with pytest.raises(ms.MpishareError, match="not to be unpickled"):
        pool.map(partial(pow, NotUnpicklable()), range(5))
    assert pool.map(abs, [-2]) == [2]


def test_commands_for_a_pool_that_was_left_are_not_those_of_the_next(comm):
    """Left as by an exception: the others do not serve it."""
    left = ms.Pool()
    if comm.rank == 0:
        left.close()

    with ms.Pool() as pool:
        if pool is not None:
            assert pool.map(abs, [-1]) == [1]


def test_a_freed_communicator_is_refused(duplicate):
    pool = ms.Pool(duplicate)
    duplicate.Free()
    of_pool = (partial(pool.map, abs, [1]), partial(pool.submit, abs, 1)) if pool.is_root else (pool.serve,)
    for call in (*of_pool, partial(ms.Pool, duplicate), partial(ms.map, abs, [1], comm=duplicate)):
        with pytest.raises(ms.ArgumentError, match=r"freed|MPI_COMM_NULL"):
            call()
    with ms.Pool(MPI.COMM_SELF) as alone:
        assert "ArgumentError: comm is MPI_COMM_NULL" in str(alone.submit(ms.map, abs, [1], comm=duplicate).exception())
    pool.close()


@on_the_root
def test_map_as_other_pools_have_it(pool):
    assert issubclass(ms.Pool, Executor)
    assert pool.map(pow, [2, 3, 4], (3, 2)) == [8, 9]
    assert pool.map(max, iter([1, 5, 3]), range(3), [4, 4, 4], chunksize=2) == [4, 5, 4]
    results = []
    assert pool.map(abs, range(-50, 0), callback=results.append) == results == list(range(50, 0, -1))
    assert pool.map(pow, range(50), range(50), timeout=50, chunksize=7) == [number**number for number in range(50)]


@pytest.mark.ranks(2)
@on_the_root
def test_results_that_are_not_there_in_time(pool, shared_folder):
    file = shared_folder / "end"
    with pytest.raises(FuturesTimeoutError):
        pool.map(partial(until, file), range(100), timeout=0.01)
    result = pool.map_async(partial(until, file), range(100))
    with pytest.raises(multiprocessing.TimeoutError):
        result.get(0.01)
    assert not result.ready()
    with pytest.raises(ValueError, match="not ready"):
        result.successful()
    future = pool.submit(until, file, 1)
    pool.shutdown(wait=False)
    with pytest.raises(ms.ArgumentError, match="closed"):
        pool.submit(abs, 1)
    assert not future.done()
    file.touch()
    pool.join()
    assert (result.get(), future.result()) == (list(range(100)), 1)


@on_the_root
def test_results_as_multiprocessing_has_them(pool):
    results, ended = [], threading.Semaphore(0)

    def note(value):
        results.append(value)
        ended.release()

    assert pool.apply(pow, (2,), {"exp": 3}) == 8
    result = pool.apply_async(pow, (2, 3), callback=note)
    result.wait(50)
    assert (result.ready(), result.successful(), result.get(0)) == (True, True, 8)
    assert pool.map_async(abs, iter(range(-99, 0)), callback=note).get() == list(range(99, 0, -1))
    assert pool.starmap_async(pow, [(2, 3), (3, 2)], 1, note).get(50) == [8, 9]
    assert pool.map_async(abs, [], callback=note).get() == []
    failing = pool.map_async(partial(fail_at, item=7), range(10), error_callback=note)
    with pytest.raises(ZeroDivisionError, match="item 7 failed"):
        failing.get()
    assert not failing.successful()
    for _ in range(5):
        assert ended.acquire(timeout=50)
    *values, error = results
    assert values == [8, list(range(99, 0, -1)), [8, 9], []]
    assert isinstance(error, ms.TaskError)
    with pytest.raises(ValueError, match="is open"):
        pool.join()


@pytest.mark.ranks(2)
@on_the_root
def test_terminate(pool, shared_folder):
    file = shared_folder / "end"
    result = pool.map_async(partial(until, file), range(1000), 1)  # more than Python's limit of recursion
    single = pool.apply_async(abs, (-1,))
    pool.shutdown(wait=False, cancel_futures=True)
    file.touch()
    pool.terminate()
    pool.join()
    with pytest.raises(CancelledError):
        result.get()
    with pytest.raises(CancelledError):
        single.get()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("waits", [lambda pool, future: future.result(), lambda pool, future: pool.close()])
@on_the_root
def test_an_interrupt_while_the_root_waits(pool, shared_folder, waits):
    file = shared_folder / "end"
    future = pool.submit(until, file, 1)
    with interrupted():
        waits(pool, future)
    file.touch()
    assert future.result() == 1
    pool.close()


@pytest.mark.parametrize("end", [ms.Pool.terminate, ms.Pool.close])
@on_the_root
def test_a_callback_that_ends_the_pool(pool, end):
    pool.apply_async(fail_at, (1, 1), error_callback=lambda _: end(pool)).wait(50)
    pool.shutdown()


def test_what_libraries_read_of_a_pool(comm):
    pool = ms.Pool(comm)
    assert (pool.rank, pool.size, pool.comm) == (comm.rank, comm.size, comm)
    assert (pool.is_master(), pool.is_worker()) == (comm.rank == 0, comm.rank > 0)
    assert (set(pool.workers), pool._processes) == (set(range(1, comm.size)), comm.size)
    assert pool._max_workers == pool.num_workers == max(1, comm.size - 1)
    assert copy.copy(pool) is copy.deepcopy({"pool": pool})["pool"] is pool
    pool.wait()  # until the root closes it
    pool.close()


class Holder:
    """An object that holds the pool which calls its method."""

    def __init__(self, pool):
        self.pool = pool

    def work(self, number):
        return used(self.pool, number)


@on_the_root
def test_a_pool_that_is_sent_is_a_serial_one(pool):
    results = [number**3 + 3 for number in range(50)]
    assert pool.map(Holder(pool).work, range(50), 1) == results
    assert pool.map_async(Holder(pool).work, range(50), 1).get() == results
    stub = pickle.loads(pickle.dumps(pool.map)).__self__
    with stub:
        assert (stub.is_master(), stub.size, stub.map(pow, [2], [3])) == (True, 1, [8])
    with pytest.raises(ZeroDivisionError) as raised:
        stub.map_async(partial(fail_at, item=1), [1]).get()
    assert type(raised.value) is ZeroDivisionError


def test_initializers(comm):
    """Each is called once: that of a new pool, and one of an open pool."""
    made.clear()

    root = comm.size - 1
    with ms.Pool(root=root, initializer=make if comm.rank == root else None, initargs=(1, 2)) as pool:
        if pool is not None:
            for _ in range(2):
                assert pool.map(with_made, range(20)) == [3 + number for number in range(20)]
            pool.initialize(make, (2, 5))
            assert pool.map(with_made, range(20)) == [7 + number for number in range(20)]
            with pytest.raises((ms.PeerError, ZeroDivisionError), match="of"):
                pool.initialize(lambda: fail_at(MPI.COMM_WORLD.rank, comm.size - 1))
            assert pool.submit(with_made, 1).result() == 8
    assert made == [3, 7]


@pytest.mark.ranks(2)
def test_workers_sleep_while_the_root_computes(comm):
    before = time.process_time()
    with ms.Pool() as pool:
        end = time.monotonic() + 0.5
        while pool is not None and time.monotonic() < end:
            sum(range(1000))
    assert time.process_time() - before < (0.25 if comm.rank else 2)


@on_the_root
def test_scipy_passes_on_what_map_raises(pool):
    from scipy.optimize import differential_evolution

    with pytest.raises(ms.MpishareError, match="cannot pickle") as raised:
        differential_evolution(partial(pow, threading.Lock()), [(0, 1)], workers=pool.map, updating="deferred")
    assert type(raised.value.__cause__) is ms.SpecError


def test_a_pool_that_is_closed(comm):
    pool = ms.Pool(comm)
    if comm.rank == 0:
        pool.close()
        pool.close()
        for call in (lambda: pool.map(abs, [1]), lambda: pool.submit(abs, 1), lambda: pool.starmap(pow, [])):
            with pytest.raises(ms.ArgumentError, match="closed"):
                call()
    else:
        with pytest.raises(ms.ArgumentError, match="only the root, rank 0"):
            pool.map(abs, [1])
        pool.serve()


class AwkwardError(ValueError):
    """Pickle cannot make it again."""

    def __init__(self, number, *, limit):
        super().__init__(f"{number} is past {limit}")
        self.limit = limit


def fail_awkwardly(number):
    raise AwkwardError(number, limit=2)


class Peak(np.ndarray):
    """Cannot be made without its items."""

    def __array_finalize__(self, parent):
        self.largest = max(self.view(np.ndarray))

    def __reduce__(self):
        return np.ndarray.view, (self.view(np.ndarray), Peak), self.__dict__.copy()

    def __setstate__(self, state):
        self.__dict__.update(state)


def peak_of(number):
    """A result, and the argument of `largest`."""
    return np.arange(1.0, number + 2).view(Peak)


def largest(peak):
    assert type(peak) is Peak
    return peak.largest


WAYS = {
    "map": lambda pool, func, items: pool.map(func, items),
    "one at a time": lambda pool, func, items: pool.map(func, iter(items), 1),
    "callback": lambda pool, func, items: pool.map(func, items, callback=lambda _: None),
    "starmap": lambda pool, func, items: pool.starmap(func, [(item,) for item in items]),
    "imap": lambda pool, func, items: list(pool.imap(func, items, 2)),
    "map_async": lambda pool, func, items: pool.map_async(func, items).get(),
    "submit": lambda pool, func, items: [future.result() for future in [pool.submit(func, item) for item in items]],
}


@pytest.mark.filterwarnings("ignore")
def test_every_way_to_call(comm):
    """A function in the state that it has now, arrays that cannot be made without their items, and an error."""
    state = State()

    with ms.Pool() as pool:
        if pool is not None:
            for number, way in enumerate(WAYS.values()):
                state.array[:3] = number
                assert way(pool, state.look, [2, 1]) == way(pool, state, [0, 2]) == [number, number]
                peaks = way(pool, peak_of, range(9))
                assert {type(peak) for peak in peaks} == {Peak}
                assert way(pool, largest, peaks) == [number + 1 for number in range(9)]
                with pytest.raises(AwkwardError, match="1 is past 2") as raised:
                    way(pool, fail_awkwardly, [1])
                assert isinstance(raised.value, ms.TaskError)
                assert raised.value.limit == raised.value.__cause__.limit == 2
                assert "in fail_awkwardly" in raised.value.traceback


@on_the_root
def test_the_item_that_failed(pool):
    for chunksize in (1, 4):
        for way in (pool.map, pool.imap):
            with pytest.raises(ms.TaskError, match=r"item 6 failed.*of 6"):
                list(way(partial(fail_at, item=6), range(10), chunksize))
    results = []
    with pytest.raises(ZeroDivisionError, match="of 3"):
        results.extend(pool.imap(abs, (fail_at(number, 3) for number in range(9))))
    assert results == [0, 1, 2]
    for way in (pool.map, pool.imap):
        with pytest.raises(ms.ArgumentError, match="is 0"):
            list(way(abs, [1], 0))
    assert type(pool.submit(leave, StopIteration).exception()) is ms.TaskError
    with pytest.raises(ms.TaskError, match="cannot pickle") as unpicklable:
        pool.map(lambda _: threading.Lock(), [1])
    assert isinstance(unpicklable.value, ms.SpecError)


@pytest.mark.ranks(2)
def test_an_error_in_the_block_cancels_calls_that_have_not_begun(comm):
    futures = []
    with pytest.raises(OSError, match="from the body") if comm.rank == 0 else nullcontext(), ms.Pool() as pool:
        if pool is not None:
            futures += [pool.submit(rank_of, number) for number in range(200)]
            raise OSError("from the body")
    assert all(future.done() for future in futures)
    assert comm.rank or futures[-1].cancelled()
