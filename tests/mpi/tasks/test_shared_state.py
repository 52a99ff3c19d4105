"""Tasks with state in node memory: it is neither sent nor stored again, and an object from share goes as a number."""

import gc
import weakref
from functools import partial
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import mpishare as ms
from tests.arrays import assert_same
from tests.mpi.objects.test_references import SKELETON_BYTES, N, again, is_view, shared


class Model:
    """What a user maps with."""

    scale = 2.0

    def __init__(self, table):
        self.table = table
        self.words = {"a": 1}

    def score(self, item):
        return float(self.table[item] * self.scale)

    def identity(self, _):
        return comm_rank(), id(self), self.table.ctypes.data, self.words["a"]

    def __call__(self, item):
        return self.score(item)


def comm_rank():
    return MPI.COMM_WORLD.rank


def mapped(comm, func, items):
    """What `map` returns on all ranks."""
    return comm.bcast(ms.map(func, items, chunk=1))


def seen(model, number):
    return number, comm_rank(), model.table.ctypes.data, ms.report().bytes_shared


def seen_of(item):
    return seen(*item)


def by_pool(model, n):
    with ms.Pool() as pool:
        return pool.map(partial(seen, model), range(n)) if pool is not None else None


WAYS = {
    "function": lambda model, n: ms.map(partial(seen, model), range(n)),
    "function of a pool": by_pool,
    "items": lambda model, n: ms.map(seen_of, [(Model(model.table), number) for number in range(n)]),
    "iterator": lambda model, n: ms.map(seen_of, ((Model(model.table), number) for number in range(n))),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_table_is_not_sent(comm, way):
    """In the function, or in each item, of which the rest takes 512 bytes at most."""
    table, n = shared(comm), 2000
    own, before = comm.allgather(table.ctypes.data), ms.report().bytes_shared
    found = comm.bcast(WAYS[way](Model(table), n))
    assert [number for number, *_ in found] == list(range(n))
    assert all(own[rank] == address for _, rank, address, _ in found)
    assert max(nbytes for *_, nbytes in found) < before + (2 * SKELETON_BYTES if "function" in way else 512 * n)


TABLE: Any = None


def view_from(table, item):
    return table[item:]


@pytest.mark.parametrize("gather", ["root", "all"])
@pytest.mark.ranks(2)
def test_results_that_are_views(comm, gather):
    """The root gets views of its own; copies if it has dropped the array."""
    table = shared(comm)
    for count in (20, 1):
        found = ms.map(partial(view_from, table), range(count), chunk=1, gather=gather)
        if found is not None:
            for number, array in enumerate(found):
                assert_same(array, np.arange(float(N))[number:])
                assert np.shares_memory(array, table)
    global TABLE
    TABLE = table
    del table
    if comm.rank == 0:
        TABLE = None
        gc.collect()
    found = ms.map(view_of_global, range(20), chunk=1)
    for number, array in enumerate(found or []):
        assert_same(array, np.arange(float(N))[number:])
    TABLE = None


def view_of_global(item):
    return np.arange(float(N))[item:] if TABLE is None else TABLE[item:]


def drop(_):
    global TABLE
    TABLE = None
    gc.collect()


@pytest.mark.ranks(2)
def test_single_calls_of_a_pool(comm):
    """They refer, too. A worker that has dropped the array gets its bytes."""
    global TABLE
    TABLE = shared(comm)
    own, table = comm.allgather(TABLE.ctypes.data), TABLE if comm.rank == 0 else None
    with ms.Pool() as pool:
        if pool is not None:
            _, rank, address, _ = pool.submit(seen, Model(table), 0).result()
            assert own[rank] == address
            assert list(pool.imap(Model(table), range(5))) == [0.0, 2.0, 4.0, 6.0, 8.0]
            list(pool.imap_unordered(drop, range(20)))
            assert list(pool.imap(Model(table), range(50))) == [2.0 * item for item in range(50)]
            assert pool.apply(Model(table), (7,)) == 14.0
            assert pool.map(Model(table), range(50)) == [2.0 * item for item in range(50)]
    TABLE = None


def identities(comm, function):
    """On all ranks, what the tasks of a map say of the object that they use."""
    return dict.fromkeys(mapped(comm, function, range(60)))


def test_an_object_from_share_goes_as_a_number(comm):
    """Each rank uses its own: of a bound method, of a partial, of a callable."""
    model = ms.share(Model(np.arange(float(N))) if comm.rank == 0 else None)
    own = comm.allgather(id(model))
    for function in (model.identity, partial(Model.identity, model)):
        assert all(own[rank] == number for rank, number, *_ in identities(comm, function))
    assert mapped(comm, model, [3, 4]) == [6.0, 8.0]
    result, nbytes = again(comm, [model, model])
    assert result[0] is result[1] is model
    assert nbytes < SKELETON_BYTES


def test_a_changed_object_travels_as_it_is(comm):
    """A change within an attribute stays on its rank, until the object is shared again."""
    model = ms.share(Model(np.arange(float(N))) if comm.rank == 0 else None)
    own = comm.allgather(id(model))
    if comm.rank == 0:
        model.scale = 3.0
    assert mapped(comm, model.score, [1, 2]) == [3.0, 6.0]
    assert all(rank == 0 or own[rank] != number for rank, number, *_ in identities(comm, model.identity))
    if comm.rank == 0:
        del model.scale
        model.words["a"] = 2
    for rank, number, _, value in identities(comm, model.identity):
        assert own[rank] == number
        assert value == (2 if rank == 0 else 1)
    newer, nbytes = again(comm, model, 0)
    assert newer is not model
    assert newer.words["a"] == 2
    assert is_view(newer.table, model.table)
    assert nbytes < SKELETON_BYTES
    assert {value for *_, value in identities(comm, newer.identity)} == {2}


@pytest.mark.ranks(2)
def test_a_rank_that_dropped_the_object_gets_it_again(comm):
    model = ms.share(Model(np.arange(float(N))) if comm.rank == 0 else None)
    table = model.table
    if comm.rank == 1:
        del model
        gc.collect()
    result, nbytes = again(comm, [model] if comm.rank == 0 else None, 0)
    assert result[0].words == {"a": 1}
    assert is_view(result[0].table, table)
    assert nbytes < SKELETON_BYTES
    if comm.rank == 1:
        del table, result
        gc.collect()
    result, nbytes = again(comm, [model] if comm.rank == 0 else None, 0)  # of which it has nothing any more
    assert_same(result[0].table, np.arange(float(N)))
    assert nbytes >= 8 * N


class Fitted(Model):
    """Tasks change it, and return it."""

    def fit(self, _):
        self.words["a"] = comm_rank()
        return comm_rank(), self


def test_results_that_are_the_shared_object_are_what_tasks_have_left(comm):
    model = ms.share(Fitted(np.arange(9.0)) if comm.rank == 0 else None)
    for rank, fitted in ms.map(model.fit, range(20), chunk=1) or []:
        assert fitted.words["a"] == rank


def attribute(model, name, _):
    return getattr(model, name)


@pytest.mark.parametrize(("name", "value"), [("table", None), ("__class__", Fitted)])
def test_an_object_that_has_another_value_or_class_now(comm, name, value):
    """The array that an attribute was is gone on the root alone."""
    model = ms.share(Model(np.arange(9.0)) if comm.rank == 0 else None)
    if comm.rank == 0:
        setattr(model, name, value)
    assert {*mapped(comm, partial(attribute, model, name), range(20))} == {value}


def test_an_object_that_leads_to_itself_dies(comm):
    for attributes in ({"parts": []}, {"handlers": {}}, {"pair": ([],)}):
        model = Model(np.arange(1000.0))
        vars(model).update(attributes)
        for value in attributes.values():
            inner = value if type(value) is not tuple else value[0]
            inner.append(model) if type(inner) is list else inner.update(a=model)
        model = ms.share(model if comm.rank == 0 else None)
        shape = weakref.ref(model)
        del model, inner, value
        attributes.clear()
        gc.collect()
        assert shape() is None
