"""Why tasks failed: the item and the error, as the other ranks hear of it.

A task's own error is taken apart to travel, and made again as a `TaskError` of its class. No `__init__` of its class is
called, as nobody knows the arguments with which the task called it: many classes take others than they leave in `args`.
So classes that pickle cannot make again travel, too.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, NamedTuple, TypeAlias

from mpishare.comm.context import Context
from mpishare.errors import TaskError, text_of_error
from mpishare.objects.pickling import PickledObject, pickle_object, unpickle_object

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


Facts: TypeAlias = tuple[int, int, str, str, str]
"""The arguments of `TaskError`."""

State: TypeAlias = tuple[type[BaseException], tuple[Any, ...], dict[str, Any]]
"""An exception taken apart: its class, its `args`, and its attributes."""


class Failure(NamedTuple):
    """What other ranks hear of a task's error.

    Attributes:
        facts: The item, the rank, the host, the text of the error and its traceback.
        state: The error taken apart; None if it cannot be made again on other ranks.
    """

    facts: Facts
    state: PickledObject | None

    @classmethod
    def of(cls, context: Context, error: BaseException, first: int = 0) -> Failure:
        """The failure of a task on this rank. The item that an `ItemFailed` names is counted from item `first` on."""
        item = first
        if isinstance(error, ItemFailed):
            item += error.args[0]
            error = error.__cause__ or error
        below = error.__traceback__ and error.__traceback__.tb_next  # the function that calls the tasks
        text = "".join(traceback.format_exception(type(error), error, below)).rstrip()
        return cls((item, context.topology.rank, context.topology.host, text_of_error(error), text), _state_of(error))

    def task_error(self, own: BaseException | None = None) -> TaskError:
        """The error for users. `own` is the task's own error, or its `ItemFailed`, where this rank ran the task."""
        error, cause = TaskError(*self.facts), own.__cause__ if isinstance(own, ItemFailed) else own
        if self.state is not None:
            with suppress(BaseException):  # its class may raise anything, or cannot be imported on this rank
                state = unpickle_object(self.state)
                error, cause = _typed(state, self.facts), cause or _made(*state)
        object.__setattr__(error, "__cause__", cause)  # as the class may refuse it
        return error


class _TypedTaskError(TaskError):
    """A `TaskError` whose last base is the class of the task's own error. `state` is that error, taken apart."""

    state: State

    def __reduce__(self) -> tuple[Any, ...]:
        return _typed, (self.state, (self.item, self.rank, self.host, self.reason, self.traceback))


def _state_of(error: BaseException) -> PickledObject | None:
    """The error taken apart. None if it cannot be made again, or ends a program or an iteration.

    All ranks have to raise an error of the same class, so this rank tries it before they do.
    """
    if isinstance(error, TaskError) and error.__cause__ is not None:
        error = error.__cause__  # of a task within a task
    if not isinstance(error, Exception) or isinstance(error, StopIteration | StopAsyncIteration):
        return None
    names = {name for kind in type(error).__mro__ for name, member in vars(kind).items() if _is_field(name, member)}
    fields = {name: getattr(error, name) for name in names if hasattr(error, name)}
    try:
        pickled = pickle_object((type(error), error.args, fields | vars(error)))
        _typed(unpickle_object(pickled), (0, 0, "", "", ""))
    except BaseException:  # user classes may raise anything, and the other ranks wait
        return None
    return pickled


def _is_field(name: str, member: object) -> bool:
    """Whether it is a slot, or a field of C such as `errno`. `AttributeError.obj`, of any size, stays behind."""
    is_internal = name.startswith("__") or name in ("args", "obj")
    return isinstance(member, GetSetDescriptorType | MemberDescriptorType) and not is_internal


def _made(kind: type[BaseException], args: tuple[Any, ...], attributes: dict[str, Any]) -> BaseException:
    """An exception of the class `kind`.

    Raises:
        Exception: The class cannot be made without its `__init__`.
    """
    builtin = kind
    while builtin.__module__ != "builtins":
        builtin = builtin.__base__  # type: ignore[assignment]
    error: BaseException = builtin.__new__(kind, *args)
    # By `object`, as a class may refuse it. OSError's `__new__` leaves the arguments to an `__init__` to come.
    for name, value in {"args": args, **attributes}.items():
        if getattr(error, name, error) is not value:
            object.__setattr__(error, name, value)
    return error


def _typed(state: State, facts: Facts) -> Any:
    """A `TaskError` of the exception's class.

    Raises:
        Exception: There can be no such class, as where a class can have no subclasses.
    """
    kind, args, attributes = state
    typed = type(f"TaskError[{kind.__name__}]", (_TypedTaskError, kind), {"__module__": "mpishare"})
    names = ("item", "rank", "host", "reason", "traceback", "state")
    return _made(typed, args, {**attributes, **dict(zip(names, (*facts, state), strict=True))})
