"""Why tasks failed: a task's own error as all ranks raise it, a `TaskError` of its class.

No `__init__` of that class is called, as nobody knows the arguments with which the task called it: many classes take
others than they leave in `args`. So errors that pickle cannot make again travel, too.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from mpishare.comm.context import Context
from mpishare.errors import TaskError, text_of_error
from mpishare.objects.pickling import pickle_object, unpickle_object

IN_TASK = "within a task"
"""Where a call was made, in errors."""


class ItemFailed(Exception):  # noqa: N818 - users never see it
    """The task of the item with the number `args[0]` failed. Its error is the `__cause__`."""


def apply_to_items(func: Callable[[Any], Any], items: Iterable[Any], first: int = 0) -> list[Any]:
    """`func(item)` for each of `items`.

    Args:
        func: The task.
        items: May raise as well, such as where an item cannot be unpickled.
        first: Number of the first item.

    Raises:
        ItemFailed: A task or an item raised.
    """
    results: list[Any] = []
    append = results.append
    try:
        for item in items:
            append(func(item))
    except (Exception, SystemExit) as error:
        raise ItemFailed(first + len(results)) from error
    return results


def task_error(context: Context, error: BaseException, first: int = 0) -> TaskError:
    """The error for users where a task on this rank has raised `error`. It can be pickled.

    It is a plain `TaskError` if the error ends a program or an iteration, or cannot be made again. As all ranks have to
    raise an error of the same class, this rank tries that first.

    Args:
        context: Of the communicator.
        error: The task's own error, or an `ItemFailed`, whose item is counted from `first` on.
        first: Number of the first item.
    """
    item = first
    if isinstance(error, ItemFailed):
        item, error = first + error.args[0], error.__cause__ or error
    below = error.__traceback__ and error.__traceback__.tb_next  # the function that calls the tasks
    text = "".join(traceback.format_exception(type(error), error, below)).rstrip()
    result = TaskError(item, context.topology.rank, context.topology.host, text_of_error(error), text)
    own = error.__cause__ or error if isinstance(error, TaskError) else error  # of a task within a task
    if isinstance(own, Exception) and not isinstance(own, StopIteration | StopAsyncIteration):
        with suppress(BaseException):  # code of the user's class may raise anything, and the other ranks wait
            _, args, *attributes = _builtin(type(own)).__reduce__(own)
            slots = {name for kind in type(own).__mro__ for name in vars(kind).get("__slots__", ())}
            fields = dict(*attributes) | {name: getattr(own, name) for name in slots if hasattr(own, name)}
            pickled = pickle_object(_typed(type(own), args, fields, vars(result)))
            result = unpickle_object(pickled)
    result.__cause__ = error
    return result


def _typed(kind: type[BaseException], args: tuple[Any, ...], attributes: dict[str, Any], facts: dict[str, Any]) -> Any:
    """A `TaskError` that is of the class `kind` as well. Its cause is an error of that class alone.

    Raises:
        Exception: There can be no such class, as where a class can have no subclasses.
    """
    parts = kind, args, attributes, facts
    members = {"__module__": "mpishare", "__reduce__": lambda _: (_typed, parts)}
    error = _made(type(f"TaskError[{kind.__name__}]", (TaskError, kind), members), args, attributes | facts)
    error.__cause__ = _made(kind, args, attributes)
    return error


def _made(kind: type[BaseException], args: tuple[Any, ...], attributes: dict[str, Any]) -> BaseException:
    """An exception of a class, without its `__init__`."""
    builtin = _builtin(kind)
    error: BaseException = builtin.__new__(kind, *args)
    builtin.__init__(error, *args)
    builtin.__setstate__(error, attributes)
    return error


def _builtin(kind: type[BaseException]) -> Any:
    """The class of Python below a class of exceptions."""
    return kind if kind.__module__ == "builtins" else _builtin(kind.__base__)  # type: ignore[arg-type]
