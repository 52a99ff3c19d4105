"""A task's own error on its way: a TaskError of its class, whatever that asks of its `__init__`."""

import pickle
import sys
import urllib.error
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mpishare as ms
from mpishare.tasks.errors import Failure, ItemFailed

CONTEXT: Any = SimpleNamespace(topology=SimpleNamespace(rank=3, host="n1"))


class OfTwo(Exception):
    """Pickle cannot make it again: it leaves one argument in `args`."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")
        self.second = second


class Keyword(ValueError):
    """Its `__init__` takes none of its `args`."""

    def __init__(self, *, code):
        self.code = code


class Frozen(KeyError):
    """Its attributes are in slots, and not to be set."""

    __slots__ = ("code",)

    def __init__(self, code):
        object.__setattr__(self, "code", code)

    def __setattr__(self, name, value):
        raise TypeError("frozen")


class Final(Exception):
    """Has no subclasses."""

    def __init_subclass__(cls):
        raise TypeError("final")


class ItemIsTaken(Exception):
    """Has no room for the number of the item."""

    @property
    def item(self):
        return "taken"


def raised(call):
    """What a call raises, with what Python itself notes on it."""
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError


def sent(error, first=7):
    """The failure by an error, as another rank hears of it."""
    return pickle.loads(pickle.dumps(Failure.of(CONTEXT, error, first)))


ERRORS = [
    KeyError("no"),
    raised(lambda: open("/no/such/file")),  # noqa: PTH123, SIM115
    raised(lambda: b"\xff".decode()),
    raised(lambda: np.zeros(3).sum(axis=4)),
    urllib.error.URLError("no"),
    SyntaxError("no", ("file.py", 1, 2, "text")),
    ImportError("no", name="module", path="file.py"),
    ms.CapacityError("n2", "/dev/shm", 2, 1, "cure"),
    ms.TaskError(0, 0, "n2", "no", ""),
    OfTwo(1, 2),
    Keyword(code=3),
    Frozen(4),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_it_is_of_the_class_of_the_tasks_own_error(error):
    failure = sent(error)
    task_error, own = failure.task_error(), failure.task_error(error)
    for made in (task_error, own, pickle.loads(pickle.dumps(task_error))):
        assert isinstance(made, type(error))
        assert isinstance(made, ms.TaskError)
        assert (made.item, made.rank, made.host) == (7, 3, "n1")
        assert made.reason.startswith(type(error).__name__)
        assert type(error).__name__ in made.traceback
        assert repr(made.args) == repr(error.args)
    copy = task_error.__cause__
    assert own.__cause__ is error
    assert type(copy) is type(error)
    assert (str(copy), vars(copy)) == (str(error), vars(error))
    facts = {"item", "rank", "host", "reason", "traceback"}
    for name in {"errno", "filename", "encoding", "start", "axis", "lineno", "name", "second", "code", "cure"} - facts:
        assert getattr(task_error, name, None) == getattr(copy, name, None) == getattr(error, name, None)


def test_an_error_of_a_task_within_a_task_keeps_its_class():
    inner = sent(OfTwo(1, 2), 5).task_error()
    item_failed = raised(lambda: fail(inner))
    outer = sent(item_failed).task_error(item_failed)
    assert (isinstance(outer, OfTwo), outer.item, vars(outer)["second"]) == (True, 9, 2)
    assert outer.__cause__ is inner


def fail(cause):
    raise ItemFailed(2) from cause


ALONE = [Final("no"), ItemIsTaken("no"), SystemExit(1), KeyboardInterrupt(), StopIteration(1), OfTwo(1, sys.stdout)]


@pytest.mark.parametrize("error", ALONE, ids=lambda error: type(error).__name__)
def test_errors_that_arrive_as_a_task_error_alone(error):
    assert type(sent(error).task_error()) is ms.TaskError
