"""A task's own error on its way: a TaskError of its class, whatever that asks of its `__init__`."""

import pickle
import sys
import urllib.error
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mpishare as ms
from mpishare.tasks.errors import ItemFailed, task_error

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
    """The error for users, as another rank gets it."""
    return pickle.loads(pickle.dumps(task_error(CONTEXT, error, first)))


ERRORS = [
    KeyError("no"),
    raised(lambda: open("/no/such/file")),  # noqa: PTH123, SIM115
    raised(lambda: b"\xff".decode()),
    raised(lambda: np.zeros(3).sum(axis=4)),
    urllib.error.URLError("no"),
    SyntaxError("no", ("file.py", 1, 2, "text")),
    ImportError("no", name="module", path="file.py"),
    ms.CapacityError("n2", "/dev/shm", 2, 1, "cure"),
    OfTwo(1, 2),
    Keyword(code=3),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_it_is_of_the_class_of_the_tasks_own_error(error):
    for made in (sent(error), pickle.loads(pickle.dumps(sent(error)))):
        assert isinstance(made, type(error))
        assert isinstance(made, ms.TaskError)
        assert (made.item, made.rank, made.host) == (7, 3, "n1")
        assert made.reason.startswith(type(error).__name__)
        assert type(error).__name__ in made.traceback
        assert repr(made.args) == repr(error.args)
        copy = made.__cause__
        assert type(copy) is type(error)
        assert (str(copy), vars(copy)) == (str(error), vars(error))
        facts = {"item", "rank", "host", "reason", "traceback"}
        for name in {"errno", "filename", "encoding", "start", "lineno", "name", "second", "code", "cure"} - facts:
            assert getattr(made, name, None) == getattr(copy, name, None) == getattr(error, name, None)
    assert task_error(CONTEXT, error).__cause__ is error


def test_an_error_of_a_task_within_a_task_keeps_its_class():
    inner = sent(OfTwo(1, 2), 5)
    outer = task_error(CONTEXT, raised(lambda: fail(inner)), 7)
    assert (isinstance(outer, OfTwo), outer.item, vars(outer)["second"]) == (True, 9, 2)
    assert outer.__cause__ is inner


def fail(cause):
    raise ItemFailed(2) from cause


ALONE = [Final("no"), ItemIsTaken("no"), SystemExit(1), KeyboardInterrupt(), StopIteration(1), OfTwo(1, sys.stdout)]
ALONE.append(ms.TaskError(0, 0, "n2", "no", ""))


@pytest.mark.parametrize("error", ALONE, ids=lambda error: type(error).__name__)
def test_errors_that_arrive_as_a_task_error_alone(error):
    assert type(sent(error)) is ms.TaskError
