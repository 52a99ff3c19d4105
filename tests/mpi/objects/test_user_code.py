"""Whatever code of a user raises within a call: its rank raises it, the others raise PeerError, and nobody waits."""

import time
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import mpishare as ms

pytestmark = [pytest.mark.ranks(2), pytest.mark.once]

WORLD: Any = MPI.COMM_WORLD
LAST = WORLD.size - 1
SECOND = ms.topology().ranks_of(0)[-1]
"""A rank that reads a file besides the root, if there is one."""
LIMIT_S = 20
GROUPS = (ms.PeerError, ms.StallError, ms.TaskError, type(None))


class Stop(BaseException):
    """What is no Exception."""


KINDS = [ValueError, StopIteration, SystemExit, KeyboardInterrupt, GeneratorExit, Stop]


class Code:
    """Code of a user. It raises where it is called, on one rank or on all."""

    def __init__(self, kind, rank):
        self.kind, self.rank = kind, rank

    def __call__(self, *_: Any) -> int:
        if self.rank in (None, WORLD.rank):
            raise self.kind("no licence")
        return 0


class Object:
    """An object with an array. Its method of one name, of those below, is code of a user."""

    def __init__(self, code, method):
        self.code, self.method, self.rows = code, method, np.arange(12.0)


def own(name, result):
    """A method that returns the result, after code of a user where it is the one."""

    def method(self, *args, **options):
        value = result(self, *args, **options)
        if self.method == name:
            self.code()
        return value

    return method


METHODS: dict[str, Any] = {
    "__getstate__": lambda self: vars(self).copy(),
    "__setstate__": lambda self, state: self.__dict__.update(state),
    "__reduce_ex__": object.__reduce_ex__,
    "__array__": lambda self, *_, **__: self.rows,
    "__len__": lambda self: 12,
    "__getitem__": lambda self, index: int(self.rows[index]),
    "__iter__": lambda self: iter(range(12)),
    "__fspath__": lambda self: "nowhere.npy",
    "__index__": lambda self: 0,
}
for name, result in METHODS.items():
    setattr(Object, name, own(name, result))


class Reader:
    """What `load(call=…)` reads. Its member of one name is code of a user."""

    def __init__(self, code, name):
        self._code, self._name, self._rows = code, name, np.zeros((100_000, 3))
        self.shape, self.dtype = self._rows.shape, self._rows.dtype

    def __getattribute__(self, name):
        if name == object.__getattribute__(self, "_name"):
            self._code()
        return object.__getattribute__(self, name)

    def __getitem__(self, index):
        if self._name == "__getitem__":
            self._code()
        return self._rows[index]

    def close(self):
        if self._name == "closing":
            self._code()


def made(code, method, *_: Any) -> Any:
    return Object(code, method)


def items(code):
    yield from range(100)
    code()


def calls(bad, call, names):
    """A place for each of the names, which `call` takes last."""
    return {f"{name} of {call.__name__.strip('_')}": (bad, partial(call, name)) for name in names}


def share(method, comm, code, **options):
    ms.share(made(code, method), comm=comm, **options)


def load(name, comm, code, **options):
    ms.load(call=lambda: Reader(code, name), comm=comm, **options)


def map_(method, comm, code):
    ms.map(abs, made(code, method), comm=comm)


def map_with_function(method, comm, code):
    ms.map(made(code, method).__getitem__, range(9), comm=comm)


def map_with_result(method, comm, code):
    ms.map(partial(made, code, method), range(9), comm=comm, gather="all")


def map_with_item(method, comm, code):
    ms.map(id, [made(code, method)] * 9, comm=comm)


# The rank that raises, None for each rank that comes to the place, and the call.
PLACES: dict[str, tuple[int | None, Any]] = {
    "function of share": (0, lambda comm, code: ms.share(call=code, comm=comm)),
    **calls(0, share, ("__reduce_ex__", "__getstate__")),
    **calls(LAST, share, ("__setstate__",)),
    "__setstate__ of share, private": (LAST, partial(share, "__setstate__", writable="private")),
    "__index__ of a root": (LAST, lambda comm, code: ms.share(0, root=made(code, "__index__"), comm=comm)),
    "function of load": (0, lambda comm, code: ms.load(call=code, comm=comm)),
    "function of load elsewhere": (SECOND, lambda comm, code: ms.load(call=lambda: Reader(code(), ""), comm=comm)),
    **calls(0, load, ("shape", "dtype", "close", "closing")),
    "closing of load elsewhere": (SECOND, partial(load, "closing")),
    **calls(None, load, ("__getitem__",)),
    "__getitem__ of load by the last node": (LAST, partial(load, "__getitem__", read="node")),
    "__getitem__ of load by rows": (LAST, partial(load, "__getitem__", split=True)),
    "__fspath__ of load": (0, lambda comm, code: ms.load(made(code, "__fspath__"), comm=comm)),
    "__fspath__ of save": (LAST, lambda comm, code: ms.save(made(code, "__fspath__"), np.ones(3), comm=comm)),
    "__fspath__ of Checkpoint": (LAST, lambda comm, code: ms.Checkpoint(made(code, "__fspath__"), comm=comm)),
    "iterator of map": (0, lambda comm, code: ms.map(abs, items(code), comm=comm)),
    "task of map": (None, lambda comm, code: ms.map(code, range(9), comm=comm)),
    "initializer of map": (LAST, lambda comm, code: ms.map(abs, range(9), initializer=code, comm=comm)),
    "initializer of map on each node": (0, lambda comm, code: ms.map(abs, (), initializer=code, per="node", comm=comm)),
    **calls(0, map_, ("__len__", "__iter__")),
    **calls(0, map_with_function, ("__getstate__",)),
    **calls(LAST, map_with_function, ("__setstate__",)),
    **calls(0, map_with_item, ("__getstate__",)),
    **calls(None, map_with_item, ("__setstate__",)),
    **calls(None, map_with_result, ("__getstate__", "__setstate__")),
}


@pytest.mark.parametrize("place", PLACES)
def test_what_code_of_a_user_raises_is_every_ranks_error(comm, configured, place):
    """Code of a user that raises on one rank within a call: SystemExit and KeyboardInterrupt as well.

    Outcome: that rank raises it, or an error of mpishare that names it; PeerError on the others; the next call works.
    """
    bad, call = PLACES[place]
    own = configured(timeout=str(LIMIT_S))  # where ranks wait for each other for ever, they raise StallError
    for kind in KINDS:
        error: BaseException | None = None
        try:
            call(own, Code(kind, bad))
        except BaseException as raised:
            error = raised
        errors = comm.allgather(next((group.__name__ for group in GROUPS if isinstance(error, group)), "its own"))
        if bad is None:
            assert set(errors) <= {"its own", "TaskError", "PeerError"} != {"PeerError"}, kind
        else:
            assert errors.pop(bad) == "its own", kind
            assert set(errors) == {"PeerError"}, kind
            of_mpishare = ms.MpishareError if issubclass(kind, Exception) else ms.PeerError
            if kind is not StopIteration:  # of which a generator makes a RuntimeError
                assert isinstance(error, kind | of_mpishare)
                assert "no licence" in str(error)
        del error
        assert ms.share(np.arange(3), comm=own).tolist() == [0, 1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_what_code_of_a_user_raises_does_not_end_a_pool(comm, kind):
    """A task, an initializer or a callback of a pool that raises anything, SystemExit and KeyboardInterrupt as well.

    Outcome: an error of that call on the root; the pool goes on.
    """
    with ms.Pool() as pool:
        if pool is not None:
            code = Code(kind, None)
            for call in (
                lambda: pool.submit(code).result(),
                lambda: pool.map(code, range(9)),
                lambda: pool.initialize(code),
                lambda: list(pool.imap(abs, items(code))),
                lambda: pool.map(abs, range(9), callback=code),
            ):
                with pytest.raises(BaseException):  # noqa: B017 - of many classes
                    call()
            n_calls = 2 * pool.size  # more than there are threads
            assert [pool.apply_async(abs, (-1,), callback=code).get() for _ in range(n_calls)] == [1] * n_calls
            for _ in range(n_calls):
                future = pool.submit(time.sleep, 0.02)
                with suppress(BaseException):  # of a callback that comes late: this thread calls it
                    future.add_done_callback(code)
                assert future.result() is None
            assert pool.map(abs, [-3, 4]) == [3, 4]
