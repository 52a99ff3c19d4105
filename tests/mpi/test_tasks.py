"""map: every item once, results in order and with their bits, and one failure for all ranks."""

from __future__ import annotations

import itertools
import operator
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import mpishare as ms
from mpishare.comm import mpi
from mpishare.comm.context import context_of
from mpishare.memory.segment import segment_of
from mpishare.tasks import counters, item_source
from mpishare.tasks.items import Batch, batch_of

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60)]

Raised = Callable[[Callable[[], object]], list[tuple[str, str]]]


@pytest.fixture(autouse=True)
def _next_call_works(comm: MPI.Intracomm) -> Iterator[None]:
    """Whatever came of a map, the communicator is usable, and the caller's has no message of ours."""
    yield
    assert ms.map(abs, range(-3, 3), gather="all") == [3, 2, 1, 0, 1, 2]
    assert not comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)


def same(found: Any, wanted: Any) -> bool:
    """Whether both are of one class and one value, arrays to the bit."""
    if type(found) is not type(wanted):
        return False
    if isinstance(wanted, np.ndarray | np.generic):
        is_alike = found.dtype == wanted.dtype and found.shape == wanted.shape
        if wanted.dtype in (np.longdouble, object):  # which have padding, and pointers
            return bool(is_alike and found.tolist() == wanted.tolist())
        return bool(is_alike and found.tobytes() == wanted.tobytes())
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(same(found[key], wanted[key]) for key in wanted)
    if isinstance(wanted, tuple | list):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    return bool(found == wanted)


RECORDS = np.array([(1, 2.5), (2, 3.5)], [("a", "i4"), ("b", "f8")])

RESULTS: dict[str, list[Any]] = {
    "floats": [0.5, -1.5, float("inf")],
    "integers": [1, 2**62, -5],
    "long integers": [1, 2**80],
    "switches": [True, False, True],
    "nothing": [None, None, None],
    "texts": ["a", "", "ü" * 1000],
    "mixed": [1, "a", 2.5, None, [1, 2], {"a": 1}],
    "number and switch": [1, True],
    "arrays alike": [np.arange(5.0) + number for number in range(7)],
    "arrays with no items": [np.empty((0, 3))] * 3,
    "arrays of nothing in them": [np.empty((2, 0))] * 3,
    "arrays of other lengths": [np.arange(number) for number in range(7)],
    "arrays of other types": [np.zeros(2), np.zeros(2, "i4")],
    "arrays of no dimension": [np.array(2.5), np.array(3.5)],
    "matrices in Fortran order": [np.asfortranarray(np.arange(6).reshape(2, 3))] * 3,
    "numbers of NumPy": [np.float32(1.5), np.float32(2.5)],
    "switches of NumPy": [np.True_, np.False_],
    "numbers of other types": [np.float32(1.5), np.int8(2)],
    "big-endian": [np.arange(3, dtype=">f8"), np.arange(3, 6, dtype=">f8")],
    "long doubles": [np.arange(3, dtype=np.longdouble)] * 2,
    "texts of NumPy": [np.array(["ab", "c"]), np.array(["de", "f"])],
    "dates": [np.array(["2013-01-01"], "M8[D]")] * 3,
    "records": [RECORDS, RECORDS[::-1].copy()],
    "objects": [np.array([None, "a"], object)] * 2,
    "arrays in tuples": [(number, np.arange(3.0) * number) for number in range(5)],
}


def nth(values: list[Any], number: int) -> Any:
    """The result that a test wants of an item."""
    return values[number]


@pytest.mark.parametrize("gather", ["root", "all"])
@pytest.mark.parametrize("name", RESULTS)
def test_results_keep_their_bits_and_order(comm: MPI.Intracomm, name: str, gather: str) -> None:
    wanted = RESULTS[name] * 9
    root = comm.size - 1
    found = ms.map(partial(nth, wanted), range(len(wanted)), root=root, gather=gather)
    if gather == "all" or comm.rank == root:
        assert same(found, wanted), found
    else:
        assert found is None


def test_nothing_is_gathered(comm: MPI.Intracomm) -> None:
    assert ms.map(abs, range(100), gather="none") is None


class Unlike:
    """An item with its own class."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unlike) and other.number == self.number


ITEMS: dict[str, Callable[[], Any]] = {
    "list": lambda: list(range(100)),
    "tuple": lambda: (1.5, "a", None, b"b"),
    "range": lambda: range(10, 1000, 7),
    "range of long integers": lambda: range(2**70, 2**70 + 5),
    "dict": lambda: {"a": 1, "b": 2},
    "text": lambda: "abc",
    "array": lambda: np.arange(70.0),
    "rows": lambda: np.arange(700.0).reshape(70, 5, 2),
    "strided rows": lambda: np.arange(700.0).reshape(5, 140)[:, ::-2],
    "records": lambda: np.tile(RECORDS, 20),
    "array of objects": lambda: np.array([None, 1, "a"], object),
    "arrays": lambda: [np.arange(number) for number in range(50)],
    "arrays in dicts": lambda: [{"a": np.arange(number), "b": number} for number in range(50)],
    "objects": lambda: [Unlike(number) for number in range(50)],
    "mixed": lambda: [1, "b" * 9999, Unlike(2), 3, (4, 5), np.zeros(3), (6, Unlike(7)), 8],
    "iterator": lambda: (number * 2 for number in range(3000)),
    "iterator of nothing": lambda: iter([]),
    "iterator of one": lambda: iter([1]),
    "iterator of arrays": lambda: (np.full(3, number) for number in range(300)),
}


def itself(item: Any) -> Any:
    """The item, or all of it where an iterator is to be compared."""
    return item


@pytest.mark.parametrize("chunk", [None, 1, 7])
@pytest.mark.parametrize("name", ITEMS)
def test_each_item_is_what_it_was(comm: MPI.Intracomm, name: str, chunk: int | None) -> None:
    made = ITEMS[name]() if comm.rank == 0 else None
    found = ms.map(itself, made, chunk=chunk)
    if comm.rank == 0:
        assert same(found, list(ITEMS[name]()))


def about_memory(item: Any) -> tuple[bool, bool]:
    """Whether an item is read-only, and whether it lies in shared memory."""
    return item.flags.writeable, segment_of(item) is not None


@pytest.mark.parametrize("items", [np.arange(60.0).reshape(20, 3), [np.arange(9.0)] * 20], ids=["rows", "arrays"])
def test_arrays_are_views_of_the_nodes_one_copy(comm: MPI.Intracomm, items: Any) -> None:
    assert ms.map(about_memory, items, gather="all") == [(False, True)] * 20


def test_an_iterator_that_uses_one_array_again(comm: MPI.Intracomm) -> None:
    def rows() -> Iterator[Any]:
        row = np.zeros(3)
        for number in range(200):
            row[:] = number
            yield row

    found = ms.map(np.sum, rows() if comm.rank == 0 else None, gather="all")
    assert found == [3.0 * number for number in range(200)]


def test_results_are_views_of_one_array(comm: MPI.Intracomm) -> None:
    found = ms.map(np.sqrt, np.ones((30, 4)), gather="all")
    assert found is not None
    assert len({id(row.base) for row in found}) == 1
    assert segment_of(found[3]) is not None
    assert not found[3].flags.writeable


def number_and_rank(number: int) -> tuple[int, int]:
    """Who runs it."""
    time.sleep(0.002)
    return number, MPI.COMM_WORLD.rank


def test_every_rank_takes_part(comm: MPI.Intracomm) -> None:
    found = ms.map(number_and_rank, range(60 * comm.size), chunk=1, gather="all")
    assert found is not None
    assert [number for number, _ in found] == list(range(60 * comm.size))
    assert {rank for _, rank in found} == set(range(comm.size))


@pytest.mark.parametrize("count", [0, 1, 2, 3, 1000])
@pytest.mark.parametrize("is_lazy", [False, True])
def test_few_items(comm: MPI.Intracomm, count: int, is_lazy: bool) -> None:
    items = iter(range(count)) if is_lazy else range(count)
    assert ms.map(operator.neg, items, gather="all") == [-number for number in range(count)]


def test_functions_of_many_kinds(comm: MPI.Intracomm) -> None:
    for func in (abs, partial(pow, 2), Table(np.arange(50)).look, Table(np.arange(50))):
        assert ms.map(func, range(9), gather="all") == [func(number) for number in range(9)]


class Table:
    """A state that is an array."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def look(self, number: int) -> int:
        """One of its items."""
        return int(self.array[number])

    __call__ = look

    def about(self, _: int) -> tuple[int, bool, bool]:
        """Who asks, and how the array lies there."""
        time.sleep(0.001)
        return MPI.COMM_WORLD.rank, segment_of(self.array) is not None, self.array.flags.writeable


def test_the_state_of_a_method_is_shared(comm: MPI.Intracomm) -> None:
    table = Table(np.arange(100_000)) if comm.rank == 0 else None
    found = ms.map(table and table.about, range(50 * comm.size), chunk=1, gather="all")
    assert found is not None
    assert {one[1:] for one in found if one[0]} <= {(True, False)}
    assert {one[1:] for one in found if not one[0]} == {(False, True)}


def test_on_another_communicator(comm: MPI.Intracomm) -> None:
    half = comm.Split(comm.rank % 2, -comm.rank)
    found = ms.map(abs, range(-9, 1), comm=half, root=half.size - 1)
    assert found == ([9, 8, 7, 6, 5, 4, 3, 2, 1, 0] if half.rank == half.size - 1 else None)
    half.Free()


@pytest.fixture
def fresh(comm: MPI.Intracomm) -> Iterator[MPI.Intracomm]:
    """A communicator on which nothing has been made yet."""
    other = comm.Dup()
    yield other
    other.Free()


@pytest.mark.parametrize("is_lazy", [False, True])
def test_ranks_that_cannot_open_a_common_file(
    fresh: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, is_lazy: bool
) -> None:
    monkeypatch.setattr(counters, "_opened", lambda path, inode: None)
    check_all_ways(fresh, is_lazy)


@pytest.mark.parametrize("is_lazy", [False, True])
def test_without_threads_in_mpi(fresh: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, is_lazy: bool) -> None:
    monkeypatch.setattr(mpi, "Query_thread", lambda: MPI.THREAD_SINGLE, raising=False)
    check_all_ways(fresh, is_lazy)


def check_all_ways(comm: MPI.Intracomm, is_lazy: bool) -> None:
    """Many items, few, and one that fails."""
    for count in (5000, 1):
        items = iter(range(count)) if is_lazy else range(count)
        assert ms.map(operator.neg, items, gather="all", comm=comm) == [-number for number in range(count)]
    with pytest.raises(ms.TaskError, match="item 4321 failed"):
        ms.map(fail_at, iter(range(5000)) if is_lazy else range(5000), comm=comm)


def fail_at(number: int, item: int = 4321) -> int:
    """Fails for one item."""
    if number == item:
        raise ZeroDivisionError(f"of {number}")
    return number


@pytest.mark.parametrize("item", [0, 99])
def test_a_task_that_fails(comm: MPI.Intracomm, item: int) -> None:
    with pytest.raises(ms.TaskError, match=f"item {item} failed on rank") as told:
        ms.map(partial(fail_at, item=item), range(100))
    error = told.value
    facts = comm.allgather((error.item, error.rank, error.host, error.reason, error.traceback))
    assert len(set(facts)) == 1
    assert error.reason == f"ZeroDivisionError: of {item}"
    assert "in fail_at" in error.traceback
    assert isinstance(error.__cause__, ZeroDivisionError) == (comm.rank == error.rank)
    assert (error.__cause__ is None) == (comm.rank != error.rank)
    assert error.host == ms.topology().hosts[ms.topology().node_of(error.rank)]


class StrangeError(Exception):
    """An error that cannot be pickled, and cannot tell itself."""

    def __init__(self) -> None:
        super().__init__(lambda: None)

    def __str__(self) -> str:
        raise ValueError("no words")


def fail_strangely(number: int) -> None:
    """Fails for one item."""
    if number == 30:
        raise StrangeError


def test_an_error_that_cannot_be_pickled(comm: MPI.Intracomm) -> None:
    with pytest.raises(ms.TaskError, match=r"item 30 failed.*StrangeError, whose text cannot be made"):
        ms.map(fail_strangely, range(100))


_ran: list[int] = []


def fail_first(number: int) -> None:
    """The first fails; this rank notes the others."""
    if number == 0:
        raise ValueError("the first")
    _ran.append(number)
    time.sleep(0.001)


def test_a_failure_cancels_the_rest(comm: MPI.Intracomm) -> None:
    _ran.clear()
    with pytest.raises(ms.TaskError, match="item 0 failed"):
        ms.map(fail_first, range(3000))
    assert comm.allreduce(len(_ran)) < 1500


def fail_often(number: int) -> None:
    """Every task fails."""
    raise ValueError(number)


def test_several_tasks_that_fail(comm: MPI.Intracomm) -> None:
    with pytest.raises(ms.TaskError) as told:
        ms.map(fail_often, range(1000), chunk=1)
    assert len(set(comm.allgather((told.value.item, told.value.rank)))) == 1


class Stubborn:
    """Cannot be made again from its pickle on any rank."""

    def __reduce__(self) -> Any:
        return fail_often, ("made again",)


class Fragile:
    """Cannot be pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("not to be pickled")


@pytest.mark.parametrize("is_lazy", [False, True])
def test_an_item_that_cannot_be_made_again(comm: MPI.Intracomm, is_lazy: bool) -> None:
    items = [*range(40), Stubborn(), *range(40)]
    with pytest.raises(ms.TaskError, match=r"item 40 failed.*made again") as told:
        ms.map(itself, iter(items) if is_lazy else items)
    assert told.value.item == 40


@pytest.mark.parametrize("is_lazy", [False, True])
def test_an_item_that_cannot_be_pickled(comm: MPI.Intracomm, raised: Raised, is_lazy: bool) -> None:
    items = [*range(40), Fragile()]
    told = raised(lambda: ms.map(itself, iter(items) if is_lazy else items))
    assert told[0][0] == "SpecError"
    assert "item 40: " in told[0][1]
    assert "not to be pickled" in told[0][1]
    assert {error for error, _ in told[1:]} <= {"PeerError"}


def strange_result(number: int) -> Any:
    """One result cannot be pickled."""
    return Fragile() if number == 70 else str(number)


def stubborn_result(number: int) -> Any:
    """One result cannot be made again."""
    return Stubborn() if number % 2 else number


def test_a_result_that_cannot_be_pickled(comm: MPI.Intracomm) -> None:
    with pytest.raises(ms.TaskError, match=r"item 70 failed.*not to be pickled"):
        ms.map(strange_result, range(100), gather="all")


@pytest.mark.ranks(2)
def test_a_result_that_cannot_be_made_again(comm: MPI.Intracomm, raised: Raised) -> None:
    told = raised(lambda: ms.map(lambda_free_slow, range(200), chunk=1))
    assert told[0][0] == "SpecError"
    assert "cannot be made again on the root" in told[0][1]
    assert {error for error, _ in told[1:]} == {"PeerError"}


def lambda_free_slow(number: int) -> Any:
    """So slow that other ranks than the root have some."""
    time.sleep(0.0005)
    return Stubborn()


def broken_iterator() -> Iterator[int]:
    """Raises in the end."""
    yield from range(50)
    raise OSError("the disk is gone")


def test_an_iterator_that_raises(comm: MPI.Intracomm) -> None:
    kind, words = (OSError, "the disk is gone") if comm.rank == 0 else (ms.PeerError, "OSError: the disk is gone")
    with pytest.raises(kind, match=words):
        ms.map(abs, broken_iterator() if comm.rank == 0 else None)


def test_an_iterator_is_read_a_window_at_a_time(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(item_source, "_WINDOW_BYTES", 10_000)
    read, counts, real = [0], list[int](), item_source.Lazy._filled

    def noted(lazy: item_source.Lazy) -> tuple[Batch, bool]:
        before = read[0]
        found = real(lazy)
        counts.append(read[0] - before)
        return found

    def rows() -> Iterator[Any]:
        for number in range(500):
            read[0] += 1
            yield np.full(100, number)

    monkeypatch.setattr(item_source.Lazy, "_filled", noted)
    found = ms.map(np.sum, rows(), gather="all")
    assert found == [100 * number for number in range(500)]
    assert read[0] == (500 if comm.rank == 0 else 0)
    assert all(count * 800 <= 10_000 + 800 for count in counts)


def nested(number: int) -> Any:
    """Maps again, over all ranks or this one alone."""
    return ms.map(abs, range(number), comm=MPI.COMM_SELF if number < 50 else None)


@pytest.mark.ranks(2)
def test_a_map_within_a_task(comm: MPI.Intracomm) -> None:
    assert ms.map(nested, [1, 2, 3], gather="all") == [[0], [0, 1], [0, 1, 2]]
    with pytest.raises(ms.TaskError, match="ArgumentError: map was called within a task"):
        ms.map(nested, [1, 2, 50])


def interrupted(number: int, rank: int, error: type[BaseException]) -> int:
    """Is interrupted on one rank."""
    time.sleep(0.0002)
    if number > 20 and MPI.COMM_WORLD.rank == rank:
        raise error("now")
    return number


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("place", [0, -1])
def test_an_interrupt_on_one_rank(comm: MPI.Intracomm, error: type[BaseException], place: int) -> None:
    rank = place % comm.size
    wanted = error if comm.rank == rank else ms.PeerError
    with pytest.raises(wanted, match="now"):
        ms.map(partial(interrupted, rank=rank, error=error), range(100_000), chunk=1)


@pytest.mark.parametrize(
    ("func", "items", "error", "words"),
    [
        (None, [1], "SpecError", "passed None as func"),
        (3, [1], "SpecError", "passed a int as func"),
        (partial(itself, threading.Lock()), [1], "SpecError", "cannot pickle"),
        (Fragile().__eq__, [1], "SpecError", "cannot be"),
        (partial(itself, Stubborn()), [1], "", ""),
        (abs, None, "ArgumentError", "items is None"),
        (abs, 3, "ArgumentError", "items is a int, which cannot be iterated"),
        (abs, np.array(3), "ArgumentError", "cannot be iterated"),
    ],
    ids=["None", "number", "lock", "unpicklable", "stubborn", "no items", "number of items", "0-d"],
)
@pytest.mark.ranks(2)
def test_functions_and_items_that_cannot_be(
    comm: MPI.Intracomm, raised: Raised, func: Any, items: Any, error: str, words: str
) -> None:
    root = comm.size - 1
    is_root = comm.rank == root
    if not error:
        with pytest.raises(ValueError, match="made again"):
            ms.map(func, items, root=root)
        return
    told = raised(lambda: ms.map(func if is_root else None, items if is_root else None, root=root))
    assert told[root][0] == error
    assert words in told[root][1]
    assert {name for name, _ in told[:root]} == {"PeerError"}


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "gather": ({"gather": "some"}, "gather 'some' is unknown"),
    "per": ({"per": "core"}, "per 'core' is unknown"),
    "chunk 0": ({"chunk": 0}, "chunk 0 is no number of tasks"),
    "chunk -1": ({"chunk": -1}, "chunk -1"),
    "chunk 1.5": ({"chunk": 1.5}, "chunk 1.5"),
    "chunk huge": ({"chunk": 2**70}, "no number of tasks"),
    "root": ({"root": 99}, "root 99 is not a rank"),
}


@pytest.mark.parametrize("name", BAD)
def test_wrong_arguments(raised: Raised, name: str) -> None:
    words, text = BAD[name]
    told = raised(lambda: ms.map(abs, [1], **words))
    assert {error for error, _ in told} == {"ArgumentError"}
    assert text in told[0][1]


@pytest.mark.ranks(2)
def test_arguments_that_differ(comm: MPI.Intracomm, raised: Raised) -> None:
    told = raised(lambda: ms.map(abs, [1], gather="all" if comm.rank else "root"))
    assert {error for error, _ in told} == {"MismatchError"}
    assert "gather='all'" in told[0][1]


_states: list[int] = []


def begin(number: int, more: int) -> None:
    """Makes a state that cannot be sent."""
    _states.append(number + more)


def with_state(number: int) -> int:
    """Uses it."""
    return _states[-1] + number if _states else -1


@pytest.mark.parametrize("per", ["rank", "node"])
def test_an_initializer(comm: MPI.Intracomm, per: str) -> None:
    _states.clear()
    is_root = comm.rank == 0
    found = ms.map(
        with_state, range(99), initializer=begin if is_root else None, initargs=(2, 3), per=per, gather="all"
    )
    here = ms.topology()
    wanted = range(comm.size) if per == "rank" else [here.ranks_of(node)[0] for node in range(here.n_nodes)]
    assert len(_states) == (comm.rank in wanted)
    if per == "rank":
        assert found == [5 + number for number in range(99)]
    comm.Barrier()


def begin_badly() -> None:
    """Fails on one rank."""
    if MPI.COMM_WORLD.rank == MPI.COMM_WORLD.size - 1:
        raise OSError("no such database")


def test_an_initializer_that_fails(comm: MPI.Intracomm) -> None:
    wanted = OSError if comm.rank == comm.size - 1 else ms.PeerError
    with pytest.raises(wanted, match="no such database"):
        ms.map(abs, [1], initializer=begin_badly)


def test_no_bar_where_there_is_no_terminal(comm: MPI.Intracomm, capfd: pytest.CaptureFixture[str]) -> None:
    assert ms.map(abs, range(100), progress=True, gather="all") == list(range(100))
    assert ms.map(abs, iter(range(100)), progress=True, gather="all") == list(range(100))
    assert capfd.readouterr().err == ""


def test_a_bar_without_tqdm(raised: Raised, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    told = raised(lambda: ms.map(abs, range(100), progress=True))
    assert told[0] == ("BackendError", "progress=True needs tqdm, which is not installed: pip install tqdm")
    assert {error for error, _ in told[1:]} <= {"PeerError"}


class Locked:
    """Its pickling fails as that of a lock of multiprocessing does."""

    def __reduce__(self) -> Any:
        raise RuntimeError("not now")


def locked(number: int) -> Any:
    """A result that cannot be pickled, for some items."""
    return Locked() if number % 7 == 3 else number


@pytest.mark.ranks(2)
def test_a_result_whose_pickling_fails_in_its_own_way(comm: MPI.Intracomm) -> None:
    with pytest.raises(ms.TaskError, match="not now"):
        ms.map(locked, range(100), chunk=1)


def test_items_that_hold_the_same_array_hold_it_once() -> None:
    array = np.zeros(1000)
    assert batch_of([(number, array) for number in range(50)]).array.nbytes < 50_000  # type: ignore[union-attr]


_begun: list[MPI.Request] = []


def wait_for_the_last(number: int) -> None:
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
def test_an_interrupt_while_the_others_have_tasks(comm: MPI.Intracomm) -> None:
    """As of Ctrl-C on the root, which has none left."""
    if context_of().is_watched:
        return
    looks = itertools.count()

    def interrupt(*_: object) -> None:
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
            ms.map(wait_for_the_last, range(10 * comm.size), chunk=1)
    finally:
        signal.signal(signal.SIGALRM, usual)
    if comm.rank != comm.size - 1:
        _begun[0].Wait()
    assert ms.map(abs, [-1], gather="all") == [1]
